"""Evicts what OpenZFS's ARC may evict, as ``zinject -a`` does; Debian has that in another package.

``zio_inject.c: zio_inject_fault`` calls ``arc_flush``. A mounted file system holds what it used.
"""

from __future__ import annotations

import fcntl
import struct
import sys

INJECT_FAULT = 0x5A1D
"""``ZFS_IOC_INJECT_FAULT``, ``sys/fs/zfs.h``."""
SIZE, FLAGS = 16384, 12592
"""Bytes that the kernel may read, at least a ``zfs_cmd_t``; where its ``zc_guid`` is, which holds
the flags (``sys/zfs_ioctl.h``)."""
ONLY_FLUSH = 0x1 | 0x2
"""``ZINJECT_NULL`` and ``ZINJECT_FLUSH_ARC``: no fault."""
KEPT = ("mru_evictable_data", "mfu_evictable_data")


def kept(path: str) -> int:
    """Return bytes of data that could be evicted, and were not."""
    with open(path) as file:
        words = [line.split() for line in file]
    return sum(int(line[2]) for line in words if line and line[0] in KEPT)


def main(device: str, statistics: str) -> str | int:
    """Evict, and check it: another version of ZFS may have another ``zfs_cmd_t``."""
    command = bytearray(SIZE)
    struct.pack_into("=Q", command, FLAGS, ONLY_FLUSH)
    with open(device, "r+b", buffering=0) as file:
        fcntl.ioctl(file, INJECT_FAULT, command)
    left = kept(statistics)
    return f"ZFS's ARC still has {left} bytes of data that it can evict" if left else 0


if __name__ == "__main__":
    sys.exit(main("/dev/zfs", "/proc/spl/kstat/zfs/arcstats"))
