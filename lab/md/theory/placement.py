"""Directions and offsets of requests, and the paths of an array with many requests in flight."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

from lab.md.facts.geometry import Geometry
from lab.md.facts.levels import Level
from lab.md.theory.bucket import Direction
from lab.md.theory.fio_random import directions, mix_seed_of, places, seed_of
from lab.md.theory.paths import CopyWrites, Entrance, Load, Reads, StripeRequests
from lab.md.theory.stripe import PageCache, StripeRules, StripeWork, Tally


def senders(load: Load, size: int) -> list[Iterator[tuple[bool, int]]]:
    """Return the requests of each job, without end, in an array of ``size`` bytes: whether it
    reads, and its offset."""
    span = min(load.span or size, size - load.offset)
    count = max(span // load.block, 1)
    end = load.offset + count * load.block
    found: list[Iterator[tuple[bool, int]]] = []
    for job in range(1, load.jobs + 1):
        offsets: Iterator[int] = chain.from_iterable(repeat(range(load.offset, end, load.block)))
        if load.random:
            drawn = places(seed_of(load.seed, job), count, repeats=load.repeats)
            offsets = (load.offset + place * load.block for place in drawn)
        reads: Iterator[bool] = repeat(load.read_share >= 1)
        if 0 < load.read_share < 1:
            reads = directions(mix_seed_of(load.seed, job), load.read_share)
        found.append(zip(reads, offsets, strict=False))
    return found


def entrances(
    geometry: Geometry, rules: StripeRules
) -> tuple[dict[Direction, Entrance], Reads | None, Tally]:
    """Return the path of each direction; RAID 1 and 10's reads, if balanced; the tally of stripes.

    One stripe cache serves both directions.
    """
    read, write = Direction.READ, Direction.WRITE
    reads = Reads(geometry, alone=False)
    if not geometry.has_parity:
        balanced = geometry.level in (Level.RAID1, Level.RAID10)
        ways: dict[Direction, Entrance] = {read: reads, write: CopyWrites(geometry)}
        return ways, reads if balanced else None, Tally()
    work = StripeWork(geometry, rules, PageCache(rules.cache_size))
    through_cache = StripeRequests(work, read)
    ways = {read: through_cache if geometry.failed else reads, write: StripeRequests(work, write)}
    return ways, None, work.tally
