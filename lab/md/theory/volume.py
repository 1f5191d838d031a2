"""LVM volumes over md arrays that share their disks, as far as theory can simulate them.

``dm-linear.c: linear_map`` passes a request to one array at another offset, and LVM fills the first
array before the next. A workload that stays in the first array is simulated there. Theory does not
simulate several arrays on the same disks. So it covers neither the later arrays nor
``dm-stripe.c``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lab.md.facts.segments import data_start, segment_array, segment_geometry, segment_size
from lab.md.theory.paths import Load, SequentialLoad
from lab.model.scenario.document import Array, Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The first array of a volume."""

    array: Array
    disks: tuple[Disk, ...]
    """The disks, with the sizes of the array's members."""
    start: int
    """Array byte at which the volume starts."""


def first_segment(array: Array, disks: Sequence[Disk]) -> Segment:
    """Return the array across the first partition of each disk."""
    count = array.segments or 1
    shape = segment_geometry(array, [disk.size for disk in disks])
    cut = tuple(d.model_copy(update={"size": segment_size(d.size, count)}) for d in disks)
    return Segment(array=segment_array(array, 1), disks=cut, start=data_start(shape))


def stays(work: SequentialLoad | Load, room: int, *, alone: bool) -> bool:
    """Return whether a workload stays in the first ``room`` bytes; ``alone``: there are no
    others."""
    if isinstance(work, SequentialLoad):
        return work.offset + work.total <= room
    if work.span is not None:
        return work.offset + work.span <= room
    if work.total is not None and not work.random:
        return work.offset + work.total <= room
    return alone


def placed(work: SequentialLoad | Load, start: int, room: int | None) -> SequentialLoad | Load:
    """Return the workload in array offsets; without its own span it ends with ``room``."""
    if room is not None and isinstance(work, Load) and work.span is None:
        work = replace(work, span=room - work.offset)
    return replace(work, offset=work.offset + start) if start else work
