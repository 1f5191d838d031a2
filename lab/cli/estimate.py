"""How long a run should take: what theory says of its workloads, and the time around them."""

from __future__ import annotations

from collections.abc import Sequence

from lab.compile.scenario import cell_id
from lab.compile.schedule import CELL_SECONDS, GUEST_SECONDS
from lab.model.scenario import Cell
from lab.predict import durations

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
        self._all = {cell_id(c): seconds for c, seconds in zip(cells, times, strict=True)}
        self._cells = dict(self._all)
        """Those that are not done yet."""
        self._guest = GUEST_SECONDS[kind]
        self._around = CELL_SECONDS[kind]
        self._running: dict[str, float] = {}
        """When each cell under way began."""
        self._side_by_side = 1
        self._starting: float | None = None
        """When the guest that is awaited began to start."""
        self._guest_seen = False

    def guest_starts(self, at: float) -> None:
        """A guest is being started; said again, it is the same one."""
        if self._starting is None:
            self._starting = at

    def guest_is_up(self, at: float) -> None:
        """A guest can be used."""
        if self._starting is not None:
            self._guest = at - self._starting
        self._starting = None
        self._guest_seen = True

    def cell_starts(self, cell: str, at: float) -> None:
        """A cell's first step begins; of one that was done, because it is repeated."""
        if cell in self._all:
            self._cells[cell] = self._all[cell]
        self._running[cell] = at
        self._side_by_side = max(self._side_by_side, len(self._running))

    def cell_ends(self, cell: str, at: float) -> None:
        """A cell is done, or will not be done."""
        expected = self._cells.pop(cell, None)
        since = self._running.pop(cell, None)
        if expected is not None and since is not None:
            self._around = max(at - since - expected, 0.0)

    def left(self, at: float) -> float:
        """Seconds to go: the work that is left, shared by the guests that were seen at once."""
        going = {c: max(0.0, self._whole(c) - (at - t)) for c, t in self._running.items()}
        waiting = sum(self._whole(c) for c in self._cells if c not in self._running)
        work = (sum(going.values()) + waiting) / self._side_by_side
        return self._boot(at) + max([work, *going.values()])

    def _whole(self, cell: str) -> float:
        return self._cells[cell] + self._around if cell in self._cells else 0.0

    def _boot(self, at: float) -> float:
        if self._guest_seen and (self._starting is None or self._running):
            return 0.0
        return max(0.0, self._guest - (at - self._starting if self._starting is not None else 0.0))


def _workloads(cell: Cell) -> float:
    """Seconds that all workloads of a cell should take."""
    known = durations(cell)
    return cell.trials * sum(known.get(w.name, UNKNOWN_SECONDS) for w in cell.workloads)
