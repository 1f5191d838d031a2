"""A ZFS pool's own parameters, in ZFS's words; every one of them is set and read back."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from lab.core.base import Model, Says, Size
from lab.core.units import KIB, MIB

LEVELS = ("stripe", "mirror", "raidz", "raidz1", "raidz2", "raidz3")
"""``array.level`` of a pool: what each of its top-level vdevs is, ``zpoolconcepts(7)``."""

Compression = Annotated[
    str,
    StringConstraints(
        pattern=r"^(off|lz4|lzjb|zle|gzip(-[1-9])?|zstd(-([1-9]|1[0-9]))?|zstd-fast(-\d+)?)$"
    ),
    Says("off, lz4, lzjb, zle, gzip-N, zstd-N or zstd-fast-N"),
]
"""``compression`` of ``zfsprops(7)``; not ``on``, which is another one in each version."""


class ZfsParameters(Model):
    """``array.zfs``, where ``array.kind`` is zfs."""

    width: int | None = Field(default=None, ge=1, le=64)
    """Disks of each vdev; ``None``: 2 of a mirror, all of a raidz."""
    ashift: int = Field(default=12, ge=9, le=16)
    """Power of two of the smallest block that is written, ``zpoolprops(7)``."""
    recordsize: Size = Field(default=128 * KIB, ge=512, le=16 * MIB)
    """Largest block of a file, ``zfsprops(7)``."""
    compression: Compression = "off"
    sync: Literal["standard", "always", "disabled"] = "standard"
    atime: bool = False
    primarycache: Literal["all", "metadata", "none"] = "all"
    """What the ARC keeps."""
    arc_max: Size | None = Field(default=None, ge=64 * MIB)
    """The ARC's limit; ``None``: ZFS's own, half of the guest's memory."""
    volume_size: Size | None = Field(default=None, ge=MIB)
    """Of the volume that workloads without a file system are aimed at; ``None``: four fifths of
    what the pool has to give."""
    volblocksize: Size = Field(default=16 * KIB, ge=512, le=128 * KIB)
    """The volume's block."""
