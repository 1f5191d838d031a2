"""The array that a scenario builds on its disks."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, field_validator
from typing_extensions import override

from lab.core.base import Says, Size
from lab.core.stable import Stable, named
from lab.model.scenario.zfs import ZfsParameters


class InitialSync(StrEnum):
    """What to do about the sync that mdadm starts for a new redundant array."""

    ASSUME_CLEAN = "assume_clean"
    """``--assume-clean``: no sync. Correct on new disks, which read as zeros."""
    WAIT = "wait"
    """Wait until it ends before the first workload."""
    NONE = "none"
    """Run the workloads concurrently with it."""


_OF_SEGMENTS: Final = frozenset(("segments", "volume", "stripe_size"))


class Array(Stable):
    """Disks combined: an md array, in mdadm's terms, or a ZFS pool, with ZFS's in ``zfs``."""

    ALWAYS: ClassVar[frozenset[str]] = named(
        "kind level layout chunk component_size members spares bitmap bitmap_chunk",
        "bitmap_file data_offset metadata consistency_policy initial_sync write_mostly",
        "write_behind failfast name sysfs",
    )

    kind: str = "md"
    """An array kind, a file in ``lab/plugins/arrays/``."""
    level: str = "raid5"
    """0, 1, 4, 5, 6, 10 or mdadm's names for them; for a pool, ``raidz2``, ``mirror`` and so on."""
    layout: str | None = None
    """mdadm's ``--layout``; ``None``: the level's default."""
    chunk: Size | None = None
    """mdadm's ``--chunk``; ``None``: mdadm's 512 KiB (RAID 1 has no chunk)."""
    component_size: Size | None = None
    """``--size``: how much of each member is used; ``None``: all."""
    members: int | None = Field(default=None, ge=1, le=64)
    """Number of active members; ``None``: all disks that are not spares."""
    missing: int | None = Field(default=None, ge=1, le=64)
    """The member, from 1, that is absent: mdadm's word ``missing``. Its disk stays unused."""
    spares: int = Field(default=0, ge=0, le=63)
    """``--spare-devices``: the last disks; they replace members that fail."""
    bitmap: str = "none"
    """none, internal, external or lockless."""
    bitmap_chunk: Size | None = None
    """``--bitmap-chunk``: bytes of the array per bit; ``None``: mdadm's choice."""
    bitmap_file: str | None = None
    """``bitmap: external``: the bitmap's path in the guest, on a separate file system."""
    bitmap_disk: int | None = Field(default=None, ge=1, le=64)
    """``bitmap: external``: the disk, from 1, that gets an ext4 for the bitmap's file. It is never
    a member, whatever the bitmap."""
    journal_disk: int | None = Field(default=None, ge=1, le=64)
    """``--write-journal``: the disk, from 1, of the write journal of RAID 4, 5 or 6. It is never a
    member, whatever the policy."""
    data_offset: Size | None = None
    """``--data-offset``: first data byte on each member; ``None``: mdadm's choice."""
    metadata: str = "1.2"
    """``--metadata``: the superblock's version."""
    consistency_policy: str | None = None
    """resync, bitmap, journal or ppl; ``None``: mdadm's choice."""
    initial_sync: InitialSync = InitialSync.ASSUME_CLEAN
    """Skip it (correct on disks that read as zeros), wait for it, or run workloads concurrently."""
    write_mostly: tuple[int, ...] = ()
    """Members, from 1, that RAID 1 reads only if no other can be read; a number: this member."""
    write_behind: int | None = Field(default=None, ge=1, le=16383)
    """Outstanding writes by which write-mostly members may lag; needs a bitmap."""
    failfast: bool = False
    """``--failfast``: a member's first error counts, without retries by the driver."""
    bad_block_list: bool = True
    """Reserve 4 KiB on each disk for a list of bad blocks; false: ``bbl=no``, ``mdadm.conf(5)``."""
    name: Annotated[
        str, Says("a name such as bench: a small letter, then small letters, digits or _")
    ] = Field(default="bench", pattern=r"^[a-z][a-z0-9_]{0,30}$")
    """``/dev/md/NAME``; every mdadm accepts these characters."""
    sysfs: dict[str, str] = {}
    """Files in ``/sys/block/mdX/md/`` to write once the array runs (``stripe_cache_size``)."""
    segments: int | None = Field(default=None, ge=1, le=16)
    """``kind: segments``: number of partitions per disk, with an array across each."""
    volume: Literal["linear", "striped"] = "linear"
    """``kind: segments``: how LVM combines the arrays."""
    stripe_size: Size | None = None
    """``volume: striped``: LVM's ``--stripesize``, in bytes."""

    zfs: ZfsParameters = ZfsParameters()
    """``kind: zfs``: parameters that only a pool has."""

    @override
    def always(self) -> frozenset[str]:
        own = {"segments": _OF_SEGMENTS, "zfs": frozenset(("zfs",))}
        return self.ALWAYS | own.get(self.kind, frozenset())

    @override
    def never(self) -> frozenset[str]:
        return frozenset() if self.kind == "segments" else _OF_SEGMENTS

    def without(self, names: Iterable[str]) -> Array:
        """The array with the defaults of these fields; a name may be that of one sysfs file."""
        update: dict[str, Any] = {"sysfs": dict(self.sysfs)}
        for name in names:
            field, _, file = name.partition(".")
            if file:
                update["sysfs"].pop(file, None)
            else:
                update[field] = Array.model_fields[field].default
        return self.model_copy(update=update)

    @field_validator("level", mode="before", json_schema_input_type=str | int)
    @classmethod
    def _level_words(cls, level: object) -> object:
        return str(level) if isinstance(level, int) and not isinstance(level, bool) else level

    @field_validator("write_mostly", mode="before", json_schema_input_type=tuple[int, ...] | int)
    @classmethod
    def _one_member(cls, members: object) -> object:
        return (members,) if isinstance(members, int) else members  # an axis has no lists

    @field_validator("sysfs", mode="before", json_schema_input_type=dict[str, str | int | None])
    @classmethod
    def _sysfs_words(cls, sysfs: object) -> object:
        if not isinstance(sysfs, dict):
            return sysfs
        given = {k: v for k, v in sysfs.items() if v is not None}  # null: the kernel's default
        return {k: str(v) if isinstance(v, int) else v for k, v in given.items()}
