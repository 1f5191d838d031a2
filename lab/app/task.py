"""What a run has to do: its cells, and the calibration of their disks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lab.app.calibration import Wanted
from lab.compile import schedule
from lab.compile.guest import memory_of
from lab.compile.scenario import cell_id
from lab.model.measurement import Check, Prediction
from lab.model.scenario import Cell
from lab.predict import durations, predictions, written


@dataclass(slots=True, kw_only=True)
class Task:
    """A cell that waits for its turn, or has it."""

    cell: Cell
    id: str
    seconds: float
    """What its workloads should take."""
    need: schedule.Need
    expected: tuple[Prediction, ...]
    """What theory says of its workloads."""
    wish: Wanted | None = None
    """It measures bare disks, and is no cell of the scenario."""
    alone: bool = False
    """Nothing may run beside it: contended without a crowd, or its modelled disks are not known."""
    repeats: int = 0
    """How often it was repeated for that."""
    retry: bool = False
    """Its guest died once already."""
    directory: Path = Path()
    started: bool = False
    checks: list[Check] = field(default_factory=list)


def task_of(cell: Cell) -> Task:
    """A cell of the scenario."""
    known = durations(cell)
    seconds = sum(known.get(w.name, schedule.UNKNOWN_SECONDS) for w in cell.workloads)
    return Task(
        cell=cell,
        id=cell_id(cell),
        seconds=seconds * cell.trials,
        need=schedule.need_of(cell, memory_of(cell.guest), written(cell) * cell.trials),
        expected=predictions(cell),
    )


def calibration_of(wish: Wanted) -> Task:
    """A kind of disk to be measured bare."""
    task = task_of(wish.cell)
    task.id, task.wish, task.expected = wish.id, wish, wish.expected()
    task.alone = wish.own or bool(wish.first)
    return task
