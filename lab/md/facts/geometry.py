"""The mapping of array offsets to members, rows and roles.

Sources: kernel ``drivers/md/raid5.c: raid5_compute_sector`` (RAID 4, 5, 6), ``raid10.c:
__raid10_find_phys, setup_geo, calc_sectors, raid10_find_virt`` (RAID 10), ``raid0.c`` with one zone
(RAID 0). Linear arrays have no mapping here. Members count from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache

from lab.md.facts.levels import Level, copies, far_copies, near_copies

PAGE = 4096
"""Bytes of a page, md's smallest chunk."""

LEFT_ASYMMETRIC, RIGHT_ASYMMETRIC, LEFT_SYMMETRIC, RIGHT_SYMMETRIC = range(4)
PARITY_FIRST, PARITY_LAST = 4, 5
ROTATING_N_RESTART, ROTATING_N_CONTINUE = 9, 10
LAST_Q = 16
"""RAID 6 layouts from this number on are RAID 5 layouts without the last member, which has Q."""


RESYNC_BLOCK = 64 * 1024
"""Most bytes that md compares, or skips, at once in RAID 1 and 10 (``RESYNC_BLOCK_SIZE``)."""


class Extent(IntEnum):
    """How much of an array md compares in a check."""

    NONE = 0
    PART = 1
    """From the array's start, up to a place where md gives up."""
    ALL = 2
    """All that has two copies, or parity to spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The role of each member in one row of chunks."""

    data: tuple[int, ...]
    """Members of the data chunks, in the order of array offsets."""
    parity: int | None = None
    syndrome: int | None = None
    """Member with RAID 6's Q."""

    @property
    def checks(self) -> tuple[int, ...]:
        """Members that have P or Q in this row."""
        return tuple(m for m in (self.parity, self.syndrome) if m is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A byte on a member."""

    member: int
    offset: int
    """Bytes from the member's data offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """An array's shape in the kernel's terms; sizes in bytes.

    ``ValueError`` for an array that md cannot run. A bare disk is a RAID 1 of one member.
    """

    level: Level
    layout: int = LEFT_SYMMETRIC
    """The kernel's number (``levels.layout_number``); ignored by levels without layouts."""
    members: int
    component_size: int
    """Bytes of each member that the array uses."""
    chunk: int = 0
    """0 for levels without chunks."""
    failed: frozenset[int] = frozenset()
    """Missing members."""
    write_mostly: frozenset[int] = frozenset()
    """Members that RAID 1 reads only if no other has the data."""
    spares: int = 0
    data_offset: int = 0
    bitmap_chunk: int = 0
    """0: no bitmap, or the kernel chooses its chunk."""
    near: int = field(init=False, default=1)
    """Adjacent copies of RAID 10."""
    far: int = field(init=False, default=1)
    """Far copies of RAID 10; the far set is all members, as mdadm makes it."""
    offset: bool = field(init=False, default=False)
    """Whether RAID 10's far copies are in the next row instead of the next part of the disk."""

    def __post_init__(self) -> None:
        if self.level is Level.RAID10:
            object.__setattr__(self, "near", near_copies(self.layout))
            object.__setattr__(self, "far", far_copies(self.layout))
            object.__setattr__(self, "offset", bool(self.layout >> 16))
            if not 2 <= copies(self.layout) <= self.members:
                raise ValueError(f"RAID 10 of {self.members} has no layout {self.layout:#x}")
        if self.members < self.level.smallest:
            raise ValueError(f"{self.level.title} needs {self.level.smallest} members or more")
        if self.has_chunks and (self.chunk < PAGE or self.chunk % PAGE):
            raise ValueError(f"a chunk of {self.chunk} bytes is not a multiple of 4KiB")
        if not self.failed <= frozenset(range(self.members)):
            raise ValueError(f"failed members {sorted(self.failed)} of {self.members}")
        if self.lost:
            raise ValueError(f"{self.level.title} does not run without {sorted(self.failed)}")

    @property
    def data_members(self) -> int:
        """Data chunks in each row."""
        return self.members - self.level.parity

    @property
    def stripe(self) -> int:
        """Bytes of data in a full stripe of RAID 0, 4, 5 and 6; 0 for the other levels."""
        if self.level in (Level.RAID1, Level.RAID10, Level.LINEAR):
            return 0
        return self.chunk * self.data_members

    @property
    def has_parity(self) -> bool:
        """Whether md's raid456 personality runs this array, with its stripe cache."""
        return self.level.parity > 0

    @property
    def has_chunks(self) -> bool:
        """Whether array offsets are distributed over the members by chunk."""
        return self.level.striped

    @property
    def size(self) -> int:
        """Bytes of the array: ``raid5_size``, ``raid10.c: calc_sectors, raid10_size``."""
        if not self.has_chunks:
            return self.component_size
        chunks = self.component_size // self.chunk
        if self.level is Level.RAID10:
            return chunks // self.far * self.members // self.near * self.chunk
        return chunks * self.data_members * self.chunk

    @property
    def period(self) -> int:
        """Array bytes after which the mapping repeats at a later place of the members."""
        if not self.has_chunks:
            return PAGE
        if self.level is Level.RAID10:
            return self.members * self.chunk
        return self.rotation * self.data_members * self.chunk

    @property
    def rotation(self) -> int:
        """Rows after which the roles repeat."""
        if self.level not in (Level.RAID5, Level.RAID6):
            return 1
        if self.layout % LAST_Q in (PARITY_FIRST, PARITY_LAST):
            return 1
        return self.members - 1 if self.layout >= LAST_Q else self.members

    @property
    def turn(self) -> int:
        """Shift of each row's roles from the previous row; 0: it varies.

        The symmetric layouts have the same roles in every row, except for this shift.
        """
        if not self.has_parity:
            return 0
        first, second = self.row(0), self.row(1)
        step = (second.data[0] - first.data[0]) % self.members
        moved = [(m + step) % self.members for m in (*first.data, *first.checks)]
        third = [(m + step) % self.members for m in moved]
        if moved != [*second.data, *second.checks]:
            return 0
        row = self.row(2)
        return step if third == [*row.data, *row.checks] else 0

    def member_bytes(self, size: int) -> int:
        """Return the bytes on each member of ``size`` array bytes, which are whole periods."""
        if self.level is Level.RAID10:
            spread = self.near * (self.far if self.offset else 1)
            return size * spread // self.members
        return size // self.data_members if self.has_chunks else size

    @property
    def lost(self) -> bool:
        """Whether too many members are missing (``raid5.c: has_failed`` and its like)."""
        gone = len(self.failed)
        if not self.level.redundant:
            return gone > 0
        if self.level is Level.RAID1:
            return gone >= self.members
        if self.level is Level.RAID10:
            return any(
                all(copy.member in self.failed for copy in self.mirrors(chunk))
                for chunk in range(self.members)
            )
        return gone > self.members - self.data_members

    @property
    def compared(self) -> Extent:
        """How much md compares in a check with these members missing.

        ``raid5.c: raid5_sync_request`` skips all without parity to spare, and ``raid1.c:
        raid1_sync_request`` with one copy left. ``raid10.c: raid10_sync_request`` skips each piece
        with one copy left, and the rest after as many of them in a row as there are members.
        """
        if self.level is Level.RAID1:
            return Extent.ALL if self.members - len(self.failed) >= 2 else Extent.NONE
        if self.level is not Level.RAID10:
            return Extent.ALL if len(self.failed) < self.level.parity else Extent.NONE
        found, skipped = Extent.NONE, 0
        for chunk in range(2 * self.members):
            if sum(copy.member not in self.failed for copy in self.mirrors(chunk)) >= 2:
                found, skipped = Extent.PART, 0
                continue
            skipped += max(1, self.chunk // RESYNC_BLOCK)
            if skipped >= self.members:
                return found
        return Extent.ALL

    def row(self, number: int) -> Roles:
        """Return the roles in a row of chunks of RAID 0, 4, 5 and 6."""
        return _roles(self.level, self.layout, self.members, number % self.rotation)

    def mirrors(self, chunk: int) -> tuple[Location, ...]:
        """Return the copies of a RAID 10 chunk, in md's order: ``raid10.c: __raid10_find_phys``."""
        near, far = self.near, self.far
        stripe, member = divmod(chunk * near, self.members)
        if self.offset:
            stripe *= far
            stride = self.chunk
        else:
            stride = self.component_size // self.chunk // far * self.chunk
        found = []
        for _ in range(near):
            device, offset = member, stripe * self.chunk
            for _ in range(far):
                found.append(Location(member=device, offset=offset))
                device = (device + near) % self.members
                offset += stride
            member += 1
            if member >= self.members:
                member = 0
                stripe += 1
        return tuple(found)

    def locate(self, offset: int) -> tuple[Location, ...]:
        """Return the locations of an array byte: one, or one for each copy."""
        if not self.has_chunks:
            return tuple(Location(member=m, offset=offset) for m in range(self.members))
        chunk, inside = divmod(offset, self.chunk)
        if self.level is Level.RAID10:
            found = self.mirrors(chunk)
            return tuple(Location(member=c.member, offset=c.offset + inside) for c in found)
        number, index = divmod(chunk, self.data_members)
        member = self.row(number).data[index]
        return (Location(member=member, offset=number * self.chunk + inside),)

    def array_offset(self, at: Location) -> int | None:
        """Return the array byte at a location, ``None`` for parity: ``raid5_compute_blocknr``."""
        if not self.has_chunks:
            return at.offset
        number, inside = divmod(at.offset, self.chunk)
        if self.level is Level.RAID10:
            return self._virtual(at.member, number) * self.chunk + inside
        row = self.row(number)
        if at.member not in row.data:
            return None
        index = row.data.index(at.member)
        return (number * self.data_members + index) * self.chunk + inside

    def _virtual(self, member: int, number: int) -> int:
        """Return the array's chunk in a member's chunk: ``raid10.c: raid10_find_virt``."""
        if self.offset:
            number, copy = divmod(number, self.far)
        else:
            copy, number = divmod(number, self.component_size // self.chunk // self.far)
        member = (member - copy * self.near) % self.members
        return (number * self.members + member) // self.near


@lru_cache(maxsize=4096)
def _roles(level: Level, layout: int, members: int, turn: int) -> Roles:
    if level is Level.RAID5:
        return _raid5(layout, members, turn)
    if level is Level.RAID6:
        return _raid6(layout, members, turn)
    if level is Level.RAID4:
        return Roles(data=tuple(range(members - 1)), parity=members - 1)
    return Roles(data=tuple(range(members)))


def _raid5(layout: int, members: int, turn: int) -> Roles:
    """``raid5_compute_sector``, ``case 5``."""
    last = members - 1
    if layout in (PARITY_FIRST, PARITY_LAST):
        parity = 0 if layout == PARITY_FIRST else last
        return Roles(data=_others(members, parity), parity=parity)
    parity = last - turn if layout in (LEFT_ASYMMETRIC, LEFT_SYMMETRIC) else turn
    if layout in (LEFT_ASYMMETRIC, RIGHT_ASYMMETRIC):
        return Roles(data=_others(members, parity), parity=parity)
    return Roles(data=tuple((parity + 1 + i) % members for i in range(last)), parity=parity)


def _raid6(layout: int, members: int, turn: int) -> Roles:
    """``raid5_compute_sector``, ``case 6``."""
    last = members - 1
    if layout >= LAST_Q:
        row = _raid5(layout - LAST_Q, last, turn)
        return Roles(data=row.data, parity=row.parity, syndrome=last)
    if layout in (PARITY_FIRST, PARITY_LAST):
        parity = 0 if layout == PARITY_FIRST else members - 2
        return Roles(data=_others(members, parity, parity + 1), parity=parity, syndrome=parity + 1)
    if layout == ROTATING_N_CONTINUE:
        parity = last - turn
        data = tuple((parity + 1 + i) % members for i in range(members - 2))
        return Roles(data=data, parity=parity, syndrome=(parity - 1) % members)
    if layout == ROTATING_N_RESTART:
        parity = last - (turn + 1) % members
    elif layout in (LEFT_ASYMMETRIC, LEFT_SYMMETRIC):
        parity = last - turn
    else:
        parity = turn
    syndrome = (parity + 1) % members
    if layout in (LEFT_SYMMETRIC, RIGHT_SYMMETRIC):
        data = tuple((parity + 2 + i) % members for i in range(members - 2))
        return Roles(data=data, parity=parity, syndrome=syndrome)
    return Roles(data=_others(members, parity, syndrome), parity=parity, syndrome=syndrome)


def _others(members: int, *taken: int) -> tuple[int, ...]:
    return tuple(m for m in range(members) if m not in taken)
