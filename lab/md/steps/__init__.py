"""Steps that build one md array of block devices, whatever they are, and read it back.

::

    build       mdadm's command line, the wait until the array is in sync and clean, its end
    readback    what the kernel says of it, and what it must say

Array kinds are made of these: ``lab/plugins/arrays/md.py`` of whole disks, ``segments.py`` of
partitions.
"""
