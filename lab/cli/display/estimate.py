"""How long a run should take: theory for its workloads, finished cells for everything else.

The time left of a running cell falls to 0 as it ends. A cell whose workloads theory does not cover
has no estimate before the first such cell has finished. Median error over four recorded runs: 2 to
23 % of the time left; 61 % at worst without the split into before, during and after the workloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from lab.analysis.predict import durations
from lab.compile.scenario.identity import cell_id
from lab.compile.schedule import CELL_SECONDS, GUEST_SECONDS
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Clock

FOLLOWED: Final = 100
"""Theory takes milliseconds for a cell: of more cells than these, the others are an average."""
OVERDUE: Final = 2.0
"""Times its expected time after which a step says nothing of when the run ends."""
AVERAGED: Final = 60.0
"""Seconds over which cells at once are averaged: how many fit together changes as a run goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is left of a run."""

    seconds: float
    """Of everything whose time is known."""
    unknown: int = 0
    """Cells under way or to come whose time is not known."""
    at_least: bool = False
    """It may be much more: disks are calibrated first, or a guest's boot is overdue."""
    late: bool = False
    """What is under way should have ended by now, and nothing is to come."""
    ending: bool = False
    """No cell is left: guests are being taken down."""


@dataclass(slots=True)
class _Going:
    """A cell under way."""

    since: float
    step_since: float
    expected: float | None = None
    """Seconds of the step, where it is a workload that theory knows."""
    begun: float = 0.0
    """Seconds by theory, of the workloads that have begun."""
    spent: float = 0.0
    """Seconds in workloads that have ended."""
    worked: float = 0.0
    """When the last workload ended; 0: none has."""


class Estimate:
    """What is left of a run, corrected by how long its parts really take."""

    def __init__(self, cells: Sequence[Cell], kind: str) -> None:
        followed = [_workloads(c) for c in cells[:FOLLOWED]]
        known = [seconds for seconds in followed if seconds is not None]
        average = sum(known) / len(known) if known else None
        times = [*followed, *[average] * (len(cells) - len(followed))]
        self._all = {cell_id(c): seconds for c, seconds in zip(cells, times, strict=True)}
        """Seconds of each cell's workloads; ``None``: theory is silent."""
        self._virtual = {cell_id(c) for c in cells if c.guest.clock is Clock.VIRTUAL}
        """Cells for which theory tells guest time."""
        self._virtual_took = self._virtual_theory = 0.0
        """Seconds of those that have ended: whole cells on the host, and their workloads."""
        self._cells = dict(self._all)
        """Those that are not done yet."""
        self._guest = GUEST_SECONDS[kind]
        self._before = [CELL_SECONDS[kind]]
        """Seconds of finished cells outside of their workloads, up to the last workload's end."""
        self._after = [0.0]
        """Seconds of finished cells from their last workload to their end."""
        self._learned = False
        """Whether a cell has told of both."""
        self._measured = self._expected = 0.0
        """Seconds of the workloads that have ended: on the clock, and by theory."""
        self._whole: list[float] = []
        """What finished cells took of which theory says nothing."""
        self._running: dict[str, _Going] = {}
        self._again: set[str] = set()
        """Cells to be repeated, one at a time."""
        self._at_once, self._since, self._first = 0.0, 0.0, 0.0
        """Cells under way, averaged over the last minute up to ``_since``; when the first began."""
        self._starting: float | None = None
        """When the guest that is awaited began to start."""
        self._guest_seen = False

    def guest_starts(self, at: float) -> None:
        """A guest is being started; said again, it is the same one."""
        if self._starting is None:
            self._starting = at

    def guest_restores(self, seconds: float) -> None:
        """The guest that is awaited comes from a snapshot, which takes at most so long."""
        self._guest = min(self._guest, seconds)

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
            self._again.add(cell)

    def cell_starts(self, cell: str, at: float) -> None:
        """A cell's first step begins; its guest is up."""
        self._guest_seen = True
        if cell in self._all:
            self._cells[cell] = self._all[cell]
        if not self._at_once:
            self._first = self._since = at
        self._at_once, self._since = self._average(at), at
        self._running[cell] = _Going(at, at)

    def step_starts(self, cell: str, expected: float | None, at: float) -> None:
        """A step of a cell begins, and ends the one before; ``expected`` in seconds."""
        going = self._running.get(cell)
        if going is None:
            return
        self._step_ends(going, at)
        going.step_since, going.expected = at, expected
        going.begun += expected or 0.0

    def cell_ends(self, cell: str, at: float, *, whole: bool = True) -> None:
        """A cell is done, or will not be done; only a ``whole`` one tells of the others' time."""
        mine = cell in self._cells
        expected = self._cells.pop(cell, None)
        self._again.discard(cell)
        self._at_once, self._since = self._average(at), at
        going = self._running.pop(cell, None)
        if not mine or going is None or not whole:
            return
        self._step_ends(going, at)
        if expected is None:
            self._whole.append(at - going.since)
            return
        if cell in self._virtual:
            self._virtual_took += at - going.since
            self._virtual_theory += expected
            return
        if not self._learned:
            self._before, self._after, self._learned = [], [], True
        after = at - going.worked if going.worked else 0.0
        self._after.append(after)
        self._before.append(max(at - going.since - going.spent - after, 0.0))

    def left(self, at: float) -> Left:
        """What there is to do, shared by as many cells at once as of late."""
        mine = {cell: going for cell, going in self._running.items() if cell in self._cells}
        going = [self._left_of(cell, one, at) for cell, one in mine.items()]
        waiting = [cell for cell in self._cells if cell not in self._running]
        coming = [self._time(cell) for cell in waiting if cell not in self._again]
        alone = [self._time(cell) for cell in waiting if cell in self._again]
        under_way = [seconds for seconds in going if seconds is not None]
        work = (sum(under_way) + _known(coming)) / max(self._average(at), 1.0)
        seconds = max([work, *under_way]) + _known(alone)
        unknown = [*going, *coming, *alone].count(None)
        if not self._running and not waiting:
            return Left(seconds=0.0, ending=True)
        overdue = any(
            one.expected and at - one.step_since > OVERDUE * one.expected * self._pace
            for one in mine.values()
        )
        late = bool(going) and not waiting and not unknown and (overdue or not seconds)
        return Left(
            seconds=self._boot(at) + seconds,
            unknown=unknown,
            at_least=len(mine) < len(self._running) or self._boot_overdue(at),
            late=late,
        )

    def _average(self, at: float) -> float:
        """Cells at once, averaged over the last minute."""
        span = min(at - self._first, AVERAGED)
        part = min((at - self._since) / span, 1.0) if span > 0 else 1.0
        return self._at_once + (len(self._running) - self._at_once) * part

    def _step_ends(self, going: _Going, at: float) -> None:
        if going.expected is not None:
            took = at - going.step_since
            going.spent, going.worked = going.spent + took, at
            self._measured, self._expected = self._measured + took, self._expected + going.expected
            going.expected = None

    @property
    def _pace(self) -> float:
        """How long workloads take, as a multiple of what theory says."""
        return self._measured / self._expected if self._expected else 1.0

    def _time(self, cell: str) -> float | None:
        """Seconds of a whole cell; ``None``: not known."""
        expected = self._cells[cell]
        if expected is not None and cell in self._virtual:
            theory = self._virtual_theory
            return expected * self._virtual_took / theory if theory else None
        if expected is not None:
            return median(self._before) + expected * self._pace + median(self._after)
        return median(self._whole) if self._whole else None

    def _left_of(self, cell: str, going: _Going, at: float) -> float | None:
        """Seconds of a cell under way; ``None``: not known."""
        in_step, elapsed = at - going.step_since, at - going.since
        total = self._cells[cell]
        if cell in self._virtual and total is not None:
            whole = self._time(cell)
            return max(whole - elapsed, 0.0) if whole is not None else None
        if total is None:
            return max(median(self._whole) - elapsed, 0.0) if self._whole else None
        after, to_come = median(self._after), max(total - going.begun, 0.0)
        if going.expected is not None:
            this = max(going.expected * self._pace - in_step, 0.0)
            return this + to_come * self._pace + after
        if going.begun and to_come < 0.01 * total:  # the last workload has ended
            return max(after - (at - going.worked), 0.0)
        before = max(median(self._before) - (elapsed - going.spent), 0.0)
        return before + to_come * self._pace + after

    def _boot(self, at: float) -> float:
        if self._guest_seen and (self._starting is None or self._running):
            return 0.0
        return max(0.0, self._guest - (at - self._starting if self._starting is not None else 0.0))

    def _boot_overdue(self, at: float) -> bool:
        """Whether no cell can begin, since the guest that is awaited takes far too long."""
        awaited = self._starting is not None and not self._running
        return awaited and at - (self._starting or 0.0) > OVERDUE * self._guest


def _known(seconds: Sequence[float | None]) -> float:
    return sum(s for s in seconds if s is not None)


def _workloads(cell: Cell) -> float | None:
    """Seconds that all workloads of a cell should take; ``None`` where theory does not know."""
    known = durations(cell)
    if cell.faults or any(w.name not in known for w in cell.workloads):
        return None
    return cell.trials * sum(known[w.name] for w in cell.workloads)
