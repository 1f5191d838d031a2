"""Reads an imported disk before it is accepted: can a guest with it boot and be reached?

Its partitions are read here. Its file systems are a stranger's: debugfs reads ext2 to ext4 in a
sandbox. Other file systems (XFS, btrfs, LVM, LUKS) cannot be read without mounting them, and the
result says so.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.core import qemu_img
from lab.core.errors import InputError, ToolError
from lab.host.images import sandbox
from lab.host.images import workspace as image_workspace
from lab.host.images.sandbox import Box
from lab.host.system import process

_SECTOR: Final = 512
_PARTITIONS: Final = 128
"""Most partitions that are read; GPT's usual table has 128."""
_STEPS: Final = 4 * _PARTITIONS
"""Most records of a chain of logical partitions that are read."""
_READING: Final = 300.0
"""Timeout in seconds of reading a file system."""
NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "cloud-init": ("/usr/bin/cloud-init",),
    "SSH server": ("/usr/sbin/sshd",),
    "mdadm": ("/usr/sbin/mdadm", "/sbin/mdadm", "/usr/bin/mdadm"),
}
"""What a guest needs, and where it is; one path of each is enough."""
_RELEASE: Final = ("/etc/os-release", "/usr/lib/os-release")
"""A root file system has one of them, ``os-release(5)``."""
_KERNELS: Final = ("/boot", "/")
"""Directories of a file system that has kernels; a partition of its own has them at its top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """A file system on a disk."""

    offset: int
    """Bytes from the beginning of the disk."""
    kind: str
    """``ext4`` stands for ext2 to ext4."""


def check(disk: Path, kind: str, work: Path, source: str) -> str:
    """Return what could not be read, as a sentence; empty: everything is there.

    ``kind``: ``raw`` or ``qcow2``. ``work``: a directory for a while. ``InputError``: no guest can
    boot from it, or none could be reached; the message names what is missing. ``HostError``: the
    disk is larger than what is free here.
    """
    raw = disk
    if kind != "raw":
        check_size(disk, kind, source)
        raw = work / "inspected.raw"
        process.run(qemu_img.convert(disk, kind, raw, qemu_img.RAW), timeout=1800)
    try:
        found = file_systems(raw)
        if not found:
            raise InputError(
                f"'{source}' cannot be a guest: it has no file system in any partition",
                hint="give the image of a whole disk",
            )
        readable = [one for one in found if one.kind == "ext4"]
        there = [_paths(raw, one, work) for one in readable]
    finally:
        if raw != disk:
            raw.unlink(missing_ok=True)
    roots = [paths for paths in there if paths.intersection(_RELEASE)]
    others = sorted({one.kind for one in found if one.kind not in ("ext4", "FAT")})
    if not roots:
        if others:
            return (
                f"its root file system is on {' or '.join(others)}, which is not read here: it is"
                f" not known whether it has a kernel, {', '.join(NEEDED)}"
            )
        raise InputError(
            f"'{source}' cannot be a guest: none of its {len(found)} file systems is a root file"
            " system: there is no /etc/os-release",
            hint="give the image of a whole disk with an installed Linux",
        )
    missing = [
        what for what, at in NEEDED.items() if not any(paths.intersection(at) for paths in roots)
    ]
    kernel = any(KERNEL in paths for paths in there)
    if not kernel and not others:
        missing.insert(0, "kernel in /boot")
    if missing:
        raise InputError(
            f"'{source}' cannot be a guest: it has no {', no '.join(missing)}",
            hint="install it in the image, or take one that has it: Debian's genericcloud has"
            " cloud-init and SSH, and needs mdadm",
        )
    return "" if kernel else f"its kernel is on {' or '.join(others)}, which is not read here"


def check_size(disk: Path, kind: str, name: str) -> None:
    """``HostError`` if a guest could see more bytes on the disk than are free on the host.

    A qcow2 file of some kilobytes can unpack to any size.
    """
    text = process.run(qemu_img.info(disk, kind), timeout=60).stdout
    image_workspace.check_space(name, int(json.loads(text)["virtual-size"]))


KERNEL: Final = "a kernel"
"""Stands for ``vmlinuz…`` among the paths of a file system."""


def _paths(raw: Path, system: FileSystem, work: Path) -> set[str]:
    """Return which paths of interest a file system has; links are followed in it."""
    wanted = [*_RELEASE, *(path for at in NEEDED.values() for path in at)]
    commands = [f"stat {path}" for path in wanted] + [f"ls -p {one}" for one in _KERNELS]
    place = work / f"read-{system.offset}"
    place.mkdir()
    script, log = place / "commands", place / "log"
    script.write_text("".join(f"{line}\n" for line in commands), encoding="ascii")
    box = Box(read={"/disk": raw, "/commands": script})
    try:
        words = ("debugfs", "-f", "/commands", f"/disk?offset={system.offset}")
        sandbox.run(box, words, work=place, log=log, seconds=_READING)
    except ToolError:
        return set()  # it is corrupt: nothing is found in it
    found, path = set[str](), ""
    for line in process.tail(log).splitlines():
        if line.startswith("debugfs: "):
            path = line.rpartition(" ")[2]
        elif line.startswith("Inode: ") and path in wanted:
            found.add(path)
        elif path in _KERNELS and line.count("/") >= 6 and line.split("/")[5].startswith("vmlinuz"):
            found.add(KERNEL)
    return found


# -- partitions, without a program

Read = Callable[[int, int], bytes]
"""Returns so many bytes from this offset."""


def file_systems(raw: Path) -> list[FileSystem]:
    """Return the known file systems on a raw disk."""
    size = raw.stat().st_size
    with raw.open("rb") as file:

        def at(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        starts = [0]
        for start in _gpt(at) or _mbr(at):
            if 0 < start < size and start not in starts:
                starts.append(start)
        kinds = [(start, _kind(at, start)) for start in starts]
    return [FileSystem(offset=start, kind=kind) for start, kind in kinds if kind]


def _gpt(at: Read) -> list[int]:
    """Return where the partitions of a GUID table begin; UEFI specification 5.3."""
    head = at(_SECTOR, 92)
    if head[:8] != b"EFI PART":
        return []
    table, count, size = struct.unpack_from("<QII", head, 72)
    if not 128 <= size <= 4096 or table > 1 << 40:
        return []
    found = []
    for number in range(min(count, _PARTITIONS)):
        entry = at(table * _SECTOR + number * size, 48)
        if len(entry) == 48 and any(entry[:16]):
            found.append(int.from_bytes(entry[32:40], "little") * _SECTOR)
    return found


def _mbr(at: Read) -> list[int]:
    """Return where the partitions of an MBR begin, also the logical ones."""
    found, extended = list[int](), 0
    for begin, kind in _entries(at(0, _SECTOR)):
        if kind in (0x05, 0x0F, 0x85):
            extended = begin
        else:
            found.append(begin * _SECTOR)
    step, seen = extended, set[int]()
    while step and step not in seen and len(seen) < _STEPS and len(found) < _PARTITIONS:
        seen.add(step)
        following = 0
        for begin, kind in _entries(at(step * _SECTOR, _SECTOR)):
            if kind in (0x05, 0x0F, 0x85):
                following = extended + begin
            else:
                found.append((step + begin) * _SECTOR)
        step = following
    return found


def _entries(sector: bytes) -> list[tuple[int, int]]:
    """Return first sector and kind of the used entries of a partition table."""
    if sector[510:512] != b"\x55\xaa":
        return []
    places = range(446, 510, 16)
    found = [(int.from_bytes(sector[p + 8 : p + 12], "little"), sector[p + 4]) for p in places]
    return [(begin, kind) for begin, kind in found if begin and kind]


_MAGIC: Final = (
    ("ext4", 1024 + 0x38, b"\x53\xef"),
    ("XFS", 0, b"XFSB"),
    ("btrfs", 64 * 1024 + 0x40, b"_BHRfS_M"),
    ("LVM", _SECTOR, b"LABELONE"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("F2FS", 1024, b"\x10\x20\xf5\xf2"),
    ("squashfs", 0, b"hsqs"),
    ("FAT", 54, b"FAT"),
    ("FAT", 82, b"FAT32"),
)
"""Magic numbers of file systems, from `libblkid` of util-linux."""


def _kind(at: Read, start: int) -> str:
    return next(
        (kind for kind, place, magic in _MAGIC if at(start + place, len(magic)) == magic), ""
    )
