"""Converts one request to the array into requests to members, for each level.

Sources: ``raid5.c: chunk_aligned_read`` (reads of a whole array are cut at chunks and bypass the
cache), ``raid0.c: raid0_make_request``, ``raid10.c: raid10_make_request, read_balance``,
``raid1.c: read_balance`` (a stream stays with one member), ``stripe.py`` for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from typing_extensions import override

from lab.md.facts.geometry import PAGE, Geometry, Location
from lab.md.facts.levels import Level
from lab.md.theory.bucket import Direction
from lab.md.theory.stripe import RunCache, StripeRules, StripeWork, Tally, members_of

BIO_LIMIT = 1280 * 1024
"""Largest request of a disk's queue in bytes (``BLK_DEF_MAX_SECTORS`` of Linux 6.1 to 6.12)."""

BIO_PAGES = 256 * PAGE
"""Largest bio of O_DIRECT in bytes if no two pages of the buffer are adjacent in memory
(``BIO_MAX_VECS``). Larger requests are several bios, sent under a plug
(``block/fops.c: __blkdev_direct_IO``)."""

SEGMENT_LIMIT = 254 * PAGE
"""Stripe heads' pages are not adjacent in memory, so each is a segment, and virtio-blk accepts
``queue-size - 2`` of them (QEMU ``hw/block/virtio-blk.c``, ``seg-max-adjust``)."""

PLUG_FLUSH = 128 * 1024
"""A request of at least so many bytes leaves the plug when another one arrives
(``block/blk-mq.c: blk_add_rq_to_plug``, ``BLK_PLUG_FLUSH_SIZE``)."""

PLUG_COUNT = 64
"""Most requests to several disks in a plug (twice ``BLK_MAX_REQUEST_COUNT``)."""

STRIPES_LIMIT = 1024 * 1024
"""Largest bio to RAID 4, 5 and 6 (``raid5.c: RAID5_MAX_REQ_STRIPES``)."""

HUGE_BIO = 1 << 40
"""A bio of unlimited size: all pages of the buffer are adjacent in memory."""

MERGE_LIMIT = 1024 * PAGE
"""QEMU merges adjacent requests that it finds in the queue together (``hw/block/virtio-blk.c:
submit_requests``), up to ``IOV_MAX`` segments. This is a race between guest and host. It matters
because the bucket does not delay the final request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialLoad:
    """A sequential workload on the array: one block after the other."""

    direction: Direction
    block: int
    """Bytes of each request, without the page cache (``dd bs=… oflag=direct``)."""
    total: int
    """Bytes of all requests; the last block may be short."""
    depth: int = 1
    """Requests in flight; dd has one."""
    offset: int = 0
    """First byte of the array."""

    def __post_init__(self) -> None:
        if self.block <= 0 or self.total <= 0 or self.offset < 0 or self.depth < 1:
            raise ValueError("a stream has a block, a total and a depth above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A workload with many requests in flight, or with random offsets.

    ``depth`` requests are always in flight; each that ends is followed by the next.
    """

    block: int
    """Bytes of each request, without the page cache."""
    read_share: float
    """Fraction of reads: 0 only writes, 1 only reads."""
    random: bool = True
    depth: int = 1
    offset: int = 0
    """First byte of the array."""
    span: int | None = None
    """Bytes from ``offset`` on that it uses; ``None``: to the array's end."""
    total: int | None = None
    """Bytes after which it ends."""
    seconds: float | None = None
    """Time after which it ends; with ``total``, the first of both. Without either, it ends when it
    has covered its span once."""
    rest: float = 0.0
    """Seconds of the workload before the measurement."""
    repeats: bool = False
    """Whether an offset may repeat before all others were used."""
    jobs: int = 1
    """Senders that share the depth, each with its own offsets."""
    seed: int | None = None
    """fio's ``randseed``; ``None``: ``randrepeat``, whose offsets are the same in each run."""
    known: bool = True
    """Whether the offsets are those of ``seed``; otherwise each run draws others."""

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


Admit = Callable[[int, int], float]
"""Sends a member a request of so many bytes; returns its start, which is also its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How adjacent extents become requests."""

    limit: int
    """Largest request in bytes."""
    joins: bool
    """Whether all adjacent extents become one request."""
    bio: int = BIO_PAGES
    """Largest bio to the array in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """How the guest sends requests one at a time."""

    plugs_writes: bool = True
    """Whether each write to a block device is plugged (``blkdev_write_iter``, Linux up to 6.4)."""
    at_once: bool = False
    """Whether an undelayed request ends before the next one is sent. True for ``lab_disk``, which
    ends it where it was sent. virtio-blk ends it later, and QEMU may merge requests until then."""


class Entrance(Protocol):
    """One direction of one level."""

    def plan(self, offset: int, size: int) -> list[Work]:
        """Return the work of one request."""


class Path(Entrance, Protocol):
    """One direction of one level, for requests one at a time."""

    @property
    def tally(self) -> Tally:
        """Bytes by write method of stripes."""

    @property
    def cutting(self) -> Cutting:
        """The most likely cutting."""

    @property
    def cuttings(self) -> tuple[Cutting, ...]:
        """Other possible cuttings; they matter to limits on operations, and for large runs."""

    def before(self, offset: int, size: int) -> tuple[Extent, ...]:
        """Return writes that must end before the request's own work begins."""

    def issue(
        self, now: float, offset: int, size: int, cutting: Cutting, admit: Admit
    ) -> float | None:
        """Send a request's parts in the kernel's order; return when the last one ends.

        ``None``: use ``plan`` and ``cutting`` instead.
        """

    def signature(self, offset: int, turn: int) -> Hashable:
        """Return the path's state relative to an offset, with member ``turn`` counted as the
        first."""

    def shift(self, distance: int) -> None:
        """Move the state by so many array bytes, which are whole periods."""


def path_of(
    geometry: Geometry, direction: Direction, rules: StripeRules, sender: Sender | None = None
) -> Path:
    """Return the path for requests one at a time.

    A degraded array reads through the stripe cache (``raid5.c: raid5_make_request``).
    """
    if geometry.has_parity and (direction is Direction.WRITE or geometry.failed):
        return StripePath(geometry, direction, rules)
    sender = sender or Sender()
    if direction is Direction.WRITE:
        return CopyWrites(geometry, sender)
    return Reads(geometry, sender, alone=True)


class StripeRequests:
    """Writes, and degraded reads, of RAID 4, 5 and 6."""

    def __init__(self, work: StripeWork, direction: Direction) -> None:
        self._enter = work.write if direction is Direction.WRITE else work.read

    def plan(self, offset: int, size: int) -> list[Work]:
        """Return one piece of work for each run of stripe heads."""
        return [
            Work(
                tuple(Extent(m, start, end - start) for m in members_of(decision.reads)),
                tuple(Extent(m, start, end - start) for m in members_of(decision.writes)),
            )
            for start, end, decision in self._enter(offset, size)
        ]


class StripePath(StripeRequests):
    """Stripe requests one at a time.

    raid5d submits ready requests under one plug (``raid5d: blk_start_plug``), so adjacent pages
    merge into one request. Stripe heads that are written whole go in batches of a chunk, member by
    member (``stripe_add_to_batch_list``, ``ops_run_io``). From ``PLUG_FLUSH`` on, each chunk has
    left the plug before the next row.
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
        """Return no writes."""
        return ()

    def issue(
        self,
        now: float,  # noqa: ARG002
        offset: int,  # noqa: ARG002
        size: int,  # noqa: ARG002
        cutting: Cutting,  # noqa: ARG002
        admit: Admit,  # noqa: ARG002
    ) -> float | None:
        """Return ``None``: raid5d sends stripe heads, not requests."""
        return None

    def signature(self, offset: int, turn: int) -> Hashable:
        """Return the runs in the stripe cache."""
        base = self._geometry.member_bytes(offset)
        return self._cache.signature(base, turn, self._geometry.members)

    def shift(self, distance: int) -> None:
        """Move the runs in the stripe cache."""
        self._cache.shift(self._geometry.member_bytes(distance))


class _Plug:
    """Requests that wait to be merged (``blk_attempt_plug_merge``)."""

    __slots__ = ("_first", "_limit", "_list", "_send")

    def __init__(self, send: Callable[[list[Extent]], None], limit: int, *, plugged: bool) -> None:
        self._send = send
        self._limit = limit
        self._first = 0 if plugged else PLUG_COUNT
        self._list: list[list[Extent]] = []
        """The requests, each with its bios, oldest first."""

    def add(self, bio: Extent) -> None:
        """Merge a bio into the newest request to its member, or append it."""
        for bios in reversed(self._list):
            if bios[0].member != bio.member:
                continue
            if sum(b.size for b in bios) + bio.size > self._limit:
                break
            if bios[-1].start + bios[-1].size == bio.start:
                bios.append(bio)
                return
            if bio.start + bio.size == bios[0].start:
                bios.insert(0, bio)
                return
            break
        full = self._first + len(self._list) >= PLUG_COUNT
        if self._list and (full or sum(b.size for b in self._list[-1]) >= PLUG_FLUSH):
            self.flush()
        self._list.append([bio])
        if self._first:
            self.flush()

    def flush(self) -> None:
        """Send all requests."""
        sent, self._list = self._list, []
        for bios in sent:
            self._send(bios)


class _Cut:
    """Requests cut at chunks, one bio after the other."""

    cutting = Cutting(limit=BIO_LIMIT, joins=False)

    def __init__(self, geometry: Geometry, sender: Sender | None = None) -> None:
        self._geometry = geometry
        self._sender = sender or Sender()
        self.tally = Tally()
        self._whole = not geometry.has_chunks or geometry.near == geometry.members
        if geometry.level is Level.RAID0:
            self._largest = geometry.chunk
        elif geometry.has_parity:
            self._largest = STRIPES_LIMIT
        else:
            self._largest = BIO_LIMIT
        # If no pages of the buffer are adjacent in memory, a request is small. If all are, a bio
        # has unlimited size. If some are, it ends within a chunk.
        chunk = geometry.chunk or PAGE
        self.cuttings: tuple[Cutting, ...] = (
            Cutting(limit=SEGMENT_LIMIT, joins=False),
            Cutting(limit=BIO_LIMIT, joins=False, bio=HUGE_BIO),
            Cutting(limit=BIO_LIMIT, joins=False, bio=BIO_PAGES + chunk // 2),
        )
        if not self._sender.at_once:
            self.cuttings += (Cutting(limit=MERGE_LIMIT, joins=True),)

    def before(self, offset: int, size: int) -> tuple[Extent, ...]:  # noqa: ARG002
        """Return no writes."""
        return ()

    def _parts(self, offset: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield offset and size of each part."""
        unit = BIO_LIMIT if self._whole else self._geometry.chunk
        while size:
            part = min(size, unit if self._whole else unit - offset % unit)
            yield offset, part
            offset += part
            size -= part

    def _sent(self, offset: int, size: int, cutting: Cutting) -> Iterator[tuple[int, int]]:
        """Yield offset and size of each part in md's order of sending.

        The rest of a cut bio waits in ``current->bio_list``. A bio that is too large for the array
        is cut first, and then a part that crosses a chunk. So the rest of the former comes before
        the rest of the latter (``__submit_bio_noacct``, ``bio_split_to_limits``).
        """
        largest = self._largest
        if self._geometry.level in (Level.RAID1, Level.RAID10):
            largest = min(largest, cutting.limit)  # segments count; RAID 0 and 5 cut smaller
        chunk = 0 if self._whole else self._geometry.chunk
        end = offset + size
        while offset < end:
            bio = min(cutting.bio, end - offset)
            waiting = [(offset, bio)]
            offset += bio
            while waiting:
                at, part = waiting.pop(0)
                rests = []
                if part > largest:
                    rests.append((at + largest, part - largest))
                    part = largest
                if chunk and at % chunk + part > chunk:
                    inside = chunk - at % chunk
                    rests.append((at + inside, part - inside))
                    part = inside
                waiting[:0] = rests
                yield at, part

    def signature(self, offset: int, turn: int) -> Hashable:  # noqa: ARG002
        """Return an empty state."""
        return ()

    def shift(self, distance: int) -> None:
        """Do nothing: there is no state."""


class CopyWrites(_Cut):
    """Writes of RAID 0, 1, 10 and a bare disk: to every existing copy."""

    def plan(self, offset: int, size: int) -> list[Work]:
        """Return all copies of all parts at once."""
        parts = self._parts(offset, size)
        return [Work((), tuple(copy for at, part in parts for copy in self._copies(at, part)))]

    def _copies(self, at: int, size: int) -> list[Extent]:
        failed = self._geometry.failed
        found = self._geometry.locate(at)
        return [Extent(c.member, c.offset, size) for c in found if c.member not in failed]

    def issue(
        self, now: float, offset: int, size: int, cutting: Cutting, admit: Admit
    ) -> float | None:
        """Send every copy of a part, then the next part."""
        if cutting.joins:
            return None
        ends = [now]

        def send(bios: list[Extent]) -> None:
            ends.append(admit(bios[0].member, sum(bio.size for bio in bios)))

        plugged = self._sender.plugs_writes or size > BIO_PAGES
        plug = _Plug(send, cutting.limit, plugged=plugged)
        for at, part in self._sent(offset, size, cutting):
            for copy in self._copies(at, part):
                plug.add(copy)
        plug.flush()
        return max(ends)


class Reads(_Cut):
    """Reads that bypass the stripe cache, of all levels; mirrors are balanced.

    Linux distributes reads over mirrors by requests in flight, reads and writes (``read_balance``,
    ``nr_pending``). ``alone``: one request at a time, so that only the parts of one request are in
    flight together. RAID 1 then stays with one member (``raid1.c: next_seq_sect``).
    """

    def __init__(self, geometry: Geometry, sender: Sender | None = None, *, alone: bool) -> None:
        super().__init__(geometry, sender)
        self._alone = alone
        order = set(range(geometry.members)) - geometry.failed
        self._readable = (order - geometry.write_mostly) or order
        self._only = min(self._readable) if alone and geometry.level is Level.RAID1 else None
        self._mirrored = geometry.level in (Level.RAID1, Level.RAID10)
        self._prefers_idle = geometry.level is Level.RAID1 or geometry.near > 1
        self.heads = [0] * geometry.members
        """End of each member's last request (``update_head_pos``)."""
        self._next = [-1] * geometry.members
        """End of the last read that each member of RAID 1 was chosen for (``next_seq_sect``)."""
        self.pending = [0] * geometry.members
        """Requests in flight on each member, the bitmap's included."""

    def plan(self, offset: int, size: int) -> list[Work]:
        """Return one extent for each part."""
        extents = [self._begin(at, part) for at, part in self._parts(offset, size)]
        if self._alone and self._only is None:
            for extent in extents:
                self.ended(extent)
        return [Work(tuple(extents), ())]

    def _begin(self, at: int, size: int) -> Extent:
        if self._only is not None:
            return Extent(self._only, at, size)
        copies = self._geometry.locate(at)
        copy = self._balance(copies) if self._mirrored else copies[0]
        self._next[copy.member] = copy.offset + size
        self.pending[copy.member] += 1
        return Extent(copy.member, copy.offset, size)

    def issue(
        self, now: float, offset: int, size: int, cutting: Cutting, admit: Admit
    ) -> float | None:
        """Send each part to the member that is chosen at that time.

        With ``Sender.at_once`` a member that no throttle delays is idle again for the next part.
        """
        if cutting.joins:
            return None
        later: list[tuple[float, Extent]] = []

        def send(bios: list[Extent]) -> None:
            end = admit(bios[0].member, sum(bio.size for bio in bios))
            if end <= now and self._sender.at_once:
                for bio in bios:
                    self.ended(bio)
            else:
                later.extend((end, bio) for bio in bios)

        plug = _Plug(send, cutting.limit, plugged=size > BIO_PAGES)
        for at, part in self._sent(offset, size, cutting):
            plug.add(self._begin(at, part))
        plug.flush()
        later.sort(key=lambda one: one[0])
        for _, bio in later:
            self.ended(bio)
        return later[-1][0] if later else now

    def ended(self, extent: Extent) -> None:
        """A request has ended. The bitmap's has a negative offset, and moves no head."""
        self.pending[extent.member] -= 1
        if extent.start >= 0:
            self.heads[extent.member] = extent.start + extent.size

    def _balance(self, copies: Sequence[Location]) -> Location:
        """Choose a copy as ``raid10.c`` and ``raid1.c: read_balance`` for rotational members.

        virtio-blk and lab_disk report members as rotational. RAID 1: a read that continues another
        one stays with its member. Near copies: an idle member has distance 0, and the first of them
        wins; otherwise the nearest head. Far copies: the lowest address.
        """
        choice = [copy for copy in copies if copy.member in self._readable]
        if self._geometry.level is Level.RAID1:
            for copy in choice:
                if copy.offset in (self._next[copy.member], self.heads[copy.member]):
                    return copy

        def distance(copy: Location) -> int:
            if self._prefers_idle and not self.pending[copy.member]:
                return 0
            if self._geometry.far > 1:
                return copy.offset
            return abs(copy.offset - self.heads[copy.member])

        return min(choice, key=distance)

    @override
    def signature(self, offset: int, turn: int) -> Hashable:
        """Return the positions of the heads; only RAID 10's near copies depend on them."""
        if self._geometry.near > 1:
            base = self._geometry.member_bytes(offset)
            return tuple(head - base for head in self.heads)
        return ()

    @override
    def shift(self, distance: int) -> None:
        """Move the heads."""
        step = self._geometry.member_bytes(distance)
        self.heads = [head + step for head in self.heads]
