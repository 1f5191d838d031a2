"""Tasks of a run: cells, and calibrations of their disks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.analysis import measure
from lab.analysis.disk_speed import unjudged
from lab.analysis.host_time import GUEST, host_seconds
from lab.analysis.predict import durations, predictions, written
from lab.compile import schedule
from lab.compile.cell.rest import pauses_of
from lab.compile.guest.steps import memory_of
from lab.compile.scenario.identity import cell_id
from lab.model.result.document import Outcome
from lab.model.result.measurement import UNCONTENDED, Check
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Clock, Guest
from lab.run.calibration import Wanted
from lab.store.runs import StoredOutcome


@dataclass(slots=True, kw_only=True)
class Task:
    """A waiting or running cell or calibration."""

    cell: Cell
    id: str
    seconds: float
    """Expected duration of its workloads."""
    need: schedule.Need
    wish: Wanted | None = None
    """Calibration to make; ``None``: the task is a cell of the scenario."""
    alone: bool = False
    """Run it without concurrent cells, because it was contended."""
    concurrent: int = 1
    """Most cells that ran at once during its last attempt, including itself."""
    repeats: int = 0
    """Repetitions because of contention."""
    best: tuple[Path, StoredOutcome] | None = None
    """The earlier attempt with the fewest contended workloads."""
    retried: bool = False
    """An attempt failed because its guest was lost."""
    directory: Path = Path()
    started: bool = False
    checks: list[Check] = field(default_factory=list)

    def contention(self, raw: Mapping[str, str]) -> tuple[Check, ...]:
        """Return a check for each workload: whether it got the CPU time that it needed.

        Empty in virtual time, and for modelled drives in real time, whose values are not judged.
        """
        if self.need.virtual or unjudged(self.cell):
            return ()
        if self.wish:
            expected = self.wish.expected()
        else:
            expected = predictions(self.cell, kernel=measure.environment(raw).get("kernel"))
        return measure.contention(self.cell, raw, expected)

    def remember(self, outcome: StoredOutcome) -> None:
        """Keep a contended attempt if it is the least contended one so far."""
        if outcome.outcome is Outcome.DONE:
            self.best = self.least_contended(outcome)

    def least_contended(self, outcome: StoredOutcome) -> tuple[Path, StoredOutcome]:
        """Return directory and outcome of the attempt with the fewest contended workloads."""
        here = self.directory, outcome
        if self.best is None or outcome.outcome is not Outcome.DONE:
            return here
        return min(here, self.best, key=lambda attempt: _contended(attempt[1]))


def _contended(outcome: StoredOutcome) -> int:
    return sum(c.name == UNCONTENDED and not c.passed for c in outcome.checks)


def task_of(cell: Cell) -> Task:
    """Return the task of a scenario's cell."""
    return Task(
        cell=cell,
        id=cell_id(cell),
        seconds=seconds_of(cell),
        need=need_of(cell),
    )


def seconds_of(cell: Cell) -> float:
    """Return the expected duration of a cell's workloads in seconds of this host.

    That of a sealed cell includes its guests.
    """
    virtual = cell.guest.clock is Clock.VIRTUAL
    known = host_seconds(cell) if virtual else durations(cell)
    seconds = sum(known.get(w.name, schedule.UNKNOWN_SECONDS) for w in cell.workloads)
    return cell.trials * (seconds + pauses_of(cell) + (GUEST if virtual else 0.0))


def need_of(cell: Cell) -> schedule.Need:
    """Return the resources of the host that a cell needs."""
    # Each trial of a sealed cell has its own guest, and so its own disks.
    rounds = 1 if cell.guest.clock is Clock.VIRTUAL else cell.trials
    return schedule.need_of(cell, memory_of(cell.guest), written(cell) * rounds)


def calibration_of(wish: Wanted) -> Task:
    """Return the task of a calibration."""
    task = task_of(wish.cell)
    task.id, task.wish = wish.id, wish
    return task


def by_guest(cells: Sequence[Cell]) -> dict[Guest, list[Cell]]:
    """Return the cells grouped by guest configuration."""
    groups: dict[Guest, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.guest, []).append(cell)
    return groups
