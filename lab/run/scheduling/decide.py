"""What a run does next: a pure function from its state to actions.

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
"""Guests of a configuration that may fail in a row before the run ends."""
REPEATS: Final = 3
"""Repetitions of a contended cell: the load that disturbed it may be gone by then."""


# -- state


@dataclass(frozen=True, slots=True, kw_only=True)
class CellState:
    """A cell, or a calibration, that waits or runs."""

    id: str
    guest: Guest
    need: schedule.Need
    alone: bool = False
    """Nothing else may run meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """A worker and its guest."""

    id: str
    guest: Guest
    memory: int
    """Bytes that the guest takes."""
    up: bool = False
    """The guest has booted or was restored."""
    busy: bool = True
    """It boots, has a cell, or was told to end."""
    reserved: bool = False
    """It has the array that is to stay up."""

    @property
    def free(self) -> bool:
        """Whether it can take a cell."""
        return not self.busy and not self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """An attempt at a cell that has ended."""

    cell: str
    outcome: Outcome
    contended: bool = False
    """A workload lacked CPU time."""
    concurrent: int = 1
    """Cells that ran at once meanwhile, with this one, at most."""
    repeats: int = 0
    """Repetitions for contention so far."""
    retried: bool = False
    """An earlier attempt was lost with its guest."""
    unread: bool = False
    """It was lost because the lab itself was stopped."""
    stays: bool = False
    """Its array is the one that is to stay up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedGuest:
    """A guest that ended unexpectedly, without a cell."""

    worker: str
    up: bool
    failures: int
    """Guests of its configuration that failed in a row, with this one."""
    from_snapshot: bool
    """It was restored from a snapshot that is still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """All that decisions depend on."""

    room: schedule.Room
    limit: int
    """Cells in real time at once, at most, and their guests."""
    virtual_limit: int = 1
    """Cells in virtual time at once, at most."""
    fixed: bool = False
    """The user has set the limit."""
    waiting: tuple[CellState, ...] = ()
    """In the order in which they are preferred."""
    running: tuple[CellState, ...] = ()
    workers: tuple[WorkerState, ...] = ()
    ended: tuple[EndedAttempt, ...] = ()
    """Attempts about which nothing is decided yet."""
    failed: tuple[FailedGuest, ...] = ()
    more: bool = False
    """More cells may arrive."""
    stays: Guest | None = None
    """Configuration of the guest that is to stay up."""


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
    """The cell whose disks it should have; empty: the base cell."""


@dataclass(frozen=True, slots=True)
class EndGuest:
    """Take an idle guest down."""

    worker: str


@dataclass(frozen=True, slots=True)
class Unreserve:
    """Let a reserved guest take cells; its array is built again at the end."""

    worker: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Keep the attempt as the cell's result."""

    cell: str
    reserve: bool = False
    """Its guest keeps the array."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Run a lost cell again in a fresh guest."""

    cell: str
    counts: bool = True
    """``False``: the cell keeps its second try."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Run a contended cell again."""

    cell: str
    alone: bool = False
    limit: int = 0
    """Cells at once from now on; 0: as before."""


@dataclass(frozen=True, slots=True)
class Tolerate:
    """Go on without a guest that failed."""

    worker: str


@dataclass(frozen=True, slots=True)
class DiscardSnapshot:
    """Remove the snapshot from which a guest did not restore."""

    worker: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the run with the error of a guest that failed."""

    worker: str


@dataclass(frozen=True, slots=True)
class BuildArray:
    """Build the base cell's array in an idle guest, without workloads."""

    worker: str


@dataclass(frozen=True, slots=True)
class KeepGuest:
    """Leave a reserved guest up."""

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

    Ask again once they are carried out: each call places at most one cell.
    """
    if state.ended or state.failed:
        return (
            *(_settle(one, state) for one in state.ended),
            *(_replace(one, state) for one in state.failed),
        )
    return _place(state) or _end_idle(state) or _keep(state)


def _settle(attempt: EndedAttempt, state: SchedulerState) -> Action:
    """Return what becomes of a cell whose attempt has ended.

    First the concurrency limit is lowered by a third, then a contended cell runs alone. Of several
    cells that were contended together, each lowers it to the same number.
    """
    if attempt.outcome is Outcome.LOST and (attempt.unread or not attempt.retried):
        # A stopped lab may have lost all guests at once, that of the second try too.
        return Retry(attempt.cell, counts=not attempt.unread)
    if attempt.outcome is Outcome.DONE and attempt.contended and attempt.repeats < REPEATS:
        if attempt.repeats or attempt.concurrent == 1 or state.fixed:
            return Repeat(attempt.cell, alone=True)
        return Repeat(attempt.cell, limit=min(state.limit, max(1, attempt.concurrent * 2 // 3)))
    return Finish(attempt.cell, reserve=attempt.stays and attempt.outcome is Outcome.DONE)


def _replace(failed: FailedGuest, state: SchedulerState) -> Action:
    """Return what to do about a guest that failed; the second in a row is no accident."""
    needed = bool(state.waiting) or state.stays is not None
    if failed.failures < TRIES or (failed.up and not needed):
        return Tolerate(failed.worker)
    if failed.from_snapshot and not failed.up:
        return DiscardSnapshot(failed.worker)
    return GiveUp(failed.worker)


def _place(state: SchedulerState) -> tuple[Action, ...]:
    """Return what brings the next cell that fits closer to its start."""
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
    if all(w.up for w in state.workers):  # idle guests of other cells may take all the room
        return _end(w for w in state.workers if w.free and w.guest != cell.guest)
    return ()


def _next(state: SchedulerState) -> CellState | None:
    """Return the first waiting cell that fits with those that run."""
    if any(c.alone for c in state.running):
        return None
    idle = {w.guest for w in state.workers if w.free}
    needs = [c.need for c in state.running]
    enough = replace(state.room, memory=sys.maxsize)  # an idle guest has its memory already
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
    """Whether the host bears one more guest, with those that run and those that come up.

    A worker for virtual time has a guest only while it has a cell.
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
    """End idle guests that no waiting cell wants, but for the last one that may stay up."""
    if state.more and not state.waiting:
        return ()
    wanted = {c.guest for c in state.waiting}
    if not state.waiting and not state.running and not any(w.reserved for w in state.workers):
        wanted |= {state.stays} if state.stays else set()
    return _end(w for w in state.workers if w.free and w.guest not in wanted)


def _keep(state: SchedulerState) -> tuple[Action, ...]:
    """Return what leaves the guest with the base cell's array up, once nothing else is to do."""
    if state.stays is None or state.waiting or state.running or state.more:
        return ()
    if reserved := [w for w in state.workers if w.reserved]:
        return () if reserved[0].busy else (KeepGuest(reserved[0].id),)
    same = [w for w in state.workers if w.guest == state.stays]
    if idle := [w for w in same if not w.busy]:
        return (BuildArray(idle[0].id),)
    return () if same else (StartGuest(state.stays),)


def _end(workers: Iterable[WorkerState]) -> tuple[Action, ...]:
    return tuple(EndGuest(w.id) for w in workers)
