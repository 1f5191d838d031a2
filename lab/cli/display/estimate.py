"""Estimates a run's remaining time, from theory for workloads and from finished cells otherwise.

The estimate of a running cell reaches 0 at its end. A cell whose workloads theory does not cover
has no estimate until the first such cell has finished. Median error over four recorded runs: 2 to
23 % of the remaining time. Worst error without separate times before, during and after the
workloads: 61 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from lab.analysis.host_time import GUEST, host_seconds
from lab.analysis.predict import durations
from lab.compile.cell.rest import pauses_of
from lab.compile.scenario.identity import cell_id
from lab.compile.schedule import CELL_SECONDS, GUEST_SECONDS
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Clock

FOLLOWED: Final = 100
"""Most cells to predict, at some milliseconds each; the average stands for the others."""
OVERDUE: Final = 2.0
"""A step that takes this many times its expected time makes the run's end unknown."""
GRACE: Final = 15.0
"""Seconds that a whole cell may take longer than expected until its end is unknown."""
AVERAGED: Final = 60.0
"""Averaging time in seconds of the number of concurrent cells, which changes during a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Remaining time of a run."""

    seconds: float
    """Sum of all known times."""
    unknown: int = 0
    """Number of running and waiting cells without an estimate."""
    at_least: bool = False
    """It may be much longer: disks are calibrated first, or a guest's boot is overdue."""
    late: bool = False
    """The running cells should have ended, and no cell waits."""
    ending: bool = False
    """No cell remains: guests are being ended."""


@dataclass(slots=True)
class _Going:
    """A running cell."""

    since: float
    step_since: float
    expected: float | None = None
    """Expected seconds of the current step, if it is a workload that theory covers."""
    begun: float = 0.0
    """Expected seconds of all workloads that have begun."""
    spent: float = 0.0
    """Measured seconds of the workloads that have ended."""
    worked: float = 0.0
    """End time of the last workload; 0: none has ended."""


class Estimate:
    """Estimates the remaining time of a run, corrected by measured times."""

    def __init__(self, cells: Sequence[Cell], kind: str) -> None:
        self._all: dict[str, float | None] = {}
        """Expected seconds of each cell's workloads, of a sealed cell with its guests; ``None``:
        theory does not cover them."""
        self._virtual: set[str] = set()
        """Cells in virtual time."""
        self._virtual_took = self._virtual_theory = 0.0
        """Sums over ended virtual cells: measured host seconds, predicted host seconds."""
        self._cells: dict[str, float | None] = {}
        """Cells that are not finished."""
        self._guest = GUEST_SECONDS[kind]
        self._before = [CELL_SECONDS[kind]]
        """Seconds of finished cells before and between their workloads."""
        self._after = [0.0]
        """Seconds of finished cells from the last workload's end to the cell's end."""
        self._learned = False
        """Whether both lists have measured values."""
        self._measured = self._expected = 0.0
        """Sums over ended workloads: measured seconds, predicted seconds."""
        self._whole: list[float] = []
        """Seconds of finished cells that theory does not cover."""
        self._running: dict[str, _Going] = {}
        self._again: set[str] = set()
        """Cells that will be repeated, one at a time."""
        self._at_once, self._since, self._first = 0.0, 0.0, 0.0
        """Average number of running cells up to ``_since``, its time, and the first cell's
        start."""
        self._starting: float | None = None
        """Start time of the guest that is starting; ``None``: none is."""
        self._guest_seen = False
        self.add(cells)

    def add(self, cells: Sequence[Cell]) -> None:
        """Add cells that will run."""
        followed = [_workloads(c) for c in cells[:FOLLOWED]]
        known = [seconds for seconds in followed if seconds is not None]
        average = sum(known) / len(known) if known else None
        times = [*followed, *[average] * (len(cells) - len(followed))]
        added = {cell_id(c): seconds for c, seconds in zip(cells, times, strict=True)}
        self._all |= added
        self._cells |= added
        self._virtual |= {cell_id(c) for c in cells if c.guest.clock is Clock.VIRTUAL}

    def guest_starts(self, at: float) -> None:
        """A guest is starting; repeated calls before `guest_is_up` mean the same guest."""
        if self._starting is None:
            self._starting = at

    def guest_restores(self, seconds: float) -> None:
        """The starting guest is restored from a snapshot, within so many seconds."""
        self._guest = min(self._guest, seconds)

    def guest_is_up(self, at: float) -> None:
        """The guest can be used."""
        if self._starting is not None:
            self._guest = at - self._starting
        self._starting = None
        self._guest_seen = True

    def cell_again(self, cell: str) -> None:
        """A finished cell will be repeated."""
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
        """A step of a cell begins, and the previous one ends; ``expected`` in seconds."""
        going = self._running.get(cell)
        if going is None:
            return
        self._step_ends(going, at)
        going.step_since, going.expected = at, expected
        going.begun += expected or 0.0

    def cell_ends(self, cell: str, at: float, *, whole: bool = True) -> None:
        """A cell ended. Only if ``whole``, its duration is used for estimates of other cells."""
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
        """Return the remaining time, at the recent average number of concurrent cells."""
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
        over = sum(self._is_over(cell, one, at) for cell, one in mine.items())
        late = bool(going) and not waiting and unknown == over and (overdue or not seconds)
        return Left(
            seconds=self._boot(at) + seconds,
            unknown=unknown,
            at_least=len(mine) < len(self._running) or self._boot_overdue(at) or overdue,
            late=late,
        )

    def _average(self, at: float) -> float:
        """Return the number of concurrent cells, averaged over the last minute."""
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
        """Measured seconds of workloads divided by predicted seconds."""
        return self._measured / self._expected if self._expected else 1.0

    def _time(self, cell: str) -> float | None:
        """Return the estimated seconds of a whole cell; ``None``: unknown."""
        expected = self._cells[cell]
        if expected is not None and cell in self._virtual:
            theory = self._virtual_theory
            return expected * (self._virtual_took / theory if theory else 1.0)
        if expected is not None:
            return median(self._before) + expected * self._pace + median(self._after)
        return median(self._whole) if self._whole else None

    def _is_over(self, cell: str, going: _Going, at: float) -> bool:
        """Return whether a cell with an estimate of its whole time takes longer."""
        total = self._cells[cell]
        if total is not None and cell not in self._virtual:
            return False
        expected = self._time(cell)
        return expected is not None and at - going.since >= expected + GRACE

    def _left_of(self, cell: str, going: _Going, at: float) -> float | None:
        """Return the estimated remaining seconds of a running cell; ``None``: unknown."""
        in_step, elapsed = at - going.step_since, at - going.since
        total = self._cells[cell]
        if cell in self._virtual and total is not None:
            return _rest(self._time(cell) or 0.0, elapsed)
        if total is None:
            return _rest(median(self._whole), elapsed) if self._whole else None
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
        """Return whether no cell can begin because the starting guest takes far too long."""
        awaited = self._starting is not None and not self._running
        return awaited and at - (self._starting or 0.0) > OVERDUE * self._guest


def _rest(expected: float, elapsed: float) -> float | None:
    """Return the remaining seconds of a whole cell; ``None``: it takes longer than expected, and
    nobody knows how long."""
    return max(expected - elapsed, 0.0) if elapsed < expected + GRACE else None


def _known(seconds: Sequence[float | None]) -> float:
    return sum(s for s in seconds if s is not None)


def _workloads(cell: Cell) -> float | None:
    """Return the predicted seconds of a cell's workloads; ``None``: theory does not cover all."""
    virtual = cell.guest.clock is Clock.VIRTUAL
    known = host_seconds(cell) if virtual else durations(cell)
    if cell.faults or any(w.name not in known for w in cell.workloads):
        return None
    seconds = sum(known[w.name] for w in cell.workloads) + pauses_of(cell)
    return cell.trials * (seconds + (GUEST if virtual else 0.0))
