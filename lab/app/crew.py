"""Workers: starting them, hearing them, ending them; each has one guest."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from pydantic import TypeAdapter

from lab.compile.disks import Plugged
from lab.errors import EXIT_TROUBLE, FullError, HostError, InputError, LabError, TroubleError
from lab.host import guests
from lab.host.process import Child
from lab.model.events import Event, GuestGone, GuestKept, Trouble
from lab.model.guest import Guest
from lab.model.job import End, GuestJob, Order

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
    trouble: LabError | None = None

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
"""An event of a worker; ``None``: it has closed its output, and ends."""


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
            [sys.executable, "-m", "lab.worker"],
            first_line=job.model_dump_json(),
            log=log,
            env={"LIBVIRT_LOG_OUTPUTS": "3:stderr"},  # libvirt reads it as it is loaded
        )
        member = Member(job=job, kind=kind, child=child, log=log)
        self.members.append(member)
        threading.Thread(target=self._listen, args=(member,), daemon=True).start()
        return member

    def _listen(self, member: Member) -> None:
        for line in member.child.lines():
            self.heard.put((member, _EVENT.validate_json(line)))
        self.heard.put((member, None))

    def note(self, member: Member, event: Event | None) -> None:
        """Remember what an event says of the worker itself; ``None`` ends it."""
        match event:
            case None:
                self._ended(member)
            case Trouble():
                kind = HostError if event.exit_status == EXIT_TROUBLE else InputError
                kind = FullError if event.full else kind
                member.trouble = kind(event.message, hint=event.hint)
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
        self._sweep(member)
        if member.trouble is None and status not in (0, EXIT_TROUBLE):
            tail = member.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            member.trouble = TroubleError(
                f"the worker of guest '{member.job.guest}' ended with status {status}",
                hint=f"its last words in '{member.log}': {tail[-1] if tail else 'none'}",
            )

    @staticmethod
    def _sweep(member: Member) -> None:
        directory = guests.directory_of(member.job.guest)
        if not member.kept and directory.exists():
            guests.remove(directory)

    def make_room(self, kind: Guest) -> None:
        """End idle guests of other kinds than the one wanted, where nobody else comes up: they
        wait for cells that come after it, and may be all that there is room for."""
        if all(member.up for member in self.members):
            for member in self.members:
                if member.free and member.kind != kind:
                    member.order(End())

    def stop(self) -> None:
        """End every worker that is left: all lifelines first, then wait for each."""
        for member in self.members:
            member.child.hang_up()
        for member in self.members:
            member.child.end(STOP_SECONDS)
            self._sweep(member)
        self.members.clear()
