"""Rules of md and of the block layer that depend on the kernel's version; ``None``: unknown.

Changes are merged before a release's first candidate, so a candidate (``6.14-rc1``) has them too.
"""

from __future__ import annotations

from typing import Final

from lab.core.versions import in_range, release_of

UNPLUGGED: Final = ">=6.5"
"""Kernels that do not plug each write to a block device (``block/fops.c: blkdev_write_iter``,
commit 712c7364655f)."""

ROWS: Final = (">=6.14", ">=6.13.2 <6.14", ">=6.12.13 <6.13")
"""Kernels in which a write to RAID 4, 5 and 6 marks whole rows of chunks in the bitmap
(``raid5.c: raid5_bitmap_sector``): 6.14 and the stable releases that received it. Debian's 6.1.192
does not have it."""

PERHAPS_ROWS: Final = ">=6.6.77 <6.7"
"""Stable releases of 6.6 of which one received it."""


def plugs_writes(version: str | None) -> bool | None:
    """Whether a kernel plugs each write to a block device."""
    release = release_of(version)
    return None if release is None else not in_range(release, UNPLUGGED)


def marks_whole_rows(version: str | None) -> bool | None:
    """Whether a write marks whole rows of chunks in the bitmap."""
    release = release_of(version)
    if release is None or in_range(release, PERHAPS_ROWS):
        return None
    return any(in_range(release, bounds) for bounds in ROWS)
