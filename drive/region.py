"""The memory region that a sealed guest and the host share.

The host writes it before the guest starts, and reads it when the guest has ended. The layout is
that of ``region.h``; a test compares both. The file is sparse: an empty disk of 12 TiB takes no
space.

Root in the guest can write any byte of the file. So the host reads no place, length or name from
it: :class:`Region` has them from its creation. All other numbers are checked; ``ForgedError`` names
a wrong one.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, Final

from drive.drive import PARAMETERS, Parameters

MAGIC: Final = 0x316B7369442D6261
VERSION: Final = 3
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
LATEST: Final = 10**9 * 86400 * 36525
"""Latest time of a guest's clock in nanoseconds: a century after its boot."""

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


class ForgedError(RegionError):
    """The guest has written a value that the lab's driver does not write."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Offsets of a disk's parts."""

    map: int
    present: int
    undo: int
    undo_data: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The layout of a region, and its file."""

    path: Path
    disks: tuple[Disk, ...]
    header: _Header
    """As :func:`create` writes it; the length of the commands changes."""
    places: tuple[_Place, ...]

    @property
    def commands(self) -> int:
        """Most bytes of commands."""
        return self.header.output[0] - self.header.input[0]

    def most(self, unit: int = PAGE) -> int:
        """Return the most bytes of the file that the driver allocates, in whole ``unit`` bytes.

        A block that is in use needs one entry of a map, and so at most one unit of it.
        """
        maps = [4 * -(-disk.size // BLOCK) for disk in self.disks]
        used = min(sum(_up(size, unit) for size in maps), self.header.blocks * unit)
        others = self.header.link - sum(_up(size, PAGE) for size in maps)
        blocks = self.header.blocks * (BLOCK + 4) + 2 * BLOCK
        return others + used + blocks + (6 + 3 * len(maps)) * unit


def describe(
    path: Path,
    disks: Sequence[Disk],
    *,
    size: int,
    commands_size: int = AREAS[0],
    blocks: int | None = None,
    output_size: int = AREAS[1],
    log_size: int = AREAS[2],
) -> Region:
    """Return the layout of a region of ``size`` bytes; ``RegionError``: there is none.

    ``blocks``: most blocks in use. Contents take at most ``blocks`` × 64 KiB; ``None``: as much as
    fits.
    """
    _check(disks)
    if size % ALIGNMENT or not size:
        raise RegionError(f"size {size}: QEMU's NVDIMMs have whole {ALIGNMENT >> 20} MiB")
    areas, places, at = _layout(disks, (commands_size, output_size, log_size))
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
    return Region(path=path, disks=tuple(disks), header=header, places=tuple(places))


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
) -> Region:
    """Write a new region, as :func:`describe` describes it, with these commands."""
    region = describe(
        *(path, disks),
        size=size,
        commands_size=commands_size,
        blocks=blocks,
        output_size=output_size,
        log_size=log_size,
    )
    with path.open("wb") as file:
        file.truncate(size)
        for number, (disk, place) in enumerate(zip(disks, region.places, strict=True)):
            file.seek(region.header.table + number * ENTRY)
            file.write(_pack_entry(disk, place))
    set_commands(region, commands)
    return region


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


def reserve(region: Region) -> None:
    """Allocate space for the blocks and undo logs of a new region; ``OSError``: there is none."""
    header = region.header
    pairs = zip(region.disks, region.places, strict=True)
    begin = min([header.link, *(place.undo for disk, place in pairs if disk.slots)])
    end = header.data + header.blocks * BLOCK
    with region.path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), begin, end - begin)


def again(region: Region, commands: bytes) -> None:
    """Prepare a region for the next boot: new commands and empty output; contents stay."""
    header = region.header
    with region.path.open("r+b") as file:
        state = _state(file, region)
        for area, used in ((header.output, state.output_used), (header.log, state.log_used)):
            file.seek(area[0])
            file.write(bytes(used))
        fresh = replace(
            state,
            phase=Phase.NOT_LOADED,
            status=0,
            **dict.fromkeys(("output_used", "output_lost", "log_used", "log_lost", "clock"), 0),
        )
        file.seek(header.state)
        file.write(fresh.pack())
    set_commands(region, commands)


def graft(source: Region, target: Region) -> None:
    """Copy into a new region the parts of ``source`` on which its guest's memory depends.

    These are the contents of its disks, the free list, state, output and messages. The first disks
    of ``target`` must be those of ``source``; ``target`` may have more. ``RegionError``: it does
    not fit.
    """
    was, now = source.header, target.header
    with source.path.open("rb") as old, target.path.open("r+b") as new:
        state = _state(old, source)
        output, log, fresh = state.output_used, state.log_used, state.fresh
        parts = [(was.output[0], now.output[0], output), (was.log[0], now.log[0], log)]
        fits = output <= now.output[1] and log <= now.log[1] and fresh <= now.blocks
        if not fits or was.size != now.size or was.disks > now.disks:
            raise RegionError(
                f"{target.path}: a guest over {source.path} cannot go on here: no room for it"
            )
        for number, (disk, place) in enumerate(zip(source.disks, source.places, strict=True)):
            if target.disks[number] != disk:
                raise RegionError(f"{target.path}: disk {number} is not the saved guest's")
            to = target.places[number]
            blocks = -(-disk.size // BLOCK)
            parts += [
                (place.map, to.map, 4 * blocks),
                (place.present, to.present, blocks // MAP_ENTRIES // 8 + 8),
            ]
            statistics = _at(old, was.table + number * ENTRY + STATISTICS_AT, STATISTICS.size)
            os.pwrite(new.fileno(), statistics, now.table + number * ENTRY + STATISTICS_AT)
        parts += [(was.link, now.link, 4 * fresh), (was.data, now.data, fresh * BLOCK)]
        for begin, to_begin, size in parts:
            for at, data in _filled(old, PAGE, begin, begin + size):
                os.pwrite(new.fileno(), data, to_begin + at - begin)
        os.pwrite(new.fileno(), state.pack(), now.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """``struct lab_state``."""

    phase: int
    status: int
    fresh: int
    free: int
    reserved: int
    used: int
    full: int
    output_used: int
    output_lost: int
    log_used: int
    log_lost: int
    clock: int

    def pack(self) -> bytes:
        return STATE.pack(*astuple(self))


def _state(file: BinaryIO, region: Region) -> _State:
    """Return the state; ``ForgedError``: a number in it is impossible."""
    header = region.header
    names = [f.name for f in fields(_State)]
    numbers = STATE.unpack(_at(file, header.state, STATE.size))
    state = _State(**dict(zip(names, numbers, strict=True)))
    for name, most in (
        ("phase", max(Phase)),
        ("status", 0x1FF),
        ("fresh", header.blocks),
        ("free", header.blocks),
        ("used", header.blocks),
        ("output_used", header.output[1]),
        ("log_used", header.log[1]),
        ("clock", LATEST),
    ):
        value = getattr(state, name)
        if value > most:
            raise ForgedError(
                f"the guest has overwritten the lab's memory region: '{name}' is {value},"
                f" expected at most {most}"
            )
    return state


def output(region: Region, begin: int = 0, size: int | None = None) -> bytes:
    """Return at most ``size`` bytes of the guest's output so far, from ``begin`` on."""
    with region.path.open("rb") as file:
        left = max(0, _state(file, region).output_used - begin)
        return _at(file, region.header.output[0] + begin, left if size is None else min(left, size))


def clock(region: Region) -> int:
    """Return the guest's clock in nanoseconds, as of its last request to a disk."""
    with region.path.open("rb") as file:
        return _state(file, region).clock


def set_clock(region: Region, nanoseconds: int) -> None:
    """Set the value that :func:`clock` returns until the guest's next request."""
    with region.path.open("r+b") as file:
        state = replace(_state(file, region), clock=nanoseconds)
        file.seek(region.header.state)
        file.write(state.pack())


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


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def read(region: Region) -> State:
    """Return the state. The guest may be running: it is not disturbed, and each number is whole.

    ``ForgedError``: the guest has written to what only the host or the driver writes.
    """
    header = region.header
    with region.path.open("rb") as file:
        state = _state(file, region)
        _check_header(file, region)
        disks = {}
        for number, (disk, place) in enumerate(zip(region.disks, region.places, strict=True)):
            entry = _at(file, header.table + number * ENTRY, ENTRY)
            _check_entry(entry, disk, place)
            counters = STATISTICS.unpack_from(entry, STATISTICS_AT)
            drive = DRIVE_STATISTICS.unpack_from(entry, DRIVE_STATISTICS_AT)
            disks[disk.serial] = Statistics(
                requests=dict(zip(OPERATIONS, counters[:5], strict=True)),
                bytes=dict(zip(OPERATIONS, counters[5:10], strict=True)),
                fua=counters[10],
                errors=counters[11],
                waited=counters[12],
                drive=dict(zip(COUNTERS, drive, strict=True)),
            )
        return State(
            phase=Phase(state.phase),
            status=state.status & 0xFF if state.status & 0x100 else None,
            blocks_used=state.used,
            full=state.full,
            output=_at(file, header.output[0], state.output_used),
            output_lost=state.output_lost,
            log=_at(file, header.log[0], state.log_used).decode(errors="replace"),
            log_lost=state.log_lost,
            clock=state.clock,
            disks=disks,
        )


def _check_header(file: BinaryIO, region: Region) -> None:
    found = HEADER.unpack(_at(file, 0, HEADER.size))
    wanted = HEADER.unpack(region.header.pack())
    if found[:10] + found[11:] != wanted[:10] + wanted[11:]:  # but for the length of the commands
        raise ForgedError("the guest has overwritten the lab's memory region: its header differs")


def _check_entry(entry: bytes, disk: Disk, place: _Place) -> None:
    found, wanted = (ENTRY_HEAD.unpack_from(data) for data in (entry, _pack_entry(disk, place)))
    if found[:5] + found[6:] != wanted[:5] + wanted[6:]:  # but for the flags
        raise ForgedError(
            "the guest has overwritten the lab's memory region:"
            f" the entry of the disk '{disk.serial}' differs"
        )


def set_commands(region: Region, commands: bytes) -> None:
    """Replace the commands in a region that no guest is using, and write its header."""
    start = region.header.input[0]
    if len(commands) > region.commands:
        raise RegionError(
            f"{region.path}: {len(commands)} bytes of commands, room for {region.commands}"
        )
    with region.path.open("r+b") as file:
        before = HEADER.unpack(_at(file, 0, HEADER.size))[10]
        file.seek(0)
        file.write(replace(region.header, input=(start, len(commands))).pack())
        file.seek(start)
        file.write(commands.ljust(min(before, region.commands), b"\0"))


def _places(
    file: BinaryIO, region: Region, number: int, position: int, size: int
) -> Iterator[tuple[int | None, int]]:
    """Yield offsets and lengths of a disk's bytes in the file; offset ``None``: they are zeros.

    ``ForgedError``: the disk does not have these bytes, or its map leads out of the blocks.
    """
    header, place, end = region.header, region.places[number], position + size
    if end > _up(region.disks[number].size, BLOCK):
        raise ForgedError(
            f"the guest has overwritten the lab's memory region: offset {position} of the disk"
            f" '{region.disks[number].serial}', which has {region.disks[number].size} bytes"
        )
    while position < end:
        index, offset = divmod(position, BLOCK)
        part = min(end - position, BLOCK - offset)
        page = index // MAP_ENTRIES
        block = 0
        if _at(file, place.present + page // 8, 1)[0] >> page % 8 & 1:
            block = int.from_bytes(_at(file, place.map + 4 * index, 4), "little")
        if block > header.blocks:
            raise ForgedError(
                "the guest has overwritten the lab's memory region: the map of the disk"
                f" '{region.disks[number].serial}' has block {block}, expected at most"
                f" {header.blocks}"
            )
        yield header.data + (block - 1) * BLOCK + offset if block else None, part
        position += part


def contents(region: Region, number: int, position: int, size: int) -> bytes:
    """Return bytes of disk ``number`` as the guest would read them, without the base image's."""
    with region.path.open("rb") as file:
        places = list(_places(file, region, number, position, size))
        return b"".join(bytes(n) if at is None else _at(file, at, n) for at, n in places)


def overwrite(region: Region, number: int, position: int, data: bytes) -> None:
    """Change bytes that the guest has written to disk ``number``: a fault of the medium."""
    with region.path.open("r+b") as file:
        for at, part in list(_places(file, region, number, position, len(data))):
            if at is None:
                raise RegionError(f"{region.path}: disk {number} has nothing at {position}")
            file.seek(at)
            file.write(data[:part])
            data = data[part:]


def lose_cache(region: Region) -> dict[str, int]:
    """Undo writes that were only in the drives' volatile caches when the guest ended.

    Return the number of lost bytes by the disk's serial. It may be repeated after a crash.
    """
    lost = {}
    with region.path.open("r+b") as file:
        for number, (disk, place) in enumerate(zip(region.disks, region.places, strict=True)):
            if not disk.slots:
                continue
            raw = _at(file, place.undo, disk.slots * UNDO.size)
            bits = 0
            for _, page, sectors, zeros, slot in sorted(
                (
                    (order, page, sectors & 0xFF, zeros, slot)
                    for slot, (page, order, sectors, zeros) in enumerate(UNDO.iter_unpack(raw))
                    if sectors & 0xFF
                ),
                reverse=True,
            ):
                old = _at(file, place.undo_data + slot * PAGE, PAGE)
                _undo(file, region, number, page, sectors, zeros, old)
                bits += sectors.bit_count()
            lost[disk.serial] = bits * SECTOR
            at = region.header.table + number * ENTRY + DRIVE_STATISTICS_AT
            counters = list(DRIVE_STATISTICS.unpack(_at(file, at, DRIVE_STATISTICS.size)))
            for name, more in (("losses", 1), ("lost_bytes", bits * SECTOR)):
                index = COUNTERS.index(name)
                counters[index] = min(counters[index] + more, 2**64 - 1)
            file.seek(at)
            file.write(DRIVE_STATISTICS.pack(*counters))
    keep_cache(region)
    return lost


def _undo(
    file: BinaryIO, region: Region, number: int, page: int, sectors: int, zeros: int, old: bytes
) -> None:
    """Restore sectors of a page from the undo log."""
    # A page is in one block.
    ((place, _),) = _places(file, region, number, page * PAGE, SECTOR)
    if place is None:  # zeros were written over zeros
        return
    for at in (n * SECTOR for n in range(PAGE // SECTOR) if sectors >> n & 1):
        file.seek(place + at)
        file.write(bytes(SECTOR) if zeros >> (at // SECTOR) & 1 else old[at : at + SECTOR])


def keep_cache(region: Region) -> dict[str, int]:
    """Write the drives' caches to their media, so that no disk loses data."""
    with region.path.open("r+b") as file:
        for disk, place in zip(region.disks, region.places, strict=True):
            for at, data in list(
                _filled(file, PAGE, place.undo, place.undo + disk.slots * UNDO.size)
            ):
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
