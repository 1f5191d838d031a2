"""The write-intent bitmap: writes that wait for a bitmap write, and the number of bitmap writes.

Sources: kernel ``drivers/md/md-bitmap.c`` - ``md_bitmap_startwrite`` (a clean region's bit is set
and its page marked dirty), ``md_bitmap_unplug`` (every dirty page is written to every member, and
the write waits for that), ``md_bitmap_endwrite`` and ``md_bitmap_daemon_work`` (at each
``time_base`` an idle region steps down; after the second step it is clean in memory, and its next
write sets it again); ``raid5.c: raid5_bitmap_sector`` (newer kernels: a write marks whole rows of
chunks). The daemon's own writes, about a page per ``time_base``, are left out.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from lab.md.facts.geometry import Geometry
from lab.md.facts.levels import Level
from lab.md.theory.paths import Admit, Cutting, Extent, Path, Work

PAGE = 4096
SUPERBLOCK = 256
"""Bytes of the bitmap's superblock, before the bits on the first page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bitmap:
    """An internal bitmap; all bits are clean at the start."""

    chunk: int
    """Bytes per bit."""
    time_base: float = 5.0
    """Seconds between the daemon's scans for bits to clear."""
    looked: float = 0.0
    """Seconds from the daemon's last scan to the start of the load."""
    sector: int = 512
    """Logical block size of the members, in bytes."""
    whole_rows: bool | None = None
    """Whether a write to RAID 4, 5 or 6 marks whole rows of chunks; ``None``: unknown."""


class BitmapState:
    """Bits and dirty pages during a simulation."""

    __slots__ = (
        "_array_bytes",
        "_bitmap",
        "_busy",
        "_dirty",
        "_geometry",
        "_left",
        "_size",
        "sets",
    )

    def __init__(self, bitmap: Bitmap, geometry: Geometry) -> None:
        self._bitmap = bitmap
        self._geometry = geometry
        self._array_bytes = geometry.level in (Level.RAID1, Level.RAID10)
        covered = geometry.size if self._array_bytes else geometry.component_size
        self._size = SUPERBLOCK + -(-covered // bitmap.chunk + 7) // 8
        self._busy: dict[int, int] = {}
        """Writes in flight in each region."""
        self._left: dict[int, float] = {}
        """Time when the last write of each region ended."""
        self._dirty: set[int] = set()
        self.sets = 0
        """Number of bits that were set."""

    def start(self, now: float, offset: int, size: int) -> tuple[int, ...]:
        """Start a write; return its regions for ``end``."""
        regions = tuple(self._regions(offset, size))
        for region in regions:
            if not self._busy.get(region) and self._clean(region, now):
                self.sets += 1
                self._dirty.add((SUPERBLOCK + region // 8) // PAGE)
            self._busy[region] = self._busy.get(region, 0) + 1
        return regions

    def end(self, now: float, regions: tuple[int, ...]) -> None:
        """End a write to these regions."""
        for region in regions:
            self._busy[region] -= 1
            self._left[region] = now

    def take_dirty(self) -> list[int]:
        """Return the sizes of the dirty pages, and mark them as clean."""
        sizes = [self._page_size(page) for page in sorted(self._dirty)]
        self._dirty.clear()
        return sizes

    def _page_size(self, page: int) -> int:
        """Return the bytes written for a page; the last one is cut to logical blocks
        (``write_sb_page``)."""
        rest, sector = self._size - page * PAGE, self._bitmap.sector
        return PAGE if rest >= PAGE else -(-rest // sector) * sector

    def _clean(self, region: int, now: float) -> bool:
        left = self._left.get(region)
        if left is None:
            return True
        base, looked = self._bitmap.time_base, self._bitmap.looked
        return (now + looked) // base - (left + looked) // base >= 2

    def _regions(self, offset: int, size: int) -> range:
        chunk = self._bitmap.chunk
        if self._array_bytes:
            return range(offset // chunk, (offset + size - 1) // chunk + 1)
        width = self._geometry.data_members * self._geometry.chunk
        first, last = divmod(offset, width), divmod(offset + size - 1, width)
        rows = self._geometry.chunk
        if self._bitmap.whole_rows is not False or last[0] > first[0] or size > rows:
            return range(first[0] * rows // chunk, ((last[0] + 1) * rows - 1) // chunk + 1)
        low = first[0] * rows + first[1] % rows
        return range(low // chunk, (low + size - 1) // chunk + 1)


class BitmapPath:
    """Sequential writes, with a bitmap write before each new region.

    With one request at a time, everything that a request dirties is written at once, and no region
    is written twice.
    """

    def __init__(self, inner: Path, bitmap: Bitmap, geometry: Geometry) -> None:
        self._inner = inner
        self._state = BitmapState(bitmap, geometry)
        self._members = [m for m in range(geometry.members) if m not in geometry.failed]
        self._region = bitmap.chunk
        if geometry.has_parity:
            self._region = max(bitmap.chunk, geometry.chunk) * geometry.data_members
        self._marked = -1
        """The last region whose bit was set."""
        self.tally = inner.tally

    @property
    def cutting(self) -> Cutting:
        """As without a bitmap."""
        return self._inner.cutting

    @property
    def cuttings(self) -> tuple[Cutting, ...]:
        """As without a bitmap."""
        return self._inner.cuttings

    def before(self, offset: int, size: int) -> tuple[Extent, ...]:
        """Return bitmap writes to every member."""
        last = (offset + size - 1) // self._region
        if last <= self._marked:
            return ()
        self._marked = last
        self._state.start(0.0, offset, size)
        return tuple(Extent(m, -1, s) for s in self._state.take_dirty() for m in self._members)

    def plan(self, offset: int, size: int) -> list[Work]:
        """As without a bitmap."""
        return self._inner.plan(offset, size)

    def issue(
        self, now: float, offset: int, size: int, cutting: Cutting, admit: Admit
    ) -> float | None:
        """As without a bitmap."""
        return self._inner.issue(now, offset, size, cutting, admit)

    def signature(self, offset: int, turn: int) -> Hashable:
        """Return the inner path's state and the position in the region."""
        region, inside = divmod(offset, self._region)
        return inside, self._marked - region, self._inner.signature(offset, turn)

    def shift(self, distance: int) -> None:
        """Move by whole regions."""
        self._marked += distance // self._region
        self._inner.shift(distance)
