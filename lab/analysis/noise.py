"""The noise floor of a host: A/A comparisons of cells that were run more than once.

A run's figures for a cell differ from the next run's although nothing was changed. How far, in
shares of the figure, is pooled over cells for each metric and kind of disk. Trials within a run do
not count: they share a guest, and its luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lab.core.statistics import LEVEL, Spread, pooled, reach
from lab.model.result.measurement import IOPS, SECONDS, THROUGHPUT
from lab.model.result.noise import NoiseFloor
from lab.model.scenario.document import Cell

ENOUGH: Final = 5
"""Degrees of freedom from which on a host's own noise is believed; the t of fewer is beyond 2.6."""

USUAL: Final = Spread(deviation=0.0023, freedom=9)
"""Throttled disks where nobody has measured yet: nine figures of ``raid5-parity-last``, run twice
on two processors without KVM."""
_KNOWN: Final = (THROUGHPUT.name, IOPS.name, SECONDS.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """A figure of one run; those with the same ``what`` should be equal."""

    what: tuple[str, ...]
    disks: str
    metric: str
    run: str
    figure: float


def disks_of(cell: Cell) -> str:
    """The kind of disk that a cell's noise hangs on."""
    return "+".join(sorted({disk.model for disk in cell.disks if disk.count})) or "none"


def floors(repetitions: Iterable[Repetition]) -> tuple[NoiseFloor, ...]:
    """What repetitions tell, for each kind of disk and metric that has any."""
    kinds: dict[tuple[str, str], dict[tuple[str, ...], dict[str, float]]] = {}
    for one in repetitions:
        if one.figure > 0:
            groups = kinds.setdefault((one.disks, one.metric), {})
            groups.setdefault(one.what, {})[one.run] = math.log(one.figure)
    found = []
    for (disks, metric), groups in sorted(kinds.items()):
        spread = pooled([list(group.values()) for group in groups.values()])
        if spread.freedom:
            runs = {run for group in groups.values() if len(group) > 1 for run in group}
            found.append(
                NoiseFloor(
                    disks=disks,
                    metric=metric,
                    deviation=spread.deviation,
                    freedom=spread.freedom,
                    runs=len(runs),
                )
            )
    return tuple(found)


def spread_of(known: Sequence[NoiseFloor], disks: str, metric: str) -> Spread | None:
    """A host's own noise where it is known well enough, else the usual one; ``None`` for none."""
    for floor in known:
        if (floor.disks, floor.metric) == (disks, metric) and floor.freedom >= ENOUGH:
            return Spread(deviation=floor.deviation, freedom=floor.freedom)
    return USUAL if disks == "throttle" and metric in _KNOWN else None


def share_of(known: Sequence[NoiseFloor], disks: str, metric: str, level: float = LEVEL) -> float:
    """By which share a run's figure may be off; 0 where nothing is known of its noise."""
    spread = spread_of(known, disks, metric)
    return reach(spread, level) if spread else 0.0
