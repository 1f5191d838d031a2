"""What a run has to do: its cells, and the calibration of their disks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.analysis import measure
from lab.analysis.calibration import unjudged
from lab.analysis.predict import durations, predictions, written
from lab.compile import schedule
from lab.compile.guest.steps import memory_of
from lab.compile.scenario.identity import cell_id
from lab.model.result.document import Outcome
from lab.model.result.measurement import UNCONTENDED, Check, Prediction
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Clock, Guest
from lab.run.calibration import Wanted
from lab.store.runs import StoredOutcome


@dataclass(slots=True, kw_only=True)
class Task:
    """A cell or calibration that waits or runs."""

    cell: Cell
    id: str
    seconds: float
    """Seconds that its workloads should take."""
    need: schedule.Need
    expected: tuple[Prediction, ...]
    """Predictions for its workloads."""
    wish: Wanted | None = None
    """The calibration that it makes; ``None``: it is a cell of the scenario."""
    alone: bool = False
    """Nothing else may run meanwhile: it was contended."""
    concurrent: int = 1
    """Cells that ran at once during its last attempt, with it, at most."""
    repeats: int = 0
    """Repetitions for contention."""
    best: tuple[Path, StoredOutcome] | None = None
    """The earlier attempt with the fewest contended workloads."""
    retried: bool = False
    """An attempt was lost with its guest."""
    directory: Path = Path()
    started: bool = False
    checks: list[Check] = field(default_factory=list)

    def contention(self, raw: Mapping[str, str]) -> tuple[Check, ...]:
        """Checks whether each workload got the CPU time it needed.

        None in virtual time, nor of modelled drives in real time, which are not judged.
        """
        if self.need.virtual or unjudged(self.cell):
            return ()
        return measure.contention(self.cell, raw, self.expected)

    def remember(self, outcome: StoredOutcome) -> None:
        """Record a contended attempt, if no earlier one was less contended."""
        if outcome.outcome is Outcome.DONE:
            self.best = self.least_contended(outcome)

    def least_contended(self, outcome: StoredOutcome) -> tuple[Path, StoredOutcome]:
        """Directory and outcome of the attempt with the fewest contended workloads."""
        here = self.directory, outcome
        if self.best is None or outcome.outcome is not Outcome.DONE:
            return here
        return min(here, self.best, key=lambda attempt: _contended(attempt[1]))


def _contended(outcome: StoredOutcome) -> int:
    return sum(c.name == UNCONTENDED and not c.passed for c in outcome.checks)


def task_of(cell: Cell) -> Task:
    """A cell of the scenario."""
    return Task(
        cell=cell,
        id=cell_id(cell),
        seconds=seconds_of(cell),
        need=need_of(cell),
        expected=predictions(cell),
    )


def seconds_of(cell: Cell) -> float:
    """Seconds that a cell's workloads should take."""
    known = durations(cell)
    seconds = sum(known.get(w.name, schedule.UNKNOWN_SECONDS) for w in cell.workloads)
    return seconds * cell.trials


def need_of(cell: Cell) -> schedule.Need:
    """What a cell takes of its host."""
    # A sealed cell has a guest, and so disks, for each trial.
    rounds = 1 if cell.guest.clock is Clock.VIRTUAL else cell.trials
    return schedule.need_of(cell, memory_of(cell.guest), written(cell) * rounds)


def calibration_of(wish: Wanted) -> Task:
    """Return the task of a calibration."""
    task = task_of(wish.cell)
    task.id, task.wish, task.expected = wish.id, wish, wish.expected()
    return task


def by_guest(cells: Sequence[Cell]) -> dict[Guest, list[Cell]]:
    """Cells by guest configuration."""
    groups: dict[Guest, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.guest, []).append(cell)
    return groups
