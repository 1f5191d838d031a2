"""A pool of guests for other programs, such as tests.

Each guest belongs to a worker, and is set up like a cell without workloads. The program then uses
it over its own connection. A guest is used again only if its fingerprint is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lab.compile import schedule
from lab.compile.cell.procedure import cell_procedure, patience_of, target_of
from lab.compile.guest.disks import lasting
from lab.compile.guest.steps import memory_of
from lab.compile.scenario.compiler import Compiled
from lab.core.errors import FullError, GuestError, LabError, TroubleError
from lab.host import images
from lab.host.guest import registry as guests
from lab.host.guest import snapshots
from lab.host.guest.ssh.connection import GuestConnection
from lab.host.system import clock, load, paths
from lab.host.system.process import uninterrupted
from lab.model.execution.events import CellFinished, Event, GuestKept, GuestStarted
from lab.model.execution.job import CellJob, End, Keep
from lab.model.result.document import Outcome
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Guest, System
from lab.plugins.disks._drives import guest_path
from lab.run.guests import sweep
from lab.run.preparation.fitting import Known, check_arrays, check_images
from lab.run.preparation.guest_jobs import GuestJobs
from lab.run.preparation.platforms import Platform, prepare
from lab.run.preparation.snapshots import SnapshotMaker
from lab.run.worker_pool import PooledWorker, Say, WorkerEvent, WorkerPool

TRIES: Final = 3
"""Attempts to start a guest: two from a snapshot, then a boot."""
IDLE: Final = 1
"""Most idle guests that are kept; each occupies its memory."""
MEMORY_SECONDS: Final = 300.0
"""Seconds to wait until other programs free memory."""

TRACES: Final = """\
cat /proc/sys/kernel/random/boot_id /proc/sys/kernel/tainted /proc/mounts /proc/swaps /proc/mdstat
cat /proc/sys/dev/raid/* /proc/sys/vm/dirty_* 2>/dev/null
ls /dev/mapper /dev/md 2>/dev/null
for mount in / /run /tmp /dev/shm; do stat --file-system --format='%n %d' "$mount"; done
grep -hasz -m 1 . /proc/[0-9]*/cmdline > /run/lab-traces
tr '\\0' '\\n' < /run/lab-traces | sort
rm /run/lab-traces
cut -d ' ' -f 1 /proc/modules | sort"""
"""Script that prints a fingerprint: boot, oops, mounts, swap, arrays, settings of md and of the
page cache, volumes, files (free inodes), processes, modules.

It does not detect files that were overwritten in place."""


@dataclass(slots=True, kw_only=True)
class PooledGuest:
    """A guest in use by a program."""

    worker: PooledWorker
    cell: Cell
    visit: GuestConnection
    traces: str
    """The guest's fingerprint when the program got it."""

    @property
    def target(self) -> str:
        """The array's path in the guest; empty without one."""
        return target_of(self.cell) if self.cell.array else ""

    @property
    def disks(self) -> tuple[str, ...]:
        """Paths of its data disks in the guest, in order."""
        return tuple(guest_path(disk, serial) for serial, disk in self.cell.each_disk)


@dataclass(slots=True, kw_only=True)
class GuestPool:
    """The guests for one program."""

    directory: Path
    """Directory for the workers' logs and the output of commands that build arrays."""
    say: Say
    progress: images.Progress
    _workers: WorkerPool = field(init=False)
    _platforms: dict[System, Platform] = field(default_factory=dict)
    _facts: Known = field(default_factory=dict)
    _idle: list[PooledWorker] = field(default_factory=list)
    _loans: int = 0

    def __post_init__(self) -> None:
        self._workers = WorkerPool(directory=self.directory)

    def acquire(self, compiled: Compiled, *, fresh: bool) -> PooledGuest:
        """Return a guest with the disks and the array of a scenario's base cell.

        ``fresh``: a guest that was never used. ``InputError``: its image lacks a feature that it
        needs.
        """
        check_images(compiled, self._facts)
        cell = compiled.base
        if not self._platforms:
            sweep()
            snapshots.trim({r.warm for r in guests.every() if guests.is_alive(r)})
        if cell.guest.system not in self._platforms:
            self._platforms[cell.guest.system] = prepare(cell.guest, self.progress)
            self._facts = {}
            check_arrays(compiled, (cell,), self._facts)  # images were built since
        while not fresh and (used := self._take_idle(cell.guest)) is not None:
            try:
                return self._build(used, cell)
            except GuestError as error:  # the guest died while it was idle
                self.say(f"the guest '{used.id}' is not used again: {error.message}")
        return self._build(self._start(compiled.name, cell), cell)

    def release(self, loan: PooledGuest) -> bool:
        """Take a guest back; return whether it will be used again."""
        try:
            again = loan.visit.run(TRACES, 60.0).stdout == loan.traces
        except LabError:
            again = False
        loan.visit.close()
        worker = loan.worker
        if not again or len(self._idle) >= IDLE or worker not in self._workers.workers:
            worker.order(End())
            return False
        worker.busy = False
        self._idle.append(worker)
        return True

    def keep(self, loan: PooledGuest) -> str:
        """Leave a guest up when its worker ends; return its id. ``lab down`` removes it."""
        loan.visit.close()
        loan.worker.order(Keep())
        if self._await(loan.worker, GuestKept) is None:
            raise loan.worker.trouble or GuestError(f"the guest '{loan.worker.id}' did not stay up")
        return loan.worker.id

    def close(self) -> None:
        """End every guest and remove its files."""
        with uninterrupted():
            for error in self._workers.stop():
                self.say(str(error))

    # -- guests

    def _take_idle(self, guest: Guest) -> PooledWorker | None:
        while not self._workers.events.empty():
            self._receive()
        alive = [m for m in self._idle if m in self._workers.workers]
        for worker in alive:
            self._idle.remove(worker)
            if worker.guest == guest:
                return worker
            worker.order(End())  # it has another configuration, and occupies memory
        self._idle = []
        return None

    def _start(self, name: str, cell: Cell) -> PooledWorker:
        """Start a guest, without the cell's disks or with them blank."""
        jobs = GuestJobs(scenario=name, platforms=self._platforms, at_once=1)
        maker = SnapshotMaker(pool=self._workers, jobs=jobs, say=self.say, receive=self._receive)
        self._make_room(cell.guest)
        maker.guests([cell.guest])
        for number in range(1, TRIES + 1):
            state = snapshots.find(jobs.key(cell.guest)) if number < TRIES else None
            worker = self._workers.start(jobs.job(cell.guest, state), cell.guest)
            if self._await(worker, GuestStarted) is not None:
                worker.up = True
                return worker
            trouble = worker.trouble or TroubleError("a guest ended before it was up")
            if isinstance(trouble, FullError) or number == TRIES:
                raise trouble
            self.say(f"a guest ended unexpectedly: {trouble.message}")
        raise AssertionError("the last try returns or raises")

    def _make_room(self, guest: Guest) -> None:
        needed = memory_of(guest) + schedule.RESERVE
        clock.wait_until(
            lambda: True if load.available_memory() > needed else None,
            timeout=MEMORY_SECONDS,
            reason=f"{needed / 1024**3:.1f} GiB of free memory, which one more guest needs",
            interval=0.5,
        )

    def _build(self, worker: PooledWorker, cell: Cell) -> PooledGuest:
        """Build the cell's disks and array in a guest, after removing earlier ones."""
        self._loans += 1
        place = self.directory / f"{worker.id}.{self._loans}"
        place.mkdir()
        directory = str(paths.guests() / worker.id)
        procedure = cell_procedure(cell, directory, plugged=worker.plugged)
        worker.plugged = lasting(cell)
        worker.order(
            CellJob(
                id="lent",
                procedure=procedure,
                directory=str(place),
                target=target_of(cell),
                patience=patience_of(cell),
            )
        )
        ended = self._await(worker, CellFinished)
        if not isinstance(ended, CellFinished):
            raise worker.trouble or GuestError(f"the worker of '{worker.id}' is gone")
        if ended.outcome is not Outcome.DONE:
            raise _why(ended)
        record = guests.read(guests.directory_of(worker.id))
        if record is None:
            raise GuestError(f"the guest '{worker.id}' has lost its record")
        visit = GuestConnection(record)
        return PooledGuest(
            worker=worker, cell=cell, visit=visit, traces=visit.run(TRACES, 60.0).stdout
        )

    def _await(
        self,
        worker: PooledWorker,
        kind: type[GuestStarted] | type[CellFinished] | type[GuestKept],
    ) -> Event | None:
        """Return the next such event of a worker; ``None``: the worker exited."""
        while True:
            heard, event = self._receive()
            if heard is worker and (event is None or isinstance(event, kind)):
                return event

    def _receive(self) -> WorkerEvent:
        event: Event | None
        worker: PooledWorker
        worker, event = self._workers.events.get()
        self._workers.note(worker, event)
        return worker, event


def _why(ended: CellFinished) -> LabError:
    sentence, _, hint = ended.reason.partition("\n")
    kind = GuestError if ended.outcome is Outcome.LOST else TroubleError
    return kind(sentence, hint=hint.strip())
