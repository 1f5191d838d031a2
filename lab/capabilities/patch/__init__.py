"""Tests a patch series for md or mdadm: two images that differ in md's modules or mdadm only.

A matrix runs over both, and ``logic.py`` compares the results. Cells that differ get more trials
in the same runs (``run/more_trials.py``). It may import ``matrix``.
"""
