"""How long a run should take: what theory says of its workloads, and the time around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.compile.scenario import cell_id
from lab.model.scenario import Cell
from lab.predict import predictions

GUEST_SECONDS = {"kvm": 10.0, "tcg": 40.0}
"""All of a guest's start, until the first has told better."""
CELL_SECONDS = {"kvm": 4.0, "tcg": 12.0}
"""What a cell takes beyond its workloads, until the first has told better."""
UNKNOWN_SECONDS = 20.0
"""A workload that theory says nothing of."""
FOLLOWED = 100
"""Theory takes milliseconds for a cell: of more cells than these, the others are an average."""


class Estimate:
    """What is left of a run, corrected by how long its parts really take."""

    def __init__(self, cells: Sequence[Cell], kind: str) -> None:
        followed = [_workloads(c) for c in cells[:FOLLOWED]]
        average = sum(followed) / len(followed) if followed else 0.0
        times = [*followed, *[average] * (len(cells) - len(followed))]
        self._cells = {cell_id(c): seconds for c, seconds in zip(cells, times, strict=True)}
        self._guest = GUEST_SECONDS[kind]
        self._around = CELL_SECONDS[kind]
        self._guests = len({c.guest for c in cells}) or 1
        self._now: _Part | None = None

    def guest_starts(self, at: float) -> None:
        """A guest is being started; said again, it is the same one."""
        if self._now is None or self._now.cell is not None:
            self._now = _Part(None, at)
        self._guests = max(self._guests, 1)  # one more than planned, where another was lost

    def guest_is_up(self, at: float) -> None:
        """A guest can be used."""
        if self._now is not None:
            self._guest = at - self._now.since
        self._guests -= 1
        self._now = None

    def cell_starts(self, cell: str, at: float) -> None:
        """A cell's first step begins."""
        self._now = _Part(cell, at)

    def cell_ends(self, cell: str, at: float) -> None:
        """A cell is done, or will not be done."""
        expected = self._cells.pop(cell, None)
        if expected is not None and self._now is not None:
            self._around = max(at - self._now.since - expected, 0.0)
        self._now = None

    def left(self, at: float) -> float:
        """Seconds to go."""
        whole = self._guests * self._guest
        whole += sum(seconds + self._around for seconds in self._cells.values())
        if self._now is None:
            return whole
        if self._now.cell is None:
            part = self._guest
        elif self._now.cell in self._cells:
            part = self._cells[self._now.cell] + self._around
        else:
            return whole
        return whole - min(at - self._now.since, part)


@dataclass(frozen=True, slots=True)
class _Part:
    """What is under way: a cell, or (``None``) the start of a guest."""

    cell: str | None
    since: float


def _workloads(cell: Cell) -> float:
    """Seconds that all workloads of a cell should take."""
    known = {p.workload: p.value for p in predictions(cell) if p.metric == "seconds"}
    return cell.trials * sum(known.get(w.name, UNKNOWN_SECONDS) for w in cell.workloads)
