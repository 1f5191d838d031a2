"""Executes a run on this host: builds the scheduler's state, and carries out its actions."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import assert_never

from pydantic import TypeAdapter

from lab.analysis.predict import durations
from lab.compile.cell.procedure import cell_procedure, patience_of, target_of
from lab.compile.guest.disks import lasting, left_by, widest
from lab.compile.guest.steps import memory_of
from lab.compile.scenario.compiler import Compiled
from lab.compile.scenario.identity import cell_id, identity
from lab.compile.schedule import VIRTUAL_SPACE
from lab.core.errors import FullError, TroubleError, lacks_memory, unwritable
from lab.host.guest import snapshots
from lab.host.guest.virtual.sealed import inputs_of_cell
from lab.host.system import accelerator, load, paths
from lab.host.system.process import uninterrupted
from lab.model.execution.events import (
    CellAgain,
    CellFinished,
    CellStarted,
    Checked,
    Event,
    GuestStarted,
    GuestTime,
    Sample,
)
from lab.model.execution.job import CellJob, End, Keep
from lab.model.execution.procedure import Procedure
from lab.model.result.document import Outcome
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Clock, Guest, System
from lab.run.calibration import conclude, standing, wanted
from lab.run.options import RunOptions
from lab.run.preparation.guest_jobs import GuestJobs
from lab.run.preparation.platforms import Platform
from lab.run.preparation.snapshots import SnapshotMaker
from lab.run.scheduling import admission
from lab.run.scheduling import decide as scheduler
from lab.run.scheduling.cell_queue import IDLE, CellQueue, Closed, Inbox, NewCell
from lab.run.scheduling.decide import (
    Action,
    CellState,
    EndedAttempt,
    FailedGuest,
    SchedulerState,
    WorkerState,
)
from lab.run.task import Task, by_guest, calibration_of, task_of
from lab.run.worker_pool import PooledWorker, Say, Watch, WorkerEvent, WorkerPool
from lab.store import reuse
from lab.store.runs import RunStore, StoredOutcome, StoredRun

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """An ended attempt at a cell, until the scheduler decides about the cell."""

    task: Task
    worker: PooledWorker
    outcome: StoredOutcome
    contended: str
    """Why the attempt counts as contended; empty: it does not."""


@dataclass(slots=True, kw_only=True)
class Execution:
    """Execution of one run."""

    store: RunStore
    compiled: Compiled
    platforms: dict[System, Platform]
    watch: Watch
    say: Say
    options: RunOptions
    queue: CellQueue | None = None
    """Source of cells that arrive during the run; ``None``: :meth:`run` gets all of them."""
    _inbox: Inbox = field(init=False)
    _pool: WorkerPool = field(init=False)
    _jobs: GuestJobs = field(init=False)
    _kind: str = field(init=False)
    """Name of the accelerator."""
    _limit: int = field(init=False)
    """Most concurrent cells in real time."""
    _more: bool = False
    _waiting: list[Task] = field(default_factory=list)
    _running: dict[str, Task] = field(default_factory=dict)
    """By id of the guest that runs the task."""
    _ended: list[_Attempt] = field(default_factory=list)
    _failed: list[PooledWorker] = field(default_factory=list)
    """Workers that exited unexpectedly, until the scheduler decides about them."""
    _failures: dict[Guest, int] = field(default_factory=dict)
    """Number of consecutive failures, by guest configuration."""
    _cold: set[Guest] = field(default_factory=set)
    """Guest configurations that boot because they have no usable snapshot."""
    _unsealed: set[Guest] = field(default_factory=set)
    """Guest configurations in virtual time with network and SSH."""
    _states: dict[str, CellState] = field(default_factory=dict)
    """State of each cell for the scheduler."""
    _base: str = ""
    """Id of the base cell; empty: it is not one of the cells."""
    _array: PooledWorker | None = None
    """Worker that only builds the base cell's array."""
    _kept: str | None = None

    def __post_init__(self) -> None:
        self._inbox = self.queue.inbox if self.queue else SimpleQueue()
        self._more = self.queue is not None
        self._kind = next((p.accelerator.kind for p in self.platforms.values()), "tcg")
        self._limit = admission.limit(self._kind, self.options.jobs)
        self._pool = WorkerPool(directory=self.store.directory, events=self._inbox)

    def run(self, cells: Sequence[Cell]) -> str | None:
        """Run the cells, or with a queue those that arrive; return the id of the guest left
        running."""
        guests = self._prepare(cells)
        try:
            if not self.options.cold:
                maker = SnapshotMaker(
                    pool=self._pool, jobs=self._jobs, say=self.say, receive=self._worker_event
                )
                self._cold |= maker.guests(g for g in guests if g.clock is Clock.REAL)
                maker.disks(cold=self._cold)
            self._work()
            return self._kept
        finally:
            # On any exit, every worker cleans up, and leftovers of workers are removed.
            with uninterrupted():
                for error in self._pool.stop():
                    self.say(str(error))
                for task in self._running.values():
                    if not task.started:
                        shutil.rmtree(task.directory, ignore_errors=True)

    def _prepare(self, cells: Sequence[Cell]) -> set[Guest]:
        """Set up the tasks; return the guest configurations that may be needed."""
        self._jobs = GuestJobs(
            scenario=self.compiled.name,
            platforms=self.platforms,
            at_once=self._limit,
            wide=widest(cells),
            cold=self.options.cold,
        )
        base = self.compiled.base
        same = (c for c in cells if c.guest == base.guest and identity(c) == identity(base))
        self._base = next(map(cell_id, same), "")
        self._unsealed = {c.guest for c in (*cells, base) if self.options.unseals(c)}
        missing, known = wanted(cells, self.platforms)
        run = self.store.load_run()
        update = {"calibrations": standing(run.calibrations, missing, known)}
        self.store.save_run(run.model_copy(update=update))
        tasks = self._tasks(run, () if self._more else cells)
        self._waiting = [*map(calibration_of, missing), *tasks]
        return set(by_guest(cells)) | ({base.guest} if self.options.keep else set())

    def _tasks(self, run: StoredRun, cells: Sequence[Cell]) -> list[Task]:
        """Return the cells' tasks, longest first. A further trial takes as long as the first."""
        tasks = {task.id: task for task in map(task_of, cells)}
        for first, *more in run.points:
            further = [tasks[one.id] for one in more if one.id in tasks]
            if further and self.store.has_cell(first.id):
                seconds = self.store.load_attempt(self.store.cell_directory(first.id)).seconds.total
                for task in further:
                    task.seconds = seconds
        return sorted(tasks.values(), key=lambda task: -task.seconds)

    # -- events

    def _work(self) -> None:
        """Carry out the scheduler's actions until all work is done."""
        self._act()
        while self._waiting or self._running or self._more or self._stays is not None:
            busy = bool(self._waiting or self._running)
            if busy and not self._pool.workers:
                raise TroubleError("there are cells left, and no guest that could run them")
            try:
                received = self._receive(None if busy or not self._more else IDLE)
            except Empty:
                self._more = False
                continue
            if received is not None:
                self._handle(*received)
            if received is None or not isinstance(received[1], Sample | GuestTime):
                self._act()

    def _receive(self, timeout: float | None = None) -> WorkerEvent | None:
        """Return a worker's next event; ``None``: the queue's. ``Empty``: none arrived in time."""
        match self._inbox.get(timeout=timeout):
            case NewCell(cell):
                self._waiting.append(task_of(cell))
            case Closed():
                self._more = False
            case worker, event:
                return worker, event
        return None

    def _worker_event(self) -> WorkerEvent:
        """Return the next event of a worker, while snapshots are made."""
        while (received := self._receive()) is None:
            pass
        worker, event = received
        self._pool.note(worker, event)
        self.watch(worker.id, event)
        return worker, event

    def _handle(self, worker: PooledWorker, event: Event | None) -> None:
        """Apply an event to the state; ``None``: the worker has exited."""
        task = self._running.get(worker.id)
        if task is not None and event is not None and getattr(event, "cell", None) == task.id:
            _log(task.directory / "events.jsonl", event)
        self._pool.note(worker, event)
        if event is not None:
            self.watch(worker.id, event)
        match event:
            case None:
                self._worker_ended(worker, task)
                self._act()  # reports a retried cell before its guest's end
                self.watch(worker.id, None)
            case GuestStarted():
                worker.up, worker.busy = True, False
            case CellStarted() if task is not None:
                task.started = True
            case Checked() if task is not None:
                if event.check not in task.checks:  # each trial of a sealed cell reports them
                    task.checks.append(event.check)
            case CellFinished() if self._array is worker:
                self._array_built(worker, event)
            case CellFinished() if task is not None:
                worker.busy = event.outcome is not Outcome.DONE  # else its guest is not reused
                self._failures.pop(worker.guest, None)
                self._attempt_ended(worker, task, event)
            case _:
                pass

    def _attempt_ended(self, worker: PooledWorker, task: Task, event: CellFinished) -> None:
        """Store an attempt, and whether it was contended."""
        self._running.pop(worker.id, None)
        checks, contended = list(task.checks), ""
        if event.outcome is Outcome.DONE:
            raw = self.store.raw(task.directory)
            contention = task.contention(raw)
            checks += contention
            contended = next((c.detail for c in contention if not c.passed), "")
        outcome = StoredOutcome(
            outcome=event.outcome,
            reason=event.reason,
            seconds=event.seconds,
            guest_seconds=event.guest_seconds,
            clock=event.clock,
            checks=tuple(checks),
            digest=event.digest,
        )
        self.store.keep_attempt(task.directory, outcome)
        self._ended.append(_Attempt(task=task, worker=worker, outcome=outcome, contended=contended))

    def _worker_ended(self, worker: PooledWorker, task: Task | None) -> None:
        """Record a worker's expected or unexpected exit."""
        if isinstance(worker.trouble, FullError):
            raise worker.trouble
        if worker.kept:
            self._kept = worker.id
        elif worker is self._array or (worker.reserved and worker.busy):
            raise worker.trouble or TroubleError("the guest could not be left up")
        elif task is not None:
            reason = str(worker.trouble or "the worker of its guest ended in the middle")
            lost = CellFinished(cell=task.id, outcome=Outcome.LOST, reason=reason)
            self.watch(worker.id, lost)
            self._attempt_ended(worker, task, lost)
        elif worker.trouble is not None:
            before = self._failures.get(worker.guest, 0)
            self._failures[worker.guest] = before + (not worker.unread)
            self._failed.append(worker)

    # -- state

    @property
    def _stays(self) -> Guest | None:
        """Configuration of the guest to leave running, while it is not chosen; else ``None``."""
        return self.compiled.base.guest if self.options.keep and self._kept is None else None

    def _state(self) -> SchedulerState:
        return SchedulerState(
            room=admission.room(self.options.jobs),
            limit=self._limit,
            virtual_limit=admission.virtual_limit(self.options.jobs),
            fixed=self.options.jobs is not None,
            waiting=tuple(map(self._cell_state, self._waiting)),
            running=tuple(map(self._cell_state, self._running.values())),
            workers=tuple(
                WorkerState(
                    id=w.id,
                    guest=w.guest,
                    memory=memory_of(w.guest),
                    up=w.up,
                    busy=w.busy,
                    reserved=w.reserved,
                )
                for w in self._pool.workers
            ),
            ended=tuple(map(self._attempt_state, self._ended)),
            failed=tuple(
                FailedGuest(
                    worker=w.id,
                    up=w.up,
                    failures=self._failures[w.guest],
                    silent=w.silent,
                    from_snapshot=_is_snapshot_at_fault(w),
                )
                for w in self._failed
            ),
            more=self._more,
            stays=self._stays,
        )

    def _cell_state(self, task: Task) -> CellState:
        found = self._states.get(task.id)
        if found is None:
            found = self._states[task.id] = CellState(
                id=task.id,
                guest=task.cell.guest,
                need=admission.need(task, self._kind),
                alone=task.alone,
            )
        return found

    def _attempt_state(self, attempt: _Attempt) -> EndedAttempt:
        task = attempt.task
        return EndedAttempt(
            cell=task.id,
            outcome=attempt.outcome.outcome,
            contended=bool(attempt.contended),
            concurrent=task.concurrent,
            repeats=task.repeats,
            retried=task.retried,
            unread=attempt.worker.unread,
            stays=self.options.keep and task.id == self._base,
        )

    # -- actions

    def _act(self) -> None:
        """Carry out actions until the scheduler returns no more."""
        while actions := scheduler.decide(self._state()):
            for action in actions:
                self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case scheduler.Assign():
                task = next(t for t in self._waiting if t.id == action.cell)
                self._waiting.remove(task)
                self._assign(self._worker(action.worker), task)
            case scheduler.StartGuest():
                waiting = (t.cell for t in self._waiting if t.id == action.cell)
                self._start(next(waiting, self.compiled.base))
            case scheduler.EndGuest():
                self._worker(action.worker).order(End())
            case scheduler.Unreserve():
                self._worker(action.worker).reserved = False
            case scheduler.Finish() | scheduler.Retry() | scheduler.Repeat():
                attempt = next(a for a in self._ended if a.task.id == action.cell)
                self._ended.remove(attempt)
                self._settle(attempt, action)
            case scheduler.Tolerate() | scheduler.DiscardSnapshot() | scheduler.GiveUp():
                failed = next(w for w in self._failed if w.id == action.worker)
                self._failed.remove(failed)
                self._do_without(failed, action)
            case scheduler.BuildArray():
                self._build_array(self._worker(action.worker))
            case scheduler.KeepGuest():
                self._worker(action.worker).order(Keep())
            case _:
                assert_never(action)

    def _worker(self, name: str) -> PooledWorker:
        return next(w for w in self._pool.workers if w.id == name)

    def _assign(self, worker: PooledWorker, task: Task) -> None:
        """Send a cell to a worker."""
        stays = self.options.keep and task.id == self._base  # its guest must have no other disks
        procedure = cell_procedure(
            task.cell,
            str(paths.guests() / worker.id),
            durations(task.cell),
            worker.plugged,
            self.options.erase,
            keep_spare=not stays,
        )
        worker.plugged = lasting(task.cell) if stays else left_by(task.cell, worker.plugged)
        task.directory = self.store.begin_cell(task.id, task.cell, procedure)
        task.started, task.checks = False, []
        self._running[worker.id] = task
        task.concurrent = len(self._running)
        for other in self._running.values():
            other.concurrent = max(other.concurrent, len(self._running))
        worker.order(
            CellJob(
                id=task.id,
                procedure=procedure,
                directory=str(task.directory),
                target=target_of(task.cell),
                patience=patience_of(task.cell),
                space=self._space(task.cell, task.need.space),
                inputs=self._inputs(worker, procedure, task),
            )
        )

    def _inputs(self, worker: PooledWorker, procedure: Procedure, task: Task) -> str:
        """Return the digest of a sealed cell's inputs; empty: its guest is not sealed."""
        job = worker.job
        if job.sealed is None or job.unsealed:
            return ""
        return inputs_of_cell(job.sealed, procedure, task.need.space, cold=job.cold)

    def _space(self, cell: Cell, needed: int) -> int:
        """Return the most bytes that the disks of a guest in virtual time may occupy.

        A guest that is left running gets more, since a user may fill its disks.
        """
        if not self.options.keep or cell.guest.clock is Clock.REAL:
            return needed
        whole = sum(disk.size for _, disk in cell.each_disk)
        return max(needed, min(whole, VIRTUAL_SPACE, load.free_space() // 4))

    def _start(self, cell: Cell) -> None:
        """Start a guest for a cell, with its disks if a snapshot has them."""
        guest = cell.guest
        boots = self.options.cold or guest in self._cold
        job, plugged = self._jobs.for_cell(cell, boots=boots, unsealed=guest in self._unsealed)
        first = self.options.keep and not self._pool.workers
        job = job.model_copy(update={"foreground": first, "own_network": self._own_network()})
        self._pool.start(job, guest).plugged = plugged

    def _own_network(self) -> bool:
        """Return whether guests may have a network namespace of their own.

        Unless the user is root, it is in a user namespace. The guard of real disks would not see
        the open files of the user's other processes from there.
        """
        real = (disk.device for cell in self.compiled.cells for _, disk in cell.each_disk)
        return accelerator.is_root() or not any(real)

    def _settle(
        self,
        attempt: _Attempt,
        action: scheduler.Finish | scheduler.Retry | scheduler.Repeat,
    ) -> None:
        """Store an attempt as its cell's result, or run the cell again."""
        task, outcome = attempt.task, attempt.outcome
        match action:
            case scheduler.Finish():
                self._finish(attempt)
                attempt.worker.reserved = action.reserve
                return
            case scheduler.Retry():
                self.say(f"{task.id} is retried in a fresh guest: {outcome.reason.splitlines()[0]}")
                task.retried |= action.counts
            case scheduler.Repeat():
                self._limit = action.limit or self._limit
                how = "alone" if action.alone else f"with at most {self._limit} cells at once"
                self.say(f"{task.id} is repeated {how}: {attempt.contended}")
                task.alone, task.repeats = task.alone or action.alone, task.repeats + 1
        task.remember(outcome)
        self._states.pop(task.id, None)
        self._waiting.append(task)
        self.watch(attempt.worker.id, CellAgain(cell=task.id))

    def _finish(self, attempt: _Attempt) -> None:
        """Store a cell or a calibration; other runs use the calibration if it is reliable."""
        task, outcome = attempt.task, attempt.outcome
        if task.wish is None:
            self.store.finish_cell(task.id, *task.least_contended(outcome))
            self._remember(task)
            if self.queue is not None:
                self.queue.finished(task.id)
            return
        problem = outcome.reason if outcome.outcome is not Outcome.DONE else ""
        if not problem and not all(c.passed for c in outcome.checks):
            problem = "the host was too busy while it was measured"
        found = conclude(task.wish, self.store.raw(task.directory), problem)
        if not found.passed:
            model = task.wish.disk.model
            self.say(f"disks of the model {model} are not calibrated: {found.detail}")
        run = self.store.load_run()
        update = {"calibrations": (*run.calibrations, found)}
        self.store.save_run(run.model_copy(update=update))

    def _remember(self, task: Task) -> None:
        """Let later runs take a sealed cell's results; not in a cluster's run."""
        if self.queue is not None or not self.options.remember:
            return
        found = self.store.load_attempt(self.store.cell_directory(task.id)).digest
        known = reuse.entry_of(found.inputs) if found is not None else None
        if found is not None and known is not None and known.results != found.results:
            self.say(
                f"{task.id} has other results than in '{known.directory}', where it had the same"
                f" inputs: compare with `lab reproduce {known.directory}`"
            )
        reuse.add(self.store, task.id)

    def _do_without(
        self,
        worker: PooledWorker,
        action: scheduler.Tolerate | scheduler.DiscardSnapshot | scheduler.GiveUp,
    ) -> None:
        """Continue without a failed guest, or end the run with its error."""
        assert worker.trouble is not None
        match action:
            case scheduler.GiveUp():
                raise worker.trouble
            case scheduler.Tolerate():
                self.say(f"a guest ended unexpectedly: {worker.trouble.message}")
            case scheduler.DiscardSnapshot():
                self._failures[worker.guest] = 0
                if (snapshot := snapshots.find(worker.job.warm)) is not None:
                    snapshots.discard(snapshot)
                if worker.job.warm == self._jobs.key(worker.guest):
                    self._cold.add(worker.guest)
                cold = worker.guest in self._cold
                self.say(
                    "a snapshot did not restore and was removed; guests"
                    f" {'boot instead' if cold else 'get their disks after restoring'}"
                    f" ({worker.trouble.message})"
                )

    def _build_array(self, worker: PooledWorker) -> None:
        """Make a guest build the base cell's array, without workloads."""
        cell = self.compiled.base.model_copy(update={"workloads": (), "faults": ()})
        directory = self.store.directory / f".array-{worker.id}"
        directory.mkdir()
        procedure = cell_procedure(
            *(cell, str(paths.guests() / worker.id), None, worker.plugged, self.options.erase)
        )
        self._array = worker
        worker.order(
            CellJob(
                id="array",
                procedure=procedure,
                directory=str(directory),
                target=target_of(cell),
                space=self._space(cell, 0),
            )
        )

    def _array_built(self, worker: PooledWorker, event: CellFinished) -> None:
        if event.outcome is not Outcome.DONE:
            raise TroubleError(event.reason)
        worker.busy, worker.reserved, self._array = False, True, None


def _is_snapshot_at_fault(worker: PooledWorker) -> bool:
    """Return whether a snapshot, which exists, may be why its guest failed."""
    if not worker.job.warm or lacks_memory(str(worker.trouble)):
        return False
    return snapshots.find(worker.job.warm) is not None


def _log(path: Path, event: Event) -> None:
    """Append an event to an attempt's log."""
    try:
        with path.open("ab") as file:
            file.write(_EVENT.dump_json(event) + b"\n")
    except OSError as error:
        raise unwritable(path, error) from error
