"""How long a run should take: what theory says of its workloads, and the time around them.

Where theory is silent, finished cells tell; until one has, nobody knows, and that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from lab.compile.identity import cell_id
from lab.compile.schedule import CELL_SECONDS, GUEST_SECONDS
from lab.model.scenario import Cell
from lab.predict import durations

FOLLOWED = 100
"""Theory takes milliseconds for a cell: of more cells than these, the others are an average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is left of a run."""

    seconds: float
    """Of everything whose time is known."""
    unknown: int = 0
    """Cells under way or to come of whose time nobody can say anything yet."""
    late: bool = False
    """All that is left should have ended by now."""


class Estimate:
    """What is left of a run, corrected by how long its parts really take."""

    def __init__(self, cells: Sequence[Cell], kind: str) -> None:
        followed = [_workloads(c) for c in cells[:FOLLOWED]]
        known = [seconds for seconds in followed if seconds is not None]
        average = sum(known) / len(known) if known else None
        times = [*followed, *[average] * (len(cells) - len(followed))]
        self._all = {cell_id(c): seconds for c, seconds in zip(cells, times, strict=True)}
        """Seconds of each cell's workloads; ``None``: theory is silent."""
        self._cells = dict(self._all)
        """Those that are not done yet."""
        self._guest = GUEST_SECONDS[kind]
        self._around = CELL_SECONDS[kind]
        self._beyond: list[float] = []
        """What finished cells took beyond theory's time."""
        self._whole: list[float] = []
        """What finished cells took of which theory says nothing."""
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

    def cell_again(self, cell: str) -> None:
        """A cell that was done is to be repeated."""
        if cell in self._all:
            self._cells[cell] = self._all[cell]

    def cell_starts(self, cell: str, at: float) -> None:
        """A cell's first step begins."""
        self.cell_again(cell)
        self._running[cell] = at
        self._side_by_side = max(self._side_by_side, len(self._running))

    def cell_ends(self, cell: str, at: float, *, whole: bool = True) -> None:
        """A cell is done, or will not be done; only a ``whole`` one tells of the others' time."""
        mine = cell in self._cells
        expected = self._cells.pop(cell, None)
        since = self._running.pop(cell, None)
        if not mine or since is None or not whole:
            return
        if expected is None:
            self._whole.append(at - since)
        else:
            self._beyond.append(max(at - since - expected, 0.0))
            self._around = median(self._beyond)

    def left(self, at: float) -> Left:
        """What there is to do, shared by the guests that were seen at once."""
        going = {
            cell: None if (time := self._time(cell)) is None else max(0.0, time - (at - since))
            for cell, since in self._running.items()
        }
        coming = [self._time(cell) for cell in self._cells if cell not in self._running]
        under_way = [seconds for seconds in going.values() if seconds is not None]
        waiting = [seconds for seconds in coming if seconds is not None]
        work = (sum(under_way) + sum(waiting)) / self._side_by_side
        seconds = self._boot(at) + max([work, *under_way])
        unknown = len(going) + len(coming) - len(under_way) - len(waiting)
        late = bool(going) and not coming and not unknown and not seconds
        return Left(seconds=seconds, unknown=unknown, late=late)

    def _time(self, cell: str) -> float | None:
        """Seconds of a whole cell; ``None``: nobody knows."""
        if cell not in self._cells:
            return 0.0  # a disk's calibration, which is no cell of the run
        expected = self._cells[cell]
        if expected is not None:
            return expected + self._around
        return median(self._whole) if self._whole else None

    def _boot(self, at: float) -> float:
        if self._guest_seen and (self._starting is None or self._running):
            return 0.0
        return max(0.0, self._guest - (at - self._starting if self._starting is not None else 0.0))


def _workloads(cell: Cell) -> float | None:
    """Seconds that all workloads of a cell should take; ``None`` where theory does not know."""
    known = durations(cell)
    if cell.faults or any(w.name not in known for w in cell.workloads):
        return None
    return cell.trials * sum(known[w.name] for w in cell.workloads)
