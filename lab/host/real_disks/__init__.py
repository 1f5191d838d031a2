"""Real disks: which of them guests may use, how one is claimed, and how one is measured.

Guard, leases and users need only Python's standard library and the kernel's ``/sys`` and ``/proc``,
so that tests can run them in any Linux guest. Problems with a disk are data: an ``Objection`` names
the rule and the evidence.
"""
