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
class Member:
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
Heard = tuple[Member, Event | None]
"""An event of a worker; ``None``: it has closed its output, or was killed, and ends."""


@dataclass(slots=True, kw_only=True)
class Crew:
    """The workers of one run."""

    directory: Path
    """Where their logs go."""
    members: list[Member] = field(default_factory=list)
    heard: SimpleQueue[Heard] = field(default_factory=SimpleQueue)

    def start(self, job: GuestJob, kind: Guest) -> Member:
        """Start a worker; what it says comes out of ``heard``."""
        log = self.directory / f"worker-{job.guest}.log"
        child = Child(
            [sys.executable, "-m", "lab.run.worker"],
            first_line=job.model_dump_json(),
            log=log,
            env={"LIBVIRT_LOG_OUTPUTS": "3:stderr"},  # libvirt reads it as it is loaded
            silence=wire.SILENCE,
        )
        member = Member(job=job, kind=kind, child=child, log=log)
        self.members.append(member)
        threading.Thread(target=self._listen, args=(member,), daemon=True).start()
        return member

    def _listen(self, member: Member) -> None:
        try:
            for line in member.child.lines():
                if not member.garbled:
                    self._take(member, line)
        finally:  # whatever happened: those who wait for it are told
            self.heard.put((member, None))

    def _take(self, member: Member, line: str) -> None:
        try:
            event = _EVENT.validate_json(line)
        except ValidationError:
            member.garbled = True
            member.trouble = TroubleError(
                f"the worker of the guest '{member.job.guest}' printed a line that the lab cannot"
                f" read, and was ended: {line[:120]!r}",
                hint=f"its log is '{member.log}'",
            )
            member.child.hang_up(STOP_SECONDS)
        else:
            self.heard.put((member, event))

    def note(self, member: Member, event: Event | None) -> None:
        """Remember what an event says of the worker itself; ``None`` ends it."""
        match event:
            case None:
                self._ended(member)
            case Trouble():
                kind = HostError if event.exit_status == EXIT_TROUBLE else InputError
                kind = FullError if event.full else kind
                member.trouble = kind(event.message, hint=event.hint)
                member.unread = event.unread
            case GuestKept():
                member.kept = True
            case GuestGone() if event.left:
                member.trouble = member.trouble or HostError(
                    f"the guest '{event.guest}' could not be taken down whole: {event.left}",
                    hint="`lab gc` tries again",
                )
            case _:
                pass

    def _ended(self, member: Member) -> None:
        """Collect an ended worker, and whatever it left where it died."""
        self.members.remove(member)
        member.child.hang_up()
        status = member.child.end(STOP_SECONDS)
        if not member.kept:
            guests.remove(guests.directory_of(member.job.guest))
        if member.trouble is None and member.child.fate:
            member.trouble = TroubleError(
                f"the worker of the guest '{member.job.guest}' {member.child.fate}",
                hint=f"its log is '{member.log}'",
            )
        if member.trouble is None and status not in (0, EXIT_TROUBLE):
            tail = member.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            member.trouble = TroubleError(
                f"the worker of guest '{member.job.guest}' ended with status {status}",
                hint=f"its last words in '{member.log}': {tail[-1] if tail else 'none'}",
            )

    def make_room(self, kind: Guest) -> None:
        """End idle guests of other kinds than the one wanted, where nobody else comes up: they
        wait for cells that come after it, and may be all that there is room for."""
        if all(member.up for member in self.members):
            for member in self.members:
                if member.free and member.kind != kind:
                    member.order(End())

    def stop(self) -> list[LabError]:
        """End every worker that is left within :data:`STOP_SECONDS`; what could not be removed."""
        for member in self.members:
            member.child.hang_up(STOP_SECONDS)
        countdown = clock.Countdown(STOP_SECONDS)
        errors: list[LabError] = []
        for member in self.members:
            member.child.end(max(1.0, countdown.left()))
            if not member.kept:
                try:
                    guests.remove(guests.directory_of(member.job.guest))
                except LabError as error:
                    errors.append(error)
        self.members.clear()
        return errors
