"""Structures of ext4 that say where they are: superblocks, inodes and directories. Pure.

An inode's checksum includes its number, which says its place in the inode tables. A directory's
first entry is its own number, and its inode says its block. Sources: ``ext4.h``, ``inode.c:
ext4_inode_csum``, ``super.c: ext4_group_desc_csum``.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_CHECKSUMS: Final = 0x400
_SEED: Final = 0x2000
_WIDE: Final = 0x80
_EXTENTS: Final = 0x80000
_MOST_INODES: Final = 400
_MOST_NUMBERS: Final = 2000
_MOST_SIGHTINGS: Final = 200_000
_ALIGNED: Final = 4096
"""md's smallest chunk: a place on a member and its array byte agree modulo this."""


def _table() -> tuple[int, ...]:
    rows = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_CRC: Final = _table()


def crc32c(data: bytes, value: int = 0xFFFFFFFF) -> int:
    """Return CRC-32C as Linux computes it, without the last inversion."""
    for byte in data:
        value = _CRC[(value ^ byte) & 255] ^ value >> 8
    return value


@dataclass(slots=True, kw_only=True)
class System:
    """An ext4 file system with checksums, as its superblocks describe it."""

    block: int
    inodes_per_group: int
    inode_size: int
    seed: int
    descriptor: int
    tables: dict[int, int] = field(default_factory=dict)
    """Byte of the inode table of a group."""

    def address(self, number: int) -> int | None:
        """Return the byte of an inode; ``None``: its group is not known."""
        group, index = divmod(number - 1, self.inodes_per_group)
        table = self.tables.get(group)
        return None if table is None else table + index * self.inode_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Superblock:
    """A primary or backup superblock, ``at`` an offset in the bytes searched."""

    at: int
    place: int
    """Its byte in the file system."""
    group: int
    uuid: bytes
    system: System | None
    """``None``: the file system has no checksums."""


def superblocks(raw: bytes, limit: int) -> Iterator[Superblock]:
    """Yield the superblocks that begin before ``limit``."""
    at = raw.find(b"\x53\xef")
    while at >= 0:
        begin = at - 0x38
        if begin >= 0 and begin % 1024 == 0 and begin < limit:
            found = _superblock(raw, begin)
            if found is not None:
                yield found
        at = raw.find(b"\x53\xef", at + 1)


def _superblock(raw: bytes, at: int) -> Superblock | None:
    head = raw[at : at + 1024]
    if len(head) < 1024:
        return None
    blocks, first, shift = (struct.unpack_from("<I", head, place)[0] for place in (4, 20, 24))
    per, inodes = (struct.unpack_from("<I", head, place)[0] for place in (32, 40))
    revision, group = struct.unpack_from("<I", head, 76)[0], struct.unpack_from("<H", head, 90)[0]
    (size,) = struct.unpack_from("<H", head, 88)
    if shift > 6 or revision > 1 or first > 1 or not per or per > 8 * 1024 << shift or not blocks:
        return None
    if not inodes or (revision and (size & size - 1 or not 128 <= size <= 4096)):
        return None
    block = 1024 << shift
    place = (first + group * per) * block if group else 1024
    system = None
    incompatible, read_only = struct.unpack_from("<II", head, 96)
    if read_only & _CHECKSUMS and size >= 256:
        seed = crc32c(head[104:120])
        if incompatible & _SEED:
            (seed,) = struct.unpack_from("<I", head, 0x270)
        descriptor = struct.unpack_from("<H", head, 254)[0] if incompatible & _WIDE else 32
        system = System(
            block=block,
            inodes_per_group=inodes,
            inode_size=size,
            seed=seed,
            descriptor=descriptor if 32 <= descriptor <= 1024 else 32,
        )
        begin = at + block if group or block == 1024 else at - 1024 + block
        _descriptors(raw[begin : begin + 16384], system)
    return Superblock(at=at, place=place, group=group, uuid=head[104:120], system=system)


def _descriptors(raw: bytes, system: System) -> None:
    """Read group descriptors while their checksums are right."""
    size = system.descriptor
    for group in range(len(raw) // size):
        entry = bytearray(raw[group * size : (group + 1) * size])
        stored = int.from_bytes(entry[30:32], "little")
        entry[30:32] = b"\0\0"
        if crc32c(bytes(entry), crc32c(struct.pack("<I", group), system.seed)) & 0xFFFF != stored:
            return
        (table,) = struct.unpack_from("<I", entry, 8)
        if size >= 64:
            table |= struct.unpack_from("<I", entry, 0x28)[0] << 32
        system.tables[group] = table * system.block


@dataclass(slots=True, kw_only=True)
class Sightings:
    """Inodes and directories of a file system on all members: (member, offset, …)."""

    inodes: list[tuple[str, int, bytes]] = field(default_factory=list)
    directories: list[tuple[str, int, int]] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)


def look(name: str, base: int, raw: bytes, limit: int, system: System, found: Sightings) -> None:
    """Collect the inodes and directory blocks in some bytes of a member."""
    at = raw.find(b"\x0a\xf3")
    while at >= 0:
        begin = at - 0x28
        if begin >= 0 and begin % system.inode_size == 0 and begin < limit:
            inode = raw[begin : begin + system.inode_size]
            kind = int.from_bytes(inode[0:2], "little") >> 12
            flags = int.from_bytes(inode[32:36], "little")
            whole = len(inode) == system.inode_size and len(found.inodes) < 8 * _MOST_INODES
            if kind in (4, 8) and flags & _EXTENTS and whole:
                found.inodes.append((name, base + begin, inode))
        at = raw.find(b"\x0a\xf3", at + 1)
    at = raw.find(b"\x0c\x00\x01\x02.\0\0\0")
    while at >= 0:
        begin = at - 4
        room = len(found.directories) < _MOST_SIGHTINGS and len(found.numbers) < _MOST_SIGHTINGS
        if begin >= 0 and begin % system.block == 0 and begin < limit and room:
            found.directories.append((name, base + begin, int.from_bytes(raw[begin:at], "little")))
            found.numbers.update(_entries(raw[begin : begin + system.block]))
        at = raw.find(b"\x0c\x00\x01\x02.\0\0\0", at + 1)


def _entries(block: bytes) -> Iterator[int]:
    at = 0
    while at + 8 <= len(block):
        number, length = struct.unpack_from("<IH", block, at)
        if length < 8 or length % 4:
            return
        if number:
            yield number
        at += length


def resolve(system: System, found: Sightings) -> Iterator[tuple[str, int, int, str]]:
    """Yield (member, offset, byte in the file system, kind) of inodes and directories."""
    by_place: dict[int, list[int]] = defaultdict(list)
    for number in sorted(found.numbers)[:_MOST_NUMBERS]:
        address = system.address(number)
        if address is not None:
            by_place[address % _ALIGNED].append(number)
    blocks: dict[int, int] = {}
    checked: dict[bytes, int] = {}
    step = max(1, len(found.inodes) // _MOST_INODES)
    for name, at, inode in found.inodes[::step]:
        if inode not in checked:
            generation = inode[0x64:0x68]
            stored = inode[0x7C:0x7E] + inode[0x82:0x84]
            plain = inode[:0x7C] + b"\0\0" + inode[0x7E:0x82] + b"\0\0" + inode[0x84:]
            checked[inode] = next(
                (
                    n
                    for n in by_place[at % _ALIGNED]
                    if _checksum(system, n, generation, plain) == stored
                ),
                0,
            )
        number = checked[inode]
        address = system.address(number)
        if number and address is not None:
            yield name, at, address, "inode"
            depth = int.from_bytes(inode[0x2E:0x30], "little")
            if inode[1] >> 4 == 4 and not depth:  # a directory whose extents are in its inode
                low, high = struct.unpack_from("<I", inode, 0x3C)[0], inode[0x3A] | inode[0x3B] << 8
                blocks[number] = (high << 32 | low) * system.block
    for name, at, number in found.directories:
        if number in blocks:
            yield name, at, blocks[number], "directory"


def _checksum(system: System, number: int, generation: bytes, plain: bytes) -> bytes:
    value = crc32c(struct.pack("<I", number) + generation, system.seed)
    return struct.pack("<I", crc32c(plain, value))
