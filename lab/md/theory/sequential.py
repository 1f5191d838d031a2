"""Simulates sequential requests one at a time, as dd sends them with O_DIRECT.

All reads of a request start at once; a stripe's writes start when its reads have ended (``raid5.c:
handle_stripe_dirtying, ops_run_io``); the request ends with the slowest. Throttles take time, and
so does the CPU, which serves one request at a time.

If a request starts at the same point of the layout with the same bucket levels and stripe cache as
an earlier one, everything since then repeats. Whole repetitions are counted instead of simulated,
so that long loads take no more time than short ones. In symmetric layouts the same point of any row
counts, with members numbered from the row's first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import NamedTuple, TypeVar

from lab.md.facts.geometry import Geometry
from lab.md.theory.bucket import Direction, Meter
from lab.md.theory.paths import Cutting, Extent, Path, SequentialLoad

_T = TypeVar("_T", int, float)
_READ, _WRITE = Direction.READ, Direction.WRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLoad:
    """Bytes that one member transferred."""

    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResult:
    """The result of a simulation."""

    seconds: float
    members: tuple[MemberLoad, ...]
    followed: int
    """Requests that were simulated one by one."""


class _Checkpoint(NamedTuple):
    position: int
    now: float
    turn: int
    read: list[int]
    written: list[int]
    used: list[list[float]]
    tally: list[int]


class StreamClock:
    """One simulation of one sequential load; use it once."""

    def __init__(
        self,
        geometry: Geometry,
        path: Path,
        meters: Sequence[Meter],
        *,
        cutting: Cutting | None = None,
        repeats: bool = True,
        processor: float = 0.0,
    ) -> None:
        """``processor``: seconds from the end of a request to the start of the next."""
        self._geometry = geometry
        self._path = path
        self._meters = meters
        self._distinct = list({id(meter): meter for meter in meters}.values())
        self._cutting = cutting or path.cutting
        self._processor = processor
        self._direction = _READ
        self._read = [0] * geometry.members
        self._written = [0] * geometry.members
        self._marks: dict[object, _Checkpoint] | None = {} if repeats else None
        alike = len(self._distinct) == len(meters) and len({m.limits for m in meters}) == 1
        self._turn = geometry.turn if alike and not geometry.failed else 0
        self._width = geometry.stripe or 1  # only used if the layout has a turn

    def run(self, stream: SequentialLoad) -> StreamResult:
        """Simulate the load to its end."""
        now, position, followed = 0.0, stream.offset, 0
        self._direction = stream.direction
        end = stream.offset + stream.total
        repeat = lcm(stream.block, self._width if self._turn else self._geometry.period)
        while position < end:
            if self._marks is not None and (position - stream.offset) % repeat == 0:
                now, position = self._skip(now, position, end)
                if position >= end:
                    break
            size = min(stream.block, end - position)
            now = self._block(now, position, size)
            position += size
            followed += 1
        loads = zip(self._read, self._written, strict=True)
        members = tuple(MemberLoad(read_bytes=r, written_bytes=w) for r, w in loads)
        return StreamResult(seconds=now, members=members, followed=followed)

    def _skip(self, now: float, position: int, end: int) -> tuple[float, int]:
        """Return time and position after all whole repetitions, if this state was seen before."""
        assert self._marks is not None
        turn = position // self._width * self._turn % self._geometry.members
        levels = [meter.signature(now) for meter in self._distinct]
        key = (self._path.signature(position, turn), *levels[turn:], *levels[:turn])
        here = _Checkpoint(
            position,
            now,
            turn,
            self._read.copy(),
            self._written.copy(),
            [meter.used.copy() for meter in self._distinct],
            self._path.tally.sums.copy(),
        )
        seen = self._marks.setdefault(key, here)
        if seen is here:
            return now, position
        self._marks = None
        distance = position - seen.position
        # Repetitions until every member has the same role again.
        around = self._geometry.members // gcd(self._geometry.members, here.turn - seen.turn)
        rounds = (end - position) // (distance * around)
        seconds = rounds * around * (now - seen.now)
        for meter, used in zip(self._distinct, self._around(seen, here, around), strict=True):
            meter.skip(seconds, [rounds * amount for amount in used])
        for load, before in ((self._read, seen.read), (self._written, seen.written)):
            once = [b - a for a, b in zip(before, load, strict=True)]
            for member, more in enumerate(_turned(once, here.turn - seen.turn, around)):
                load[member] += rounds * more
        self._path.tally.repeat(seen.tally, rounds * around)
        skipped = rounds * around * distance
        self._path.shift(skipped)
        return now + seconds, position + skipped

    def _around(self, seen: _Checkpoint, here: _Checkpoint, around: int) -> list[list[float]]:
        """Return what each meter admits until every member has the same role again."""
        once = [
            [b - a for a, b in zip(old, new, strict=True)]
            for old, new in zip(seen.used, here.used, strict=True)
        ]
        if around == 1:
            return once
        columns = [
            _turned(column, here.turn - seen.turn, around) for column in zip(*once, strict=True)
        ]
        return [list(row) for row in zip(*columns, strict=True)] or once

    def _block(self, now: float, offset: int, size: int) -> float:
        """Return the end time of a request that is sent ``now``."""
        before = self._path.before(offset, size)
        if before:
            now = max(self._send(now, ((0, _WRITE, extent) for extent in before)).values())
        now += self._processor
        loads = self._read if self._direction is _READ else self._written

        def admit(member: int, amount: int) -> float:
            loads[member] += amount
            return self._meters[member].admit(now, self._direction, amount)

        issued = self._path.issue(now, offset, size, self._cutting, admit)
        if issued is not None:
            return issued
        works = self._path.plan(offset, size)
        first: list[tuple[int, Direction, Extent]] = []
        for i, work in enumerate(works):
            if work.reads:
                first.extend((i, _READ, extent) for extent in work.reads)
            else:
                first.extend((i, _WRITE, extent) for extent in work.writes)
        # Reads need no parity, so they are sent before the writes of whole rows
        # (``raid5.c: handle_stripe_fill``, ``ops_complete_reconstruct``).
        first.sort(key=lambda one: one[1] is _WRITE)
        ends = self._send(now, first)
        done = max(ends.values(), default=now)
        waiting: dict[float, list[int]] = {}
        for i, work in enumerate(works):
            if work.reads and work.writes:
                waiting.setdefault(ends[i], []).append(i)
        for moment in sorted(waiting):
            batch = [(i, _WRITE, extent) for i in waiting[moment] for extent in works[i].writes]
            done = max(done, *self._send(moment, batch).values())
        return done

    def _send(self, now: float, batch: Iterable[tuple[int, Direction, Extent]]) -> dict[int, float]:
        """Send extents at one time; return the end time of each piece of work."""
        lanes: dict[tuple[int, Direction], list[tuple[int, int, int]]] = {}
        for work, direction, (member, start, size) in batch:
            lanes.setdefault((member, direction), []).append((start, size, work))
        ends: dict[int, float] = {}
        limit = self._cutting.limit
        for (member, direction), extents in lanes.items():
            loads = self._read if direction is _READ else self._written
            meter = self._meters[member]
            if len(extents) > 1:
                extents.sort()
            for run in _runs(extents, joins=self._cutting.joins):
                size = sum(extent[1] for extent in run)
                loads[member] += size
                at = now
                while size > 0:
                    at = meter.admit(now, direction, min(size, limit))
                    size -= limit
                for _, _, work in run:
                    if at > ends.get(work, -1.0):
                        ends[work] = at
        return ends


def _turned(once: Sequence[_T], step: int, around: int) -> list[_T]:
    """Return sums per member over ``around`` repetitions, each moved by ``step`` members."""
    size = len(once)
    return [
        sum((once[(member - i * step) % size] for i in range(1, around)), once[member])
        for member in range(size)
    ]


def _runs(
    extents: list[tuple[int, int, int]], *, joins: bool
) -> Iterable[list[tuple[int, int, int]]]:
    """Yield extents grouped by requests: with ``joins``, adjacent ones become one."""
    if len(extents) == 1 or not joins:
        return [[extent] for extent in extents]
    runs = [[extents[0]]]
    for extent in extents[1:]:
        before = runs[-1][-1]
        if before[0] + before[1] == extent[0]:
            runs[-1].append(extent)
        else:
            runs.append([extent])
    return runs
