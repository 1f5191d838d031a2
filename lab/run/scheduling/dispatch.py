"""Cells to guests: which runs where and when, what becomes of one that went wrong."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

from pydantic import TypeAdapter

from lab.analysis.predict import durations
from lab.compile import schedule
from lab.compile.cell.procedure import cell_procedure, patience_of, target_of
from lab.compile.guest.disks import lasting, left_by, widest
from lab.compile.guest.steps import memory_of
from lab.compile.guest.virtual_time import is_sealed
from lab.compile.scenario.document import Compiled
from lab.compile.scenario.identity import cell_id, identity
from lab.core.errors import FullError, TroubleError, unwritable
from lab.host.guest import saved as warm
from lab.host.system import load, paths
from lab.host.system.process import uninterrupted
from lab.model.execution.events import (
    CellAgain,
    CellFinished,
    CellStarted,
    Checked,
    Event,
    GuestStarted,
    Pulse,
)
from lab.model.execution.job import CellJob, End, Keep
from lab.model.result.document import Outcome
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Clock, Guest
from lab.run.calibration import Wanted, conclude, standing, wanted
from lab.run.options import RunOptions
from lab.run.preparation.guest_jobs import GuestJobs
from lab.run.preparation.platforms import Platform
from lab.run.preparation.snapshots import SnapshotMaker
from lab.run.scheduling.admission import AdmissionControl
from lab.run.task import SEALED_SPACE, Task, by_guest, calibration_of, task_of
from lab.run.worker_pool import PooledWorker, Say, Watch, WorkerEvent, WorkerPool
from lab.store.runs import RunStore, StoredOutcome

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
TRIES = 2
"""How many guests of a kind may come to nothing, one after the other, before the run ends."""

REPEATS = 3
"""How often a contended cell is repeated: what takes the host's time may be gone by then."""


@dataclass(slots=True, kw_only=True)
class Dispatch:
    """One run under way."""

    store: RunStore
    compiled: Compiled
    platforms: dict[tuple[str, str | None], Platform]
    watch: Watch
    say: Say
    how: RunOptions
    _crew: WorkerPool = field(init=False)
    _kinds: GuestJobs = field(init=False)
    _crowd: AdmissionControl = field(init=False)
    _pending: list[Task] = field(default_factory=list)
    _running: dict[str, Task] = field(default_factory=dict)
    """By the id of the guest that has it."""
    _cold: set[Guest] = field(default_factory=set)
    """Guest configurations whose state did not restore."""
    _failures: dict[Guest, int] = field(default_factory=dict)
    """Guests of a kind that ended without a cell, since one of that kind finished its own."""
    _base: str = ""
    _unsealed: set[Guest] = field(default_factory=set)
    """Guest configurations with virtual time that have network and SSH."""

    def run(self, cells: Sequence[Cell]) -> str | None:
        """Every cell; the id of the guest that was left up."""
        self._crew = WorkerPool(directory=self.store.directory, heard=self._queue())
        kind = next(iter(self.platforms.values())).accelerator.kind
        self._crowd = AdmissionControl(kind=kind, jobs=self.how.jobs)
        at_once = self._crowd.limit
        self._kinds = GuestJobs(
            scenario=self.compiled.name,
            platforms=self.platforms,
            at_once=at_once,
            wide=widest(cells),
            cold=self.how.cold,
        )
        base = self.compiled.base
        same = (c for c in cells if c.guest == base.guest and identity(c) == identity(base))
        self._base = next(map(cell_id, same), "")
        missing, known = wanted(cells, self.platforms)
        run = self.store.load_run()
        update = {"calibrations": standing(run.calibrations, missing, known)}
        self.store.save_run(run.model_copy(update=update))
        self._pending = [*map(calibration_of, missing), *self._begin(cells)]
        kinds = set(by_guest(cells)) | ({base.guest} if self.how.keep else set())
        self._unsealed = {c.guest for c in (*cells, base) if self.how.unseals(c)}
        try:
            if not self.how.cold:
                baking = SnapshotMaker(
                    crew=self._crew, kinds=self._kinds, say=self.say, heard=self._heard
                )
                self._cold |= baking.guests(k for k in kinds if k.clock is Clock.REAL)
                baking.disks(cold=self._cold)
            self._work()
            return self._keep() if self.how.keep else None
        finally:
            # However it ended, every worker gets to clean up, and what one leaves goes.
            with uninterrupted():
                for error in self._crew.stop():
                    self.say(str(error))
                for task in self._running.values():
                    if not task.started:
                        shutil.rmtree(task.directory, ignore_errors=True)

    # -- the cells

    def _begin(self, cells: Sequence[Cell]) -> list[Task]:
        """What there is to do as the run begins, the longest first."""
        return sorted((task_of(c) for c in cells), key=lambda t: -t.seconds)

    def _queue(self) -> SimpleQueue[WorkerEvent]:
        return SimpleQueue()

    def _wanted(self) -> set[Guest]:
        """Guest configurations that stay up."""
        return {t.cell.guest for t in self._pending}

    def _work(self) -> None:
        """Give cells to guests until none is left."""
        self._fill()
        while self._pending or self._running:
            if not self._crew.workers:
                raise TroubleError("there are cells left, and no guest that could run them")
            worker, event = self._crew.heard.get()
            self._hear(worker, event)
            if not isinstance(event, Pulse):  # it changes nothing that cells wait for
                self._fill()

    def _fill(self) -> None:
        """Start what fits: in guests that stand idle, or in new ones; end what nobody needs."""
        while (task := self._next()) is not None:
            workers = self._crew.workers
            coming = [m for m in workers if not m.up and m.kind == task.cell.guest]
            wanted = [t for t in self._pending if t.cell.guest == task.cell.guest]
            if free := [m for m in workers if m.free and m.kind == task.cell.guest]:
                self._pending.remove(task)
                self._give(free[0], task)
            elif len(coming) < len(wanted) and (not workers or self._bears(task)):
                self._start(task.cell)
            elif not self._running and all(m.up and m.reserved for m in workers):
                for worker in workers:  # no room beside it: its array is made again at the end
                    worker.reserved = False
            else:
                if not self._running:
                    self._crew.make_room(task.cell.guest)
                break
        kinds = self._wanted()
        for worker in self._crew.workers:
            if worker.free and worker.kind not in kinds:
                spare = self.how.keep and worker.kind == self.compiled.base.guest
                last = not self._running and not any(m.reserved for m in self._crew.workers)
                if not (spare and last and not self._pending):
                    worker.order(End())

    def _next(self) -> Task | None:
        """The longest cell that fits beside those that run."""
        running = list(self._running.values())
        if any(t.alone for t in running):
            return None
        all_of_it = (*self._pending, *running)
        room = self._crowd.room()
        usual = self._crowd.usual(all_of_it)
        needs = [self._crowd.need(t, usual) for t in running]
        under_way = {t.wish.key for t in all_of_it if t.wish}
        for task in self._pending:
            if (task.alone and running) or (task.wish and task.wish.first in under_way):
                continue
            if schedule.fits(self._crowd.need(task, usual), needs, room):
                return task
        return None

    def _bears(self, task: Task) -> bool:
        """Whether the host has room for one more guest, beside those that run or come up."""
        coming = [m for m in self._crew.workers if not m.up]
        running = self._running.values()
        usual = self._crowd.usual((*self._pending, *running))
        need, *beside = (self._crowd.need(t, usual) for t in (task, *running))
        room = self._crowd.room()
        memory = load.available_memory() - sum(memory_of(m.kind) for m in coming)
        return (
            len(self._crew.workers) < self._crowd.limit
            and memory > memory_of(task.cell.guest) + schedule.RESERVE
            and schedule.fits(need, [*beside, *[need] * len(coming)], room)
        )

    def _give(self, worker: PooledWorker, task: Task) -> None:
        directory = str(paths.guests() / worker.job.guest)
        if task.wish is not None and (guest := task.wish.times()) is not None:
            task.expected = task.wish.expected(guest)
        seconds = durations(task.cell)
        stays = self.how.keep and task.id == self._base  # with no disks but its own
        procedure = cell_procedure(
            task.cell, directory, seconds, worker.plugged, self.how.erase, keep_spare=not stays
        )
        worker.plugged = lasting(task.cell) if stays else left_by(task.cell, worker.plugged)
        task.directory = self.store.begin_cell(task.id, task.cell, procedure)
        task.started, task.checks = False, []
        self._running[worker.job.guest] = task
        worker.order(
            CellJob(
                id=task.id,
                procedure=procedure,
                directory=str(task.directory),
                target=target_of(task.cell),
                patience=patience_of(task.cell),
                cores=self._crowd.steps(task, (*self._pending, *self._running.values())),
                space=self._space(task.cell, task.need.space),
                room=self._crowd.together,
            )
        )

    def _space(self, cell: Cell, needed: int) -> int:
        """Bytes that the disks of a guest with virtual time may come to hold.

        In one that stays up somebody may fill them.
        """
        if not self.how.keep or not is_sealed(cell):
            return needed
        whole = sum(disk.size for _, disk in cell.each_disk)
        return max(needed, min(whole, SEALED_SPACE, load.free_space() // 4))

    # -- what workers tell
    def _hear(self, worker: PooledWorker, event: Event | None) -> None:
        task = self._running.get(worker.job.guest)
        if task is not None and event is not None and getattr(event, "cell", None) == task.id:
            try:
                with (task.directory / "events.jsonl").open("ab") as file:
                    file.write(_EVENT.dump_json(event) + b"\n")
            except OSError as error:
                raise unwritable(task.directory / "events.jsonl", error) from error
        self._crew.note(worker, event)
        if event is not None:
            self.watch(worker.job.guest, event)
        match event:
            case None:
                self._ended(worker, task)
                self.watch(worker.job.guest, None)
            case GuestStarted():
                worker.up, worker.busy = True, False
            case CellStarted() if task is not None:
                task.started = True
            case Checked() if task is not None:
                task.checks.append(event.check)
            case CellFinished() if task is not None:
                worker.busy = event.outcome is not Outcome.DONE  # its guest is not used again
                self._failures.pop(worker.kind, None)
                del self._running[worker.job.guest]
                self._finished(worker, task, event)
            case _:
                pass

    def _finished(self, worker: PooledWorker, task: Task, event: CellFinished) -> None:
        """A cell came to its end: it is kept, or it gets another turn and this one is evidence."""
        checks = list(task.checks)
        again = False
        if event.outcome is Outcome.DONE:
            raw = self.store.raw(task.directory)
            contention = task.contention(raw)
            checks += contention
            failed = [c.detail for c in contention if not c.passed]
            more = self._crowd.learn(task, raw, (*self._pending, *self._running.values()))
            crowded = more and not task.repeats and not task.alone
            if failed and task.repeats < REPEATS:
                how = "with fewer beside it" if crowded else "alone"
                self.say(f"{task.id} is repeated {how}: {failed[0]}")
                task.alone, again = not crowded, True
                task.repeats += 1
        elif event.outcome is Outcome.LOST and (worker.unread or not task.retry):
            # While the lab was stopped all guests may have ended, that of the second try too.
            first = event.reason.splitlines()[0]
            self.say(f"{task.id} is tried once more in a fresh guest: {first}")
            task.retry, again = task.retry or not worker.unread, True
        outcome = StoredOutcome(
            outcome=event.outcome,
            reason=event.reason,
            seconds=event.seconds,
            clock=event.clock,
            checks=tuple(checks),
            digest=event.digest,
        )
        self.store.keep_attempt(task.directory, outcome)
        if again:
            task.remember(outcome)
            self._pending.append(task)
            self.watch(worker.job.guest, CellAgain(cell=task.id))
            return
        if task.wish is not None:
            self._calibrated(task, task.wish, outcome)
            return
        self.store.finish_cell(task.id, *task.least_contended(outcome))
        if self.how.keep and task.id == self._base and event.outcome is Outcome.DONE:
            worker.reserved = True

    def _calibrated(self, task: Task, wish: Wanted, outcome: StoredOutcome) -> None:
        """Keep what a bare disk did with the run; for other runs too, if it can be relied on."""
        quiet = all(c.passed for c in outcome.checks)
        problem = outcome.reason if outcome.outcome is not Outcome.DONE else ""
        if not problem and not quiet:
            problem = "the host was too busy while it was measured"
        found = conclude(wish, self.store.raw(task.directory), problem)
        if not found.passed:
            self.say(f"disks of the model {wish.disk.model} are not calibrated: {found.detail}")
        run = self.store.load_run()
        update = {"calibrations": (*run.calibrations, found)}
        self.store.save_run(run.model_copy(update=update))

    def _ended(self, worker: PooledWorker, task: Task | None) -> None:
        """A worker is gone: as it should be, or before its time."""
        if isinstance(worker.trouble, FullError):
            raise worker.trouble
        if task is not None:
            # It died in the middle of a cell, and could not even say so.
            del self._running[worker.job.guest]
            reason = str(worker.trouble or "the worker of its guest ended in the middle")
            lost = CellFinished(cell=task.id, outcome=Outcome.LOST, reason=reason)
            self.watch(worker.job.guest, lost)
            self._finished(worker, task, lost)
            return
        if worker.trouble is None:
            return
        # Killed, or bad luck: another one is tried. Twice in a row, it is the kind's own trouble.
        self._failures[worker.kind] = self._failures.get(worker.kind, 0) + (not worker.unread)
        if self._failures[worker.kind] < TRIES or (worker.up and not self._pending):
            self.say(f"a guest ended before its time: {worker.trouble.message}")
            return
        state = warm.find(worker.job.warm) if worker.job.warm else None
        if state is None or worker.up:
            raise worker.trouble
        self._failures[worker.kind] = 0
        warm.discard(state)
        if state.key == self._kinds.key(worker.kind):
            self._cold.add(worker.kind)
        instead = "booting cold" if worker.kind in self._cold else "plugging its disks in"
        self.say(
            f"a saved guest did not restore and is thrown away; {instead}"
            f" ({worker.trouble.message})"
        )

    # -- the guests

    def _start(self, cell: Cell) -> None:
        kind = cell.guest
        if kind.clock is Clock.VIRTUAL:
            job = self._kinds.virtual_job(kind, unsealed=kind in self._unsealed)
            self._crew.start(job, kind)
            return
        cold = self.how.cold or kind in self._cold
        if not cold and (ready := self._kinds.ready(cell)) is not None:
            job, plugged = ready
            self._crew.start(job, kind).plugged = plugged
            return
        state = None if cold else warm.find(self._kinds.key(kind))
        self._crew.start(self._kinds.job(kind, state), kind)

    def _heard(self) -> WorkerEvent:
        worker, event = self._crew.heard.get()
        self._crew.note(worker, event)
        self.watch(worker.job.guest, event)
        return worker, event

    def _keep(self) -> str:
        """Leave one guest up with the base cell's array; its id."""
        base = self.compiled.base
        reserved = [m for m in self._crew.workers if m.reserved]
        if reserved:
            worker = reserved[0]
        else:
            worker = self._one_up(base)
            self._array_only(worker, base.model_copy(update={"workloads": (), "faults": ()}))
        worker.order(Keep())
        while worker in self._crew.workers:
            self._heard()
        if not worker.kept:
            raise worker.trouble or TroubleError("the guest could not be left up")
        return worker.job.guest

    def _one_up(self, cell: Cell) -> PooledWorker:
        """A guest that can be used for a cell; a state that does not restore gives way."""
        kind = cell.guest
        while True:
            idle = [m for m in self._crew.workers if not m.busy and m.kind == kind]
            if idle:
                return idle[0]
            if not any(m.kind == kind for m in self._crew.workers):
                self._start(cell)
            heard, event = self._heard()
            if event is None:
                self._ended(heard, None)
            elif isinstance(event, GuestStarted):
                heard.up, heard.busy = True, False

    def _array_only(self, worker: PooledWorker, cell: Cell) -> None:
        """Make an array in a guest and run nothing on it."""
        place = self.store.directory / f".array-{worker.job.guest}"
        place.mkdir()
        directory = str(paths.guests() / worker.job.guest)
        procedure = cell_procedure(cell, directory, None, worker.plugged, self.how.erase)
        order = CellJob(
            id="array",
            procedure=procedure,
            directory=str(place),
            target=target_of(cell),
            space=self._space(cell, 0),
        )
        worker.order(order)
        while True:
            heard, event = self._heard()
            if heard is not worker:
                continue
            if event is None:
                raise worker.trouble or TroubleError("the worker ended without a word")
            if isinstance(event, CellFinished):
                if event.outcome is not Outcome.DONE:
                    raise TroubleError(event.reason)
                return
