"""Workers: starting them, hearing them, ending them; each has one guest."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from pydantic import TypeAdapter, ValidationError

from lab.compile.guest.disks import Plugged
from lab.core.errors import EXIT_TROUBLE, FullError, HostError, InputError, LabError, TroubleError
from lab.host.guest import registry as guests
from lab.host.system import clock, wire
from lab.host.system.process import Child
from lab.model.execution.events import Event, GuestGone, GuestKept, Trouble
from lab.model.execution.job import End, GuestJob, Order
from lab.model.scenario.guest import Guest

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
STOP_SECONDS = 60.0
"""How long a worker may take to clean up before it is killed."""


@dataclass(slots=True, kw_only=True)
class PooledWorker:
    """One worker and its guest."""

    job: GuestJob
    kind: Guest
    child: Child
    log: Path
    up: bool = False
    """SSH answered."""
    busy: bool = True
    """It boots, or has a cell; an idle one waits for an order."""
    plugged: Plugged = field(default_factory=Plugged)
    """The data disks that its guest has."""
    reserved: bool = False
    """Its array is to stay: it gets no other cell."""
    kept: bool = False
    unread: bool = False
    """It ended since the lab was stopped."""
    trouble: LabError | None = None
    garbled: bool = False
    """It printed a line that cannot be read: it is ended, and nothing that it says counts."""

    @property
    def free(self) -> bool:
        """Whether it may get any cell."""
        return not self.busy and not self.reserved

    def order(self, order: Order) -> None:
        """Tell it what is next."""
        self.busy = True
        self.child.tell(order.model_dump_json())


Watch = Callable[[str, Event | None], None]
"""Told a guest's id and what its worker tells of it; ``None``: the worker has ended."""
Say = Callable[[str], None]
WorkerEvent = tuple[PooledWorker, Event | None]
"""An event of a worker; ``None``: it has closed its output, or was killed, and ends."""


@dataclass(slots=True, kw_only=True)
class WorkerPool:
    """The workers of one run."""

    directory: Path
    """Where their logs go."""
    workers: list[PooledWorker] = field(default_factory=list)
    heard: SimpleQueue[WorkerEvent] = field(default_factory=SimpleQueue)

    def start(self, job: GuestJob, kind: Guest) -> PooledWorker:
        """Start a worker; what it says comes out of ``heard``."""
        log = self.directory / f"worker-{job.guest}.log"
        child = Child(
            [sys.executable, "-m", "lab.run.worker"],
            first_line=job.model_dump_json(),
            log=log,
            env={"LIBVIRT_LOG_OUTPUTS": "3:stderr"},  # libvirt reads it as it is loaded
            silence=wire.SILENCE,
        )
        worker = PooledWorker(job=job, kind=kind, child=child, log=log)
        self.workers.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: PooledWorker) -> None:
        try:
            for line in worker.child.lines():
                if not worker.garbled:
                    self._take(worker, line)
        finally:  # whatever happened: those who wait for it are told
            self.heard.put((worker, None))

    def _take(self, worker: PooledWorker, line: str) -> None:
        try:
            event = _EVENT.validate_json(line)
        except ValidationError:
            worker.garbled = True
            worker.trouble = TroubleError(
                f"the worker of the guest '{worker.job.guest}' printed a line that the lab cannot"
                f" read, and was ended: {line[:120]!r}",
                hint=f"its log is '{worker.log}'",
            )
            worker.child.hang_up(STOP_SECONDS)
        else:
            self.heard.put((worker, event))

    def note(self, worker: PooledWorker, event: Event | None) -> None:
        """Remember what an event says of the worker itself; ``None`` ends it."""
        match event:
            case None:
                self._ended(worker)
            case Trouble():
                kind = HostError if event.exit_status == EXIT_TROUBLE else InputError
                kind = FullError if event.full else kind
                worker.trouble = kind(event.message, hint=event.hint)
                worker.unread = event.unread
            case GuestKept():
                worker.kept = True
            case GuestGone() if event.left:
                worker.trouble = worker.trouble or HostError(
                    f"the guest '{event.guest}' could not be taken down whole: {event.left}",
                    hint="`lab gc` tries again",
                )
            case _:
                pass

    def _ended(self, worker: PooledWorker) -> None:
        """Collect an ended worker, and whatever it left where it died."""
        self.workers.remove(worker)
        worker.child.hang_up()
        status = worker.child.end(STOP_SECONDS)
        if not worker.kept:
            guests.remove(guests.directory_of(worker.job.guest))
        if worker.trouble is None and worker.child.fate:
            worker.trouble = TroubleError(
                f"the worker of the guest '{worker.job.guest}' {worker.child.fate}",
                hint=f"its log is '{worker.log}'",
            )
        if worker.trouble is None and status not in (0, EXIT_TROUBLE):
            tail = worker.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            worker.trouble = TroubleError(
                f"the worker of guest '{worker.job.guest}' ended with status {status}",
                hint=f"its last words in '{worker.log}': {tail[-1] if tail else 'none'}",
            )

    def make_room(self, kind: Guest) -> None:
        """End idle guests of other kinds than the one wanted, where nobody else comes up: they
        wait for cells that come after it, and may be all that there is room for."""
        if all(worker.up for worker in self.workers):
            for worker in self.workers:
                if worker.free and worker.kind != kind:
                    worker.order(End())

    def stop(self) -> list[LabError]:
        """End every worker that is left within :data:`STOP_SECONDS`; what could not be removed."""
        for worker in self.workers:
            worker.child.hang_up(STOP_SECONDS)
        countdown = clock.Countdown(STOP_SECONDS)
        errors: list[LabError] = []
        for worker in self.workers:
            worker.child.end(max(1.0, countdown.left()))
            if not worker.kept:
                try:
                    guests.remove(guests.directory_of(worker.job.guest))
                except LabError as error:
                    errors.append(error)
        self.workers.clear()
        return errors
