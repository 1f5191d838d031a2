"""Where requests fall when many are on their way, and what each makes md read and write.

Sources: as in ``paths`` and ``stripe``. Here the stripe cache is kept page by page, since what lies
in it is scattered, and mirrors are chosen by what is really under way:
``raid1.c`` and ``raid10.c: read_balance`` take an idle mirror first, among rotating disks else the
one whose head is nearest, and of far copies always the lowest address.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from lab.md.theory.bucket import Direction
from lab.md.theory.dice import places
from lab.md.theory.layout import Geometry, Level, Place
from lab.md.theory.paths import BIO_LIMIT, CopyWrites, DirectReads, Extent, Load, Work
from lab.md.theory.stripe import (
    PAGE,
    Decision,
    StripeRules,
    Tally,
    decide_read,
    decide_write,
    members_of,
    segments,
)


def offsets(load: Load, size: int) -> Iterator[int]:
    """Where each request of a load begins, in an array of so many bytes; it never ends."""
    span = min(load.span or size, size - load.offset)
    count = max(span // load.block, 1)
    if not load.random:
        while True:
            yield from range(load.offset, load.offset + count * load.block, load.block)
    jobs = [places(load.seed * (job + 1), count, repeats=load.repeats) for job in range(load.jobs)]
    while True:
        for job in jobs:
            yield load.offset + next(job) * load.block


class Entrance(Protocol):
    """The way of one direction into the array."""

    def plan(self, offset: int, size: int) -> list[Work]:
        """What one request does."""


class Stripes:
    """Writes of RAID 4, 5 and 6, and reads of degraded ones: one stripe head after the other."""

    __slots__ = ("_cache", "_everyone", "_geometry", "_missing", "_rules", "_writes", "tally")

    def __init__(
        self,
        geometry: Geometry,
        rules: StripeRules,
        cache: OrderedDict[int, int],
        tally: Tally,
        *,
        writes: bool,
    ) -> None:
        self._geometry = geometry
        self._rules = rules
        self._cache = cache
        self._writes = writes
        self._missing = sum(1 << m for m in geometry.failed)
        self._everyone = (1 << geometry.members) - 1
        self.tally = tally

    def plan(self, offset: int, size: int) -> list[Work]:
        """Runs of stripe heads that do the same are one piece of work."""
        works: list[Work] = []
        begin = end = 0
        last: Decision | None = None
        for row, start, stop, indices in segments(self._geometry, offset, size):
            roles = self._geometry.row(row)
            checks = sum(1 << m for m in roles.checks)
            touched = sum(1 << roles.data[i] for i in indices)
            for page in range(start, stop, PAGE):
                decision = self._decide(page // PAGE, touched, checks)
                if last is not None and decision == last and page == end:
                    end = page + PAGE
                    continue
                if last is not None:
                    works.append(_work(last, begin, end))
                begin, end, last = page, page + PAGE, decision
        if last is not None:
            works.append(_work(last, begin, end))
        return works

    def _decide(self, number: int, touched: int, checks: int) -> Decision:
        fresh = self._cache.pop(number, 0)
        if self._writes:
            data = self._everyone & ~checks
            rmw_level = self._rules.rmw_level
            decision = decide_write(fresh, touched, data, checks, self._missing, rmw_level)
            self.tally.count(decision, PAGE)
        else:
            decision = decide_read(fresh, touched, self._everyone, self._missing)
        self._cache[number] = decision.fresh
        if len(self._cache) > self._rules.cache_size:
            self._cache.popitem(last=False)
        return decision


def _work(decision: Decision, start: int, end: int) -> Work:
    return Work(
        tuple(Extent(m, start, end - start) for m in members_of(decision.reads)),
        tuple(Extent(m, start, end - start) for m in members_of(decision.writes)),
    )


class Mirrors:
    """Reads of RAID 1 and 10, from the copy that md takes at this moment."""

    __slots__ = ("_chunk", "_geometry", "_willing", "heads", "pending")

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        whole = geometry.level is Level.RAID1 or geometry.copies.near == geometry.members
        self._chunk = None if whole else geometry.chunk
        alive = set(range(geometry.members)) - geometry.failed
        self._willing = (alive - geometry.shunned) or alive
        self.heads = [0] * geometry.members
        """Where each member's last read ended."""
        self.pending = [0] * geometry.members
        """Operations under way on each member."""

    def plan(self, offset: int, size: int) -> list[Work]:
        """Each part from one member."""
        extents = []
        while size:
            part = min(size, BIO_LIMIT)
            if self._chunk:
                part = min(part, self._chunk - offset % self._chunk)
            place = self._choose(self._geometry.locate(offset))
            extents.append(Extent(place.member, place.offset, part))
            self.pending[place.member] += 1
            offset += part
            size -= part
        return [Work(tuple(extents), ())]

    def ended(self, extent: Extent) -> None:
        """A read has ended."""
        self.pending[extent.member] -= 1
        self.heads[extent.member] = extent.start + extent.size

    def _choose(self, places: tuple[Place, ...]) -> Place:
        places = tuple(p for p in places if p.member in self._willing)
        copies = self._geometry.copies
        if self._geometry.level is Level.RAID10 and copies.near == 1:
            return min(places, key=lambda p: p.offset)
        for place in places:
            if not self.pending[place.member]:
                return place
        if copies.far > 1:
            return min(places, key=lambda p: p.offset)
        return min(places, key=lambda p: abs(p.offset - self.heads[p.member]))


def entrances(
    geometry: Geometry, rules: StripeRules
) -> tuple[dict[Direction, Entrance], Mirrors | None, Tally]:
    """The way in for each direction; one stripe cache serves both."""
    tally = Tally()
    cache: OrderedDict[int, int] = OrderedDict()
    if geometry.has_parity:
        writes: Entrance = Stripes(geometry, rules, cache, tally, writes=True)
        reads: Entrance = DirectReads(geometry)
        if geometry.failed:
            reads = Stripes(geometry, rules, cache, tally, writes=False)
        return {Direction.READ: reads, Direction.WRITE: writes}, None, tally
    mirrors = None
    reads = DirectReads(geometry)
    if geometry.level in (Level.RAID1, Level.RAID10):
        reads = mirrors = Mirrors(geometry)
    return {Direction.READ: reads, Direction.WRITE: CopyWrites(geometry)}, mirrors, tally
