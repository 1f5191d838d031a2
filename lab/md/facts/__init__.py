"""Tables and rules of md and mdadm: levels, geometry, sizes, options, and refused arrays.

Pure. Sources are files and functions of mdadm and of the kernel's ``drivers/md``.
"""
