"""Partitioned disks, an md array across each partition, LVM over the arrays: sizes in bytes.

Sources: ``sfdisk(8)`` (GPT: 1 MiB at the start, 33 sectors at the end), ``lvm2`` ``metadata/pv.c``
and ``format_text/format-text.c: _text_pv_setup`` (data begin at the first multiple of the alignment
after the metadata, which end at 1 MiB), ``vgcreate(8)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from lab.core.units import KIB, MIB, format_size
from lab.md.facts.geometry import Geometry
from lab.md.facts.rules import array_problems
from lab.md.facts.sizes import geometry_of
from lab.model.plugin import Problem
from lab.model.scenario.document import Array

EXTENT: Final = 4 * MIB
"""LVM's default physical extent; a partial extent at the end of an array is unused."""
LARGEST_NAME: Final = 30
"""Longest common name of the arrays, in letters; md accepts 32 with the number."""
DEFAULT_STRIPE: Final = 64 * KIB
"""LVM's default, ``lvcreate(8)``."""


def segment_size(disk: int, segments: int) -> int:
    """Return the bytes of each partition of a disk, in whole MiB."""
    return (disk - 2 * MIB) // segments // MIB * MIB


def segment_array(array: Array, number: int) -> Array:
    """Return the md array across the ``number``-th partition of each disk, from 1."""
    name = f"{array.name}{number}"
    return array.model_copy(update={"kind": "md", "name": name, "segments": None})


def segment_geometry(array: Array, sizes: Sequence[int]) -> Geometry:
    """Return the geometry of each of the arrays, on disks of these sizes."""
    return geometry_of(
        segment_array(array, 1), [segment_size(size, array.segments or 1) for size in sizes]
    )


def data_start(shape: Geometry) -> int:
    """Return the array byte at which LVM's data starts: whole stripes, after 1 MiB of metadata."""
    unit = shape.stripe or shape.chunk or MIB
    return -(-MIB // unit) * unit


def volume_bytes(size: int, start: int) -> int:
    """Return the bytes that an array of ``size`` bytes adds to the volume: extents from
    ``start``."""
    return max(size - start, 0) // EXTENT * EXTENT


def segment_problems(array: Array, sizes: Sequence[int]) -> Iterable[Problem]:
    """Yield problems that the partition table, mdadm, the kernel or LVM would report."""
    count = array.segments
    if count is None:
        yield Problem(
            key="array.segments",
            message="kind: segments needs the number of partitions per disk: write 4, for example",
        )
        return
    yield from _volume_problems(array, count)
    if len(array.name) > LARGEST_NAME:
        yield Problem(
            key="array.name",
            message=f"{array.name!r} is too long, because a number follows: write at most "
            f"{LARGEST_NAME} letters",
        )
    if array.bitmap == "external" or array.bitmap_disk is not None:
        yield Problem(
            key="array.bitmap" if array.bitmap == "external" else "array.bitmap_disk",
            message="segments have no external bitmaps: set bitmap to internal or none, and remove "
            "bitmap_disk",
        )
        return
    if array.journal_disk is not None:
        yield Problem(
            key="array.journal_disk", message="segments have no write journals: remove it"
        )
        return
    cut = [segment_size(size, count) for size in sizes]
    if cut and min(cut) < MIB:
        yield Problem(
            key="array.segments",
            message=f"{count} partitions of a disk of {format_size(min(sizes))} have less than "
            "1MiB each: lower it, or write larger disks",
        )
        return
    refused = list(array_problems(segment_array(array, 1), cut))
    for problem in refused:
        yield Problem(
            key=problem.key,
            message=f"in a segment of {format_size(min(cut, default=0))}, {problem.message}",
            idle_by=problem.idle_by,
            kept=problem.kept,
        )
    shape = None if refused else segment_geometry(array, sizes)
    if shape is None or not shape.level.redundant:
        return
    if not volume_bytes(shape.size, data_start(shape)):
        yield Problem(
            key="array.segments",
            message=f"the array across one of {count} segments is smaller than LVM's extent of "
            f"{format_size(EXTENT)}: lower it, or write larger disks",
        )


def _volume_problems(array: Array, count: int) -> Iterable[Problem]:
    size = array.stripe_size
    if array.volume == "striped" and count < 2:
        yield Problem(
            key="array.volume",
            message="a striped volume needs 2 segments or more: write linear, or raise segments",
            idle_by="array.segments",
        )
    if size is None:
        return
    if array.volume != "striped":
        yield Problem(
            key="array.stripe_size",
            message=f"only a striped volume has it, and volume is {array.volume}: set volume to "
            "striped, or remove it",
            idle_by="array.volume",
        )
    elif not 4 * KIB <= size <= EXTENT or size & (size - 1):
        yield Problem(
            key="array.stripe_size",
            message=f"{format_size(size)} is not a stripe size of LVM: write a power of two from "
            f"4KiB to {format_size(EXTENT)}",
        )
