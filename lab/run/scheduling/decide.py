"""The scheduler: a pure function from a run's state to its next actions.

``executor`` builds the state from workers, store and host, and carries the actions out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from lab.compile import schedule
from lab.model.result.document import Outcome
from lab.model.scenario.guest import Guest

TRIES: Final = 2
"""Consecutive failures of a guest configuration's guests that end the run."""
REPEATS: Final = 3
"""Repetitions of a contended cell; meanwhile the disturbing load may end."""


# -- state


@dataclass(frozen=True, slots=True, kw_only=True)
class CellState:
    """A waiting or running cell or calibration."""

    id: str
    guest: Guest
    need: schedule.Need
    alone: bool = False
    """No other cell may run at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """A worker and its guest."""

    id: str
    guest: Guest
    memory: int
    """Memory of the guest in bytes."""
    up: bool = False
    """The guest has booted or was restored."""
    busy: bool = True
    """It boots, runs a cell, or was ordered to end."""
    reserved: bool = False
    """It has the array that is to be left running."""

    @property
    def free(self) -> bool:
        """Whether it can run a cell."""
        return not self.busy and not self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """An ended attempt at a cell."""

    cell: str
    outcome: Outcome
    contended: bool = False
    """A workload lacked CPU time."""
    concurrent: int = 1
    """Most cells that ran at once during it, including its own."""
    repeats: int = 0
    """Repetitions so far because of contention."""
    retried: bool = False
    """An earlier attempt was lost with its guest."""
    unread: bool = False
    """It was lost because the lab itself was stopped."""
    stays: bool = False
    """Its array is to be left running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedGuest:
    """A guest that ended unexpectedly without a cell."""

    worker: str
    up: bool
    failures: int
    """Consecutive failures of its configuration, including this one."""
    silent: bool = False
    """It never answered, as the next one would not: its image lacks a server or cloud-init."""
    from_snapshot: bool
    """It was restored from a snapshot that still exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """All inputs of the scheduler's decisions."""

    room: schedule.Room
    limit: int
    """Most concurrent cells in real time, and most of their guests."""
    virtual_limit: int = 1
    """Most concurrent cells in virtual time."""
    fixed: bool = False
    """The user has set the limit."""
    waiting: tuple[CellState, ...] = ()
    """In order of preference."""
    running: tuple[CellState, ...] = ()
    workers: tuple[WorkerState, ...] = ()
    ended: tuple[EndedAttempt, ...] = ()
    """Attempts that need a decision."""
    failed: tuple[FailedGuest, ...] = ()
    more: bool = False
    """More cells may arrive."""
    stays: Guest | None = None
    """Configuration of the guest to leave running; ``None``: none."""


# -- actions


@dataclass(frozen=True, slots=True)
class Assign:
    """Run a cell in an idle guest."""

    cell: str
    worker: str


@dataclass(frozen=True, slots=True)
class StartGuest:
    """Start a guest."""

    guest: Guest
    cell: str = ""
    """Cell whose disks it gets; empty: the base cell."""


@dataclass(frozen=True, slots=True)
class EndGuest:
    """End an idle guest."""

    worker: str


@dataclass(frozen=True, slots=True)
class Unreserve:
    """Let a reserved guest run cells; its array is built again at the end."""

    worker: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Store the attempt as the cell's result."""

    cell: str
    reserve: bool = False
    """Its guest keeps the array."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Run a lost cell again in a fresh guest."""

    cell: str
    counts: bool = True
    """``False``: a later loss is retried too."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Run a contended cell again."""

    cell: str
    alone: bool = False
    limit: int = 0
    """New concurrency limit; 0: unchanged."""


@dataclass(frozen=True, slots=True)
class Tolerate:
    """Continue without a failed guest."""

    worker: str


@dataclass(frozen=True, slots=True)
class DiscardSnapshot:
    """Remove the snapshot from which a guest could not be restored."""

    worker: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the run with the error of a failed guest."""

    worker: str


@dataclass(frozen=True, slots=True)
class BuildArray:
    """Build the base cell's array in an idle guest, without workloads."""

    worker: str


@dataclass(frozen=True, slots=True)
class KeepGuest:
    """Leave a reserved guest running."""

    worker: str


Action = (
    Assign
    | StartGuest
    | EndGuest
    | Unreserve
    | Finish
    | Retry
    | Repeat
    | Tolerate
    | DiscardSnapshot
    | GiveUp
    | BuildArray
    | KeepGuest
)


# -- decisions


def decide(state: SchedulerState) -> tuple[Action, ...]:
    """Return the next actions; empty: wait for an event.

    Call it again after carrying them out: each call places at most one cell.
    """
    if state.ended or state.failed:
        return (
            *(_settle(one, state) for one in state.ended),
            *(_replace(one, state) for one in state.failed),
        )
    return _place(state) or _end_idle(state) or _keep(state)


def _settle(attempt: EndedAttempt, state: SchedulerState) -> Action:
    """Return the action for a cell whose attempt has ended.

    A first contended attempt lowers the concurrency limit by a third; later the cell runs alone.
    Cells that were contended together lower it to the same number.
    """
    if attempt.outcome is Outcome.LOST and (attempt.unread or not attempt.retried):
        # A stopped lab may have lost all guests at once, also during the second try.
        return Retry(attempt.cell, counts=not attempt.unread)
    if attempt.outcome is Outcome.DONE and attempt.contended and attempt.repeats < REPEATS:
        if attempt.repeats or attempt.concurrent == 1 or state.fixed:
            return Repeat(attempt.cell, alone=True)
        return Repeat(attempt.cell, limit=min(state.limit, max(1, attempt.concurrent * 2 // 3)))
    return Finish(attempt.cell, reserve=attempt.stays and attempt.outcome is Outcome.DONE)


def _replace(failed: FailedGuest, state: SchedulerState) -> Action:
    """Return the action for a failed guest; a second consecutive failure is not chance, and
    neither is a guest that never answered."""
    needed = bool(state.waiting) or state.stays is not None
    chance = failed.failures < TRIES and not (failed.silent and not failed.from_snapshot)
    if chance or (failed.up and not needed):
        return Tolerate(failed.worker)
    if failed.from_snapshot and not failed.up:
        return DiscardSnapshot(failed.worker)
    return GiveUp(failed.worker)


def _place(state: SchedulerState) -> tuple[Action, ...]:
    """Return the action that brings the next fitting cell closer to its start."""
    cell = _next(state)
    if cell is None:
        return ()
    same = [w for w in state.workers if w.guest == cell.guest]
    if free := [w for w in same if w.free]:
        return (Assign(cell.id, free[0].id),)
    wanted = sum(c.guest == cell.guest for c in state.waiting)
    if sum(not w.up for w in same) < wanted and _bears_guest(cell, state):
        return (StartGuest(cell.guest, cell.id),)
    if state.running:
        return ()
    if all(w.up and w.reserved for w in state.workers):
        return tuple(Unreserve(w.id) for w in state.workers)
    if all(w.up for w in state.workers):  # idle guests for other cells may occupy all resources
        return _end(w for w in state.workers if w.free and w.guest != cell.guest)
    return ()


def _next(state: SchedulerState) -> CellState | None:
    """Return the first waiting cell that fits with the running ones."""
    if any(c.alone for c in state.running):
        return None
    idle = {w.guest for w in state.workers if w.free}
    needs = [c.need for c in state.running]
    enough = replace(state.room, memory=sys.maxsize)  # an idle guest already has its memory
    for cell in state.waiting:
        virtual = cell.need.virtual
        if len(state.running) >= (state.virtual_limit if virtual else state.limit):
            continue
        if cell.alone and state.running:
            continue
        room = enough if cell.guest in idle and not virtual else state.room
        if schedule.fits(cell.need, needs, room):
            return cell
    return None


def _bears_guest(cell: CellState, state: SchedulerState) -> bool:
    """Return whether the host can run one more guest with the running and starting ones.

    A worker for virtual time has a guest only while it runs a cell.
    """
    if not state.workers:
        return True
    if cell.need.virtual:
        return sum(w.busy for w in state.workers) < state.virtual_limit
    coming = [w for w in state.workers if not w.up]
    memory = state.room.memory - sum(w.memory for w in coming)
    needs = [*(c.need for c in state.running), *[cell.need] * len(coming)]
    return (
        len(state.workers) < state.limit
        and memory > cell.need.memory + schedule.RESERVE
        and schedule.fits(cell.need, needs, state.room)
    )


def _end_idle(state: SchedulerState) -> tuple[Action, ...]:
    """End idle guests that no waiting cell needs, except the last one that may be left running."""
    if state.more and not state.waiting:
        return ()
    wanted = {c.guest for c in state.waiting}
    if not state.waiting and not state.running and not any(w.reserved for w in state.workers):
        wanted |= {state.stays} if state.stays else set()
    return _end(w for w in state.workers if w.free and w.guest not in wanted)


def _keep(state: SchedulerState) -> tuple[Action, ...]:
    """Return the action that leaves the base cell's guest running, once all cells are done."""
    if state.stays is None or state.waiting or state.running or state.more:
        return ()
    if reserved := [w for w in state.workers if w.reserved]:
        return () if reserved[0].busy else (KeepGuest(reserved[0].id),)
    same = [w for w in state.workers if w.guest == state.stays]
    if any(w.up and w.busy for w in same):  # builds the array already, or ends
        return ()
    if idle := [w for w in same if not w.busy]:
        return (BuildArray(idle[0].id),)
    return () if same else (StartGuest(state.stays),)


def _end(workers: Iterable[WorkerState]) -> tuple[Action, ...]:
    return tuple(EndGuest(w.id) for w in workers)
