"""Scheduling: tables of states and actions, and simulated runs from start to end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.compile.schedule import RESERVE, Need, Room
from lab.core.units import GIB, MIB
from lab.model.result.document import Outcome
from lab.model.scenario.guest import Clock, Guest
from lab.run.scheduling import decide as scheduler
from lab.run.scheduling.decide import (
    REPEATS,
    Action,
    Assign,
    BuildArray,
    CellState,
    DiscardSnapshot,
    EndedAttempt,
    EndGuest,
    FailedGuest,
    Finish,
    GiveUp,
    KeepGuest,
    Repeat,
    Retry,
    SchedulerState,
    StartGuest,
    Tolerate,
    Unreserve,
    WorkerState,
    decide,
)
from tests.properties import examples

A, B = Guest(memory=512 * MIB), Guest(memory=640 * MIB)
V, W = (g.model_copy(update={"clock": Clock.VIRTUAL}) for g in (A, B))
"""The same configurations in virtual time."""
NEED = Need(memory=700 * MIB, space=GIB, rate=1e6, cores=0.3)
ROOM = Room(memory=100 * GIB, space=100 * GIB, rate=1e12, cores=1.5)
TIGHT = replace(ROOM, memory=RESERVE + 100 * MIB)


def cell(name: str, guest: Guest = A, **words: Any) -> CellState:
    need = replace(NEED, **{k: words.pop(k) for k in ("cores", "space", "rate") if k in words})
    need = replace(need, virtual=guest.clock is Clock.VIRTUAL)
    return CellState(id=name, guest=guest, need=need, **words)


def coming(name: str, guest: Guest = A) -> WorkerState:
    return WorkerState(id=name, guest=guest, memory=NEED.memory)


def idle(name: str, guest: Guest = A) -> WorkerState:
    return replace(coming(name, guest), up=True, busy=False)


def busy(name: str, guest: Guest = A) -> WorkerState:
    return replace(coming(name, guest), up=True)


def reserved(name: str, guest: Guest = A) -> WorkerState:
    return replace(idle(name, guest), reserved=True)


def state(**words: Any) -> SchedulerState:
    words = {k: tuple(v) if isinstance(v, list) else v for k, v in words.items()}
    return SchedulerState(**({"room": ROOM, "limit": 6, "virtual_limit": 2} | words))


PLACEMENTS: dict[str, tuple[SchedulerState, tuple[Action, ...]]] = {
    "nothing is left to do": (state(), ()),
    "an idle guest takes the first cell": (
        state(waiting=[cell("1"), cell("2")], workers=[idle("g")]),
        (Assign("1", "g"),),
    ),
    "without a guest one is started": (state(waiting=[cell("1")]), (StartGuest(A, "1"),)),
    "another guest for another cell": (
        state(waiting=[cell("1"), cell("2")], workers=[coming("g")]),
        (StartGuest(A, "1"),),
    ),
    "no more guests than cells": (state(waiting=[cell("1")], workers=[coming("g")]), ()),
    "no more guests than the limit": (
        state(waiting=[cell("1"), cell("2")], workers=[coming("g")], limit=1),
        (),
    ),
    "no more cells than the limit, which may have fallen": (
        state(waiting=[cell("2")], running=[cell("1")], workers=[busy("g"), idle("h")], limit=1),
        (),
    ),
    "no guest without memory for it": (
        state(waiting=[cell("1"), cell("2")], workers=[coming("g")], room=TIGHT),
        (),
    ),
    "guests that come up need their memory still": (
        state(
            waiting=[cell("1"), cell("2")],
            workers=[coming("g")],
            room=replace(ROOM, memory=2 * NEED.memory + RESERVE),
        ),
        (),
    ),
    "the first guest is started whatever the host has": (
        state(waiting=[cell("1")], room=TIGHT),
        (StartGuest(A, "1"),),
    ),
    "an idle guest has its memory already": (
        state(waiting=[cell("2")], running=[cell("1")], workers=[busy("g"), idle("h")], room=TIGHT),
        (Assign("2", "h"),),
    ),
    "a cell that does not fit is passed by one that does": (
        state(
            waiting=[cell("2", cores=1.4), cell("3")],
            running=[cell("1")],
            workers=[busy("g"), idle("h")],
        ),
        (Assign("3", "h"),),
    ),
    "CPU": (
        state(waiting=[cell("2", cores=1.3)], running=[cell("1")], workers=[busy("g"), idle("h")]),
        (),
    ),
    "space": (
        state(
            waiting=[cell("2", space=99 * GIB)],
            running=[cell("1")],
            workers=[busy("g"), idle("h")],
        ),
        (),
    ),
    "throughput": (
        state(waiting=[cell("2", rate=6e11)], running=[cell("1")], workers=[busy("g"), idle("h")]),
        (),
    ),
    "disks without limits run alone": (
        state(waiting=[cell("2", rate=0.0)], running=[cell("1")], workers=[busy("g"), idle("h")]),
        (),
    ),
    "a cell that runs alone lets no other begin": (
        state(waiting=[cell("2")], running=[cell("1", alone=True)], workers=[busy("g"), idle("h")]),
        (),
    ),
    "a cell that must run alone waits, and another runs": (
        state(
            waiting=[cell("2", alone=True), cell("3")],
            running=[cell("1")],
            workers=[busy("g"), idle("h")],
        ),
        (Assign("3", "h"),),
    ),
    "an idle guest makes room for one of another configuration": (
        state(waiting=[cell("1"), cell("2", B)], workers=[idle("g", B)], limit=1),
        (EndGuest("g"),),
    ),
    "but not while a guest comes up": (
        state(waiting=[cell("1"), cell("2", B)], workers=[idle("g", B), coming("h")], limit=2),
        (),
    ),
    "and not while a cell runs": (
        state(
            waiting=[cell("1"), cell("2", B)],
            running=[cell("3", B)],
            workers=[idle("g", B), busy("h", B)],
            limit=2,
        ),
        (),
    ),
    "idle guests that no cell wants end": (
        state(waiting=[cell("2")], running=[cell("1")], workers=[busy("g"), idle("h", B)], limit=2),
        (EndGuest("h"),),
    ),
    "all idle guests end after the last cell": (
        state(workers=[idle("g"), idle("h", B)]),
        (EndGuest("g"), EndGuest("h")),
    ),
    "an idle guest waits for cells that may arrive": (state(workers=[idle("g")], more=True), ()),
    "unless cells of another configuration wait": (
        state(waiting=[cell("1")], workers=[idle("g", B)], more=True, limit=1),
        (EndGuest("g"),),
    ),
    "a reserved guest takes no cell": (
        state(waiting=[cell("1")], workers=[reserved("g")], stays=A),
        (StartGuest(A, "1"),),
    ),
    "unless there is no room for another": (
        state(waiting=[cell("1")], workers=[reserved("g")], stays=A, limit=1),
        (Unreserve("g"),),
    ),
    "the reserved guest is left up in the end": (
        state(workers=[reserved("g")], stays=A),
        (KeepGuest("g"),),
    ),
    "after the others have ended": (
        state(workers=[reserved("g"), idle("h")], stays=A),
        (EndGuest("h"),),
    ),
    "once": (state(workers=[replace(reserved("g"), busy=True)], stays=A), ()),
    "without a reserved guest the array is built in an idle one": (
        state(workers=[idle("g", B), idle("h")], stays=A),
        (EndGuest("g"),),
    ),
    "then": (state(workers=[idle("h")], stays=A), (BuildArray("h"),)),
    "or in a new one": (state(stays=A), (StartGuest(A),)),
    "which is waited for": (state(workers=[coming("g")], stays=A), ()),
    "in one guest only": (state(workers=[busy("g"), idle("h")], stays=A), ()),
    "virtual time: a worker for each CPU": (
        state(waiting=[cell("1", V), cell("2", V), cell("3", V)], workers=[coming("g", V)]),
        (StartGuest(V, "1"),),
    ),
    "virtual time: no more": (
        state(
            waiting=[cell("1", V), cell("2", V), cell("3", V)],
            workers=[coming("g", V), coming("h", V)],
        ),
        (),
    ),
    "virtual time: neither CPU use, throughput nor unlimited disks keep a cell waiting": (
        state(
            waiting=[cell("2", V, cores=9.0, rate=0.0)],
            running=[cell("1", V, cores=9.0, rate=0.0)],
            workers=[busy("g", V), idle("h", V)],
            room=replace(ROOM, cores=0.1, rate=1.0),
        ),
        (Assign("2", "h"),),
    ),
    "virtual time: nor a limit that contention has lowered": (
        state(
            waiting=[cell("2", V)],
            running=[cell("1", V)],
            workers=[busy("g", V), idle("h", V)],
            limit=1,
        ),
        (Assign("2", "h"),),
    ),
    "virtual time: nor workers of another configuration, which have no guest": (
        state(
            waiting=[cell("2", W), cell("3", V)],
            running=[cell("1", V)],
            workers=[busy("g", V), idle("h", V)],
        ),
        (StartGuest(W, "2"),),
    ),
    "virtual time: a third guest waits for a CPU": (
        state(
            waiting=[cell("3", V)],
            running=[cell("1", V), cell("2", V)],
            workers=[busy("g", V), busy("h", V), idle("i", V)],
        ),
        (),
    ),
    "virtual time: an idle worker has no memory yet": (
        state(
            waiting=[cell("2", V)],
            running=[cell("1", V)],
            workers=[busy("g", V), idle("h", V)],
            room=TIGHT,
        ),
        (),
    ),
    "virtual time: space": (
        state(
            waiting=[cell("2", V, space=99 * GIB)],
            running=[cell("1", V)],
            workers=[busy("g", V), idle("h", V)],
        ),
        (),
    ),
    "virtual time: not with a cell that the host's clock times": (
        state(
            waiting=[cell("2", V), cell("3")],
            running=[cell("1")],
            workers=[busy("g"), idle("h"), idle("i", V)],
        ),
        (Assign("3", "h"),),
    ),
    "real time: not with a sealed guest, which keeps a CPU busy": (
        state(
            waiting=[cell("2"), cell("3", V)],
            running=[cell("1", V)],
            workers=[busy("g", V), idle("h", V), idle("i")],
        ),
        (Assign("3", "h"),),
    ),
}


@pytest.mark.parametrize(("given_", "actions"), PLACEMENTS.values(), ids=list(PLACEMENTS))
def test_a_state_leads_to_actions(given_: SchedulerState, actions: tuple[Action, ...]) -> None:
    assert decide(given_) == actions


def ended(outcome: Outcome, **words: Any) -> EndedAttempt:
    return EndedAttempt(cell="1", outcome=outcome, **words)


@pytest.mark.parametrize(
    ("attempt", "action"),
    [
        (ended(Outcome.DONE), Finish("1")),
        (ended(Outcome.FAILED), Finish("1")),
        (ended(Outcome.LOST), Retry("1")),
        (ended(Outcome.LOST, retried=True), Finish("1")),
        (ended(Outcome.LOST, unread=True), Retry("1", counts=False)),
        (ended(Outcome.LOST, unread=True, retried=True), Retry("1", counts=False)),
        (ended(Outcome.DONE, contended=True), Repeat("1", alone=True)),
        (ended(Outcome.DONE, contended=True, concurrent=6), Repeat("1", limit=4)),
        (ended(Outcome.DONE, contended=True, concurrent=4), Repeat("1", limit=2)),
        (ended(Outcome.DONE, contended=True, concurrent=2), Repeat("1", limit=1)),
        (ended(Outcome.DONE, contended=True, concurrent=6, repeats=1), Repeat("1", alone=True)),
        (ended(Outcome.DONE, contended=True, repeats=REPEATS), Finish("1")),
        (ended(Outcome.FAILED, contended=True), Finish("1")),
        (ended(Outcome.DONE, stays=True), Finish("1", reserve=True)),
        (ended(Outcome.FAILED, stays=True), Finish("1")),
    ],
)
def test_an_attempt_that_ended_is_kept_or_made_again(attempt: EndedAttempt, action: Action) -> None:
    assert decide(state(ended=[attempt], workers=[idle("g")], waiting=[cell("2")])) == (action,)


def test_the_limit_only_falls_and_not_below_what_the_user_set() -> None:
    contended = ended(Outcome.DONE, contended=True, concurrent=6)
    assert decide(state(ended=[contended], limit=3)) == (Repeat("1", limit=3),)
    assert decide(state(ended=[contended], fixed=True)) == (Repeat("1", alone=True),)


def failed(
    failures: int, *, up: bool = False, from_snapshot: bool = False, silent: bool = False
) -> FailedGuest:
    return FailedGuest(
        worker="g", failures=failures, up=up, from_snapshot=from_snapshot, silent=silent
    )


@pytest.mark.parametrize(
    ("guest", "words", "action"),
    [
        (failed(0), {}, Tolerate("g")),
        (failed(1), {}, Tolerate("g")),
        (failed(1, silent=True), {}, GiveUp("g")),
        (failed(1, silent=True, from_snapshot=True), {}, Tolerate("g")),
        (failed(2), {}, GiveUp("g")),
        (failed(2, up=True), {}, GiveUp("g")),
        (failed(2, up=True), {"waiting": []}, Tolerate("g")),
        (failed(2, up=True), {"waiting": [], "stays": A}, GiveUp("g")),
        (failed(1, from_snapshot=True), {}, Tolerate("g")),
        (failed(2, from_snapshot=True), {}, DiscardSnapshot("g")),
        (failed(2, from_snapshot=True, up=True), {}, GiveUp("g")),
    ],
)
def test_a_guest_that_failed_is_replaced_until_its_configuration_is_at_fault(
    guest: FailedGuest, words: dict[str, Any], action: Action
) -> None:
    assert decide(state(failed=[guest], **({"waiting": [cell("1")]} | words))) == (action,)


@dataclass
class World:
    """Carries actions out on states only; a random generator decides how guests and cells end."""

    now: SchedulerState
    dice: random.Random
    given: dict[str, str] = field(default_factory=dict)
    """Cell by worker."""
    retried: set[str] = field(default_factory=set)
    repeats: dict[str, int] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    kept: str = ""
    started: int = 0

    def put(self, **words: Any) -> None:
        self.now = replace(self.now, **words)

    def change(self, name: str, **words: Any) -> None:
        self.put(
            workers=tuple(replace(w, **words) if w.id == name else w for w in self.now.workers)
        )

    def remove(self, name: str) -> None:
        self.put(workers=tuple(w for w in self.now.workers if w.id != name))

    def do(self, action: Action) -> None:
        now = self.now
        match action:
            case Assign():
                (chosen,) = (c for c in now.waiting if c.id == action.cell)
                (worker,) = (w for w in now.workers if w.id == action.worker)
                assert worker.free
                assert worker.guest == chosen.guest
                assert not any(c.alone for c in now.running)
                assert not (chosen.alone and now.running)
                assert all(c.need.virtual == chosen.need.virtual for c in now.running)
                most = now.virtual_limit if chosen.need.virtual else now.limit
                assert len(now.running) < most
                self.given[worker.id] = chosen.id
                self.put(
                    waiting=tuple(c for c in now.waiting if c is not chosen),
                    running=(*now.running, chosen),
                )
                self.change(worker.id, busy=True)
            case StartGuest():
                at_work = [w for w in now.workers if w.busy and w.guest == action.guest]
                if action.guest.clock is Clock.VIRTUAL:
                    assert len(at_work) < now.virtual_limit
                else:
                    assert len(now.workers) < now.limit or not any(
                        w.guest == action.guest for w in now.workers
                    )
                self.started += 1
                self.put(workers=(*now.workers, coming(f"g{self.started}", action.guest)))
            case EndGuest() | KeepGuest():
                assert next(w for w in now.workers if w.id == action.worker).busy is False
                self.change(action.worker, busy=True)
                self.given[action.worker] = "keep" if isinstance(action, KeepGuest) else "end"
            case BuildArray():
                self.change(action.worker, busy=True)
                self.given[action.worker] = "array"
            case Unreserve():
                self.change(action.worker, reserved=False)
            case _:
                raise AssertionError(action)

    def event(self) -> None:
        """Simulate an event of a busy worker."""
        assert [w for w in self.now.workers if w.busy], "nobody works, and nothing will happen"
        worker = self.dice.choice([w for w in self.now.workers if w.busy])
        given = self.given.pop(worker.id, "")
        if not worker.up:
            self.change(worker.id, up=True, busy=False)
        elif given == "end":
            self.remove(worker.id)
        elif given == "keep":
            assert worker.reserved
            self.remove(worker.id)
            self.kept = worker.id
            self.put(stays=None)
        elif given == "array":
            self.change(worker.id, busy=False, reserved=True)
        else:
            self.cell_ended(worker, given)

    def cell_ended(self, worker: WorkerState, name: str) -> None:
        (chosen,) = (c for c in self.now.running if c.id == name)
        self.put(running=tuple(c for c in self.now.running if c is not chosen))
        outcome = self.dice.choices([Outcome.DONE, Outcome.LOST], [9, 1])[0]
        attempt = EndedAttempt(
            cell=name,
            outcome=outcome,
            contended=self.dice.random() < 0.3 and not chosen.need.virtual,
            repeats=self.repeats.get(name, 0),
            concurrent=self.dice.randint(1, 6),
            retried=name in self.retried,
            stays=self.now.stays is not None and name == "0",
        )
        if outcome is Outcome.LOST:
            self.remove(worker.id)
        else:
            self.change(worker.id, busy=False)
        (action,) = decide(replace(self.now, ended=(attempt,)))
        match action:
            case Finish():
                self.finished.append(name)
                self.change(worker.id, reserved=action.reserve)
            case Retry():
                assert name not in self.retried
                self.retried.add(name)
                self.put(waiting=(*self.now.waiting, chosen))
            case Repeat():
                self.repeats[name] = self.repeats.get(name, 0) + 1
                assert action.limit <= self.now.limit
                again = replace(chosen, alone=chosen.alone or action.alone)
                limit = action.limit or self.now.limit
                self.put(waiting=(*self.now.waiting, again), limit=limit)
            case _:
                raise AssertionError(action)


@examples(200)
@given(
    seed=st.integers(0, 2**32),
    guests=st.lists(st.sampled_from([A, B, V, W]), min_size=0, max_size=8),
    limit=st.integers(1, 4),
    memory=st.integers(1, 8),
    stays=st.sampled_from([None, A, B]),
)
def test_every_run_comes_to_its_end(
    seed: int, guests: list[Guest], limit: int, memory: int, stays: Guest | None
) -> None:
    """With any events in any order, each cell is finished once and no guest is left."""
    dice = random.Random(seed)
    cells = tuple(
        cell(
            str(n),
            guest,
            cores=dice.choice([0.3, 0.75, 3.0]),
            rate=dice.choice([0.0, 1e6, 1e6]),
            alone=dice.random() < 0.1 and guest.clock is Clock.REAL,
        )
        for n, guest in enumerate(guests)
    )
    if stays is not None and cells:
        stays = cells[0].guest
    room = replace(ROOM, memory=memory * GIB // 2)
    world = World(state(waiting=cells, limit=limit, room=room, stays=stays), dice)
    for _ in range(1000):
        while actions := decide(world.now):
            for action in actions:
                world.do(action)
        if not world.now.workers:
            break
        world.event()
    assert sorted(world.finished) == [c.id for c in cells]
    assert world.now.workers == ()
    assert bool(world.kept) == (stays is not None)


def test_actions_name_what_they_act_on() -> None:
    """A table row above or a simulated run reaches each kind of action."""
    kinds = {type(a) for _, actions in PLACEMENTS.values() for a in actions}
    settled = {Finish, Retry, Repeat, Tolerate, DiscardSnapshot, GiveUp}
    assert kinds | settled == set(scheduler.Action.__args__)
