"""Finds the version, patch or commit that changed a verdict or a value.

With a tree it builds kernels of the user's repository (``host/images/linux.py``), and the driver of
virtual time with them. ``logic/`` is the search. It may import ``matrix``.
"""
