"""Recognises partition tables, file systems, LUKS, LVM and foreign RAID metadata in bytes. Pure.

Sources: UEFI specification 5.3 (GPT), ``libblkid`` of util-linux (magic numbers), ``ext4.h: struct
ext4_super_block``, ``xfs_format.h: struct xfs_dsb``, ``btrfs_tree.h: struct btrfs_super_block``,
``format_text/layout.h`` of LVM2, ``super-intel.c`` and ``super-ddf.c`` of mdadm.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from lab.capabilities.rescue.logic.superblocks import SECTOR, Read

_PARTITIONS: Final = 128
_STEPS: Final = 4 * _PARTITIONS
"""Most records of a chain of logical partitions that are read."""
_EXTENDED: Final = (0x05, 0x0F, 0x85)
PROTECTIVE: Final = 0xEE


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What begins at an offset. Sizes in bytes."""

    kind: str
    """``ext4``, ``xfs``, ``btrfs``, ``luks``, ``lvm``, ``swap``, ``gpt``, ``mbr``."""
    at: int
    size: int = 0
    """As its header says; 0: it does not say."""
    uuid: str = ""
    block: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition; offsets and sizes in bytes."""

    at: int
    size: int
    kind: str = ""
    """GPT type in lower case, or the MBR type as ``0xfd``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A partition table."""

    kind: str
    """``gpt`` or ``mbr``."""
    partitions: tuple[Partition, ...]
    corrupt: str = ""
    """What is wrong with it: ``primary`` (only the backup is right), ``backup``."""
    sector: int = SECTOR


def content(read: Read, at: int) -> Content | None:
    """Return the file system, LUKS, LVM or swap whose header is right at this offset."""
    head = read(at, 4096)
    if len(head) < 4096:
        return None
    for reader in (_luks, _xfs, _lvm, _ext4, _swap):
        if found := reader(head, at):
            return found
    return _btrfs(read(at + 65536, 4096), at)


def _luks(head: bytes, at: int) -> Content | None:
    if head[:6] != b"LUKS\xba\xbe":
        return None
    return Content(kind="luks", at=at, uuid=_ascii(head[168:208]))


def _xfs(head: bytes, at: int) -> Content | None:
    if head[:4] != b"XFSB":
        return None
    block, blocks = struct.unpack_from(">IQ", head, 4)
    if block & block - 1 or not 512 <= block <= 65536 or blocks > 1 << 52:
        return None
    return Content(kind="xfs", at=at, size=block * blocks, uuid=head[32:48].hex(), block=block)


def _lvm(head: bytes, at: int) -> Content | None:
    for sector in range(4):  # the label is in one of the first four sectors
        label = head[sector * SECTOR : (sector + 1) * SECTOR]
        if label[:8] == b"LABELONE" and label[24:32] == b"LVM2 001":
            (offset,) = struct.unpack_from("<I", label, 20)
            size = 0
            if offset + 40 <= len(label):
                (size,) = struct.unpack_from("<Q", label, offset + 32)
            uuid = _ascii(label[offset : offset + 32]) if offset < SECTOR else ""
            return Content(kind="lvm", at=at, size=size, uuid=uuid)
    return None


def _ext4(head: bytes, at: int) -> Content | None:
    block = head[1024:2048]
    if block[0x38:0x3A] != b"\x53\xef":
        return None
    blocks, shift = struct.unpack_from("<I", block, 4)[0], struct.unpack_from("<I", block, 24)[0]
    group = struct.unpack_from("<H", block, 0x5A)[0]
    if shift > 6 or group or not blocks:
        return None  # a backup superblock: the file system begins elsewhere
    size = 1024 << shift
    if struct.unpack_from("<I", block, 0x60)[0] & 0x80:
        blocks |= struct.unpack_from("<I", block, 0x150)[0] << 32
    return Content(kind="ext4", at=at, size=blocks * size, uuid=block[104:120].hex(), block=size)


def _swap(head: bytes, at: int) -> Content | None:
    return Content(kind="swap", at=at) if head[4086:4096] == b"SWAPSPACE2" else None


def _btrfs(block: bytes, at: int) -> Content | None:
    if block[64:72] != b"_BHRfS_M":
        return None
    (total,) = struct.unpack_from("<Q", block, 112)
    return Content(kind="btrfs", at=at, size=total, uuid=block[32:48].hex(), block=4096)


def _ascii(raw: bytes) -> str:
    text = raw.split(b"\0")[0].decode("ascii", errors="replace")
    return text if text.isprintable() else ""


def table(read: Read, size: int) -> Table | None:
    """Return the partition table of a disk of ``size`` bytes; GPT before MBR."""
    for sector in (512, 4096):
        primary = _gpt(read, sector, sector, size)
        backup = _gpt(read, size - sector, sector, size) if size > 68 * sector else None
        if primary or backup:
            corrupt = "" if primary and backup else "backup" if primary else "primary"
            return Table(
                kind="gpt", partitions=primary or backup or (), corrupt=corrupt, sector=sector
            )
    found = _mbr(read, size)
    return Table(kind="mbr", partitions=found) if found else None


def _gpt(read: Read, at: int, sector: int, size: int) -> tuple[Partition, ...] | None:
    """Return the partitions of a GPT header whose checksum is right."""
    head = read(at, 512)
    if len(head) < 512 or head[:8] != b"EFI PART":
        return None
    length, checksum = struct.unpack_from("<II", head, 12)
    if not 92 <= length <= 512:
        return None
    if zlib.crc32(head[:16] + bytes(4) + head[20:length]) != checksum:
        return None
    begin, count, entry = struct.unpack_from("<QII", head, 72)
    if not 128 <= entry <= 4096 or begin * sector >= size:
        return None
    found = []
    raw = read(begin * sector, min(count, _PARTITIONS) * entry)
    for base in range(0, len(raw) - 127, entry):
        kind = raw[base : base + 16]
        first, last = struct.unpack_from("<QQ", raw, base + 32)
        if any(kind) and first <= last and first * sector < size:
            text = "-".join((kind[3::-1].hex(), kind[5:3:-1].hex(), kind[7:5:-1].hex()))
            text += f"-{kind[8:10].hex()}-{kind[10:].hex()}"
            found.append(Partition(at=first * sector, size=(last - first + 1) * sector, kind=text))
    return tuple(found)


def _mbr(read: Read, size: int) -> tuple[Partition, ...]:
    found: list[Partition] = []
    extended = 0
    for first, sectors, kind in _entries(read(0, SECTOR)):
        if kind in _EXTENDED:
            extended = first
        elif kind != PROTECTIVE and first * SECTOR < size:
            found.append(_partition(first, sectors, kind))
    step, seen = extended, set[int]()
    while step and step not in seen and len(seen) < _STEPS and len(found) < _PARTITIONS:
        seen.add(step)
        following = 0
        for first, sectors, kind in _entries(read(step * SECTOR, SECTOR)):
            if kind in _EXTENDED:
                following = extended + first
            elif (step + first) * SECTOR < size:
                found.append(_partition(step + first, sectors, kind))
        step = following
    return tuple(found)


def _partition(first: int, sectors: int, kind: int) -> Partition:
    return Partition(at=first * SECTOR, size=sectors * SECTOR, kind=f"{kind:#04x}")


def _entries(sector: bytes) -> list[tuple[int, int, int]]:
    """Return first sector, sectors and kind of an MBR's entries; none if it is a boot sector."""
    if len(sector) < SECTOR or sector[510:512] != b"\x55\xaa":
        return []
    found = []
    for place in range(446, 510, 16):
        boot, kind = sector[place], sector[place + 4]
        first, sectors = struct.unpack_from("<II", sector, place + 8)
        if boot not in (0, 0x80):
            return []
        if kind and first and sectors:
            found.append((first, sectors, kind))
    return found


def foreign_raid(read: Read, size: int) -> str:
    """Return ``imsm`` or ``ddf`` if a firmware's RAID metadata is there; else an empty text.

    IMSM's anchor is in the last sector but one, DDF's in the last or 64 KiB-aligned before it.
    """
    if size >= 2 * SECTOR and read(size - 2 * SECTOR, 24) == b"Intel Raid ISM Cfg Sig. ":
        return "imsm"
    for place in (size - SECTOR, size - 257 * SECTOR):
        if place > 0 and read(place, 4) == b"\xde\x11\xde\x11":
            return "ddf"
    return ""
