"""A ZFS pool's parameters, in ZFS's terms; all are set and verified."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from lab.core.base import Says, Size
from lab.core.stable import Stable, named
from lab.core.units import KIB, MIB

LEVELS = ("stripe", "mirror", "raidz", "raidz1", "raidz2", "raidz3")
"""``array.level`` of a pool: the type of its top-level vdevs, ``zpoolconcepts(7)``."""

Compression = Annotated[
    str,
    StringConstraints(
        pattern=r"^(off|lz4|lzjb|zle|gzip(-[1-9])?|zstd(-([1-9]|1[0-9]))?|zstd-fast(-\d+)?)$"
    ),
    Says("off, lz4, lzjb, zle, gzip-N, zstd-N or zstd-fast-N"),
]
"""``compression`` of ``zfsprops(7)``; without ``on``, whose meaning depends on the version."""


class ZfsParameters(Stable):
    """``array.zfs``, for ``array.kind: zfs``."""

    ALWAYS: ClassVar[frozenset[str]] = named(
        "width ashift recordsize compression sync atime primarycache arc_max",
        "volume_size volblocksize",
    )

    width: int | None = Field(default=None, ge=1, le=64)
    """Disks of each vdev; ``None``: 2 for a mirror, all for a raidz."""
    ashift: int = Field(default=12, ge=9, le=16)
    """Exponent of the smallest block size, ``zpoolprops(7)``."""
    recordsize: Size = Field(default=128 * KIB, ge=512, le=16 * MIB)
    """Largest block of a file, ``zfsprops(7)``."""
    compression: Compression = "off"
    sync: Literal["standard", "always", "disabled"] = "standard"
    atime: bool = False
    primarycache: Literal["all", "metadata", "none"] = "all"
    """What the ARC caches."""
    arc_max: Size | None = Field(default=None, ge=64 * MIB)
    """The ARC's limit; ``None``: ZFS's default, half of the guest's memory."""
    volume_size: Size | None = Field(default=None, ge=MIB)
    """Size of the volume for workloads without a file system; ``None``: four fifths of the pool's
    space."""
    volblocksize: Size = Field(default=16 * KIB, ge=512, le=128 * KIB)
    """Block size of the volume."""
