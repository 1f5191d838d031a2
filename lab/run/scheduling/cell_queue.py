"""Queue of cells that arrive during a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

from lab.model.scenario.document import Cell
from lab.run.worker_pool import WorkerEvent

IDLE: Final = 60.0
"""Seconds without a cell after which the queue counts as closed."""


@dataclass(frozen=True, slots=True)
class NewCell:
    """A cell that has arrived."""

    cell: Cell


@dataclass(frozen=True, slots=True)
class Closed:
    """No further cell will arrive."""


Inbox = SimpleQueue[WorkerEvent | NewCell | Closed]
"""Events of workers and of the queue, in order of arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellQueue:
    """Takes cells from any thread."""

    finished: Callable[[str], None]
    """Called with the id of each finished and stored cell."""
    inbox: Inbox = field(default_factory=SimpleQueue)

    def put(self, cell: Cell) -> None:
        """Add a cell."""
        self.inbox.put(NewCell(cell))

    def close(self) -> None:
        """End the run after the cells that have arrived."""
        self.inbox.put(Closed())
