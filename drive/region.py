"""The memory region that a sealed guest and the host share.

The host writes it before the guest starts, and reads it when the guest has ended. The layout is
that of ``region.h``; a test compares both. The file is sparse: an empty disk of 12 TiB takes no
space.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, Final

from drive.drive import PARAMETERS, Parameters

MAGIC: Final = 0x316B7369442D6261
VERSION: Final = 2
MAX_DISKS: Final = 65
"""64 disks, and the root file system's."""
BLOCK: Final = 1 << 16
MAP_ENTRIES: Final = 1 << 10
"""Number of blocks for each bit of ``present``."""
PAGE: Final = 4096
ENTRY: Final = 2048
ALIGNMENT: Final = 2 << 20
LARGEST_DISK: Final = 12 << 40
SMALLEST: Final = 64 << 30
"""Smallest region in bytes. A snapshot fits one size, and takes 15 s of CPU to make. The disks of
nearly all cells fit this size. A larger one does not slow a restored guest down."""
LARGEST: Final = 512 << 30
"""Largest region in bytes. A guest has 1 TiB of addresses, and 4 GiB of them precede the region."""
BUCKETS: Final = (
    "bytes_total",
    "bytes_read",
    "bytes_write",
    "operations_total",
    "operations_read",
    "operations_write",
)
OPERATIONS: Final = ("read", "write", "flush", "discard", "zero")
BAD_RANGES: Final = 8

HEADER: Final = struct.Struct("<QII6Q6Q")
STATE: Final = struct.Struct("<II Q II QQ QQ QQ Q")
LIMITS: Final = struct.Struct("<18Q")
ENTRY_HEAD: Final = struct.Struct("<32s32s QQQ IIII Q")
BADS: Final = struct.Struct("<II")
BAD: Final = struct.Struct("<QQII")
STATISTICS: Final = struct.Struct("<5Q5Q3Q")
STATISTICS_AT: Final = ENTRY_HEAD.size + LIMITS.size + BADS.size + BAD_RANGES * BAD.size
DRIVE_AT: Final = STATISTICS_AT + STATISTICS.size
UNDO_AT: Final = DRIVE_AT + PARAMETERS.size
UNDO_PLACE: Final = struct.Struct("<QQII")
COUNTERS: Final = (
    *("reads", "writes", "flushes", "read_bytes", "written_bytes", "cache_hits", "segment_hits"),
    *("media_reads", "media_writes", "destages", "skips", "queue_peak", "collections", "losses"),
    *("lost_bytes", "busy"),
)
"""Fields of ``struct lab_drive_statistics``; ``busy`` in nanoseconds."""
DRIVE_STATISTICS: Final = struct.Struct(f"<{len(COUNTERS)}Q")
DRIVE_STATISTICS_AT: Final = UNDO_AT + UNDO_PLACE.size
UNDO: Final = struct.Struct("<QQII")
SECTOR: Final = 512

ABSENT, ROTATIONAL, WRITE_BACK, PARTITIONS, BASE, READ_ONLY = (1 << n for n in range(6))
BAD_READ, BAD_WRITE, BAD_DATA = 1, 2, 4


class RegionError(ValueError):
    """A region cannot be made as requested, or a file is not a region."""


class Phase(IntEnum):
    """Progress of the guest, ``enum lab_phase``."""

    NOT_LOADED = 0
    RUNNING = 1
    POWERED_OFF = 2
    HALTED = 3
    RESTARTED = 4
    PANICKED = 5


@dataclass(frozen=True, slots=True)
class Limit:
    """A leaky bucket of QEMU: ``avg`` and ``max`` per second; ``seconds``: longest burst."""

    avg: int
    max: int = 0
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class Bad:
    """A faulty range of bytes.

    ``BAD_READ``, ``BAD_WRITE``: so many requests fail, 0: all. ``BAD_DATA``: reads return the bytes
    after exclusive or with ``argument``.
    """

    offset: int
    length: int
    flags: int = BAD_READ | BAD_WRITE
    argument: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A disk for the guest; ``size`` in bytes. ``group`` 0: it has its own limits."""

    serial: str
    size: int
    model: str = "lab"
    flags: int = 0
    logical: int = 512
    physical: int = 512
    group: int = 0
    op_size: int = 0
    limits: Mapping[str, Limit] = field(default_factory=dict)
    bad: Sequence[Bad] = ()
    drive: Parameters | None = None

    @property
    def slots(self) -> int:
        """Number of pages of the drive's cache."""
        return self.drive.cache // PAGE if self.drive else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counters of the guest's requests to one disk; ``waited`` in nanoseconds."""

    requests: dict[str, int]
    bytes: dict[str, int]
    fua: int
    errors: int
    waited: int
    drive: dict[str, int]
    """Counters of its drive, by the names in :data:`COUNTERS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Results in the region; ``status``: exit status of its commands, ``clock`` in nanoseconds."""

    phase: Phase
    status: int | None
    blocks_used: int
    full: int
    """Requests that failed because no block was left."""
    output: bytes
    output_lost: int
    log: str
    log_lost: int
    clock: int
    disks: dict[str, Statistics]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    disks: int
    size: int
    table: int
    state: int
    blocks: int
    data: int
    link: int
    input: tuple[int, int]
    output: tuple[int, int]
    log: tuple[int, int]

    def pack(self) -> bytes:
        return HEADER.pack(
            *(MAGIC, VERSION, self.disks, self.size, self.table, self.state),
            *(self.blocks, self.data, self.link, *self.input, *self.output, *self.log),
        )


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _check(disks: Sequence[Disk]) -> None:
    if len(disks) > MAX_DISKS:
        raise RegionError(f"{len(disks)} disks: a region has room for {MAX_DISKS}")
    for disk in disks:
        name = f"disk {disk.serial!r}"
        if not 0 < disk.size <= LARGEST_DISK or disk.size % disk.logical:
            raise RegionError(
                f"{name}: size {disk.size}: expected whole blocks of {disk.logical} bytes, "
                f"at most {LARGEST_DISK}"
            )
        if len(disk.serial.encode()) > 32 or len(disk.model.encode()) > 32:
            raise RegionError(f"{name}: serial and model have at most 32 bytes")
        if len(disk.bad) > BAD_RANGES:
            raise RegionError(f"{name}: {len(disk.bad)} bad ranges: at most {BAD_RANGES}")
        if unknown := set(disk.limits) - set(BUCKETS):
            raise RegionError(f"{name}: limits {sorted(unknown)}: expected some of {BUCKETS}")
        if disk.drive and disk.flags & BASE:
            raise RegionError(f"{name}: a drive has no base")


AREAS: Final = (1 << 20, 64 << 20, 4 << 20)
"""Bytes for commands, output and kernel messages."""


def create(
    path: Path,
    disks: Sequence[Disk],
    *,
    size: int,
    commands: bytes = b"",
    commands_size: int = AREAS[0],
    blocks: int | None = None,
    output_size: int = AREAS[1],
    log_size: int = AREAS[2],
) -> None:
    """Write a new region of ``size`` bytes; ``blocks``: most blocks in use.

    Contents take at most ``blocks`` × 64 KiB; ``None``: as much as fits.
    """
    _check(disks)
    if size % ALIGNMENT or not size:
        raise RegionError(f"size {size}: QEMU's NVDIMMs have whole {ALIGNMENT >> 20} MiB")
    areas, places, at = _layout(disks, (commands_size, output_size, log_size))
    entries = [_pack_entry(disk, place) for disk, place in zip(disks, places, strict=True)]
    fits = (size - at - 2 * BLOCK) // (BLOCK + 4)
    if fits < (blocks or 1):
        raise RegionError(
            f"size {size}: after maps and areas ({at} bytes) there is room for {max(fits, 0)} "
            f"blocks, expected at least {blocks or 1}"
        )
    blocks = blocks or fits
    header = _Header(
        disks=len(disks),
        size=size,
        table=2 * PAGE,
        state=PAGE,
        blocks=blocks,
        link=at,
        input=(areas[0][0], 0),
        output=areas[1],
        log=areas[2],
        data=_up(at + 4 * blocks, BLOCK),
    )
    with path.open("wb") as file:
        file.truncate(size)
        file.write(header.pack())
        for number, entry in enumerate(entries):
            file.seek(header.table + number * ENTRY)
            file.write(entry)
    set_commands(path, commands)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Offsets of a disk's parts."""

    map: int
    present: int
    undo: int
    undo_data: int


def _layout(
    disks: Sequence[Disk], lengths: Sequence[int]
) -> tuple[list[tuple[int, int]], list[_Place], int]:
    """Return areas as offsets and lengths, offsets of each disk's parts, and the offset after all.

    All undo logs come last, next to the blocks, so that :func:`reserve` allocates both together.
    """
    at = _up(2 * PAGE + MAX_DISKS * ENTRY, PAGE)
    areas, maps, places = [], [], []
    for length in lengths:
        areas.append((at, length))
        at += _up(length, PAGE)
    for disk in disks:
        blocks = -(-disk.size // BLOCK)
        present, at = at, _up(at + blocks // MAP_ENTRIES // 8 + 16, PAGE)
        maps.append((at, present))
        at = _up(at + 4 * blocks, PAGE)
    for disk, (at_map, present) in zip(disks, maps, strict=True):
        undo, at = at, _up(at + disk.slots * UNDO.size, PAGE)
        places.append(_Place(map=at_map, present=present, undo=undo, undo_data=at))
        at += disk.slots * PAGE
    return areas, places, at


def undo_size(disks: Sequence[Disk]) -> int:
    """Return the bytes of all drives' undo logs."""
    return sum(_up(disk.slots * UNDO.size, PAGE) + disk.slots * PAGE for disk in disks)


def size_for(disks: Sequence[Disk], blocks: int) -> int:
    """Return the bytes of a region for these disks with ``blocks`` blocks in use: a power of two.

    A snapshot fits only regions of its own region's size, so there are few sizes. The file is
    sparse. ``RegionError``: there is no such size.
    """
    _, _, at = _layout(disks, AREAS)
    needed = at + (blocks + 2) * (BLOCK + 4)
    size = max(SMALLEST, 1 << (needed - 1).bit_length())
    if size > LARGEST:
        raise RegionError(f"a region of {needed} bytes is needed: there is room for {LARGEST}")
    return size


def reserve(path: Path) -> None:
    """Allocate space for the blocks and undo logs of a new region; ``OSError``: there is none."""
    with path.open("r+b") as file:
        header = _header(file, path)
        entries = [_undo_place(file, header, n) for n in range(header.disks)]
        begin = min([header.link, *(undo for undo, _, slots in entries if slots)])
        end = header.data + header.blocks * BLOCK
        os.posix_fallocate(file.fileno(), begin, end - begin)


def again(path: Path, commands: bytes) -> None:
    """Prepare a region for the next boot: new commands and empty output; contents stay."""
    with path.open("r+b") as file:
        header = _header(file, path)
        state = list(STATE.unpack(_at(file, header.state, STATE.size)))
        for area, used in ((header.output, state[7]), (header.log, state[9])):
            file.seek(area[0])
            file.write(bytes(used))
        state[0], state[1] = Phase.NOT_LOADED, 0
        state[7:] = [0] * len(state[7:])
        file.seek(header.state)
        file.write(STATE.pack(*state))
    set_commands(path, commands)


def graft(source: Path, target: Path) -> None:
    """Copy into a new region the parts of ``source`` on which its guest's memory depends.

    These are the contents of its disks, the free list, state, output and messages. The first disks
    of ``target`` must be those of ``source``; ``target`` may have more. ``RegionError``: it does
    not fit.
    """
    with source.open("rb") as old, target.open("r+b") as new:
        was, now = _header(old, source), _header(new, target)
        state = list(STATE.unpack(_at(old, was.state, STATE.size)))
        fresh, output, log = state[2], state[7], state[9]
        parts = [(was.output[0], now.output[0], output), (was.log[0], now.log[0], log)]
        fits = output <= now.output[1] and log <= now.log[1] and fresh <= now.blocks
        if not fits or was.size != now.size or was.disks > now.disks:
            raise RegionError(f"{target}: a guest over {source} cannot go on here: no room for it")
        for number in range(was.disks):
            ours, theirs = (
                _at(file, header.table + number * ENTRY, ENTRY)
                for file, header in ((new, now), (old, was))
            )
            parts += _same_disk(ours, theirs, f"{target}: disk {number}")
            statistics = theirs[STATISTICS_AT : STATISTICS_AT + STATISTICS.size]
            os.pwrite(new.fileno(), statistics, now.table + number * ENTRY + STATISTICS_AT)
        parts += [(was.link, now.link, 4 * fresh), (was.data, now.data, fresh * BLOCK)]
        for begin, to, size in parts:
            for at, data in _filled(old, PAGE, begin, begin + size):
                os.pwrite(new.fileno(), data, to + at - begin)
        os.pwrite(new.fileno(), STATE.pack(*state), now.state)


def _same_disk(ours: bytes, theirs: bytes, name: str) -> list[tuple[int, int, int]]:
    """Return offsets of the map and ``present`` of a disk in two regions, and their lengths."""
    was, now = ENTRY_HEAD.unpack_from(theirs), ENTRY_HEAD.unpack_from(ours)
    if was[:3] + was[5:] != now[:3] + now[5:]:
        raise RegionError(f"{name} is not the saved guest's")
    blocks = -(-was[2] * 512 // BLOCK)
    return [(was[3], now[3], 4 * blocks), (was[4], now[4], blocks // MAP_ENTRIES // 8 + 8)]


def output(path: Path) -> bytes:
    """Return the guest's output so far; empty: it has not begun."""
    with path.open("rb") as file:
        header = _header(file, path)
        used = STATE.unpack(_at(file, header.state, STATE.size))[7]
        return _at(file, header.output[0], used)


def clock(path: Path) -> int:
    """Return the guest's clock in nanoseconds, as of its last request to a disk."""
    with path.open("rb") as file:
        return int(STATE.unpack(_at(file, _header(file, path).state, STATE.size))[11])


def set_clock(path: Path, nanoseconds: int) -> None:
    """Set the value that :func:`clock` returns until the guest's next request."""
    with path.open("r+b") as file:
        header = _header(file, path)
        state = list(STATE.unpack(_at(file, header.state, STATE.size)))
        state[11] = nanoseconds
        file.seek(header.state)
        file.write(STATE.pack(*state))


def _pack_entry(disk: Disk, place: _Place) -> bytes:
    limits = [disk.limits.get(name, Limit(0)) for name in BUCKETS]
    numbers = [n for limit in limits for n in (limit.avg, limit.max, limit.seconds)]
    head = ENTRY_HEAD.pack(
        *(disk.serial.encode(), disk.model.encode(), disk.size // SECTOR, place.map, place.present),
        *(disk.flags, disk.logical, disk.physical, disk.group, disk.op_size),
    )
    bad = b"".join(BAD.pack(b.offset, b.length, b.flags, b.argument) for b in disk.bad)
    entry = head + LIMITS.pack(*numbers) + BADS.pack(len(disk.bad), 0) + bad
    if not disk.drive:
        return entry
    undo = UNDO_PLACE.pack(place.undo, place.undo_data, disk.slots, 0)
    return entry.ljust(DRIVE_AT, b"\0") + disk.drive.pack() + undo


def _header(file: BinaryIO, path: Path) -> _Header:
    raw = file.read(HEADER.size)
    if len(raw) < HEADER.size or HEADER.unpack(raw)[:2] != (MAGIC, VERSION):
        raise RegionError(f"{path}: no region of version {VERSION}")
    _, _, disks, size, table, state, blocks, data, link, *areas = HEADER.unpack(raw)
    return _Header(
        disks=disks,
        size=size,
        table=table,
        state=state,
        blocks=blocks,
        data=data,
        link=link,
        input=(areas[0], areas[1]),
        output=(areas[2], areas[3]),
        log=(areas[4], areas[5]),
    )


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")


def read(path: Path) -> State:
    """Return the state. The guest may be running: it is not disturbed, and each number is whole."""
    with path.open("rb") as file:
        header = _header(file, path)
        numbers = STATE.unpack(_at(file, header.state, STATE.size))
        phase, status, _, _, _, used, full, output, output_lost, log, log_lost, clock = numbers
        disks = {}
        for number in range(header.disks):
            entry = _at(file, header.table + number * ENTRY, ENTRY)
            counters = STATISTICS.unpack_from(entry, STATISTICS_AT)
            disks[_text(entry[:32])] = Statistics(
                requests=dict(zip(OPERATIONS, counters[:5], strict=True)),
                bytes=dict(zip(OPERATIONS, counters[5:10], strict=True)),
                fua=counters[10],
                errors=counters[11],
                waited=counters[12],
                drive=dict(
                    zip(
                        COUNTERS,
                        DRIVE_STATISTICS.unpack_from(entry, DRIVE_STATISTICS_AT),
                        strict=True,
                    )
                ),
            )
        return State(
            phase=Phase(phase),
            status=status & 0xFF if status & 0x100 else None,
            blocks_used=used,
            full=full,
            output=_at(file, header.output[0], output),
            output_lost=output_lost,
            log=_at(file, header.log[0], log).decode(errors="replace"),
            log_lost=log_lost,
            clock=clock,
            disks=disks,
        )


def set_commands(path: Path, commands: bytes) -> None:
    """Replace the commands in a region that no guest is using."""
    with path.open("r+b") as file:
        header = _header(file, path)
        start, room = header.input[0], header.output[0] - header.input[0]
        if len(commands) > room:
            raise RegionError(f"{path}: {len(commands)} bytes of commands, room for {room}")
        file.seek(0)
        file.write(replace(header, input=(start, len(commands))).pack())
        file.seek(start)
        file.write(commands.ljust(header.input[1], b"\0"))


def _places(
    file: BinaryIO, path: Path, number: int, position: int, size: int
) -> Iterator[tuple[int | None, int]]:
    """Yield offsets and lengths of a disk's bytes in the file; offset ``None``: they are zeros."""
    file.seek(0)
    header = _header(file, path)
    entry = ENTRY_HEAD.unpack(_at(file, header.table + number * ENTRY, ENTRY_HEAD.size))
    at_map, at_present, end = entry[3], entry[4], position + size
    while position < end:
        index, offset = divmod(position, BLOCK)
        part = min(end - position, BLOCK - offset)
        page = index // MAP_ENTRIES
        block = 0
        if _at(file, at_present + page // 8, 1)[0] >> page % 8 & 1:
            block = int.from_bytes(_at(file, at_map + 4 * index, 4), "little")
        yield header.data + (block - 1) * BLOCK + offset if block else None, part
        position += part


def contents(path: Path, number: int, position: int, size: int) -> bytes:
    """Return bytes of disk ``number`` as the guest would read them, without the base image's."""
    with path.open("rb") as file:
        places = list(_places(file, path, number, position, size))
        return b"".join(bytes(n) if at is None else _at(file, at, n) for at, n in places)


def overwrite(path: Path, number: int, position: int, data: bytes) -> None:
    """Change bytes that the guest has written to disk ``number``: a fault of the medium."""
    with path.open("r+b") as file:
        for at, part in list(_places(file, path, number, position, len(data))):
            if at is None:
                raise RegionError(f"{path}: disk {number} has nothing at {position}")
            file.seek(at)
            file.write(data[:part])
            data = data[part:]


def _undo_place(file: BinaryIO, header: _Header, number: int) -> tuple[int, int, int]:
    """Return offsets of a disk's undo log and of its pages, and their number of slots."""
    raw = _at(file, header.table + number * ENTRY + UNDO_AT, UNDO_PLACE.size)
    undo, data, slots, _ = UNDO_PLACE.unpack(raw)
    return undo, data, slots


def lose_cache(path: Path) -> dict[str, int]:
    """Undo writes that were only in the drives' volatile caches when the guest ended.

    Return the number of lost bytes by the disk's serial. It may be repeated after a crash.
    """
    lost = {}
    with path.open("r+b") as file:
        header = _header(file, path)
        for number in range(header.disks):
            entry = header.table + number * ENTRY
            undo, data, slots = _undo_place(file, header, number)
            raw = _at(file, undo, slots * UNDO.size)
            bits = 0
            for _, page, sectors, zeros, slot in sorted(
                (
                    (order, page, sectors, zeros, slot)
                    for slot, (page, order, sectors, zeros) in enumerate(UNDO.iter_unpack(raw))
                    if sectors
                ),
                reverse=True,
            ):
                old = _at(file, data + slot * PAGE, PAGE)
                _undo(file, path, number, page, sectors, zeros, old)
                bits += sectors.bit_count()
            if slots:
                lost[_text(_at(file, entry, 32))] = bits * SECTOR
                counters = list(
                    DRIVE_STATISTICS.unpack(
                        _at(file, entry + DRIVE_STATISTICS_AT, DRIVE_STATISTICS.size)
                    )
                )
                counters[COUNTERS.index("losses")] += 1
                counters[COUNTERS.index("lost_bytes")] += bits * SECTOR
                file.seek(entry + DRIVE_STATISTICS_AT)
                file.write(DRIVE_STATISTICS.pack(*counters))
    keep_cache(path)
    return lost


def _undo(
    file: BinaryIO, path: Path, number: int, page: int, sectors: int, zeros: int, old: bytes
) -> None:
    """Restore sectors of a page from the undo log."""
    ((place, _),) = _places(file, path, number, page * PAGE, SECTOR)  # a page is in one block
    if place is None:  # zeros were written over zeros
        return
    for at in (n * SECTOR for n in range(PAGE // SECTOR) if sectors >> n & 1):
        file.seek(place + at)
        file.write(bytes(SECTOR) if zeros >> (at // SECTOR) & 1 else old[at : at + SECTOR])


def keep_cache(path: Path) -> dict[str, int]:
    """Write the drives' caches to their media, so that no disk loses data."""
    with path.open("r+b") as file:
        header = _header(file, path)
        for number in range(header.disks):
            undo, _, slots = _undo_place(file, header, number)
            for at, data in list(_filled(file, PAGE, undo, undo + slots * UNDO.size)):
                file.seek(at)
                file.write(bytes(len(data)))
    return {}


def _extents(descriptor: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each range with data between two offsets."""
    while begin < end:
        try:
            begin = os.lseek(descriptor, begin, os.SEEK_DATA)
        except OSError:  # ENXIO: only holes follow
            return
        hole = min(os.lseek(descriptor, begin, os.SEEK_HOLE), end)
        if begin < hole:
            yield begin, hole
        begin = hole


def _filled(
    file: BinaryIO, unit: int, begin: int = 0, end: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield aligned units that are not all zeros, with their offsets; ``begin`` is aligned.

    Holes and zeros are treated alike.
    """
    descriptor = file.fileno()
    at, end = begin, os.fstat(descriptor).st_size if end is None else end
    zeros = bytes(unit)
    # Find all extents before reading: reading caches zero pages of allocated but unwritten space,
    # and SEEK_DATA then reports them as data. Each region would need 1.1 GiB of reads, not 2 MiB.
    for first, last in list(_extents(descriptor, begin, end)):
        at = max(at, first // unit * unit)
        while at < last:
            chunk = os.pread(descriptor, min(unit, end - at), at)
            if chunk != zeros[: len(chunk)]:
                yield at, chunk
            at += unit


def digest(path: Path) -> str:
    """Return the SHA-256 of the region: commands, output, messages, counters, contents."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        for at, data in _filled(file, BLOCK):
            total.update(at.to_bytes(8, "little") + data)
    return total.hexdigest()


def copy(source: Path, target: Path) -> None:
    """Copy a region as a sparse file."""
    with source.open("rb") as file, target.open("wb") as new:
        new.truncate(os.fstat(file.fileno()).st_size)
        for at, data in _filled(file, PAGE):
            os.pwrite(new.fileno(), data, at)
