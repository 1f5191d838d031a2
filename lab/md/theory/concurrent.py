"""An event simulation of many concurrent requests, md's threads and the members' throttles.

``depth`` requests are in flight; when one ends, fio sends the next. Such a closed network has no
exact formula, so it is simulated with fio's random sequence.

Sequential loads have their own simulation (``sequential``). With limits on bytes both agree within
0.4 %, but that one is 10 to 150 times faster, because it counts repetitions instead of simulating
them, and it simulates the merging of requests.

md's threads matter only with a bitmap (``raid5.c: raid5d``; ``raid1.c: flush_pending_writes``,
also in ``raid10.c``). The array's thread writes the dirty part of the bitmap, waits for it, and
then continues with the writes that arrived before. Later writes share the next bitmap write.
raid5d also moves each stripe from its reads to its writes and to its end; it does neither while it
waits.

Linux up to 6.4 plugs each write to a block device (``block/fops.c: blkdev_write_iter``). RAID 1
and 10 then write the bitmap in the sender's own time when the plug is released (``raid1_unplug``,
``raid10_unplug``): each write that sets a bit delays its sender, and none shares a bitmap write.

The scheduler decides whether md's thread runs before fio has sent all it may send, and so how many
writes share a bitmap write. ``eager`` is one order; the default is the other. Of RAID 4, 5 and 6 on
modelled drives the order is known: ``md_thread``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from lab.md.facts.geometry import Geometry
from lab.md.facts.levels import Level
from lab.md.theory.bitmap import Bitmap, BitmapState
from lab.md.theory.bucket import Direction, Limits, Meter
from lab.md.theory.md_thread import REPLY, Raid5d
from lab.md.theory.mechanism import PAGE, Channels, Mechanism, ModelledDrive, server_of
from lab.md.theory.paths import BIO_LIMIT, Extent, Load, Work
from lab.md.theory.placement import entrances, senders
from lab.md.theory.sequential import MemberLoad
from lab.md.theory.stripe import StripeRules, Tally
from lab.md.theory.throttle import EventQueue, Throttle
from lab.model.scenario.drive import HardDrive

FOLLOWED = 100_000
"""Simulated requests to throttled members; the rest of a load runs at the rate of the second half
of them, which leaves a doubt (`LoadResult.cut`). Three seconds. Random places load the members
unequally for seconds: with 1500 requests to the array, the rate of six disks at depth 8 came out 4
to 9 % too low; followed to the end it is right to 0.1 %."""

FOLLOWED_PARTS = 60_000
"""The same for modelled drives. One or two seconds."""

FOLLOWED_CACHED = 150_000
"""The same for writes into caches: their rate grows until the arm has gone over the disk once, and
20 s of a RAID 10 at depth 32 came out 20 % too slow with 16,000. Four seconds."""

MOST_PARTS = 250_000
"""Requests to members in one simulation of modelled drives. The lab's scenarios need far fewer."""

REACTION = 14e-6
"""Seconds from a request's end to fio's next one, of a guest in virtual time (Linux 6.1, fio 3.33):
what reads of a bare drive, one at a time, take longer than the drive."""

NEXT = 10e-6
"""The same from one request to the next, if fio may send several (from a trace of RAID 5)."""

_NEVER = float("inf")
_READ, _WRITE = Direction.READ, Direction.WRITE


BATCHES = 10
"""Parts of a simulated load whose rates are compared."""

SURE = 2.26
"""Standard errors within which 95 % lie, with ``BATCHES`` values (Student's t)."""


def _writes_each(geometry: Geometry) -> int:
    """Requests to members that a small write writes."""
    if geometry.has_parity:
        return 1 + geometry.members - geometry.data_members
    return len(geometry.locate(0))


def _filling(geometry: Geometry, drives: Sequence[ModelledDrive]) -> int:
    """Requests of a page each that fill the write caches of all hard disks."""
    pages = sum(d.drive.write_cache // PAGE for d in drives if isinstance(d.drive, HardDrive))
    return pages // _writes_each(geometry)


def _steady(geometry: Geometry, load: Load, most: int) -> int:
    """Requests to follow, so that members receive ``most``; once the drives' caches are full."""
    writes = _writes_each(geometry) * (2 if geometry.has_parity else 1)
    parts = load.read_share + (1 - load.read_share) * writes
    parts *= max(-(-load.block // (geometry.chunk or BIO_LIMIT)), 1)
    return max(round(most / parts), 8 * load.depth)


class TooLongError(Exception):
    """The rate is not steady after as many requests as are simulated."""


class UnlimitedError(Exception):
    """No throttle ever delays the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The result of a simulated load."""

    seconds: float
    """Measured seconds."""
    requests: float
    """Requests that ended in that time."""
    latency: float
    """Mean seconds from a request's start to its end."""
    members: tuple[MemberLoad, ...]
    """What each member moved in the measured time."""
    operations: tuple[float, ...]
    """Requests to each member in that time, the bitmap's included."""
    used: tuple[float, ...]
    """Seconds that each member's most loaded limit needs for the admitted requests."""
    flushes: float
    """Bitmap writes in the whole run."""
    sets: float
    """Bits that were set."""
    writes: float
    """Array writes in the whole run."""
    tally: Tally
    chance: float
    """Relative standard error of the rate over so many requests at other places."""
    cut: float
    """Relative doubt of the rate, from what was not simulated; 95 % lie within it."""


class _Progress(NamedTuple):
    """Counters at one moment."""

    now: float
    ended: int
    latency: float
    moved: dict[Direction, list[int]]
    operations: list[int]
    bursts: list[float]
    """How full each burst's bucket is (``Meter.bursts``)."""


class _Request:
    """A request to the array."""

    __slots__ = ("begun", "job", "left", "regions")

    def __init__(self, job: int, begun: float) -> None:
        self.job = job
        self.begun = begun
        self.left = 0
        self.regions: tuple[int, ...] = ()


class _Task:
    """A part of a request's work, or (without a request) a bitmap write."""

    __slots__ = ("_computed", "left", "request", "stages", "threaded")

    def __init__(self, request: _Request | None, work: Work, *, threaded: bool) -> None:
        self.request = request
        stages = ((_WRITE, work.writes), (_READ, work.reads))
        self.stages: list[tuple[Direction, tuple[Extent, ...]]] = [s for s in stages if s[1]]
        """Remaining stages, the last first."""
        self.left = 0
        """Operations of the current stage under way."""
        self.threaded = threaded
        self._computed = False

    @property
    def heads(self) -> int:
        """Number of stripe heads."""
        sizes = [extent.size for _, extents in self.stages for extent in extents]
        return max(sizes, default=PAGE) // PAGE

    def computes(self) -> bool:
        """Whether parity is computed now; it is not computed twice."""
        due = bool(self.stages) and self.stages[-1][0] is _WRITE and not self._computed
        self._computed |= due
        return due


class Simulation:
    """One simulation of one load; use it once."""

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
        drives: Sequence[ModelledDrive] = (),
        timed: bool = False,
    ) -> None:
        """``drives``: the members' drives, instead of ``limits``.

        ``eager``: md's thread runs before fio has sent all it may send.

        ``timed``: fio and md's thread need processor time, as with drives.

        ``plugged``: the kernel plugs each write to a block device.
        """
        self._geometry, self._load, self._eager = geometry, load, eager
        self._by_sender = plugged and not geometry.has_parity
        self._events = EventQueue()
        self._throttles: Sequence[Throttle | Mechanism | Channels]
        self._drives = bool(drives)
        self._timed = self._drives or timed
        used = [d for d in (_READ, _WRITE) if load.read_share < 1 or d is _READ]
        self._limited = any(limit.limited(d) for limit in limits for d in used)
        if drives:
            self._throttles = [server_of(drive, self._events) for drive in drives]
        else:
            self._throttles = self._make_throttles(limits, groups)
        self._ways, self._mirrors, self._tally = entrances(geometry, rules)
        self._bitmap = BitmapState(bitmap, geometry) if bitmap else None
        self._filling = _filling(geometry, drives) if load.read_share < 1 else 0
        """Requests that the drives' write caches take before the rate is steady."""
        self._senders = senders(load, geometry.size)
        self._thread: Raid5d | None = None
        if geometry.has_parity and self._timed:
            parities = geometry.members - geometry.data_members
            self._thread = Raid5d(self, self._events, parities=parities)
        self._arrived: deque[_Task] = deque()
        self._ready: deque[_Task] = deque()
        self._waiting: list[_Task] = []
        """Writes that wait for the bitmap write under way."""
        self._blocked = False
        self._open = True
        self._count = -(-load.total // load.block) if load.total is not None else _NEVER
        each = -(-load.depth // load.jobs)
        self._free = deque(job for job in range(load.jobs) for _ in range(each))
        """The job of each request that may be sent."""
        self._ends: list[float] = []
        """Time of each request's end."""
        self._ready_at = 0.0
        """When fio can send its next request."""
        self._ended = 0
        self._begun = 0
        self._latency = 0.0
        self._moved = {d: [0] * geometry.members for d in (_READ, _WRITE)}
        self._operations = [0] * geometry.members
        self._parts = 0
        self._flushes = self._writes = 0

    def _make_throttles(
        self, limits: Sequence[Limits], groups: Sequence[Hashable]
    ) -> list[Throttle]:
        shared: dict[Hashable, Throttle] = {}
        throttles = []
        for member, limit in enumerate(limits):
            throttle = Throttle(Meter(limit), self._events)
            group = groups[member] if groups else None
            throttles.append(throttle if group is None else shared.setdefault(group, throttle))
        return throttles

    def run(self) -> LoadResult:
        """Simulate until the load ends or its rate is known; then finish the requests under way.

        fio counts those requests and their time too, but not what drives still have in their
        caches.
        """
        load, events = self._load, self._events
        if not (self._drives or self._limited):
            raise UnlimitedError
        end = load.rest + load.seconds if load.seconds is not None else _NEVER
        most = FOLLOWED
        if self._drives:
            cached = bool(self._filling) and self._bitmap is None
            most = FOLLOWED_CACHED if cached else FOLLOWED_PARTS
        steady = _steady(self._geometry, load, most)
        enough = self._filling + steady
        start = self._mark() if load.rest <= 0 else None
        half = None
        self._awake()
        while self._settle(min(self._count, enough)):
            if half is None and self._ended >= enough - steady / 2:
                half = self._mark()
            if not events.next(end):
                break
            if start is None and events.now > load.rest:
                start = self._mark(load.rest)
        if not events.now:
            raise UnlimitedError
        stop = self._mark()
        self._open = False
        while self._settle(self._begun) and events.next(_NEVER):
            pass
        return self._result(start or stop, half, stop, end)

    def _awake(self) -> None:
        """The first write to an idle array waits for the superblock, and the bitmap's.

        ``md.c: md_write_start``, ``md_update_sb``. To a throttle they are two requests of many.
        """
        members = [m for m in range(self._geometry.members) if m not in self._geometry.failed]
        redundant = self._geometry.level is not Level.RAID0 and self._geometry.members > 1
        if not (self._drives and redundant and self._load.read_share < 1):
            return
        for _ in range(2 if self._bitmap is not None else 1):
            for member in reversed(members):
                self._throttles[member].arrive(_WRITE, PAGE, None, -1)
            while len(self._events.passed) < len(members):
                self._events.next(_NEVER)
            self._events.passed.clear()

    def _settle(self, enough: float) -> bool:
        """Process everything at this moment; whether the simulation continues."""
        events = self._events
        while self._ended < enough:
            while events.passed:
                self._passed(*events.passed.popleft())
            if self._run_thread():
                continue
            if self._may_send() and not (self._thread and self._thread.runs):
                while self._may_send():
                    self._send()
                    self._busy(NEXT)
                    if self._eager or (self._thread and self._thread.runs):
                        break
            elif not events.passed:
                return True
        return False

    def _may_send(self) -> bool:
        """Whether fio may send a request and does not wait in the previous one."""
        held = (self._by_sender and self._blocked) or self._events.now < self._ready_at
        return self._open and bool(self._free) and self._begun < self._count and not held

    def _busy(self, seconds: float) -> None:
        """fio needs its processor before the next request."""
        if self._timed:
            self._ready_at = max(self._ready_at, self._events.now + seconds)
            self._events.set(self._ready_at, self, None)

    def fire(self, what: object) -> None:
        """fio can send its next request."""

    def _send(self) -> None:
        """fio sends its next request."""
        load = self._load
        job = self._free.popleft()
        reads, offset = next(self._senders[job])
        direction = _READ if reads else _WRITE
        request = _Request(job, self._events.now)
        self._begun += 1
        works = self._ways[direction].plan(offset, load.block)
        threaded = False
        if direction is _WRITE:
            self._writes += 1
            if self._mirrors is not None:
                for work in works:
                    self._count_writes(work.writes)
            if self._bitmap is not None:
                request.regions = self._bitmap.start(self._events.now, offset, load.block)
            threaded = self._bitmap is not None or self._thread is not None
        elif self._bitmap is not None or self._thread is not None:
            threaded = self._geometry.has_parity and bool(self._geometry.failed)
        request.left = len(works)
        tasks = [_Task(request, work, threaded=threaded) for work in works]
        if threaded and self._by_sender:
            self._waiting.extend(tasks)
            self._flush_or_go()
            return
        for task in tasks:
            if threaded and self._thread is not None:
                (self._thread.arrive if direction is _WRITE else self._thread.release)(task)
            elif threaded:
                self._arrived.append(task)
            else:
                self.advance(task)

    def _count_writes(self, extents: Sequence[Extent]) -> None:
        """Tell the balance of reads that members have these writes, from here to their end."""
        assert self._mirrors is not None, "only mirrors are balanced"
        for extent in extents:
            self._mirrors.pending[extent.member] += max(-(-extent.size // BIO_LIMIT), 1)

    def replace(self, most: int | None = None) -> None:
        """Let fio send a request for each that has ended, or for so many."""
        sent = 0
        while self._may_send() and sent != most:
            self._send()
            sent += 1

    def advance(self, job: _Task) -> bool:
        """Start the task's next stage; ``False`` if it has none, and ends."""
        if not job.stages:
            self._finish(job)
            return False
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
        self._parts += len(parts)
        if self._drives and self._parts > MOST_PARTS:
            raise TooLongError
        for part in parts:
            if job.threaded and self._thread is not None:
                self._thread.plug(job, direction, part)
            else:
                self.submit(job, direction, part)
        return True

    def submit(self, job: _Task | None, direction: Direction, extent: Extent) -> None:
        """Send a request to a member; without a task it is the bitmap's."""
        operation = (job, direction, extent)
        self._throttles[extent.member].arrive(direction, extent.size, operation, extent.start)

    def _passed(self, job: _Task | None, direction: Direction, extent: Extent) -> None:
        if self._thread is not None:
            self._thread.interrupt()
        self._operations[extent.member] += 1
        self._moved[direction][extent.member] += extent.size
        if self._mirrors is not None:
            self._mirrors.ended(extent)
        if job is None:
            assert self._thread is not None, "others make a task of a bitmap write"
            self._thread.written()
            return
        job.left -= 1
        if job.left:
            return
        if job.request is None:
            self._blocked = False
            self._busy(REPLY)
            self._ready.extend(self._waiting)
            self._waiting.clear()
        elif job.threaded and self._thread is not None:
            self._thread.release(job)
        elif job.threaded and self._geometry.has_parity:
            self._ready.append(job)
        else:
            self.advance(job)

    def _finish(self, job: _Task) -> None:
        request = job.request
        assert request is not None, "bitmap writes end in _passed"
        request.left -= 1
        if request.left:
            return
        if self._bitmap is not None and request.regions:
            self._bitmap.end(self._events.now, request.regions)
        self._ended += 1
        self._ends.append(self._events.now)
        self._latency += self._events.now - request.begun
        self._free.append(request.job)
        if self._thread is None:
            self._busy(REACTION)

    def _run_thread(self) -> bool:
        """Run md's thread once, if it is not ``_thread``; whether it did anything."""
        if self._blocked or self._bitmap is None or self._thread is not None:
            return False
        if self._arrived:
            self._waiting.extend(self._arrived)
            self._arrived.clear()
            if self._flush_or_go():
                return True
        if not self._ready:
            return False
        for _ in range(len(self._ready)):
            self.advance(self._ready.popleft())
        return True

    def bitmap_writes(self) -> list[Extent]:
        """Writes of the bitmap's dirty pages to every member; the pages are clean afterwards."""
        sizes = self._bitmap.take_dirty() if self._bitmap is not None else ()
        members = [m for m in range(self._geometry.members) if m not in self._geometry.failed]
        return [Extent(m, -1, size) for size in sizes for m in reversed(members)]

    def _flush_or_go(self) -> bool:
        """Write the dirty part of the bitmap to every member, or release the waiting writes."""
        writes = self.bitmap_writes()
        if not writes:
            self._ready.extend(self._waiting)
            self._waiting.clear()
            return False
        self._flushes += 1
        self._blocked = True
        if self._mirrors is not None:
            self._count_writes(writes)
        self.advance(_Task(None, Work((), tuple(writes)), threaded=True))
        return True

    def _mark(self, now: float | None = None) -> _Progress:
        return _Progress(
            self._events.now if now is None else now,
            self._ended,
            self._latency,
            {direction: list(moved) for direction, moved in self._moved.items()},
            list(self._operations),
            [full for throttle in self._throttles for full in throttle.meter.bursts],
        )

    def _result(
        self, start: _Progress, half: _Progress | None, stop: _Progress, end: float
    ) -> LoadResult:
        """The simulated part since ``start``, plus ``more`` of its second half if that was cut."""
        last = self._mark()
        more = left = cut = 0.0
        if half is not None and stop.ended < self._count and stop.now < end:
            pace = (stop.ended - half.ended) / (stop.now - half.now)
            left = min((self._count - last.ended) / pace, end - stop.now)
            more = left / (stop.now - half.now)
            bursts = zip(half.bursts, stop.bursts, strict=True)
            if any(now < 0.8 and now + (now - then) * more >= 1 for then, now in bursts):
                raise TooLongError  # a burst ends later
            # The rest has its own chance, and the second half, which stands for it, another.
            chance = SURE * self._chance(half.ended, stop.ended) * sqrt(1 + 1 / more)
            cut = chance * left / (last.now - start.now + left)
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
            used=tuple(throttle.meter.idle_bound[0] * whole for throttle in self._throttles),
            flushes=(self._thread.flushes if self._thread else self._flushes) * whole,
            sets=(self._bitmap.sets if self._bitmap else 0) * whole,
            writes=self._writes * whole,
            tally=self._tally,
            chance=self._chance(start.ended, stop.ended) / sqrt(1 + more),
            cut=cut,
        )

    def _chance(self, first: int, last: int) -> float:
        """Return the relative standard error of the rate from one request to another, by the rates
        of its parts."""
        size = (last - first) // BATCHES
        if not size:
            return 0.0
        ends = [0.0, *self._ends]
        marks = [ends[first + size * part] for part in range(BATCHES + 1)]
        took = [b - a for a, b in pairwise(marks)]
        return stdev(took) / fmean(took) / sqrt(BATCHES) if any(took) else 0.0
