"""Runs seed after seed until one goes wrong, and stops a stored cell at a time to look at it.

``run.py`` adds cells with further seeds to its run, as ``trials: auto`` does; ``logic/findings.py``
reads each finished cell, ``logic/smaller.py`` proposes smaller scenarios. ``debug.py`` starts a
guest that stops itself (``host/guest/virtual/stopping.py``). It may import ``reproduce``.
"""
