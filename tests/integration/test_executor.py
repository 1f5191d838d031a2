"""Complete runs with fake workers: they answer as the test says, and no guest boots."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from lab.compile.guest.disks import Plugged
from lab.compile.scenario.compiler import Compiled
from lab.compile.scenario.identity import cell_id
from lab.core.errors import TroubleError
from lab.core.units import GIB
from lab.host.system import accelerator, load
from lab.host.system.accelerator import Accelerator
from lab.model.execution.events import (
    CellAgain,
    CellFinished,
    CellStarted,
    Event,
    GuestGone,
    GuestKept,
    GuestStarted,
    Trouble,
)
from lab.model.execution.job import CellJob, End, GuestJob, Keep, Order
from lab.model.execution.procedure import Procedure
from lab.model.result.document import Outcome, PhaseSeconds
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Guest
from lab.run.more_trials import add_trials
from lab.run.options import RunOptions
from lab.run.preparation.platforms import Platform
from lab.run.scheduling import executor
from lab.run.scheduling.cell_queue import CellQueue
from lab.run.scheduling.executor import Execution
from lab.run.worker_pool import PooledWorker, WorkerPool
from lab.store.runs import RunStore, StoredCell, StoredOutcome, StoredRun
from tests.fakes import SCENARIO, compiled_text, with_matrix

_ORDER: TypeAdapter[Order] = TypeAdapter(Order)
FOUR = "  guest.memory: [512MiB, 640MiB]\n  array.layout: [left-symmetric, parity-last]\n"


@dataclass
class World:
    """Behaviour of the fake workers, and the orders that they received."""

    told: list[str] = field(default_factory=list)
    jobs: list[GuestJob] = field(default_factory=list)
    fates: list[str] = field(default_factory=list)
    """Endings of the next cells: ``done``, ``lost``, ``killed``, ``unread``, ``failed``."""
    stillborn: int = 0
    """Number of guests that fail to start."""
    guests: int = 0
    left: int = 0
    pairs: bool = False
    """A cell ends when another one begins, or after a second."""
    held: list[Callable[[], None]] = field(default_factory=list)
    most: int = 0
    """Most concurrent cells so far."""

    def release(self) -> None:
        while self.held:
            self.held.pop()()

    @property
    def cells(self) -> list[str]:
        """Return cells in the order of assignment."""
        return [words.split()[1] for words in self.told if words.startswith("cell ")]


@dataclass
class Worker:
    """Answers orders like a worker."""

    fate = ""
    world: World
    pool: WorkerPool
    worker: PooledWorker | None = None
    over: bool = False

    def say(self, *events: Event | None) -> None:
        for event in events:
            self.pool.events.put((self.worker, event))

    def tell(self, line: str) -> None:
        assert self.worker is not None
        order, name = _ORDER.validate_json(line), self.worker.id
        match order:
            case End():
                self.world.told.append(f"end {name}")
                self.say(GuestGone(guest=name), None)
            case Keep():
                self.world.told.append(f"keep {name}")
                self.say(GuestKept(guest=name), None)
            case CellJob():
                self.world.told.append(f"cell {order.id} {name}")
                self.run(order, self.world.fates.pop(0) if self.world.fates else "done", name)

    def run(self, order: CellJob, fate: str, name: str) -> None:
        self.say(CellStarted(cell=order.id))
        outcome = {"lost": Outcome.LOST, "failed": Outcome.FAILED}.get(fate, Outcome.DONE)
        ended = CellFinished(
            cell=order.id, outcome=outcome, reason="it panicked" * (fate != "done")
        )
        match fate:
            case "killed":
                self.say(None)
            case "unread":
                self.say(Trouble(message="nobody read", exit_status=3, unread=True), None)
            case "done" if self.world.pairs:
                self.world.held.append(lambda: self.say(ended))
                self.world.most = max(self.world.most, len(self.world.held))
                if len(self.world.held) == 2:
                    self.world.release()
                else:
                    threading.Timer(1.0, self.world.release).start()
            case "done":
                self.say(ended)
            case _:
                self.say(ended, GuestGone(guest=name), None)

    def hang_up(self, _grace: float = 0.0) -> None: ...

    def end(self, _grace: float) -> int:
        self.world.left -= not self.over
        self.over = True
        return 0


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, lab_home: Path) -> World:
    made = World()

    class StillPool(WorkerPool):
        def start(self, job: GuestJob, guest: Guest) -> PooledWorker:
            process: Any = Worker(made, self)
            worker = PooledWorker(job=job, guest=guest, child=process, log=lab_home / "log")
            process.worker = worker
            self.workers.append(worker)
            made.told.append(f"start {job.guest}")
            made.jobs.append(job)
            made.left += 1
            if made.stillborn:
                made.stillborn -= 1
                process.say(Trouble(message="no room", exit_status=3), None)
            else:
                process.say(GuestStarted(guest=job.guest, seconds=1.0))
            return worker

    class Jobs:
        def __init__(self, **_words: object) -> None: ...

        def for_cell(self, _cell: Cell, **_how: bool) -> tuple[GuestJob, Plugged]:
            made.guests += 1
            job = GuestJob(
                guest=f"g{made.guests}",
                scenario="q",
                image="i",
                host_key="k",
                private_key="/k",
                procedure=Procedure(name="g", steps=()),
            )
            return job, Plugged()

    monkeypatch.setattr(executor, "WorkerPool", StillPool)
    monkeypatch.setattr(executor, "GuestJobs", Jobs)
    monkeypatch.setattr(executor, "wanted", lambda *_: ([], []))
    monkeypatch.setattr(load, "throughput", lambda: 1e15)
    monkeypatch.setattr(load, "available_memory", lambda: 100 * GIB)
    monkeypatch.setattr(load, "free_space", lambda: 10_000 * GIB)
    return made


@dataclass
class Run:
    """An execution, and its observed events."""

    execution: Execution
    store: RunStore
    compiled: Compiled
    seen: list[tuple[str, Event | None]]
    said: list[str]

    def all(self) -> str | None:
        left = [c for c in self.compiled.cells if not self.store.has_cell(cell_id(c))]
        return self.execution.run(left)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        cells = map(cell_id, self.compiled.cells)
        found = {c: self.store.load_cell(c) for c in cells}
        return {name: cell.outcome.outcome for name, cell in found.items() if cell}


@pytest.fixture
def begin(world: World, tmp_path: Path) -> Callable[..., Run]:
    def make(text: str = with_matrix(FOUR), queue: CellQueue | None = None, **options: Any) -> Run:
        compiled = compiled_text(tmp_path, text)
        store = RunStore.create("q", text, tmp_path / "out")
        store.save_run(
            StoredRun(
                id=store.id,
                scenario="q",
                title="t",
                question="q",
                started="2026-01-01T00:00:00+00:00",
                environment={},
                cells=tuple(
                    StoredCell(id=cell_id(c), cell=c, published=True) for c in compiled.cells
                ),
                claims=(),
            )
        )
        return execution_of(store, compiled, queue, **options)

    return make


def execution_of(
    store: RunStore, compiled: Compiled, queue: CellQueue | None = None, **options: Any
) -> Run:
    seen: list[tuple[str, Event | None]] = []
    said: list[str] = []
    tcg = Accelerator(kind="tcg", reason="TCG")
    nothing: Any = None
    platform = Platform(accelerator=tcg, image=nothing, emulator="")
    execution = Execution(
        store=store,
        compiled=compiled,
        platforms={c.guest.system: platform for c in (compiled.base, *compiled.cells)},
        watch=lambda guest, event: seen.append((guest, event)),
        say=said.append,
        options=RunOptions(cold=True, **options),
        queue=queue,
    )
    return Run(execution, store, compiled, seen, said)


def test_every_cell_runs_once_and_no_guest_is_left(begin: Callable[..., Run], world: World) -> None:
    run = begin()
    assert run.all() is None
    assert sorted(world.cells) == sorted(map(cell_id, run.compiled.cells))
    assert set(run.outcomes.values()) == {Outcome.DONE}
    assert world.left == 0


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_two_sealed_cells_run_at_once_on_two_cpus(
    begin: Callable[..., Run], world: World, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    """Two guest configurations, on a host with almost no throughput; cells in real time wait.

    A cell that runs alone for a second ends.
    """
    monkeypatch.setattr(accelerator, "cpus", lambda: 2)
    monkeypatch.setattr(load, "throughput", lambda: 1.0)
    world.pairs = True
    run = begin(with_matrix(FOUR, SCENARIO + f"guest: {{clock: {clock}}}\n"))
    assert run.all() is None
    assert world.most == (2 if clock == "virtual" else 1)
    assert set(run.outcomes.values()) == {Outcome.DONE}
    assert len(run.outcomes) == 4
    assert world.left == 0


def test_the_longest_cell_goes_first(begin: Callable[..., Run], world: World) -> None:
    run = begin(with_matrix("  workloads.write.count: [1000, 3000, 2000]\n"), jobs=1)
    run.all()
    counts = {cell_id(c): c.workloads[0].parameters["count"] for c in run.compiled.cells}
    assert [counts[name] for name in world.cells] == [3000, 2000, 1000]


def test_further_trials_go_by_the_measured_time_of_the_first(
    begin: Callable[..., Run], world: World
) -> None:
    run = begin(with_matrix("  workloads.write.count: [1000, 3000]\n"), jobs=1)
    for cell, seconds in zip(run.compiled.cells, (50.0, 5.0), strict=True):
        attempt = run.store.begin_cell(cell_id(cell), cell, Procedure(name="q", steps=()))
        done = StoredOutcome(outcome=Outcome.DONE, seconds=PhaseSeconds(total=seconds))
        run.store.finish_cell(cell_id(cell), attempt, done)
    add_trials(run.store, {cell_id(c): 1 for c in run.compiled.cells}, run.execution.run)
    counts = {s.id: s.cell.workloads[0].parameters["count"] for s in run.store.load_run().cells}
    assert [counts[name] for name in world.cells] == [1000, 3000]


@pytest.mark.parametrize("fate", ["lost", "killed"])
def test_a_lost_cell_runs_again_in_a_fresh_guest(
    begin: Callable[..., Run], world: World, fate: str
) -> None:
    world.fates = [fate]
    run = begin(SCENARIO, jobs=1)
    run.all()
    (name,) = run.outcomes
    assert [w for w in world.told if w.startswith("cell")] == [f"cell {name} g1", f"cell {name} g2"]
    assert run.outcomes[name] is Outcome.DONE
    (first,) = run.store.attempts(name)
    assert run.store.load_attempt(first).outcome is Outcome.LOST
    kinds = [type(event) for guest, event in run.seen if guest == "g1"]
    again, gone = kinds.index(CellAgain), kinds.index(type(None))
    assert kinds.index(CellFinished) < again < gone == len(kinds) - 1


def test_a_cell_that_is_lost_twice_stays_lost(begin: Callable[..., Run], world: World) -> None:
    world.fates = ["killed", "lost"]
    run = begin(SCENARIO, jobs=1)
    run.all()
    assert list(run.outcomes.values()) == [Outcome.LOST]
    assert len(world.cells) == 2


def test_guests_that_a_stopped_lab_lost_do_not_count(
    begin: Callable[..., Run], world: World
) -> None:
    """All guests may have ended while the lab was stopped, also during the second try."""
    world.fates = ["lost", "unread", "unread", "done"]
    run = begin(SCENARIO, jobs=1)
    run.all()
    assert list(run.outcomes.values()) == [Outcome.DONE]
    world.fates = ["unread", "unread", "lost", "lost"]
    other = begin(SCENARIO, jobs=1)
    other.all()
    assert list(other.outcomes.values()) == [Outcome.LOST]
    assert world.fates == []


def test_a_failed_cell_is_kept_and_its_guest_is_not_used_again(
    begin: Callable[..., Run], world: World
) -> None:
    world.fates = ["failed"]
    run = begin(with_matrix("  workloads.write.count: [10, 20]\n"), jobs=1)
    run.all()
    assert list(run.outcomes.values()).count(Outcome.FAILED) == 1
    assert [w.split()[2] for w in world.told if w.startswith("cell")] == ["g1", "g2"]


def test_a_guest_that_does_not_come_up_is_replaced_once(
    begin: Callable[..., Run], world: World
) -> None:
    world.stillborn = 1
    run = begin(SCENARIO, jobs=1)
    run.all()
    assert list(run.outcomes.values()) == [Outcome.DONE]
    world.stillborn = 2
    with pytest.raises(TroubleError, match="no room"):
        begin(SCENARIO, jobs=1).all()
    assert world.left == 0


def test_a_run_that_goes_on_runs_what_is_left(begin: Callable[..., Run], world: World) -> None:
    """Ctrl-C interrupts the first run as it reports a finished cell."""
    run = begin(jobs=1)

    def interrupt(_guest: str, event: Event | None) -> None:
        if isinstance(event, CellFinished) and len(world.cells) == 2:
            raise KeyboardInterrupt

    run.execution.watch = interrupt
    with pytest.raises(KeyboardInterrupt):
        run.all()
    assert world.left == 0
    assert len(run.outcomes) == 1
    before = len(world.cells)
    execution_of(run.store, run.compiled, jobs=1).all()
    assert len(run.outcomes) == 4
    assert len(world.cells) - before == 3


@pytest.mark.parametrize("jobs", [1, 4])
def test_the_base_cells_guest_stays_up(begin: Callable[..., Run], world: World, jobs: int) -> None:
    run = begin(
        with_matrix("  array.layout: [left-symmetric, parity-last]\n"), jobs=jobs, keep=True
    )
    kept = run.all()
    assert len(run.outcomes) == 2
    assert world.told[-1] == f"keep {kept}"
    last = [w.split()[1] for w in world.told if w.startswith("cell") and w.split()[2] == kept][-1]
    base = next(cell_id(c) for c in run.compiled.cells if c.array == run.compiled.base.array)
    assert last in (base, "array")


def test_without_cells_an_array_is_built_and_stays(begin: Callable[..., Run], world: World) -> None:
    run = begin(SCENARIO, keep=True)
    assert run.execution.run(()) == "g1"
    assert world.told == ["start g1", "cell array g1", "keep g1"]


@pytest.mark.parametrize("keep", [True, False])
def test_the_guest_that_a_person_waits_for_is_not_nice(
    begin: Callable[..., Run], world: World, keep: bool
) -> None:
    """`lab up` waits for its guest, and a run's guests step back behind those that measure."""
    begin(SCENARIO, keep=keep, jobs=1).all()
    assert [job.foreground for job in world.jobs] == [keep]


@pytest.mark.parametrize(
    ("root", "device", "own"),
    [(True, "/dev/x", True), (False, "/dev/x", False), (False, None, True)],
)
def test_guests_have_a_network_of_their_own_unless_a_users_guard_would_be_blind(
    root: bool, device: str | None, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "is_root", lambda: root)
    cell = SimpleNamespace(each_disk=[("disk1", SimpleNamespace(device=device))])
    run: Any = SimpleNamespace(compiled=SimpleNamespace(cells=[cell]))
    assert Execution._own_network(run) is own


def test_an_array_that_cannot_be_built_ends_the_run(
    begin: Callable[..., Run], world: World
) -> None:
    world.fates = ["failed"]
    with pytest.raises(TroubleError, match="it panicked"):
        begin(SCENARIO, keep=True).execution.run(())
    assert world.left == 0


def test_cells_of_a_queue_run_as_they_arrive(begin: Callable[..., Run], world: World) -> None:
    done: list[str] = []
    queue = CellQueue(finished=done.append)
    run = begin(queue=queue, jobs=1)
    first, second, third, _ = run.compiled.cells
    ended: list[bool] = []

    def feed() -> None:
        queue.put(first)
        until(lambda: len(done) == 1)
        queue.put(second)
        until(lambda: len(done) == 2)
        ended.append(any(w.startswith("end") for w in world.told))
        queue.put(third)
        queue.close()

    thread = threading.Thread(target=feed)
    thread.start()
    run.all()
    thread.join()
    assert done == world.cells == [cell_id(c) for c in (first, second, third)]
    assert ended == [False]  # the guest waits between two cells
    assert world.left == 0


def test_a_queue_without_cells_closes(
    begin: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "IDLE", 0.1)
    run = begin(queue=CellQueue(finished=print))
    assert run.all() is None


def until(true: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(600):
        if true():
            return
        waited.wait(0.05)
    raise AssertionError("it did not happen within 30 s")
