"""Simulates modelled drives with many requests; they take the place of throttles.

A ``Throttle`` only admits requests; a drive serves them. The rules are those of ``drive/drive.h``.
Places are on a spiral, so a byte's place determines its angle. Among the oldest ``queue_depth``
requests the drive chooses the least positioning time minus ``ageing`` times the waiting time.
Writes end in the volatile cache. The arm writes them to the medium in one direction over the disk
(C-LOOK) when it is idle. If the cache is more than half full, or a flush or a write waits, it
alternates them with requests.

Reading ahead is left out: it serves only one random request in many thousands.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from math import sqrt
from typing import Any

from typing_extensions import override

from lab.md.theory.bucket import Direction, Limit
from lab.md.theory.throttle import EventQueue, Operation
from lab.model.scenario.drive import HardDrive, SolidStateDrive

PAGE = 4096
"""Unit of a cache in bytes."""
RUN = 256
"""Most pages that one pass of the arm writes."""
GOLDEN = 0.6180339887498949
BITMAP_OFFSET = 8192
"""Offset of an internal bitmap, after a superblock 1.2 (mdadm ``super1.c``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledDrive:
    """One member's drive."""

    drive: HardDrive | SolidStateDrive
    size: int
    """Bytes of the whole disk."""
    start: int = 0
    """Byte of the disk at which the member's data begin."""
    seed: int = 0
    """Decides the platters' angle at the start."""


class _Op(IntEnum):
    READ = 0
    WRITE = 1
    FLUSH = 2


class _Step(IntEnum):
    READY = 0
    DATA = 1
    DONE = 2
    ARM = 3
    CHOOSE = 4


class _Request:
    """A request to the drive; ``then``: the write that follows a flush."""

    __slots__ = ("arrival", "fua", "offset", "op", "operation", "size", "spiral", "stamp", "then")

    def __init__(self, op: _Op, offset: int, size: int, operation: Operation) -> None:
        self.op, self.offset, self.size, self.operation = op, offset, size, operation
        self.arrival = 0.0
        self.spiral = 0.0
        self.stamp = 0
        self.fua = False
        self.then: _Request | None = None


class _Busy:
    """Busy time of the drive."""

    __slots__ = ("seconds",)
    bursts: Sequence[float] = ()
    """As ``Meter.bursts``: there are none."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @property
    def idle_bound(self) -> tuple[float, Limit | None]:
        """As ``Meter.idle_bound``."""
        return self.seconds, None


class _Server:
    """Common parts of both kinds of drives."""

    def __init__(self, member: ModelledDrive, events: EventQueue) -> None:
        self.meter = _Busy()
        self._events = events
        self._start = member.start
        self._overhead = member.drive.overhead
        self._link = 1 / member.drive.link_rate
        self._command = member.drive.link_command
        self._wake, self._wake_after = member.drive.wake, member.drive.wake_after
        self._rested, self._under_way = 0.0, 0
        self._link_free = 0.0

    def arrive(self, direction: Direction, size: int, operation: Operation, offset: int) -> None:
        """Add a request to the member's data. A negative offset: a bitmap page, after a flush, with
        FUA.

        ``md.c: md_super_write``.
        """
        op = _Op.WRITE if direction is Direction.WRITE else _Op.READ
        if offset >= 0:
            self._submit(_Request(op, self._start + offset, size, operation))
            return
        flush = _Request(_Op.FLUSH, 0, 0, operation)
        flush.then = _Request(op, BITMAP_OFFSET, size, operation)
        flush.then.fua = True
        self._submit(flush)

    def _submit(self, request: _Request) -> None:
        request.arrival = self._events.now
        self._under_way += 1
        self._take_in(request)

    def _take_in(self, request: _Request) -> None:
        now, after = self._events.now, self._overhead
        if self._wake and self._under_way == 1 and now - self._rested > self._wake_after:
            after += self._wake
        self._at(now + after, _Step.READY, request)

    def _at(self, time: float, step: _Step, request: _Request | None) -> None:
        self._events.set(time, self, (step, request))

    def fire(self, what: Any) -> None:
        """Take a due step."""
        raise NotImplementedError

    def _over_link(self, size: int, since: float) -> float:
        self._link_free = max(self._link_free, since) + self._command + size * self._link
        return self._link_free

    def _end(self, request: _Request) -> None:
        self._under_way -= 1
        self._rested = self._events.now
        if request.then is not None:
            self._submit(request.then)
        else:
            self._events.passed.append(request.operation)


class Mechanism(_Server):
    """A hard disk."""

    def __init__(self, member: ModelledDrive, events: EventQueue) -> None:
        super().__init__(member, events)
        drive = member.drive
        assert isinstance(drive, HardDrive), "server_of chooses"
        curve = drive.seek_curve
        self._a, self._b, self._c, self._e = curve.a, curve.b, curve.c, curve.e
        self._short = curve.limit * member.size
        self._full = 1 / member.size
        self._turn = drive.revolution
        self._track = drive.revolution or 1e-3
        self._angle = drive.revolution * (member.seed * GOLDEN % 1)
        self._settle = drive.write_settle
        self._depth, self._ageing = drive.queue_depth, drive.ageing
        self._lead, self._oldest = drive.lead, round(drive.oldest_share * 1_000_000)
        self._fair = 0
        self._seek_only = bool(drive.seek_only)
        self._places, self._write_choice = drive.write_places, drive.write_choice
        self._zone = -(-member.size // drive.zones)
        self._pace = [1 / drive.rate((z + 0.5) / drive.zones) for z in range(drive.zones)]
        self._begins = [0.0]
        for pace in self._pace:
            self._begins.append(self._begins[-1] + self._zone * pace)
        self._slots = drive.write_cache // PAGE
        self._used = 0
        self._pages: list[int] = []
        """Dirty pages, in order."""
        self._stamps: dict[int, int] = {}
        self._stamp = 0
        self._writing: list[int] = []
        self._queue: list[_Request] = []
        self._space: deque[_Request] = deque()
        self._flushes: deque[_Request] = deque()
        self._intake: deque[_Request] = deque()
        self._taken = False
        self._working = self._decides = self._its_turn = False
        self._wakes = -1.0
        self._served: _Request | None = None
        self._head = 0
        self._head_spiral = self._head_time = 0.0
        self._last_read = 0.0

    @override
    def _take_in(self, request: _Request) -> None:
        if self._depth == 1:
            if self._taken:
                self._intake.append(request)
                return
            self._taken = True
        super()._take_in(request)

    @override
    def _end(self, request: _Request) -> None:
        self._taken = False
        self._rested = self._events.now
        if self._intake:
            self._take_in(self._intake.popleft())
        super()._end(request)

    @override
    def fire(self, what: Any) -> None:
        """Take a due step; then the arm chooses its next work."""
        step, request = what
        now = self._events.now
        if step is _Step.ARM:
            self._arrived(now)
        elif step is _Step.CHOOSE:
            self._decides = False
            if not self._working:
                self._choose(now)
            return
        elif step is _Step.DONE:
            self._end(request)
        elif step is _Step.DATA:
            self._received(request)
        elif request.op is _Op.WRITE:
            self._at(self._over_link(request.size, now), _Step.DATA, request)
        elif request.op is _Op.FLUSH:
            request.stamp = self._stamp
            if self._used:
                self._flushes.append(request)
            else:
                self._end(request)
        elif all(page in self._stamps for page in _pages_of(request)):
            self._at(self._over_link(request.size, now), _Step.DONE, request)
        else:
            self._wait(request)
        if not (self._working or self._decides):
            self._decides = True  # after all other events at this time
            self._at(now, _Step.CHOOSE, None)

    def _wait(self, request: _Request) -> None:
        request.spiral = self._spiral(request.offset)
        self._queue.append(request)

    def _spiral(self, x: int) -> float:
        zone = min(x // self._zone, len(self._pace) - 1)
        return self._begins[zone] + (x - zone * self._zone) * self._pace[zone]

    def _position(self, now: float, x: int, spiral: float, *, write: bool) -> float:
        """Return seconds from ``now`` until byte ``x`` is under the head."""
        gap = spiral - self._head_spiral
        turn, track = self._turn, self._track
        seek = 0.0
        if -track <= gap <= track:
            if gap >= 0 and self._head_time + gap >= now:
                return self._head_time + gap - now
        else:
            seek = self._seek(x)
            if write:
                seek += self._settle
        return seek + ((spiral + self._angle - now - seek) % turn if turn else 0.0)

    def _seek(self, x: int) -> float:
        """Return seconds of the arm's way to byte ``x``."""
        distance = x - self._head if x > self._head else self._head - x
        if distance < self._short:
            return self._a + self._b * sqrt(distance * self._full)
        return self._c + self._e * distance * self._full

    def _choose(self, now: float) -> None:
        press = bool(self._pages) and bool(
            self._flushes
            or self._space
            or self._used > self._slots / 2
            or (self._places and self._pieces() > self._places // 2)
        )
        if self._queue and not (press and self._its_turn):
            self._serve(now)
            return
        if not self._pages:
            return
        rest = self._last_read + 2 * self._turn
        if not press and self._last_read and now < rest:
            if self._wakes != rest:
                self._wakes = rest
                self._at(rest, _Step.CHOOSE, None)
            return
        self._its_turn = False
        self._destage(now)

    def _serve(self, now: float) -> None:
        best, least, cost = 0, float("inf"), 0.0
        ageing, position = self._ageing, self._position
        waiting = min(self._depth, max(len(self._queue) - self._lead, 1))
        self._fair += self._oldest
        if self._fair >= 1_000_000:
            self._fair -= 1_000_000
            waiting = 1
        for index, request in enumerate(self._queue[:waiting]):
            write = request.op is _Op.WRITE
            here = position(now, request.offset, request.spiral, write=write)
            order = self._seek(request.offset) if self._seek_only else here
            aged = order - ageing * (now - request.arrival)
            if aged < least:
                best, least, cost = index, aged, here
        request = self._served = self._queue.pop(best)
        self._its_turn = True
        self._move(now + cost, request.offset, request.offset + request.size, now)

    def _destage(self, now: float) -> None:
        before = self._flushes[0].stamp if self._flushes else self._stamp
        first = self._next_page(-(-self._head // PAGE), before)
        if self._write_choice:
            first = self._choose_write(now, first, before)
        page = first
        while len(self._writing) < RUN and page in self._stamps and (self._stamps[page] < before):
            self._writing.append(page)
            del self._stamps[page]
            page += 1
        at = bisect_left(self._pages, first)
        del self._pages[at : at + len(self._writing)]
        cost = self._position(now, first * PAGE, self._spiral(first * PAGE), write=True)
        self._move(now + cost, first * PAGE, page * PAGE, now)

    def _choose_write(self, now: float, first: int, before: int) -> int:
        """Return the page of the piece with the shortest positioning time, from ``first`` on."""
        at = bisect_left(self._pages, first)
        least, best, seen, last = float("inf"), first, 0, -2
        for index in chain(range(at, len(self._pages)), range(at)):
            page = self._pages[index]
            if self._stamps[page] >= before:
                continue
            if page != last + 1 or index == 0:
                cost = self._position(now, page * PAGE, self._spiral(page * PAGE), write=True)
                if cost < least:
                    least, best = cost, page
            last = page
            seen += 1
            if seen >= self._write_choice:
                break
        return best

    def _pieces(self) -> int:
        """Return the pieces of contiguous dirty pages that are not being written yet."""
        if not self._places:
            return 0
        return sum(page - 1 not in self._stamps for page in self._pages)

    def _next_page(self, start: int, before: int) -> int:
        at = bisect_left(self._pages, start)
        for index in chain(range(at, len(self._pages)), range(at)):
            page: int = self._pages[index]
            if self._stamps[page] < before:
                return page
        raise AssertionError("a flush waits only while pages from before it are dirty")

    def _move(self, time: float, start: int, end: int, now: float) -> None:
        self._head, spiral = end, self._spiral(end)
        self._head_time = time + spiral - self._spiral(start)
        self._head_spiral = spiral
        self.meter.seconds += self._head_time - now
        self._working = True
        self._at(self._head_time, _Step.ARM, None)

    def _arrived(self, now: float) -> None:
        self._working = False
        request, self._served = self._served, None
        if request is None:
            self._used -= len(self._writing)
            self._writing.clear()
            self._cleaned()
        elif request.op is _Op.WRITE:
            for page in _pages_of(request):
                if page in self._stamps:
                    del self._stamps[page]
                    del self._pages[bisect_left(self._pages, page)]
                    self._used -= 1
            self._end(request)
            self._cleaned()
        else:
            media = self._spiral(self._head) - self._spiral(request.offset)
            self._last_read = max(now, self._over_link(request.size, now - media))
            self._at(self._last_read, _Step.DONE, request)

    def _received(self, request: _Request) -> None:
        if request.fua or len(_pages_of(request)) > self._slots:
            self._wait(request)
            return
        self._space.append(request)
        self._take()

    def _take(self) -> None:
        """Move waiting writes into the cache while they fit."""
        while self._space:
            fresh = [p for p in _pages_of(self._space[0]) if p not in self._stamps]
            if len(fresh) > self._slots - self._used or not self._has_place(fresh):
                return
            for page in fresh:
                self._stamps[page] = self._stamp
                self._stamp += 1
                insort(self._pages, page)
            self._used += len(fresh)
            self._end(self._space.popleft())

    def _has_place(self, fresh: list[int]) -> bool:
        """Return whether fresh pages are next to dirty ones, or may be another piece."""
        if not self._places or self._pieces() + bool(self._writing) < self._places:
            return True
        pages = _pages_of(self._space[0])
        near = range(max(pages.start - 1, 0), pages.stop + 1)
        return len(fresh) < len(pages) or any(page in self._stamps for page in near)

    def _cleaned(self) -> None:
        """End flushes whose pages are on the medium."""
        while self._flushes:
            before = self._flushes[0].stamp
            if any(stamp < before for stamp in self._stamps.values()):
                break
            self._end(self._flushes.popleft())
        self._take()


class Channels(_Server):
    """A solid-state disk."""

    def __init__(self, member: ModelledDrive, events: EventQueue) -> None:
        super().__init__(member, events)
        assert isinstance(member.drive, SolidStateDrive), "server_of chooses"
        self._drive = member.drive
        self._free = [0.0] * member.drive.channels
        self._written = 0

    @override
    def fire(self, what: Any) -> None:
        """Take a due step."""
        step, request = what
        if step is _Step.DONE:
            self._end(request)
            return
        drive, end = self._drive, self._events.now
        if request.op is _Op.FLUSH:
            end = max(end, *self._free) + drive.flush_latency
        else:
            write = request.op is _Op.WRITE
            latency = drive.write_latency if write else drive.read_latency
            last = (request.offset + request.size - 1) // drive.page
            for page in range(request.offset // drive.page, last + 1):
                channel = page % drive.channels
                self._free[channel] = max(self._free[channel], self._events.now) + latency
                self.meter.seconds += latency / drive.channels
                end = max(end, self._free[channel])
            end = self._over_link(request.size, end) + (drive.flush_latency if request.fua else 0)
            if write:
                self._collect(request.size, end)
        self._at(end, _Step.DONE, request)

    def _collect(self, size: int, time: float) -> None:
        self._written += size
        while self._drive.gc_after and self._written >= self._drive.gc_after:
            self._written -= self._drive.gc_after
            self._free = [max(free, time) + self._drive.gc_stall for free in self._free]


def server_of(member: ModelledDrive, events: EventQueue) -> Mechanism | Channels:
    """Return the drive of a member, at rest, with an empty cache."""
    kind = Mechanism if isinstance(member.drive, HardDrive) else Channels
    return kind(member, events)


def _pages_of(request: _Request) -> range:
    return range(request.offset // PAGE, -(-(request.offset + request.size) // PAGE))
