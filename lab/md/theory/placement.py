"""Offsets of random requests, and the paths of an array with many requests in flight."""

from __future__ import annotations

from collections.abc import Iterator

from lab.md.facts.geometry import Geometry
from lab.md.facts.levels import Level
from lab.md.theory.bucket import Direction
from lab.md.theory.fio_random import places, seed_of
from lab.md.theory.paths import CopyWrites, Entrance, Load, Reads, StripeRequests
from lab.md.theory.stripe import PageCache, StripeRules, StripeWork, Tally


def offsets(load: Load, size: int) -> Iterator[int]:
    """Yield the offset of each request of a load, without end, in an array of ``size`` bytes."""
    span = min(load.span or size, size - load.offset)
    count = max(span // load.block, 1)
    if not load.random:
        while True:
            yield from range(load.offset, load.offset + count * load.block, load.block)
    seeds = [seed_of(load.seed, job) for job in range(1, load.jobs + 1)]
    jobs = [places(seed, count, repeats=load.repeats) for seed in seeds]
    while True:
        for job in jobs:
            yield load.offset + next(job) * load.block


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
