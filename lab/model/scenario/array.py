"""The array that a scenario has made of its disks."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from lab.core.base import Model, Says, Size
from lab.model.scenario.zfs import ZfsParameters


class InitialSync(StrEnum):
    """What becomes of the sync that mdadm starts when it makes a redundant array."""

    ASSUME_CLEAN = "assume_clean"
    """``--assume-clean``: true, not only assumed, on fresh all-zero disks."""
    WAIT = "wait"
    """Let mdadm start it, and wait for its end before the first workload."""
    NONE = "none"
    """Let mdadm start it, and run the workloads against it."""


class Array(Model):
    """Disks combined: an md array, in mdadm's words, or a pool with ZFS's own in ``zfs``."""

    kind: str = "md"
    """An array kind, a file in ``lab/plugins/arrays/``."""
    level: str = "raid5"
    """0, 1, 4, 5, 6, 10 or mdadm's names for them; of a pool, ``raidz2``, ``mirror`` and so on."""
    layout: str | None = None
    """mdadm's ``--layout``; ``None`` is the level's default."""
    chunk: Size | None = None
    """``None`` is mdadm's 512 KiB, and none for RAID 1."""
    component_size: Size | None = None
    """``--size``: how much of each member is used; ``None`` is all."""
    members: int | None = Field(default=None, ge=1, le=64)
    """How many disks are active members; ``None``: all that are not spares."""
    missing: int | None = Field(default=None, ge=1, le=64)
    """The member, from 1, that is not there: mdadm's word ``missing``. Its disk stays unused."""
    spares: int = Field(default=0, ge=0, le=63)
    """``--spare-devices``: the last disks, that step in for a member that fails."""
    bitmap: str = "none"
    """none, internal, external or lockless."""
    bitmap_chunk: Size | None = None
    """``--bitmap-chunk``: how much of the array a bit stands for; ``None`` is mdadm's choice."""
    bitmap_file: str | None = None
    """``bitmap: external``: the bitmap's path in the guest, on a file system of its own."""
    bitmap_disk: int | None = Field(default=None, ge=1, le=64)
    """``bitmap: external``: the disk, from 1, that gets an ext4 for the bitmap's file. It is never
    a member, whatever the bitmap."""
    data_offset: Size | None = None
    """``--data-offset``: where data begin on each member; ``None`` is mdadm's choice."""
    metadata: str = "1.2"
    """``--metadata``: the superblock's version."""
    consistency_policy: str | None = None
    """resync, bitmap or ppl; ``None`` leaves it to mdadm."""
    initial_sync: InitialSync = InitialSync.ASSUME_CLEAN
    """Leave it out (true on disks that read as zeros), wait for it, or run beside it."""
    write_mostly: tuple[int, ...] = ()
    """Members, from 1, that RAID 1 reads from only when it must."""
    write_behind: int | None = Field(default=None, ge=1, le=16383)
    """Outstanding writes that write-mostly members may lag by; needs a bitmap."""
    failfast: bool = False
    """``--failfast``: a member's first error counts, without the driver's retries."""
    name: Annotated[
        str, Says("a name such as bench: a small letter, then small letters, digits or _")
    ] = Field(default="bench", pattern=r"^[a-z][a-z0-9_]{0,30}$")
    """``/dev/md/NAME``; these letters are the ones that every mdadm accepts."""
    sysfs: dict[str, str] = {}
    """Files below ``/sys/block/mdX/md/`` to write once the array runs (``stripe_cache_size``)."""
    segments: int | None = Field(default=None, ge=1, le=16)
    """``kind: segments``: into how many partitions each disk is cut, an array across each."""
    volume: Literal["linear", "striped"] = "linear"
    """``kind: segments``: how LVM puts the arrays together."""
    stripe_size: Size | None = None
    """``volume: striped``: LVM's ``--stripesize``, in bytes."""

    zfs: ZfsParameters = ZfsParameters()
    """``kind: zfs``: what a pool has and md does not."""

    @model_serializer(mode="wrap")
    def _without_strangers(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What an array does not use it does not mention: its cells keep their names."""
        data: dict[str, Any] = whole(self)
        if self.kind != "segments":
            for name in ("segments", "volume", "stripe_size"):
                data.pop(name, None)
        if self.kind != "zfs" and self.zfs == ZfsParameters():
            data.pop("zfs", None)
        for name in ("missing", "bitmap_disk"):
            if data.get(name) is None:
                data.pop(name, None)
        return data

    @field_validator("level", mode="before", json_schema_input_type=str | int)
    @classmethod
    def _level_words(cls, level: object) -> object:
        return str(level) if isinstance(level, int) and not isinstance(level, bool) else level

    @field_validator("sysfs", mode="before", json_schema_input_type=dict[str, str | int | None])
    @classmethod
    def _sysfs_words(cls, sysfs: object) -> object:
        if not isinstance(sysfs, dict):
            return sysfs
        given = {k: v for k, v in sysfs.items() if v is not None}  # null: as the kernel has it
        return {k: str(v) if isinstance(v, int) else v for k, v in given.items()}
