"""The memory region that a sealed guest and the host share.

The host writes it before the guest starts and reads it when the guest has ended. The layout is
``region.h``'s; a test compares both. The file is sparse: an empty disk of 12 TiB takes no space.
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

MAGIC: Final = 0x316B7369442D6261
VERSION: Final = 1
MAX_DISKS: Final = 65
"""64, and the root file system's."""
BLOCK: Final = 1 << 16
MAP_ENTRIES: Final = 1 << 10
"""Blocks for which one bit of ``present`` stands."""
PAGE: Final = 4096
ENTRY: Final = 1024
ALIGNMENT: Final = 2 << 20
LARGEST_DISK: Final = 12 << 40
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

ABSENT, ROTATIONAL, WRITE_BACK, PARTITIONS, BASE, READ_ONLY = (1 << n for n in range(6))
BAD_READ, BAD_WRITE = 1, 2


class RegionError(ValueError):
    """A region cannot be made as asked, or a file is not one."""


class Phase(IntEnum):
    """How far the guest has come, ``enum lab_phase``."""

    NOT_LOADED = 0
    RUNNING = 1
    POWERED_OFF = 2
    HALTED = 3
    RESTARTED = 4
    PANICKED = 5


@dataclass(frozen=True, slots=True)
class Limit:
    """One of QEMU's leaky buckets: ``avg``, ``max`` per second; ``seconds`` a burst may last."""

    avg: int
    max: int = 0
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class Bad:
    """Requests that touch these sectors fail: ``flags`` are ``BAD_READ``, ``BAD_WRITE``."""

    start: int
    sectors: int
    flags: int = BAD_READ | BAD_WRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One disk as the guest finds it; ``size`` in bytes. ``group`` 0: limits of its own."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What the guest asked of one disk; ``waited`` in nanoseconds."""

    requests: dict[str, int]
    bytes: dict[str, int]
    fua: int
    errors: int
    waited: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the guest left; ``status``: exit status of its commands, ``clock`` in nanoseconds."""

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


def create(
    path: Path,
    disks: Sequence[Disk],
    *,
    size: int,
    commands: bytes = b"",
    commands_size: int = 1 << 20,
    blocks: int | None = None,
    output_size: int = 64 << 20,
    log_size: int = 4 << 20,
) -> None:
    """Write a new region of ``size`` bytes; ``blocks``: most that may be in use.

    Contents take ``blocks`` × 64 KiB at most, and all that fits where it is ``None``.
    """
    _check(disks)
    if size % ALIGNMENT or not size:
        raise RegionError(f"size {size}: QEMU's NVDIMMs have whole {ALIGNMENT >> 20} MiB")
    table = 2 * PAGE
    at = _up(table + MAX_DISKS * ENTRY, PAGE)
    areas = []
    for length in (commands_size, output_size, log_size):
        areas.append((at, length))
        at += _up(length, PAGE)
    entries = []
    for disk in disks:
        disk_blocks = -(-disk.size // BLOCK)
        present, at = at, _up(at + disk_blocks // MAP_ENTRIES // 8 + 16, PAGE)
        entries.append(_pack_entry(disk, at, present))
        at = _up(at + 4 * disk_blocks, PAGE)
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
        table=table,
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
            file.seek(table + number * ENTRY)
            file.write(entry)
    set_commands(path, commands)


def _pack_entry(disk: Disk, at_map: int, at_present: int) -> bytes:
    limits = [disk.limits.get(name, Limit(0)) for name in BUCKETS]
    numbers = [n for limit in limits for n in (limit.avg, limit.max, limit.seconds)]
    head = ENTRY_HEAD.pack(
        *(disk.serial.encode(), disk.model.encode(), disk.size // 512, at_map, at_present),
        *(disk.flags, disk.logical, disk.physical, disk.group, disk.op_size),
    )
    bad = b"".join(BAD.pack(b.start, b.sectors, b.flags, 0) for b in disk.bad)
    return head + LIMITS.pack(*numbers) + BADS.pack(len(disk.bad), 0) + bad


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
    """What the guest left. Also while it runs: it never notices, and each number is whole."""
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
    """Where in the file a disk's bytes lie, and how many; ``None``: nowhere, they are zeros."""
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
    """Bytes of disk ``number`` as the guest would read them; the base is not looked at."""
    with path.open("rb") as file:
        places = list(_places(file, path, number, position, size))
        return b"".join(bytes(n) if at is None else _at(file, at, n) for at, n in places)


def overwrite(path: Path, number: int, position: int, data: bytes) -> None:
    """Change bytes of disk ``number`` that the guest has written before: a fault of the medium."""
    with path.open("r+b") as file:
        for at, part in list(_places(file, path, number, position, len(data))):
            if at is None:
                raise RegionError(f"{path}: disk {number} has nothing at {position}")
            file.seek(at)
            file.write(data[:part])
            data = data[part:]


def _pages(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Pages that are not all zeros, with their offsets: holes and zeros cannot be told apart."""
    at, end = 0, os.fstat(file.fileno()).st_size
    zeros = bytes(PAGE)
    while at < end:
        try:
            at = os.lseek(file.fileno(), at, os.SEEK_DATA)
        except OSError:  # ENXIO: only holes from here on
            return
        hole = os.lseek(file.fileno(), at, os.SEEK_HOLE)
        while at < hole:
            chunk = _at(file, at, min(hole - at, 1 << 20))
            for offset in range(0, len(chunk), PAGE):
                page = chunk[offset : offset + PAGE]
                if page != zeros[: len(page)]:
                    yield at + offset, page
            at += len(chunk)


def digest(path: Path) -> str:
    """SHA-256 of everything in the region: commands, output, messages, counters, contents."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        for at, page in _pages(file):
            total.update(at.to_bytes(8, "little") + page)
    return total.hexdigest()


def copy(source: Path, target: Path) -> None:
    """Copy a region, with its holes."""
    with source.open("rb") as file, target.open("wb") as new:
        new.truncate(os.fstat(file.fileno()).st_size)
        for at, page in _pages(file):
            new.seek(at)
            new.write(page)
