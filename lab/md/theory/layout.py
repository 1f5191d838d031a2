"""Where md puts things: array bytes to members, rows and roles, for every level but linear.

Sources: kernel ``drivers/md/raid5.c: raid5_compute_sector`` (4, 5, 6), ``raid10.c:
__raid10_find_phys, setup_geo, calc_sectors, raid10_find_virt`` (10), ``raid0.c`` with one zone (0);
names of levels and layouts from mdadm's ``maps.c``. Members count from 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

DEFAULT_CHUNK = 512 * 1024
"""mdadm's default chunk in bytes since 3.1.1 (``Create.c``)."""


class Level(StrEnum):
    """md's levels, and a bare disk."""

    DISK = "disk"
    RAID0 = "raid0"
    RAID1 = "raid1"
    RAID4 = "raid4"
    RAID5 = "raid5"
    RAID6 = "raid6"
    RAID10 = "raid10"


_LEVELS = {
    **dict.fromkeys(("0", "raid0", "stripe"), Level.RAID0),
    **dict.fromkeys(("1", "raid1", "mirror"), Level.RAID1),
    **dict.fromkeys(("4", "raid4"), Level.RAID4),
    **dict.fromkeys(("5", "raid5"), Level.RAID5),
    **dict.fromkeys(("6", "raid6"), Level.RAID6),
    **dict.fromkeys(("10", "raid10"), Level.RAID10),
}
_SHORT = {
    "la": "left-asymmetric",
    "ra": "right-asymmetric",
    "ls": "left-symmetric",
    "rs": "right-symmetric",
    "default": "left-symmetric",
}
_ROTATING = ("left-asymmetric", "right-asymmetric", "left-symmetric", "right-symmetric")
_DDF = ("ddf-zero-restart", "ddf-N-restart", "ddf-N-continue")
_DDF5 = dict(zip(_DDF, ("right-asymmetric", "left-asymmetric", "left-symmetric"), strict=True))
LAYOUTS = {
    Level.RAID5: (*_ROTATING, "parity-first", "parity-last", *_DDF),
    Level.RAID6: (
        *_ROTATING,
        "parity-first",
        "parity-last",
        *_DDF,
        *(f"{name}-6" for name in _ROTATING),
        "parity-first-6",
    ),
}
_RAID10 = re.compile(r"([nfo])(\d{1,2})")


def level_of(name: str) -> Level | None:
    """The level that mdadm understands by a name, ``None`` for one that theory does not know."""
    return _LEVELS.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """A RAID 10 layout: ``setup_geo`` with mdadm's default far sets (all members)."""

    near: int = 1
    far: int = 1
    offset: bool = False
    """Far copies lie in the next row instead of the next part of the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Which member plays which role in one row of chunks."""

    data: tuple[int, ...]
    """Member of each data chunk, in the order of the array's addresses."""
    parity: int | None = None
    syndrome: int | None = None
    """RAID 6's Q."""

    @property
    def checks(self) -> tuple[int, ...]:
        """Members that hold no data in this row."""
        return tuple(m for m in (self.parity, self.syndrome) if m is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A byte on a member."""

    member: int
    offset: int
    """Bytes from where md's data begins on the member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """An array as theory sees it. ``ValueError`` for one that md could not have."""

    level: Level
    members: int
    component: int
    """Bytes used of each member."""
    layout: str | None = None
    """mdadm's name; ``None``: the level's default."""
    chunk: int = DEFAULT_CHUNK
    """Bytes; of no meaning to RAID 1 and a bare disk."""
    failed: frozenset[int] = frozenset()
    """Members that are missing."""
    shunned: frozenset[int] = frozenset()
    """Members that RAID 1 reads from only when it must (write-mostly)."""
    copies: Copies = field(init=False)
    """RAID 10's layout in numbers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "copies", Copies())
        if self.layout in _SHORT and self.level in (Level.RAID5, Level.RAID6):
            object.__setattr__(self, "layout", _SHORT[self.layout])
        if self.level in LAYOUTS:
            if self.layout is None:
                object.__setattr__(self, "layout", "left-symmetric")
            if self.layout not in LAYOUTS[self.level]:
                raise ValueError(f"{self.level} has no layout {self.layout!r}")
        if self.level is Level.RAID10:
            self._set_copies()
        least = {Level.RAID6: 4, Level.RAID4: 2, Level.RAID5: 2, Level.RAID10: 2}
        if self.members < least.get(self.level, 1):
            raise ValueError(f"{self.level} has no array of {self.members} members")
        if self.chunk < 4096 or self.chunk % 4096:
            raise ValueError(f"a chunk of {self.chunk} bytes is not a multiple of 4KiB")
        if not self.failed <= frozenset(range(self.members)):
            raise ValueError(f"failed members {sorted(self.failed)} of {self.members}")
        if self.lost:
            raise ValueError(f"{self.level} does not survive without {sorted(self.failed)}")

    def _set_copies(self) -> None:
        match = _RAID10.fullmatch(self.layout or "n2")
        count = int(match.group(2)) if match else 0
        if match is None or not 2 <= count <= self.members:
            raise ValueError(f"{self.level} of {self.members} has no layout {self.layout!r}")
        kind = match.group(1)
        copies = Copies(near=count) if kind == "n" else Copies(far=count, offset=kind == "o")
        object.__setattr__(self, "copies", copies)
        object.__setattr__(self, "layout", match.group(0))

    @property
    def data_members(self) -> int:
        """Data chunks in each row."""
        spent = {Level.RAID4: 1, Level.RAID5: 1, Level.RAID6: 2}
        return self.members - spent.get(self.level, 0)

    @property
    def has_parity(self) -> bool:
        """Whether md's raid456 personality serves this array, with its stripe cache."""
        return self.level in (Level.RAID4, Level.RAID5, Level.RAID6)

    @property
    def has_chunks(self) -> bool:
        """Whether array addresses go round the members chunk by chunk."""
        return self.level not in (Level.RAID1, Level.DISK)

    @property
    def size(self) -> int:
        """Bytes of the array: ``raid5_size``, ``raid10.c: calc_sectors, raid10_size``."""
        if not self.has_chunks:
            return self.component
        chunks = self.component // self.chunk
        if self.level is Level.RAID10:
            each = chunks // self.copies.far
            return each * self.members // self.copies.near * self.chunk
        return chunks * self.data_members * self.chunk

    @property
    def period(self) -> int:
        """Array bytes after which the mapping repeats, shifted along the members."""
        if not self.has_chunks:
            return 4096
        if self.level is Level.RAID10:
            return self.members * self.chunk
        return rotation(self.level, self.layout, self.members) * self.data_members * self.chunk

    @property
    def turn(self) -> int:
        """How many members each row's roles lie further on than the row before; 0 where they vary.

        The symmetric layouts look the same from every row, but for this shift.
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
        """How far ``size`` bytes of the array, whole periods, reach on each member."""
        if self.level is Level.RAID10:
            spread = self.copies.near * (self.copies.far if self.copies.offset else 1)
            return size * spread // self.members
        return size // self.data_members if self.has_chunks else size

    @property
    def lost(self) -> bool:
        """Whether too many members are missing (``raid5.c: has_failed`` and its like)."""
        gone = len(self.failed)
        if self.level in (Level.RAID0, Level.DISK):
            return gone > 0
        if self.level is Level.RAID1:
            return gone >= self.members
        if self.level is Level.RAID10:
            return any(
                all(place.member in self.failed for place in self.mirrors(chunk))
                for chunk in range(self.members)
            )
        return gone > self.members - self.data_members

    def row(self, number: int) -> Row:
        """Roles in one row of chunks of levels 0, 4, 5 and 6."""
        turn = number % rotation(self.level, self.layout, self.members)
        return _roles(self.level, self.layout, self.members, turn)

    def mirrors(self, chunk: int) -> tuple[Place, ...]:
        """Where the copies of a RAID 10 array's chunk lie, in md's order of slots.

        ``raid10.c: __raid10_find_phys``; the far set is all members, as mdadm makes it.
        """
        near, far = self.copies.near, self.copies.far
        stripe, member = divmod(chunk * near, self.members)
        if self.copies.offset:
            stripe *= far
            stride = self.chunk
        else:
            stride = self.component // self.chunk // far * self.chunk
        places = []
        for _ in range(near):
            device, offset = member, stripe * self.chunk
            for _ in range(far):
                places.append(Place(member=device, offset=offset))
                device = (device + near) % self.members
                offset += stride
            member += 1
            if member >= self.members:
                member = 0
                stripe += 1
        return tuple(places)

    def locate(self, offset: int) -> tuple[Place, ...]:
        """Members and offsets that hold an array byte: one, or each copy."""
        if not self.has_chunks:
            return tuple(Place(member=m, offset=offset) for m in range(self.members))
        chunk, inside = divmod(offset, self.chunk)
        if self.level is Level.RAID10:
            copies = self.mirrors(chunk)
            return tuple(Place(member=c.member, offset=c.offset + inside) for c in copies)
        number, index = divmod(chunk, self.data_members)
        member = self.row(number).data[index]
        return (Place(member=member, offset=number * self.chunk + inside),)

    def array_offset(self, place: Place) -> int | None:
        """The array byte at a place, ``None`` for parity: ``raid5_compute_blocknr``, back again."""
        if not self.has_chunks:
            return place.offset
        number, inside = divmod(place.offset, self.chunk)
        if self.level is Level.RAID10:
            return self._virtual(place.member, number) * self.chunk + inside
        row = self.row(number)
        if place.member not in row.data:
            return None
        index = row.data.index(place.member)
        return (number * self.data_members + index) * self.chunk + inside

    def _virtual(self, member: int, number: int) -> int:
        """Chunk of the array in a member's chunk: ``raid10.c: raid10_find_virt``."""
        near, far = self.copies.near, self.copies.far
        if self.copies.offset:
            number, copy = divmod(number, far)
        else:
            copy, number = divmod(number, self.component // self.chunk // far)
        member = (member - copy * near) % self.members
        return (number * self.members + member) // near


def rotation(level: Level, layout: str | None, members: int) -> int:
    """Rows after which the roles repeat."""
    if level not in (Level.RAID5, Level.RAID6) or layout is None or layout.startswith("parity"):
        return 1
    return members - 1 if layout.endswith("-6") else members


@lru_cache(maxsize=4096)
def _roles(level: Level, layout: str | None, members: int, turn: int) -> Row:
    if level is Level.RAID5:
        return _raid5(_DDF5.get(layout or "", layout), members, turn)
    if level is Level.RAID6:
        return _raid6(layout or "", members, turn)
    if level is Level.RAID4:
        return Row(data=tuple(range(members - 1)), parity=members - 1)
    return Row(data=tuple(range(members)))


def _raid5(layout: str | None, members: int, turn: int) -> Row:
    """``raid5_compute_sector``, ``case 5``."""
    last = members - 1
    if layout in ("parity-first", "parity-last"):
        parity = 0 if layout == "parity-first" else last
        return Row(data=_others(members, parity), parity=parity)
    parity = last - turn if layout in ("left-asymmetric", "left-symmetric") else turn
    if layout in ("left-asymmetric", "right-asymmetric"):
        return Row(data=_others(members, parity), parity=parity)
    return Row(data=tuple((parity + 1 + i) % members for i in range(last)), parity=parity)


def _raid6(layout: str, members: int, turn: int) -> Row:
    """``raid5_compute_sector``, ``case 6``."""
    last = members - 1
    if layout.endswith("-6"):
        row = _raid5(layout.removesuffix("-6"), last, turn)
        return Row(data=row.data, parity=row.parity, syndrome=last)
    if layout in ("parity-first", "parity-last"):
        parity = 0 if layout == "parity-first" else members - 2
        return Row(data=_others(members, parity, parity + 1), parity=parity, syndrome=parity + 1)
    if layout == "ddf-N-continue":
        parity = last - turn
        data = tuple((parity + 1 + i) % members for i in range(members - 2))
        return Row(data=data, parity=parity, syndrome=(parity - 1) % members)
    if layout == "ddf-N-restart":
        parity = last - (turn + 1) % members
    elif layout.startswith("left"):
        parity = last - turn
    else:
        parity = turn
    syndrome = (parity + 1) % members
    if layout in ("left-symmetric", "right-symmetric"):
        data = tuple((parity + 2 + i) % members for i in range(members - 2))
        return Row(data=data, parity=parity, syndrome=syndrome)
    return Row(data=_others(members, parity, syndrome), parity=parity, syndrome=syndrome)


def _others(members: int, *taken: int) -> tuple[int, ...]:
    return tuple(m for m in range(members) if m not in taken)
