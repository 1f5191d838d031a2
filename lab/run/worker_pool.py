"""Worker processes of a run: start them, receive their events, end them.

Each worker has one guest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lab.compile.guest.disks import Plugged
from lab.core.errors import EXIT_TROUBLE, FullError, HostError, InputError, LabError, TroubleError
from lab.host.guest import registry as guests
from lab.host.system import clock, wire
from lab.host.system.process import Child, python
from lab.model.execution.events import Event, GuestGone, GuestKept, Trouble
from lab.model.execution.job import GuestJob, Order
from lab.model.scenario.guest import Guest

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
STOP_SECONDS = 60.0
"""Seconds for a worker to clean up before it is killed."""


@dataclass(slots=True, kw_only=True)
class PooledWorker:
    """One worker and its guest."""

    job: GuestJob
    guest: Guest
    """Configuration of its guest."""
    child: Child
    log: Path
    up: bool = False
    """The guest answered on SSH."""
    busy: bool = True
    """It boots, runs a cell, or was ordered to end."""
    plugged: Plugged = field(default_factory=Plugged)
    """Data disks plugged into its guest."""
    reserved: bool = False
    """Its array is to be left running, so it gets no other cell."""
    kept: bool = False
    unread: bool = False
    """It exited because the lab was stopped for too long."""
    silent: bool = False
    """Its guest never answered."""
    trouble: LabError | None = None
    garbled: bool = False
    """It printed an unreadable line; later events are ignored."""

    @property
    def id(self) -> str:
        """Id of its guest."""
        return self.job.guest

    def order(self, order: Order) -> None:
        """Send an order to the worker."""
        self.busy = True
        self.child.tell(order.model_dump_json())


Watch = Callable[[str, Event | None], None]
"""Receives a guest's id and each event of its worker; ``None``: the worker has exited."""
Say = Callable[[str], None]
WorkerEvent = tuple[PooledWorker, Event | None]
"""An event of a worker; ``None``: its output has closed, so it is exiting."""


@dataclass(slots=True, kw_only=True)
class WorkerPool:
    """The workers of one run."""

    directory: Path
    """Directory of the workers' logs."""
    workers: list[PooledWorker] = field(default_factory=list)
    events: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    """Receives each :data:`WorkerEvent`; other threads may add to it."""

    def start(self, job: GuestJob, guest: Guest) -> PooledWorker:
        """Start a worker; its events go to ``events``."""
        log = self.directory / f"worker-{job.guest}.log"
        child = Child(
            python("-m", "lab.run.worker"),
            first_line=job.model_dump_json(),
            log=log,
            env={"LIBVIRT_LOG_OUTPUTS": "3:stderr"},  # libvirt reads it when the library is loaded
            silence=wire.SILENCE,
        )
        worker = PooledWorker(job=job, guest=guest, child=child, log=log)
        self.workers.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: PooledWorker) -> None:
        try:
            for line in worker.child.lines():
                if not worker.garbled:
                    self._take(worker, line)
        finally:  # in every case, end the waiting for its events
            self.events.put((worker, None))

    def _take(self, worker: PooledWorker, line: str) -> None:
        try:
            event = _EVENT.validate_json(line)
        except ValidationError:
            worker.garbled = True
            worker.trouble = TroubleError(
                f"the worker of the guest '{worker.id}' printed a line that the lab cannot read, "
                f"and was ended: {line[:120]!r}",
                hint=f"its log is '{worker.log}'",
            )
            worker.child.hang_up(STOP_SECONDS)
        else:
            self.events.put((worker, event))

    def note(self, worker: PooledWorker, event: Event | None) -> None:
        """Record what an event says about the worker; ``None`` reaps the exited worker."""
        match event:
            case None:
                self._ended(worker)
            case Trouble():
                kind = HostError if event.exit_status == EXIT_TROUBLE else InputError
                kind = FullError if event.full else kind
                worker.trouble = kind(event.message, hint=event.hint)
                worker.unread = event.unread
                worker.silent = event.silent
            case GuestKept():
                worker.kept = True
            case GuestGone() if event.left:
                worker.trouble = worker.trouble or HostError(
                    f"the guest '{event.guest}' could not be taken down whole: {event.left}",
                    hint="`lab clean` tries again",
                )
            case _:
                pass

    def _ended(self, worker: PooledWorker) -> None:
        """Reap an exited worker and remove its leftovers."""
        self.workers.remove(worker)
        worker.child.hang_up()
        status = worker.child.end(STOP_SECONDS)
        if not worker.kept:
            guests.remove(guests.directory_of(worker.id))
        if worker.trouble is None and worker.child.fate:
            worker.trouble = TroubleError(
                f"the worker of the guest '{worker.id}' {worker.child.fate}",
                hint=f"its log is '{worker.log}'",
            )
        if worker.trouble is None and status not in (0, EXIT_TROUBLE):
            tail = worker.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            worker.trouble = TroubleError(
                f"the worker of guest '{worker.id}' ended with status {status}",
                hint=f"its last words in '{worker.log}': {tail[-1] if tail else 'none'}",
            )

    def stop(self) -> list[LabError]:
        """End all workers within :data:`STOP_SECONDS`; return errors about remaining files."""
        for worker in self.workers:
            worker.child.hang_up(STOP_SECONDS)
        countdown = clock.Countdown(STOP_SECONDS)
        errors: list[LabError] = []
        for worker in self.workers:
            worker.child.end(max(1.0, countdown.left()))
            if not worker.kept:
                try:
                    guests.remove(guests.directory_of(worker.id))
                except LabError as error:
                    errors.append(error)
        self.workers.clear()
        return errors
