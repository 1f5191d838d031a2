"""Reads and writes of RAID 4, 5 and 6 for a request: md's stripe cache, rmw and rcw.

md works in stripe heads: one 4 KiB page of every member at the same offset. Sources: kernel
``drivers/md/raid5.c`` - ``handle_stripe_dirtying`` (read-modify-write or reconstruct-write),
``need_this_block`` and ``fetch_block`` (what a degraded array reads), ``ops_complete_reconstruct``
(pages stay up to date), ``get_free_stripe`` (the stripe head idle longest is taken first),
``raid5_make_request`` (one request enters as a whole, lowest offset first). Runs of stripe heads
with the same decision are one piece here. Sets of members are bit masks, for speed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, Protocol

from typing_extensions import override

from lab.md.facts.geometry import PAGE, Geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeRules:
    """Settings in ``/sys/block/mdX/md/`` that matter, with their defaults."""

    cache_size: int = 256
    """``stripe_cache_size``: number of stripe heads in the cache (``NR_STRIPES``)."""
    rmw_level: int = 1
    """0: never read-modify-write; 1: if it reads less; 2: also if it reads as much."""


class WriteMethod(IntEnum):
    """How a stripe head gets its new parity."""

    FULL = 0
    """All data are written, and parity is computed from them."""
    CACHED = 1
    """All other pages that are needed are in the stripe cache."""
    MODIFY = 2
    """Read-modify-write: reads old data and old parity."""
    RECONSTRUCT = 3
    """Reconstruct-write: reads the data that are not written."""


class Decision(NamedTuple):
    """Reads and writes of one stripe head."""

    reads: int
    """Members whose page is read first."""
    writes: int
    """Members whose page is then written."""
    fresh: int
    """Members whose page is up to date in the cache afterwards."""
    how: WriteMethod = WriteMethod.CACHED
    """Method of a write."""


class Tally:
    """Bytes of stripe heads (on each member) by write method, and bytes read for them.

    The difference of two states can be repeated.
    """

    __slots__ = ("sums",)

    def __init__(self) -> None:
        self.sums = [0] * (2 * len(WriteMethod))

    def count(self, decision: Decision, size: int) -> None:
        """Add ``size`` bytes on each member of stripe heads with the same decision."""
        self.sums[decision.how] += size
        self.sums[len(WriteMethod) + decision.how] += size * decision.reads.bit_count()

    def repeat(self, since: list[int], times: float) -> None:
        """Add ``times`` repetitions of the bytes counted since ``since``."""
        self.sums = [
            now + round(times * (now - then)) for then, now in zip(since, self.sums, strict=True)
        ]

    def height(self, how: WriteMethod) -> int:
        """Return bytes of each member in stripe heads written this way."""
        return self.sums[how]

    def read(self, how: WriteMethod) -> int:
        """Return bytes that all members together had to read for it."""
        return self.sums[len(WriteMethod) + how]


class StripeRun(NamedTuple):
    """A run of stripe heads with one decision; offsets are bytes on each member."""

    start: int
    end: int
    decision: Decision


@lru_cache(maxsize=65536)
def decide_write(
    fresh: int, written: int, data: int, checks: int, missing: int, rmw_level: int = 1
) -> Decision:
    """Decide as ``handle_stripe_dirtying`` for whole pages, after reads of missing members' data.

    All arguments except ``rmw_level`` are sets of members: with an up-to-date page, overwritten,
    with data, with P or Q, failed. Reading a missing page counts as twice all members.
    """
    everyone = data | checks
    present = everyone & ~missing
    reads = 0
    if _must_fill(fresh, written, checks, missing):
        reads = present & ~fresh
        fresh = everyone
    heavy = 2 * everyone.bit_count()
    old = (written | checks) & ~fresh
    rest = data & ~written & ~fresh
    if rmw_level == 0:
        modify, construct = 2, 1
    else:
        modify = (old & present).bit_count() + heavy * (old & missing).bit_count()
        construct = (rest & present).bit_count() + heavy * (rest & missing).bit_count()
    if modify < construct or (modify == construct and rmw_level == 2):
        reads |= old & present
        how = WriteMethod.MODIFY
    else:
        reads |= rest & present
        how = WriteMethod.RECONSTRUCT
    if not reads:
        how = WriteMethod.FULL if written == data else WriteMethod.CACHED
    return Decision(reads, (written | checks) & present, fresh | reads | written | checks, how)


def _must_fill(fresh: int, written: int, checks: int, missing: int) -> bool:
    """Return whether neither rmw nor rcw is possible, so that all other pages are read
    (``need_this_block``)."""
    if missing.bit_count() < 2:
        return False
    forced = missing & (written | checks) & ~fresh
    return bool(forced and missing & ~checks & ~fresh & ~written)


@lru_cache(maxsize=65536)
def decide_read(fresh: int, wanted: int, everyone: int, missing: int) -> Decision:
    """Decide a read through the cache, as in every degraded array (``need_this_block``, first
    half)."""
    need = wanted & ~fresh
    if need & missing:
        return Decision(everyone & ~missing & ~fresh, 0, everyone)
    return Decision(need, 0, fresh | need)


class StripeCache(Protocol):
    """Up-to-date pages in md's stripe cache; the least recently used leave first."""

    def take(self, start: int, end: int) -> tuple[int, int]:
        """Remove the run that begins at ``start``; return its end, at most ``end``, and its fresh
        pages.

        Put it back before the next take: stripe heads that a request adds push out others, and some
        of those may belong to the same request.
        """

    def put(self, start: int, end: int, fresh: int) -> None:
        """Add stripe heads as the most recently used."""


class RunCache(StripeCache):
    """A stripe cache of runs of stripe heads: fast for sequential requests."""

    __slots__ = ("_capacity", "_held", "_runs")

    def __init__(self, stripes: int) -> None:
        self._capacity = stripes * PAGE
        self._held = 0
        self._runs: list[tuple[int, int, int]] = []

    @override
    def take(self, start: int, end: int) -> tuple[int, int]:
        limit = end
        for i, (low, high, fresh) in enumerate(self._runs):
            if low <= start < high:
                end = min(high, end)
                rest = [(low, start, fresh)] if low < start else []
                if end < high:
                    rest.append((end, high, fresh))
                self._runs[i : i + 1] = rest
                self._held -= end - start
                return end, fresh
            if start < low < limit:
                limit = low
        return limit, 0

    @override
    def put(self, start: int, end: int, fresh: int) -> None:
        runs = self._runs
        if runs and runs[-1][1] == start and runs[-1][2] == fresh:
            runs[-1] = (runs[-1][0], end, fresh)
        else:
            runs.append((start, end, fresh))
        self._held += end - start
        while self._held > self._capacity:
            low, high, old = runs[0]
            over = self._held - self._capacity
            if high - low > over:
                runs[0] = (low + over, high, old)
                self._held -= over
            else:
                del runs[0]
                self._held -= high - low

    def shift(self, distance: int) -> None:
        """Move every run by ``distance`` bytes."""
        self._runs = [(low + distance, high + distance, f) for low, high, f in self._runs]

    def signature(self, base: int, turn: int, members: int) -> tuple[tuple[int, int, int], ...]:
        """Return the runs relative to a member's offset, with member ``turn`` counted as the first.

        Equal signatures behave equally.
        """
        everyone = (1 << members) - 1
        return tuple(
            (low - base, high - base, ((fresh >> turn) | (fresh << (members - turn))) & everyone)
            for low, high, fresh in self._runs
        )


class PageCache(StripeCache):
    """A stripe cache of single stripe heads: fast for random requests."""

    __slots__ = ("_pages", "_stripes")

    def __init__(self, stripes: int) -> None:
        self._stripes = stripes
        self._pages: OrderedDict[int, int] = OrderedDict()

    @override
    def take(self, start: int, end: int) -> tuple[int, int]:
        return start + PAGE, self._pages.pop(start, 0)

    @override
    def put(self, start: int, end: int, fresh: int) -> None:
        self._pages[start] = fresh
        if len(self._pages) > self._stripes:
            self._pages.popitem(last=False)


class RowSpan(NamedTuple):
    """A run of stripe heads of one row with the same covered members."""

    row: int
    start: int
    end: int
    indices: range
    """Data chunks of the row that it covers."""


def row_spans(geometry: Geometry, offset: int, size: int) -> Iterator[RowSpan]:
    """Cut an array range where the set of covered members changes."""
    chunk, width = geometry.chunk, geometry.data_members * geometry.chunk
    end = offset + size
    while offset < end:
        row, first = divmod(offset, width)
        last = min(end - row * width, width) - 1
        low, low_at = divmod(first, chunk)
        high, high_at = divmod(last, chunk)
        high_at += 1
        base = row * chunk
        if low == high:
            yield RowSpan(row, base + low_at, base + high_at, range(low, high + 1))
        else:
            cuts = sorted({0, low_at, high_at, chunk})
            for i, begin in enumerate(cuts[:-1]):
                covered = range(
                    low if begin >= low_at else low + 1, high + 1 if begin < high_at else high
                )
                if covered:
                    yield RowSpan(row, base + begin, base + cuts[i + 1], covered)
        offset = row * width + last + 1


class StripeWork:
    """Reads and writes of each request to an array, with the cache that earlier ones left."""

    __slots__ = ("_cache", "_everyone", "_geometry", "_missing", "_rmw_level", "_rows", "tally")

    def __init__(self, geometry: Geometry, rules: StripeRules, cache: StripeCache) -> None:
        self.tally = Tally()
        self._geometry = geometry
        self._rmw_level = rules.rmw_level
        self._cache = cache
        self._missing = sum(1 << m for m in geometry.failed)
        self._everyone = (1 << geometry.members) - 1
        self._rows: dict[int, tuple[tuple[int, ...], int]] = {}

    def write(self, offset: int, size: int) -> list[StripeRun]:
        """Return runs of stripe heads of a write of whole pages."""
        return self._enter(offset, size, writes=True)

    def read(self, offset: int, size: int) -> list[StripeRun]:
        """Return runs of stripe heads of a read through the cache."""
        return self._enter(offset, size, writes=False)

    def _enter(self, offset: int, size: int, *, writes: bool) -> list[StripeRun]:
        runs: list[StripeRun] = []
        everyone, missing = self._everyone, self._missing
        for row, start, end, indices in row_spans(self._geometry, offset, size):
            data, checks = self._roles(row)
            touched = sum(data[i] for i in indices)
            while start < end:
                stop, fresh = self._cache.take(start, end)
                if writes:
                    decision = decide_write(
                        fresh, touched, everyone & ~checks, checks, missing, self._rmw_level
                    )
                    self.tally.count(decision, stop - start)
                else:
                    decision = decide_read(fresh, touched, everyone, missing)
                self._cache.put(start, stop, decision.fresh)
                begin = start
                if runs and runs[-1].end == start and runs[-1].decision == decision:
                    begin = runs.pop().start
                runs.append(StripeRun(begin, stop, decision))
                start = stop
        return runs

    def _roles(self, row: int) -> tuple[tuple[int, ...], int]:
        roles = self._rows.get(row)
        if roles is None:
            if len(self._rows) > 256:
                self._rows.clear()
            found = self._geometry.row(row)
            roles = (tuple(1 << m for m in found.data), sum(1 << m for m in found.checks))
            self._rows[row] = roles
        return roles


def members_of(mask: int) -> Iterator[int]:
    """Yield the members in a set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
