"""The guest pool: reuse, failures, retries. Workers are fake, and no guest boots."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from lab.core.errors import GuestError, HostError, TroubleError
from lab.host.guest.registry import GuestRecord
from lab.model.execution.events import CellFinished, GuestGone, GuestStarted, Trouble
from lab.model.execution.job import CellJob, End, GuestJob, Order
from lab.model.execution.procedure import AttachDisk, Output, Procedure, WipeDisk
from lab.model.result.document import Outcome
from lab.model.scenario.guest import Guest
from lab.run import guest_pool
from lab.run.guest_pool import GuestPool, PooledGuest
from lab.run.worker_pool import PooledWorker, WorkerPool
from lab.testing.asked import asked_for
from tests.fakes import guest_record

_ORDER: TypeAdapter[Order] = TypeAdapter(Order)


@dataclass
class World:
    """Behaviour of the fake guests, and the orders that they received."""

    told: list[str] = field(default_factory=list)
    procedures: list[Procedure] = field(default_factory=list)
    traces: dict[str, str] = field(default_factory=dict)
    """By guest: traces that a test has left."""
    lost: set[str] = field(default_factory=set)
    """Guests that are dead when they get a cell."""
    stillborn: int = 0
    """Number of guests that fail to start."""
    states: bool = True
    """Whether there are snapshots to restore."""


@dataclass
class Worker:
    """Answers orders like a worker."""

    fate = ""

    world: World
    pool: WorkerPool
    worker: PooledWorker | None = None

    def say(self, *events: Any) -> None:
        for event in events:
            self.pool.events.put((self.worker, event))

    def tell(self, line: str) -> None:
        assert self.worker is not None
        order, name = _ORDER.validate_json(line), self.worker.job.guest
        self.world.told.append(f"{order.kind} {name}")
        if isinstance(order, End):
            self.say(GuestGone(guest=name), None)
        if isinstance(order, CellJob):
            self.world.procedures.append(order.procedure)
            if name in self.world.lost:
                lost = CellFinished(
                    cell=order.id, outcome=Outcome.LOST, reason="it panicked\n  tail"
                )
                self.say(lost, GuestGone(guest=name), None)
            else:
                self.say(CellFinished(cell=order.id, outcome=Outcome.DONE))

    def hang_up(self) -> None: ...

    def end(self, _grace: float) -> int:
        return 0


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lab_home: Path) -> World:
    made = World()
    names = iter(f"g{number}" for number in range(1, 99))

    class StillPool(WorkerPool):
        def start(self, job: GuestJob, guest: Guest) -> PooledWorker:
            worker: Any = Worker(made, self)
            worker.worker = PooledWorker(job=job, guest=guest, child=worker, log=tmp_path / "log")
            self.workers.append(worker.worker)
            how = "restore" if job.warm else "boot"
            made.told.append(f"{how} {job.guest}")
            if made.stillborn:
                made.stillborn -= 1
                worker.say(Trouble(message="no room", exit_status=3), None)
            else:
                worker.say(GuestStarted(guest=job.guest, seconds=1.0))
            return worker.worker

    class GuestJobs:
        def __init__(self, **_rest: object) -> None: ...

        def key(self, _kind: Guest) -> str:
            return "key"

        def job(self, _kind: Guest, state: object) -> GuestJob:
            return GuestJob(
                guest=next(names),
                scenario="q",
                image="i",
                warm="key" if state else "",
                host_key="k",
                private_key="/k",
                procedure=Procedure(name="g", steps=()),
            )

    class SnapshotMaker(GuestJobs):
        def guests(self, _kinds: object) -> set[Guest]:
            return set()

    class GuestConnection:
        def __init__(self, record: GuestRecord) -> None:
            self.record = record

        def run(self, script: str, _timeout: float) -> Output:
            assert script == guest_pool.TRACES
            left = made.traces.get(self.record.id, "as it was")
            if left == "dead":
                raise GuestError("gone")
            return Output(status=0, stdout=left, stderr="", seconds=0.0)

        def close(self) -> None:
            made.told.append(f"leave {self.record.id}")

    def record(directory: Path) -> GuestRecord:
        return guest_record(directory, directory.name)

    nothing = {"check_images": None, "check_arrays": None, "sweep": None, "prepare": object()}
    for name, value in nothing.items():
        monkeypatch.setattr(guest_pool, name, lambda *_a, value=value, **_k: value)
    for name, stand_in in {
        "WorkerPool": StillPool,
        "GuestJobs": GuestJobs,
        "SnapshotMaker": SnapshotMaker,
        "GuestConnection": GuestConnection,
    }.items():
        monkeypatch.setattr(guest_pool, name, stand_in)
    monkeypatch.setattr(
        guest_pool.snapshots, "find", lambda _key: object() if made.states else None
    )
    monkeypatch.setattr(guest_pool.guests, "read", record)
    return made


@pytest.fixture
def lender(tmp_path: Path) -> GuestPool:
    return GuestPool(directory=tmp_path, say=lambda _t: None, progress=lambda _t, _f: None)


def lend(lender: GuestPool, *, fresh: bool = False, **words: Any) -> PooledGuest:
    words = {"disks": 2, "size": "1GiB", **words}
    asked = asked_for(words, array="level" in words, place="t:1", path=Path("t.py"))
    return lender.acquire(asked.compiled, fresh=fresh)


def name(loan: PooledGuest) -> str:
    return loan.worker.job.guest


def test_a_guest_that_was_left_as_it_was_is_used_again_with_its_disks_wiped(
    world: World, lender: GuestPool
) -> None:
    first = lend(lender, level=1)
    assert lender.release(first)
    second = lend(lender)
    assert name(second) == name(first)
    assert world.told == ["restore g1", "cell g1", "leave g1", "cell g1"]
    fresh, again = world.procedures
    assert [type(s) for s in fresh.steps].count(AttachDisk) == 2
    assert [type(s) for s in again.steps].count(WipeDisk) == 2
    assert AttachDisk not in [type(s) for s in again.steps]


@pytest.mark.parametrize("left", ["a mount more", "dead"])
def test_a_guest_that_was_changed_or_died_is_ended(
    world: World, lender: GuestPool, left: str
) -> None:
    first = lend(lender)
    world.traces["g1"] = left
    assert not lender.release(first)
    assert name(lend(lender)) == "g2"
    assert world.told == ["restore g1", "cell g1", "leave g1", "end g1", "restore g2", "cell g2"]


def test_fresh_is_a_guest_that_nobody_used(world: World, lender: GuestPool) -> None:
    lender.release(lend(lender))
    assert name(lend(lender, fresh=True)) == "g2"


def test_another_kind_of_guest_takes_an_idle_ones_place(world: World, lender: GuestPool) -> None:
    lender.release(lend(lender))
    assert name(lend(lender, memory="768MiB")) == "g2"
    assert "end g1" in world.told


def test_one_guest_stands_idle_and_no_more(world: World, lender: GuestPool) -> None:
    one, two = lend(lender), lend(lender)
    assert [lender.release(one), lender.release(two)] == [True, False]
    assert world.told[-1] == "end g2"


def test_an_idle_guest_that_died_is_passed_over(world: World, lender: GuestPool) -> None:
    lender.release(lend(lender))
    world.lost.add("g1")
    assert name(lend(lender)) == "g2"


def test_a_new_guest_that_dies_is_told_with_its_console(world: World, lender: GuestPool) -> None:
    world.lost.add("g1")
    with pytest.raises(GuestError, match="it panicked") as found:
        lend(lender)
    assert found.value.hint == "tail"


@pytest.mark.parametrize(
    ("stillborn", "starts"),
    [(1, ["restore g1", "restore g2"]), (2, ["restore g1", "restore g2", "boot g3"])],
)
def test_a_guest_that_does_not_come_up_is_tried_again_and_then_booted(
    world: World, lender: GuestPool, stillborn: int, starts: list[str]
) -> None:
    world.stillborn = stillborn
    lend(lender)
    assert [t for t in world.told if t.startswith(("restore", "boot"))] == starts


def test_a_kind_that_never_comes_up_is_an_error(world: World, lender: GuestPool) -> None:
    world.stillborn = 3
    with pytest.raises(HostError, match="no room"):
        lend(lender)


def test_a_guest_waits_for_memory_and_not_for_ever(
    world: World, lender: GuestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_pool, "MEMORY_SECONDS", 0.0)
    monkeypatch.setattr(guest_pool.load, "available_memory", lambda: 1 << 30)
    with pytest.raises(TroubleError, match=r"waiting for 1\.9 GiB of free memory"):
        lend(lender)
    assert world.told == []
