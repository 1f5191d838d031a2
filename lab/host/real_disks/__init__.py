"""Real disks: which may be passed through, and how one is held while it is.

The modules here need nothing but Python's standard library and the kernel's ``/sys`` and ``/proc``,
so that they can be tried in any Linux. What is wrong with a disk is data: an ``Objection`` says
which rule forbids it, and what was seen.
"""
