"""How md turns one request to the array into requests to members, for each level.

Sources: ``raid5.c: chunk_aligned_read`` (reads of a whole array are cut at chunks and bypass the
cache), ``raid0.c: raid0_make_request``, ``raid10.c: raid10_make_request, read_balance``,
``raid1.c: read_balance`` (a stream stays with one member), ``stripe.py`` for the rest.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from typing_extensions import override

from lab.md.theory.bucket import Direction
from lab.md.theory.layout import Geometry, Level
from lab.md.theory.stripe import PAGE, Piece, StripeRules, StripeWork, Tally, members_of

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
class Stream:
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
    """How extents of one moment become requests: what md and the block layer leave open."""

    limit: int
    """Largest request in bytes."""
    joins: bool
    """Whether extents that touch become one request."""


class Path(Protocol):
    """The way of one direction through one level."""

    @property
    def tally(self) -> Tally:
        """How stripes were written."""

    @property
    def cutting(self) -> Cutting:
        """How requests most likely come out."""

    @property
    def cuttings(self) -> tuple[Cutting, ...]:
        """How else they may come out; matters to limits on operations, and for large runs."""

    def before(self, offset: int, size: int) -> tuple[Extent, ...]:
        """What must be written before anything else of the request is done."""

    def plan(self, offset: int, size: int) -> list[Work]:
        """What one request does."""

    def signature(self, offset: int, turn: int) -> Hashable:
        """What the path remembers, relative to an offset and with ``turn`` as first member."""

    def shift(self, distance: int) -> None:
        """Move what it remembers along by so many array bytes, whole periods."""


def path_of(geometry: Geometry, direction: Direction, rules: StripeRules) -> Path:
    """The path that md takes; a degraded array reads through the cache (``raid5_make_request``)."""
    if geometry.has_parity and (direction is Direction.WRITE or geometry.failed):
        return StripePath(geometry, direction, rules)
    if direction is Direction.WRITE:
        return CopyWrites(geometry)
    return DirectReads(geometry)


class StripePath:
    """Writes, and degraded reads, of RAID 4, 5 and 6.

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
        limit = geometry.chunk if geometry.chunk >= PLUG_FLUSH else SEGMENT_LIMIT
        self.cutting = Cutting(limit=min(limit, BIO_LIMIT), joins=True)
        self._stripes = StripeWork(geometry, rules)
        self.tally = self._stripes.tally
        self._enter = self._stripes.write if direction is Direction.WRITE else self._stripes.read

    def before(self, offset: int, size: int) -> tuple[Extent, ...]:  # noqa: ARG002 - always
        """Nothing."""
        return ()

    def plan(self, offset: int, size: int) -> list[Work]:
        """Each run of stripe heads is one piece of work."""
        return [self._work(piece) for piece in self._enter(offset, size)]

    def _work(self, piece: Piece) -> Work:
        start, size = piece.start, piece.end - piece.start
        reads, writes = piece.decision.reads, piece.decision.writes
        return Work(
            tuple(Extent(m, start, size) for m in members_of(reads)),
            tuple(Extent(m, start, size) for m in members_of(writes)),
        )

    def signature(self, offset: int, turn: int) -> Hashable:
        """The stripe cache's picture."""
        return self._stripes.signature(self._geometry.member_bytes(offset), turn)

    def shift(self, distance: int) -> None:
        """Move the stripe cache's picture."""
        self._stripes.shift(self._geometry.member_bytes(distance))


class _Cut:
    """Requests cut at chunks, each part handed on at once, without a plug."""

    cutting = Cutting(limit=BIO_LIMIT, joins=False)
    cuttings = (Cutting(limit=MERGE_LIMIT, joins=True),)

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self.tally = Tally()
        keep_whole = not geometry.has_chunks or geometry.copies.near == geometry.members
        self._unit = BIO_LIMIT if keep_whole else geometry.chunk
        self._anchored = not keep_whole

    def before(self, offset: int, size: int) -> tuple[Extent, ...]:  # noqa: ARG002 - always
        """Nothing."""
        return ()

    def _parts(self, offset: int, size: int) -> list[tuple[int, int]]:
        """Offset and size of each part."""
        parts = []
        while size:
            room = self._unit - offset % self._unit if self._anchored else self._unit
            part = min(size, room)
            parts.append((offset, part))
            offset += part
            size -= part
        return parts

    def signature(self, offset: int, turn: int) -> Hashable:  # noqa: ARG002 - nothing to tell
        """Nothing is remembered."""
        return ()

    def shift(self, distance: int) -> None:
        """Nothing is remembered."""


class CopyWrites(_Cut):
    """Writes of RAID 0, 1, 10 and a bare disk: every copy that is there."""

    def plan(self, offset: int, size: int) -> list[Work]:
        """Nothing waits for anything."""
        failed = self._geometry.failed
        extents = tuple(
            Extent(place.member, place.offset, part)
            for at, part in self._parts(offset, size)
            for place in self._geometry.locate(at)
            if place.member not in failed
        )
        return [Work((), extents)]


class DirectReads(_Cut):
    """Reads of arrays that are whole, and of mirrors that are not."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self._heads = [0] * geometry.members
        self._balanced = geometry.level is Level.RAID10
        order = sorted(set(range(geometry.members)) - geometry.failed)
        willing = [m for m in order if m not in geometry.shunned]
        self._only = (willing or order)[0] if geometry.level is Level.RAID1 else None

    def plan(self, offset: int, size: int) -> list[Work]:
        """One extent for each part."""
        pending: dict[int, int] = {}
        extents = []
        for at, part in self._parts(offset, size):
            if self._only is not None:
                extents.append(Extent(self._only, at, part))
            elif self._balanced:
                extents.append(self._balance(at, part, pending))
            else:
                place = self._geometry.locate(at)[0]
                extents.append(Extent(place.member, place.offset, part))
        for extent in extents:
            self._heads[extent.member] = extent.start + extent.size
        return [Work(tuple(extents), ())]

    def _balance(self, offset: int, size: int, pending: dict[int, int]) -> Extent:
        """``raid10.c: read_balance`` for rotational members, as virtio-blk declares them.

        Near copies: an idle member is at no distance and the first one wins, else the nearest
        head. Far copies: the lowest address. The parts of one block are all sent before the first
        comes back, so within a block members are not idle.
        """
        copies = self._geometry.copies
        best: tuple[int, Extent] | None = None
        for place in self._geometry.locate(offset):
            if place.member in self._geometry.failed:
                continue
            if copies.near > 1 and not pending.get(place.member):
                distance = 0
            elif copies.far > 1:
                distance = place.offset
            else:
                distance = abs(place.offset - self._heads[place.member])
            if best is None or distance < best[0]:
                best = (distance, Extent(place.member, place.offset, size))
        assert best is not None, "an array that lost every copy is refused"
        pending[best[1].member] = pending.get(best[1].member, 0) + 1
        return best[1]

    @override
    def signature(self, offset: int, turn: int) -> Hashable:
        """Where the heads are; only near copies care."""
        if self._balanced and self._geometry.copies.near > 1:
            base = self._geometry.member_bytes(offset)
            return tuple(head - base for head in self._heads)
        return ()

    @override
    def shift(self, distance: int) -> None:
        """Move the heads along."""
        step = self._geometry.member_bytes(distance)
        self._heads = [head + step for head in self._heads]
