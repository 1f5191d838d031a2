"""A run whose cells come one at a time: what dispatches them is as ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final, cast

from typing_extensions import override

from lab.core.errors import TroubleError
from lab.model.execution.events import CellFinished, Event, Pulse
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Guest
from lab.run.scheduling.dispatch import Dispatch
from lab.run.task import Task, task_of
from lab.run.worker_pool import PooledWorker, WorkerEvent

IDLE: Final = 60.0
"""Seconds without a cell after which nobody seems to be there any more."""


class Feed(SimpleQueue[WorkerEvent]):
    """What workers tell, and cells among it: whoever waits for one must notice the other."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[Cell] = []
        """Those that have come and were not taken yet."""
        self.open = True
        """More may come."""

    def ask(self, cell: Cell | None) -> None:
        """Another cell, from any thread; ``None``: that was all."""
        self.put(cast("WorkerEvent", (None, cell)))

    @override
    def get(self, block: bool = True, timeout: float | None = None) -> WorkerEvent:
        """What a worker tells next; cells that come before it are kept."""
        while (heard := self.either(timeout)) is None:
            pass
        return heard

    def either(self, timeout: float | None) -> WorkerEvent | None:
        """What comes next; ``None``: a cell, or that no more will. ``Empty``: nothing came."""
        worker, what = cast("tuple[object, object]", super().get(timeout=timeout))
        if worker is not None:
            return cast("WorkerEvent", (worker, what))
        if what is None:
            self.open = False
        else:
            self.cells.append(cast("Cell", what))
        return None


@dataclass(slots=True, kw_only=True)
class Fed(Dispatch):
    """Does what it is asked to, until it is told that no more will come, or nobody asks."""

    feed: Feed = field(default_factory=Feed)
    finished: Callable[[str], None]
    """Told the id of each cell that lies in its place."""

    @override
    def _queue(self) -> SimpleQueue[WorkerEvent]:
        return self.feed

    @override
    def _finished(self, worker: PooledWorker, task: Task, event: CellFinished) -> None:
        Dispatch._finished(self, worker, task, event)
        if task.wish is None and self.store.has_cell(task.id):
            self.finished(task.id)

    @override
    def _begin(self, cells: Sequence[Cell]) -> list[Task]:
        return []

    @override
    def _wanted(self) -> set[Guest]:
        # Between two cells a guest waits for the next one; beside cells of another kind it goes.
        waits = self.feed.open and not self._pending
        return {m.kind for m in self._crew.workers} if waits else Dispatch._wanted(self)

    @override
    def _work(self) -> None:
        event: Event | None = None
        while True:
            self._pending += map(task_of, self.feed.cells)
            self.feed.cells.clear()
            if not isinstance(event, Pulse):
                self._fill()
            busy = bool(self._pending or self._running)
            if not busy and not self.feed.open:
                return
            if busy and not self._crew.workers:
                raise TroubleError("there are cells left, and no guest that could run them")
            try:
                heard = self.feed.either(None if busy else IDLE)
            except Empty:
                self.feed.open = False
                continue
            event = heard[1] if heard else None
            if heard is not None:
                self._hear(*heard)
