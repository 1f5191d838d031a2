"""Many requests on their way: an event simulation of md and its members' buckets.

``depth`` requests are under way; each that ends is followed by the next at once, as fio does it. A
closed network of few buckets with random placement has no exact formula: one member's bucket
overflows while another's runs dry. So it is followed event by event, with fio's own dice.

md's threads matter where there is a bitmap (``raid5.c: raid5d``; ``raid1.c: flush_pending_writes``
and ``raid10.c``, the same): the one thread of an array writes what is dirty of the bitmap, waits
for it, and only then goes on with the writes that had come by then. Those that come meanwhile share
the next time. raid5d also carries each stripe from its reads to its writes and to its end, and does
neither while it waits. Without a bitmap nothing in md waits but for members.

Linux up to 6.5 plugs each write to a block device (``block/fops.c: blkdev_write_iter``), and RAID 1
and 10 write the bitmap as the plug is pulled, in the sender's own time (``raid1_unplug``,
``raid10_unplug``): there each write that sets a bit holds its sender up, and none shares.

Whether md's thread gets the processor before fio has sent all that it may send is the scheduler's
choice, and decides how many writes share a write of the bitmap: ``eager`` is one order, the other
is the default.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lab.md.facts.geometry import Geometry
from lab.md.theory.bitmap import Bitmap, BitmapState
from lab.md.theory.bucket import Direction, Limits, Meter
from lab.md.theory.fio_random import draws
from lab.md.theory.paths import BIO_LIMIT, Extent, Load, Work
from lab.md.theory.placement import entrances, offsets
from lab.md.theory.sequential import MemberLoad
from lab.md.theory.stripe import StripeRules, Tally
from lab.md.theory.throttle import EventQueue, Throttle

FOLLOWED = 1500
"""Requests that are followed one by one where nothing changes in the long run; the rest is their
second half's rate."""

FOLLOWED_SLOWLY = 6000
"""The same where something does: bits are set one after the other, or a long burst ends."""

SEED = 20201224
"""Of the dice that choose between reads and writes."""
_NEVER = float("inf")
_READ, _WRITE = Direction.READ, Direction.WRITE


class UnlimitedError(Exception):
    """No bucket ever holds the load: it is as fast as the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What became of a load."""

    seconds: float
    """Measured time."""
    requests: float
    """That ended in it."""
    latency: float
    """Seconds from a request's start to its end, in the mean."""
    members: tuple[MemberLoad, ...]
    """What each member moved in the measured time."""
    operations: tuple[float, ...]
    """Requests to each member in that time, the bitmap's included."""
    used: tuple[float, ...]
    """Seconds that each member's most loaded limit needs for what was poured into it."""
    flushes: float
    """Times that the bitmap was written, in the whole run."""
    sets: float
    """Bits that had to be set."""
    writes: float
    """Array writes in the whole run."""
    tally: Tally


class _Mark(NamedTuple):
    """What was done by a moment."""

    now: float
    ended: int
    latency: float
    moved: dict[Direction, list[int]]
    operations: list[int]


class _Request:
    """A request to the array."""

    __slots__ = ("begun", "direction", "left", "regions", "size")

    def __init__(self, direction: Direction, size: int, begun: float) -> None:
        self.direction = direction
        self.size = size
        self.begun = begun
        self.left = 0
        self.regions: tuple[int, ...] = ()


class _Job:
    """One piece of a request's work, or (without a request) a write of the bitmap."""

    __slots__ = ("left", "request", "stages", "threaded")

    def __init__(self, request: _Request | None, work: Work, *, threaded: bool) -> None:
        self.request = request
        stages = ((_WRITE, work.writes), (_READ, work.reads))
        self.stages: list[tuple[Direction, tuple[Extent, ...]]] = [s for s in stages if s[1]]
        """What is still to be done, the last first."""
        self.left = 0
        """Operations of this stage under way."""
        self.threaded = threaded


class Simulation:
    """One run of one load; use it once."""

    def __init__(
        self,
        geometry: Geometry,
        limits: Sequence[Limits],
        load: Load,
        *,
        rules: StripeRules,
        groups: Sequence[Hashable] = (),
        bitmap: Bitmap | None = None,
        eager: bool = False,
        plugged: bool = False,
    ) -> None:
        """``eager``: md's thread runs before fio has sent all that it may send.

        ``plugged``: the kernel plugs each write to a block device.
        """
        self._geometry, self._load, self._eager = geometry, load, eager
        self._by_sender = plugged and not geometry.has_parity
        self._agenda = EventQueue()
        self._gates = self._make_gates(limits, groups)
        self._ways, self._mirrors, self._tally = entrances(geometry, rules)
        self._bitmap = BitmapState(bitmap, geometry) if bitmap else None
        bursts = any(limit.maximum for each in limits for limit in each.limits)
        self._changes = bursts or bitmap is not None
        self._offsets = offsets(load, geometry.size)
        self._dice = draws(SEED)
        self._arrived: deque[_Job] = deque()
        self._ready: deque[_Job] = deque()
        self._waiting: list[_Job] = []
        """Writes that wait for the bitmap's write under way."""
        self._blocked = False
        self._open = True
        self._count = -(-load.total // load.block) if load.total is not None else _NEVER
        self._free = load.depth
        """Requests that may be sent."""
        self._ended = 0
        self._begun = 0
        self._latency = 0.0
        self._moved = {d: [0] * geometry.members for d in (_READ, _WRITE)}
        self._operations = [0] * geometry.members
        self._flushes = self._writes = 0

    def _make_gates(self, limits: Sequence[Limits], groups: Sequence[Hashable]) -> list[Throttle]:
        shared: dict[Hashable, Throttle] = {}
        gates = []
        for member, limit in enumerate(limits):
            gate = Throttle(Meter(limit), self._agenda)
            group = groups[member] if groups else None
            gates.append(gate if group is None else shared.setdefault(group, gate))
        return gates

    def run(self) -> LoadResult:
        """Follow the load to its end, or until its pace is known; then let what is under way end.

        fio counts those too, and the time that they take.
        """
        load, agenda = self._load, self._agenda
        end = load.rest + load.seconds if load.seconds is not None else _NEVER
        enough = max(FOLLOWED_SLOWLY if self._changes else FOLLOWED, 8 * load.depth)
        start = self._mark() if load.rest <= 0 else None
        half = None
        while self._settle(min(self._count, enough)):
            if half is None and self._ended >= enough / 2:
                half = self._mark()
            if not agenda.next(end):
                break
            if start is None and agenda.now > load.rest:
                start = self._mark(load.rest)
        if not agenda.now:
            raise UnlimitedError
        stop = self._mark()
        self._open = False
        while self._settle(_NEVER) and agenda.next(_NEVER):
            pass
        return self._result(start or stop, half, stop, end)

    def _settle(self, enough: float) -> bool:
        """All that happens at this moment; whether it goes on after it."""
        agenda = self._agenda
        while self._ended < enough:
            while agenda.passed:
                self._passed(*agenda.passed.popleft())
            if self._run_thread():
                continue
            if self._may_send():
                while self._may_send():
                    self._free -= 1
                    self._send()
                    if self._eager:
                        break
            elif not agenda.passed:
                return True
        return False

    def _may_send(self) -> bool:
        """Whether fio has a request to send, and is not held up in the last one."""
        held = self._by_sender and self._blocked
        return self._open and self._free > 0 and self._begun < self._count and not held

    def _send(self) -> None:
        """fio sends its next request."""
        load = self._load
        share = load.read_share
        reads = share >= 1 or (share > 0 and next(self._dice) < share)
        direction = _READ if reads else _WRITE
        offset = next(self._offsets)
        request = _Request(direction, load.block, self._agenda.now)
        self._begun += 1
        works = self._ways[direction].plan(offset, load.block)
        threaded = False
        if direction is _WRITE:
            self._writes += 1
            if self._bitmap is not None:
                request.regions = self._bitmap.start(self._agenda.now, offset, load.block)
                threaded = True
        elif self._bitmap is not None:
            threaded = self._geometry.has_parity and bool(self._geometry.failed)
        request.left = len(works)
        jobs = [_Job(request, work, threaded=threaded) for work in works]
        if threaded and self._by_sender:
            self._waiting.extend(jobs)
            self._flush_or_go()
            return
        for job in jobs:
            if threaded:
                self._arrived.append(job)
            else:
                self._advance(job)

    def _advance(self, job: _Job) -> None:
        """The next stage of a job, or its end."""
        if not job.stages:
            self._finish(job)
            return
        direction, extents = job.stages.pop()
        parts = []
        for extent in extents:
            if extent.size <= BIO_LIMIT:
                parts.append(extent)
                continue
            for at in range(0, extent.size, BIO_LIMIT):
                size = min(BIO_LIMIT, extent.size - at)
                parts.append(Extent(extent.member, extent.start + at, size))
        job.left = len(parts)
        for part in parts:
            self._gates[part.member].arrive(direction, part.size, (job, direction, part))

    def _passed(self, job: _Job, direction: Direction, extent: Extent) -> None:
        self._operations[extent.member] += 1
        self._moved[direction][extent.member] += extent.size
        if self._mirrors is not None and direction is _READ:
            self._mirrors.ended(extent)
        job.left -= 1
        if job.left:
            return
        if job.request is None:
            self._blocked = False
            self._ready.extend(self._waiting)
            self._waiting.clear()
        elif job.threaded and self._geometry.has_parity:
            self._ready.append(job)
        else:
            self._advance(job)

    def _finish(self, job: _Job) -> None:
        request = job.request
        assert request is not None, "the bitmap's writes have an end of their own"
        request.left -= 1
        if request.left:
            return
        if self._bitmap is not None and request.regions:
            self._bitmap.end(self._agenda.now, request.regions)
        self._ended += 1
        self._latency += self._agenda.now - request.begun
        self._free += 1

    def _run_thread(self) -> bool:
        """One round of md's thread; whether it did anything."""
        if self._blocked or self._bitmap is None:
            return False
        if self._arrived:
            self._waiting.extend(self._arrived)
            self._arrived.clear()
            if self._flush_or_go():
                return True
        if not self._ready:
            return False
        for _ in range(len(self._ready)):
            self._advance(self._ready.popleft())
        return True

    def _flush_or_go(self) -> bool:
        """Write what is dirty of the bitmap to every member, or let go on what waits for it."""
        assert self._bitmap is not None, "only where there is one"
        sizes = self._bitmap.take_dirty()
        if not sizes:
            self._ready.extend(self._waiting)
            self._waiting.clear()
            return False
        self._flushes += 1
        self._blocked = True
        members = [m for m in range(self._geometry.members) if m not in self._geometry.failed]
        extents = tuple(Extent(m, -1, size) for m in members for size in sizes)
        self._advance(_Job(None, Work((), extents), threaded=True))
        return True

    def _mark(self, now: float | None = None) -> _Mark:
        return _Mark(
            self._agenda.now if now is None else now,
            self._ended,
            self._latency,
            {direction: list(moved) for direction, moved in self._moved.items()},
            list(self._operations),
        )

    def _result(self, start: _Mark, half: _Mark | None, stop: _Mark, end: float) -> LoadResult:
        """What was followed since ``start``, and ``more`` of its second half where that was cut."""
        last = self._mark()
        more = left = 0.0
        if half is not None and stop.ended < self._count and stop.now < end:
            pace = (stop.ended - half.ended) / (stop.now - half.now)
            left = min((self._count - last.ended) / pace, end - stop.now)
            more = left / (stop.now - half.now)
        else:
            half = stop
        done = last.ended - start.ended + more * (stop.ended - half.ended)
        members = []
        for m in range(self._geometry.members):
            both = [
                last.moved[d][m] - start.moved[d][m] + more * (stop.moved[d][m] - half.moved[d][m])
                for d in (_READ, _WRITE)
            ]
            members.append(MemberLoad(read_bytes=round(both[0]), written_bytes=round(both[1])))
        operations = tuple(
            b - a + more * (s - h)
            for a, b, s, h in zip(
                start.operations, last.operations, stop.operations, half.operations, strict=True
            )
        )
        whole = 1 + more * (stop.ended - half.ended) / max(last.ended, 1)
        self._tally.sums = [round(whole * each) for each in self._tally.sums]
        return LoadResult(
            seconds=last.now - start.now + left,
            requests=done,
            latency=(last.latency - start.latency) / max(last.ended - start.ended, 1),
            members=tuple(members),
            operations=operations,
            used=tuple(gate.meter.idle_bound[0] * whole for gate in self._gates),
            flushes=self._flushes * whole,
            sets=(self._bitmap.sets if self._bitmap else 0) * whole,
            writes=self._writes * whole,
            tally=self._tally,
        )
