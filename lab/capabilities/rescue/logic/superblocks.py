"""Reads md's superblocks, bitmaps, bad-block logs, journals and PPL from bytes. Pure.

Sources: ``md_p.h`` (0.90, journal, PPL), ``super0.c: load_super0`` and ``super1.c: struct
mdp_superblock_1, calc_sb_1_csum, load_super1`` of mdadm, ``md-bitmap.h: bitmap_super_s`` of Linux.
No bytes raise an exception: what cannot be read is absent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

SECTOR: Final = 512
MAGIC: Final = 0xA92B4EFC
_MAGIC: Final = struct.pack("<I", MAGIC)
SUPERBLOCK: Final = 4096
"""Most bytes of a superblock."""
RESERVED: Final = 64 * 1024
"""Version 0.90 is in the last whole 64 KiB before the device's last 64 KiB boundary."""
BITMAP_MAGIC: Final = b"bitm"
JOURNAL_MAGIC: Final = 0x6433C509
SPARE, FAULTY, JOURNAL, LARGEST_ROLE = 0xFFFF, 0xFFFE, 0xFFFD, 0xFF00
_CLEAN: Final = (1 << 64) - 1
_SECONDS: Final = (1 << 40) - 1
_MOST_BAD: Final = 512
"""Entries of a bad-block log in a page, as the kernel has at most."""

FEATURE_BITMAP, FEATURE_RECOVERY, FEATURE_RESHAPE, FEATURE_BAD_BLOCKS = 1, 2, 4, 8
FEATURE_REPLACEMENT, FEATURE_BACKWARDS, FEATURE_NEW_OFFSET = 16, 32, 64
FEATURE_JOURNAL, FEATURE_PPL, FEATURE_PPLS, FEATURE_RAID0_LAYOUT = 512, 1024, 2048, 4096

Read = Callable[[int, int], bytes]
"""Returns the bytes from an offset, of this length or fewer; never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshape:
    """A change of shape that has begun. Sizes and offsets in bytes."""

    position: int
    """The next array byte to move."""
    new_level: int
    delta_disks: int
    new_layout: int
    new_chunk: int
    backwards: bool = False
    """It goes from the array's end to its start."""
    new_offset: int = 0
    """Added to the data offset in the new shape; 0: the same place, so a backup is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Superblock:
    """What a member says of its array and of itself. Sizes and offsets in bytes."""

    version: str
    """``0.90``, ``1.0``, ``1.1`` or ``1.2``."""
    at: int
    """Where it was read."""
    checksum_ok: bool
    array_uuid: str
    """32 hexadecimal digits."""
    name: str = ""
    created: int = 0
    """Seconds since 1970."""
    updated: int = 0
    level: int = 0
    layout: int = 0
    chunk: int = 0
    """0: the level has none."""
    raid_disks: int = 0
    size: int = 0
    """Bytes that the array uses of each member."""
    data_offset: int = 0
    data_size: int = 0
    """Bytes of this member after its data offset."""
    device_uuid: str = ""
    device_number: int = 0
    role: int = SPARE
    """Slot in the array, or :data:`SPARE`, :data:`FAULTY`, :data:`JOURNAL`."""
    roles: tuple[int, ...] = ()
    """Role of each device number, as this member saw it."""
    events: int = 0
    clean: bool = True
    resync: int = 0
    """Bytes of each member that are in sync, if it is not clean."""
    features: int = 0
    recovery: int | None = None
    """Bytes of this member that a recovery has rebuilt; ``None``: it is complete."""
    reshape: Reshape | None = None
    bitmap_at: int | None = None
    """Offset of the internal bitmap on the device."""
    ppl_at: int | None = None
    journal_tail: int | None = None
    bad_at: int = 0
    bad_length: int = 0
    bad_shift: int = 0
    stored_at: int = 0
    """Where it says that it is; another place means a copied or shifted device."""
    feature_journal: bool = False

    @property
    def active_roles(self) -> frozenset[int]:
        """Slots that this member saw filled at its last update."""
        return frozenset(role for role in self.roles if role < LARGEST_ROLE)

    @property
    def is_member(self) -> bool:
        return self.role < LARGEST_ROLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Bitmap:
    """A write-intent bitmap's header; sizes in bytes."""

    version: int
    array_uuid: str
    events: int
    events_cleared: int
    sync_size: int
    chunk: int
    bits: int
    dirty: int | None
    """Set bits; ``None``: not all of them could be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadBlocks:
    """Ranges of a member that md knows as unreadable: (byte on the device, bytes)."""

    ranges: tuple[tuple[int, int], ...]


def find(read: Read, size: int) -> list[Superblock]:
    """Return every superblock at a place where mdadm looks for one, of a device of ``size`` bytes.

    More than one: generations, or a partition's superblock that is seen on its whole disk.
    """
    found = [at(read, place, version) for version, place in places(size)]
    return [block for block in found if block is not None]


def places(size: int) -> list[tuple[str, int]]:
    """Return versions and offsets where ``load_super0`` and ``load_super1`` look."""
    sectors = size // SECTOR
    result = [("1.2", 4096), ("1.1", 0)]
    if sectors >= 24:
        result.append(("1.0", (sectors - 16 & ~7) * SECTOR))
    if size >= 2 * RESERVED:
        result.append(("0.90", (size & ~(RESERVED - 1)) - RESERVED))
    return result


def at(read: Read, place: int, version: str) -> Superblock | None:
    """Return the superblock of this version at this place; ``None``: there is none."""
    raw = read(place, SUPERBLOCK)
    if len(raw) < 1024:
        return None
    raw = raw.ljust(SUPERBLOCK, b"\0")
    if version == "0.90":
        return _old(raw, place)
    return _new(raw, place, version)


def _new(raw: bytes, place: int, version: str) -> Superblock | None:
    magic, major, features = struct.unpack_from("<III", raw, 0)
    if magic != MAGIC or major != 1:
        return None
    ctime, level, layout, used, chunk, disks = struct.unpack_from("<QiIQII", raw, 64)
    (bitmap,) = struct.unpack_from("<i", raw, 96)
    ppl, _ppl_size = struct.unpack_from("<hH", raw, 96)
    new_level, position, delta, new_layout, new_chunk, new_offset = struct.unpack_from(
        "<iQiIIi", raw, 100
    )
    data_at, data_size, super_at, recovery = struct.unpack_from("<QQQQ", raw, 128)
    (number,) = struct.unpack_from("<I", raw, 160)
    shift, bad_size, bad_at = struct.unpack_from("<BHi", raw, 185)
    utime, events, resync, checksum, most = struct.unpack_from("<QQQII", raw, 192)
    roles: tuple[int, ...] = ()
    fits = most <= (SUPERBLOCK - 256) // 2
    if fits:
        roles = struct.unpack_from(f"<{most}H", raw, 256)
    role = roles[number] if number < len(roles) else SPARE
    sector = _bounded(super_at)
    return Superblock(
        version=version,
        at=place,
        checksum_ok=fits and checksum == _checksum_1(raw, most),
        array_uuid=raw[16:32].hex(),
        name=_text(raw[32:64]),
        created=ctime & _SECONDS,
        updated=utime & _SECONDS,
        level=level,
        layout=layout,
        chunk=chunk * SECTOR,
        raid_disks=disks,
        size=_bounded(used),
        data_offset=_bounded(data_at),
        data_size=_bounded(data_size),
        device_uuid=raw[168:184].hex(),
        device_number=number,
        role=role,
        roles=_without_tail(roles),
        events=events,
        clean=resync == _CLEAN,
        resync=0 if resync == _CLEAN else _bounded(resync),
        features=features,
        recovery=_bounded(recovery)
        if features & FEATURE_RECOVERY and not features & FEATURE_JOURNAL
        else None,
        reshape=Reshape(
            position=_bounded(position),
            new_level=new_level,
            delta_disks=delta,
            new_layout=new_layout,
            new_chunk=new_chunk * SECTOR,
            backwards=delta < 0 or bool(features & FEATURE_BACKWARDS),
            new_offset=new_offset * SECTOR if features & FEATURE_NEW_OFFSET else 0,
        )
        if features & FEATURE_RESHAPE
        else None,
        bitmap_at=place + bitmap * SECTOR if features & FEATURE_BITMAP else None,
        ppl_at=place + ppl * SECTOR if features & (FEATURE_PPL | FEATURE_PPLS) else None,
        journal_tail=_bounded(recovery) if role == JOURNAL and features & FEATURE_JOURNAL else None,
        bad_at=place + bad_at * SECTOR if bad_at and bad_size else 0,
        bad_length=bad_size * SECTOR if bad_at else 0,
        bad_shift=shift,
        stored_at=sector,
        feature_journal=bool(features & FEATURE_JOURNAL),
    )


def _bounded(sectors: int) -> int:
    """Return bytes; a hostile count of sectors stays below 2^63 bytes."""
    return min(sectors, (1 << 54) - 1) * SECTOR


def _without_tail(roles: tuple[int, ...]) -> tuple[int, ...]:
    """Return roles without the free numbers at the end."""
    last = max((n for n, role in enumerate(roles) if role < FAULTY), default=-1)
    return roles[: last + 1]


def _checksum_1(raw: bytes, most: int) -> int:
    """``super1.c: calc_sb_1_csum``."""
    size = 256 + 2 * most
    data = bytearray(raw[:size])
    data[216:220] = bytes(4)
    total: int = sum(struct.unpack_from(f"<{size // 4}I", data))
    if size % 4:
        total += struct.unpack_from("<H", data, size - 2)[0]
    return (total & 0xFFFFFFFF) + (total >> 32) & 0xFFFFFFFF


def _checksum_0(raw: bytes, order: str) -> int:
    """``super0.c: calc_sb0_csum``; ``order``: of struct, since 0.90 has the machine's."""
    words = struct.unpack(f"{order}1024I", raw)
    total: int = sum(words) - words[38]
    return (total & 0xFFFFFFFF) + (total >> 32) & 0xFFFFFFFF


def _old(raw: bytes, place: int) -> Superblock | None:
    order = "<" if raw[:4] == _MAGIC else ">"
    words = struct.unpack(f"{order}1024I", raw)
    if words[0] != MAGIC or words[1] != 0 or words[2] not in (90, 91):
        return None
    low, high = (39, 40) if order == "<" else (40, 39)
    number, _, _, slot, state = words[992:997]
    roles = tuple(
        _old_role(words[base + 3], words[base + 4]) for base in range(128, 128 + 27 * 32, 32)
    )
    signed = struct.unpack(f"{order}1024i", raw)
    chunk, minor = words[65], words[2]
    (position,) = struct.unpack_from(f"{order}Q", raw, 176)
    level = signed[7]
    size = words[8] * 1024
    clean = bool(words[33] & 1)
    return Superblock(
        version="0.90",
        at=place,
        checksum_ok=words[38] == _checksum_0(raw, order),
        array_uuid=b"".join(struct.pack(">I", words[n]) for n in (5, 13, 14, 15)).hex(),
        created=words[6],
        updated=words[32],
        level=level,
        layout=words[64],
        chunk=chunk,
        raid_disks=words[10],
        size=size,
        data_offset=0,
        data_size=place,
        device_number=number,
        role=_old_role(slot, state),
        roles=_without_tail(roles),
        events=words[high] << 32 | words[low],
        clean=clean,
        resync=0 if clean else words[43] * SECTOR,
        reshape=Reshape(
            position=_bounded(position),
            new_level=signed[46],
            delta_disks=signed[47],
            new_layout=words[48],
            new_chunk=words[49],
            backwards=signed[47] < 0,
        )
        if minor == 91
        else None,
        bitmap_at=place + SUPERBLOCK if words[33] & 1 << 8 else None,
        stored_at=place,
    )


def _old_role(slot: int, state: int) -> int:
    """Return a role of 0.90: faulty is bit 0, active 1, in sync 2, journal 18."""
    if state & 1:
        return FAULTY
    if state & 1 << 18:
        return JOURNAL
    return slot if state & 6 == 6 and slot < LARGEST_ROLE else SPARE


def _text(raw: bytes) -> str:
    text = raw.split(b"\0")[0].decode("utf-8", errors="replace")
    return "".join(c if c.isprintable() else "�" for c in text)


def bitmap(read: Read, block: Superblock) -> Bitmap | None:
    """Return the internal bitmap; ``None``: there is none, or it cannot be read."""
    if block.bitmap_at is None or block.bitmap_at < 0:
        return None
    raw = read(block.bitmap_at, 256)
    if len(raw) < 256 or raw[:4] != BITMAP_MAGIC:
        return None
    (version,) = struct.unpack_from("<I", raw, 4)
    events, cleared, size = struct.unpack_from("<QQQ", raw, 24)
    (chunk,) = struct.unpack_from("<I", raw, 52)
    size = _bounded(size)
    if not chunk:
        return None
    bits = -(-size // chunk)
    dirty = None
    if bits <= 1 << 24:
        held = read(block.bitmap_at + 256, (bits + 7) // 8)
        if len(held) == (bits + 7) // 8:
            number = int.from_bytes(held, "little") & (1 << bits) - 1
            dirty = number.bit_count()
    return Bitmap(
        version=version,
        array_uuid=raw[8:24].hex(),
        events=events,
        events_cleared=cleared,
        sync_size=size,
        chunk=chunk,
        bits=bits,
        dirty=dirty,
    )


def bad_blocks(read: Read, block: Superblock) -> BadBlocks | None:
    """Return the bad-block log; ``None``: there is none. Entries: sector << 10 | length."""
    if not block.bad_at or block.bad_at < 0 or block.bad_shift > 32:
        return None
    raw = read(block.bad_at, min(block.bad_length, SUPERBLOCK))
    ranges: list[tuple[int, int]] = []
    for (entry,) in _words(raw):
        if entry == _CLEAN or len(ranges) == _MOST_BAD:
            break
        if entry & 0x3FF:
            begin, length = entry >> 10, entry & 0x3FF
            ranges.append((_bounded(begin << block.bad_shift), _bounded(length << block.bad_shift)))
    return BadBlocks(ranges=tuple(ranges))


def _words(raw: bytes) -> Iterator[tuple[int]]:
    return struct.iter_unpack("<Q", raw[: len(raw) // 8 * 8])


def has_journal(read: Read, block: Superblock) -> bool:
    """Return whether a journal device has a readable log block at its tail (``raid5-cache.c``)."""
    if block.journal_tail is None:
        return False
    raw = read(block.data_offset + block.journal_tail, 32)
    return len(raw) == 32 and struct.unpack_from("<I", raw)[0] == JOURNAL_MAGIC


def has_ppl(read: Read, block: Superblock) -> bool:
    """Return whether a partial parity log has entries (``raid5-ppl.c``)."""
    if block.ppl_at is None or block.ppl_at < 0:
        return False
    raw = read(block.ppl_at, 536)
    return len(raw) == 536 and 0 < struct.unpack_from("<I", raw, 528)[0] <= 148
