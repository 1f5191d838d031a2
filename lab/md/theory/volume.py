"""A volume of LVM over md arrays that share their disks: what of it theory can follow.

``dm-linear.c: linear_map`` hands a request on to one array, at another place; LVM fills the first
array before it goes on with the next. A workload that stays in the first one is that array's own.
Behind its end lies another array on the same disks, with a stripe cache and a thread of its own,
and ``dm-stripe.c`` goes round all of them: theory follows one array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lab.md.facts.segments import data_start, segment_array, segment_geometry, segment_size
from lab.md.theory.paths import Load, SequentialLoad
from lab.model.scenario.document import Array, Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The first of a volume's arrays."""

    array: Array
    disks: tuple[Disk, ...]
    """As large as its members are."""
    start: int
    """Byte of the array at which the volume begins."""


def first_segment(array: Array, disks: Sequence[Disk]) -> Segment:
    """The array across the first partition of each disk."""
    count = array.segments or 1
    shape = segment_geometry(array, [disk.size for disk in disks])
    cut = tuple(d.model_copy(update={"size": segment_size(d.size, count)}) for d in disks)
    return Segment(array=segment_array(array, 1), disks=cut, start=data_start(shape))


def stays(work: SequentialLoad | Load, room: int, *, alone: bool) -> bool:
    """Whether a workload never leaves the first ``room`` bytes; ``alone``: there are no others."""
    if isinstance(work, SequentialLoad):
        return work.offset + work.total <= room
    if work.span is not None:
        return work.offset + work.span <= room
    if work.total is not None and not work.random:
        return work.offset + work.total <= room
    return alone


def placed(work: SequentialLoad | Load, start: int, room: int | None) -> SequentialLoad | Load:
    """The workload on the array itself; without a span of its own it ends where ``room`` does."""
    if room is not None and isinstance(work, Load) and work.span is None:
        work = replace(work, span=room - work.offset)
    return replace(work, offset=work.offset + start) if start else work
