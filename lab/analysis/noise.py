"""The noise floor of a host, from repeated runs of unchanged cells.

The relative differences between runs are pooled over cells, for each metric and disk model. Trials
of one run do not count, because they share a guest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lab.compile.guest.seeds import draws
from lab.compile.guest.virtual_time import is_sealed
from lab.core.statistics import LEVEL, Spread, pooled, reach
from lab.model.result.document import SAME
from lab.model.result.noise import NoiseFloor
from lab.model.scenario.document import Cell

ENOUGH: Final = 5
"""Fewest degrees of freedom for using a host's own noise; with fewer, Student's t exceeds 2.6."""

SEALED: Final = "sealed"
"""What ``disks_of`` calls the disks of a cell in virtual time in which nothing is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """A value of one run; those with the same ``what`` should be equal."""

    what: tuple[str, ...]
    disks: str
    metric: str
    run: str
    figure: float


def disks_of(cell: Cell) -> str:
    """The disk models of a cell, which determine its noise."""
    if is_sealed(cell) and not draws(cell):
        return SEALED
    return "+".join(sorted({disk.model for disk in cell.disks if disk.count})) or "none"


def floors(repetitions: Iterable[Repetition]) -> tuple[NoiseFloor, ...]:
    """Return the noise floor for each disk model and metric with repetitions."""
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
    """A host's own noise; ``None`` if it is not known well enough."""
    if disks == SEALED:
        return Spread(deviation=SAME, freedom=ENOUGH)
    for floor in known:
        if (floor.disks, floor.metric) == (disks, metric) and floor.freedom >= ENOUGH:
            return Spread(deviation=floor.deviation, freedom=floor.freedom)
    return None


def share_of(known: Sequence[NoiseFloor], disks: str, metric: str, level: float = LEVEL) -> float:
    """Return the relative error of a run's value; 0: its noise is unknown."""
    spread = spread_of(known, disks, metric)
    return reach(spread, level) if spread else 0.0
