"""How md turns one request to the array into requests to members, for each level.

Sources: ``raid5.c: chunk_aligned_read`` (reads of a whole array are cut at chunks and bypass the
cache), ``raid0.c: raid0_make_request``, ``raid10.c: raid10_make_request, read_balance``,
``raid1.c: read_balance`` (a stream stays with one member), ``stripe.py`` for the rest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from typing_extensions import override

from lab.md.facts.geometry import PAGE, Geometry, Location
from lab.md.facts.levels import Level
from lab.md.theory.bucket import Direction
from lab.md.theory.stripe import RunCache, StripeRules, StripeWork, Tally, members_of

BIO_LIMIT = 1280 * 1024
"""Largest request of a disk's queue in bytes (``BLK_DEF_MAX_SECTORS`` of Linux 6.1 to 6.12)."""

SEGMENT_LIMIT = 254 * PAGE
"""Stripe heads' pages do not touch in memory: a segment each, and virtio-blk takes
``queue-size - 2`` of them (QEMU ``hw/block/virtio-blk.c``, ``seg-max-adjust``)."""

PLUG_FLUSH = 128 * 1024
"""A request of so many bytes leaves the plug as soon as another one comes
(``block/blk-mq.c: blk_add_rq_to_plug``, ``BLK_PLUG_FLUSH_SIZE``)."""

MERGE_LIMIT = 1024 * PAGE
"""QEMU makes one of requests that touch, if it finds them in the queue together
(``hw/block/virtio-blk.c: submit_requests``): up to ``IOV_MAX`` segments. Whether it does is a race
between guest and host, and it matters to the bucket, which lets the last request go at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialLoad:
    """A sequential workload on the array: one block after the other."""

    direction: Direction
    block: int
    """Bytes of each request, past the page cache (``dd bs=… oflag=direct``)."""
    total: int
    """Bytes altogether; the last block may be short."""
    depth: int = 1
    """Requests on their way at once; dd has one."""
    offset: int = 0
    """Byte of the array where it begins."""

    def __post_init__(self) -> None:
        if self.block <= 0 or self.total <= 0 or self.offset < 0 or self.depth < 1:
            raise ValueError("a stream has a block, a total and a depth above 0")


FIO_SEED = 0xB1899BED
"""fio's seed where it is given no other (``FIO_RANDSEED``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A workload with many requests on their way, or with each at a place of its own.

    ``depth`` requests are under way at any moment; each that ends is followed by the next.
    """

    block: int
    """Bytes of each request, past the page cache."""
    read_share: float
    """Part of the requests that read: 0 writes only, 1 reads only."""
    random: bool = True
    depth: int = 1
    offset: int = 0
    """Byte of the array where it begins."""
    span: int | None = None
    """Bytes from there on that it keeps to; ``None``: to the array's end."""
    total: int | None = None
    """Bytes after which it ends."""
    seconds: float | None = None
    """Time after which it ends; with ``total``, whichever comes first. With neither, it ends when
    its span has been covered once."""
    rest: float = 0.0
    """Seconds that it runs before it is measured."""
    repeats: bool = False
    """Whether a place may come again before all others had their turn."""
    jobs: int = 1
    """Senders that share the depth, each with places of its own."""
    seed: int = FIO_SEED
    """Where the first sender's dice begin."""

    def __post_init__(self) -> None:
        if self.block <= 0 or self.depth < 1 or not 0 <= self.read_share <= 1:
            raise ValueError("a load has a block, a depth above 0 and a share of reads from 0 to 1")


class Extent(NamedTuple):
    """Adjacent bytes on one member."""

    member: int
    start: int
    size: int


class Work(NamedTuple):
    """Reads, and the writes that wait for all of them."""

    reads: tuple[Extent, ...]
    writes: tuple[Extent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How extents that are sent together become requests."""

    limit: int
    """Largest request in bytes."""
    joins: bool
    """Whether extents that touch become one request."""


class Entrance(Protocol):
    """One direction of one level."""

    def plan(self, offset: int, size: int) -> list[Work]:
        """The work of one request."""


class Path(Entrance, Protocol):
    """One direction of one level, for requests one at a time."""

    @property
    def tally(self) -> Tally:
        """How stripes were written."""

    @property
    def cutting(self) -> Cutting:
        """The most likely cutting."""

    @property
    def cuttings(self) -> tuple[Cutting, ...]:
        """Other possible cuttings; they matter to limits on operations, and for large runs."""

    def before(self, offset: int, size: int) -> tuple[Extent, ...]:
        """Writes that must end before the request's own work begins."""

    def signature(self, offset: int, turn: int) -> Hashable:
        """The path's state relative to an offset, with member ``turn`` counted as the first."""

    def shift(self, distance: int) -> None:
        """Move the state by so many array bytes, whole periods."""


def path_of(geometry: Geometry, direction: Direction, rules: StripeRules) -> Path:
    """The path for requests one at a time.

    A degraded array reads through the stripe cache (``raid5.c: raid5_make_request``).
    """
    if geometry.has_parity and (direction is Direction.WRITE or geometry.failed):
        return StripePath(geometry, direction, rules)
    if direction is Direction.WRITE:
        return CopyWrites(geometry)
    return Reads(geometry, alone=True)


class StripeRequests:
    """Writes, and degraded reads, of RAID 4, 5 and 6."""

    def __init__(self, work: StripeWork, direction: Direction) -> None:
        self._enter = work.write if direction is Direction.WRITE else work.read

    def plan(self, offset: int, size: int) -> list[Work]:
        """One piece of work for each run of stripe heads."""
        return [
            Work(
                tuple(Extent(m, start, end - start) for m in members_of(decision.reads)),
                tuple(Extent(m, start, end - start) for m in members_of(decision.writes)),
            )
            for start, end, decision in self._enter(offset, size)
        ]


class StripePath(StripeRequests):
    """The same, one request at a time.

    raid5d submits what is ready under one plug (``raid5d: blk_start_plug``), so pages that touch
    merge into one request. Stripe heads that are written whole go in batches of a chunk, member by
    member (``stripe_add_to_batch_list``, ``ops_run_io``): from ``PLUG_FLUSH`` on, each chunk has
    left the plug before the next row comes.
    """

    cuttings = (
        Cutting(limit=MERGE_LIMIT, joins=True),
        Cutting(limit=SEGMENT_LIMIT, joins=True),
        Cutting(limit=PAGE, joins=False),
    )

    def __init__(self, geometry: Geometry, direction: Direction, rules: StripeRules) -> None:
        self._geometry = geometry
        self._cache = RunCache(rules.cache_size)
        work = StripeWork(geometry, rules, self._cache)
        super().__init__(work, direction)
        self.tally = work.tally
        limit = geometry.chunk if geometry.chunk >= PLUG_FLUSH else SEGMENT_LIMIT
        self.cutting = Cutting(limit=min(limit, BIO_LIMIT), joins=True)

    def before(self, offset: int, size: int) -> tuple[Extent, ...]:  # noqa: ARG002
        """Nothing."""
        return ()

    def signature(self, offset: int, turn: int) -> Hashable:
        """The runs in the stripe cache."""
        base = self._geometry.member_bytes(offset)
        return self._cache.signature(base, turn, self._geometry.members)

    def shift(self, distance: int) -> None:
        """Move the runs in the stripe cache."""
        self._cache.shift(self._geometry.member_bytes(distance))


class _Cut:
    """Requests cut at chunks; each part is sent at once, without a plug."""

    cutting = Cutting(limit=BIO_LIMIT, joins=False)
    cuttings = (Cutting(limit=MERGE_LIMIT, joins=True),)

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self.tally = Tally()
        self._whole = not geometry.has_chunks or geometry.near == geometry.members

    def before(self, offset: int, size: int) -> tuple[Extent, ...]:  # noqa: ARG002
        """Nothing."""
        return ()

    def _parts(self, offset: int, size: int) -> Iterator[tuple[int, int]]:
        """Offset and size of each part."""
        unit = BIO_LIMIT if self._whole else self._geometry.chunk
        while size:
            part = min(size, unit if self._whole else unit - offset % unit)
            yield offset, part
            offset += part
            size -= part

    def signature(self, offset: int, turn: int) -> Hashable:  # noqa: ARG002
        """Nothing: there is no state."""
        return ()

    def shift(self, distance: int) -> None:
        """Nothing: there is no state."""


class CopyWrites(_Cut):
    """Writes of RAID 0, 1, 10 and a bare disk: to every copy that is there."""

    def plan(self, offset: int, size: int) -> list[Work]:
        """All copies of all parts at once."""
        failed = self._geometry.failed
        extents = tuple(
            Extent(copy.member, copy.offset, part)
            for at, part in self._parts(offset, size)
            for copy in self._geometry.locate(at)
            if copy.member not in failed
        )
        return [Work((), extents)]


class Reads(_Cut):
    """Reads that bypass the stripe cache, of all levels; mirrors are balanced.

    Linux spreads reads over mirrors by what is under way (``read_balance``). ``alone``: one request
    at a time, so that only the parts of one request are under way together. RAID 1 then stays with
    one member (``raid1.c: next_seq_sect``).
    """

    def __init__(self, geometry: Geometry, *, alone: bool) -> None:
        super().__init__(geometry)
        self._alone = alone
        order = set(range(geometry.members)) - geometry.failed
        self._readable = (order - geometry.write_mostly) or order
        self._only = min(self._readable) if alone and geometry.level is Level.RAID1 else None
        self._mirrored = geometry.level in (Level.RAID1, Level.RAID10)
        self._prefers_idle = geometry.level is Level.RAID1 or geometry.near > 1
        self.heads = [0] * geometry.members
        """Where each member's last read ended."""
        self.pending = [0] * geometry.members
        """Reads under way on each member."""

    def plan(self, offset: int, size: int) -> list[Work]:
        """One extent for each part."""
        extents = []
        for at, part in self._parts(offset, size):
            if self._only is not None:
                extents.append(Extent(self._only, at, part))
                continue
            copies = self._geometry.locate(at)
            copy = self._balance(copies) if self._mirrored else copies[0]
            extents.append(Extent(copy.member, copy.offset, part))
            self.pending[copy.member] += 1
        if self._alone and self._only is None:
            for extent in extents:
                self.ended(extent)
        return [Work(tuple(extents), ())]

    def ended(self, extent: Extent) -> None:
        """A read has ended."""
        self.pending[extent.member] -= 1
        self.heads[extent.member] = extent.start + extent.size

    def _balance(self, copies: Sequence[Location]) -> Location:
        """``raid10.c`` and ``raid1.c: read_balance`` for rotational members, as virtio-blk says.

        Near copies: an idle member has distance 0 and the first of them wins; else the nearest
        head. Far copies: the lowest address.
        """

        def distance(copy: Location) -> int:
            if self._prefers_idle and not self.pending[copy.member]:
                return 0
            if self._geometry.far > 1:
                return copy.offset
            return abs(copy.offset - self.heads[copy.member])

        return min((c for c in copies if c.member in self._readable), key=distance)

    @override
    def signature(self, offset: int, turn: int) -> Hashable:
        """The positions of the heads; only RAID 10's near copies depend on them."""
        if self._geometry.near > 1:
            base = self._geometry.member_bytes(offset)
            return tuple(head - base for head in self.heads)
        return ()

    @override
    def shift(self, distance: int) -> None:
        """Move the heads."""
        step = self._geometry.member_bytes(distance)
        self.heads = [head + step for head in self.heads]
