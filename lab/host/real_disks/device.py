"""Facts of a block device from the kernel: by an open descriptor, and by its number in ``/sys``.

While a descriptor is open, its number means this device and no other: the kernel reuses a number
only after the last close (``block/genhd.c: disk_release``).
"""

from __future__ import annotations

import array
import fcntl
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

Number = tuple[int, int]
"""A block device's major and minor."""

_SYS: Final = Path("/sys/dev/block")
_BLKROGET: Final = 0x125E
"""ioctl of ``linux/fs.h``: whether the device is read-only."""
_BLKGETSIZE64: Final = 0x80081272
"""ioctl of ``linux/fs.h``: its size in bytes."""
_SECTOR: Final = 512
"""Unit of ``/sys/…/size`` in bytes, for every device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A disk or a partition."""

    number: Number
    name: str
    """The kernel's name, such as ``sdb1``; it may change at a boot."""
    whole: Number
    """The number of the disk itself, or of the partition's disk."""
    size: int
    """Bytes."""
    serial: str
    """The disk's serial; for a loop device the path of its file; empty: unknown."""
    wwn: str
    model: str
    rotational: bool
    read_only: bool

    @property
    def partition(self) -> bool:
        """Whether it is a partition."""
        return self.number != self.whole


def number_of(descriptor: int) -> Number | None:
    """Return the number of an open block device; ``None``: it is another kind of file."""
    found = os.fstat(descriptor)
    if not stat.S_ISBLK(found.st_mode):
        return None
    return os.major(found.st_rdev), os.minor(found.st_rdev)


def number_at(path: str | Path) -> Number | None:
    """Return the number of the block device at a path; ``None``: there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    if not stat.S_ISBLK(found.st_mode):
        return None
    return os.major(found.st_rdev), os.minor(found.st_rdev)


def directory(number: Number) -> Path:
    """Return the device's directory in ``/sys``; ``OSError``: the device is gone."""
    return (_SYS / f"{number[0]}:{number[1]}").resolve(strict=True)


def name_of(number: Number) -> str:
    """Return the kernel's name of a device; its number if it is gone."""
    try:
        return directory(number).name
    except OSError:
        return f"{number[0]}:{number[1]}"


def whole_of(number: Number) -> Number:
    """Return the number of a partition's disk; for any other device its own."""
    try:
        here = directory(number)
        return _number_in(here.parent) if (here / "partition").exists() else number
    except OSError:
        return number


def partitions(number: Number) -> Iterator[Number]:
    """Yield the partitions that the kernel knows on a disk."""
    try:
        below = sorted(directory(number).iterdir())
    except OSError:
        return
    for entry in below:
        if (entry / "partition").exists():
            yield _number_in(entry)


def family(number: Number) -> tuple[Number, ...]:
    """Return a disk and its partitions, or a partition and its disk."""
    whole = whole_of(number)
    if whole != number:
        return number, whole
    return number, *partitions(number)


def related(number: Number, kind: str) -> tuple[Number, ...]:
    """Return devices directly above (``holders``) or below (``slaves``) it: md, dm, bcache."""
    try:
        return tuple(_number_in(entry.resolve()) for entry in (directory(number) / kind).iterdir())
    except OSError:
        return ()


def backing_file(number: Number) -> str:
    """Return the path of a loop device's file; empty: none."""
    return _text(number, "loop/backing_file")


def assembled(number: Number) -> str:
    """Return the driver that builds the device from others (md, device-mapper); empty: it is a disk
    or a loop device."""
    try:
        here = directory(whole_of(number))
    except OSError:
        return ""
    for kind, words in (("dm", "device-mapper"), ("md", "md")):
        if (here / kind).is_dir():
            return words
    return "other devices" if any(related(number, "slaves")) else ""


def read(descriptor: int) -> Device:
    """Return the facts of an open block device; ``OSError``: it is not one, or it is gone."""
    number = number_of(descriptor)
    if number is None:
        raise OSError("it is not a block device")
    directory(number)
    return describe(number, size=_ask(descriptor, _BLKGETSIZE64, 8), read_only=_ask(descriptor))


def listed(number: Number) -> Device:
    """Return the facts from ``/sys`` alone, for a device that this user may not open."""
    directory(number)
    sectors, read_only = int(_text(number, "size") or 0), int(_text(number, "ro") or 0)
    return describe(number, size=sectors * _SECTOR, read_only=read_only)


def describe(number: Number, *, size: int, read_only: int) -> Device:
    """Return a device, with the facts of its disk in ``/sys``."""
    whole = whole_of(number)
    return Device(
        number=number,
        name=name_of(number),
        whole=whole,
        size=size,
        serial=serial_of(whole),
        wwn=_text(whole, "device/wwid") or _text(whole, "wwid"),
        model=_text(whole, "device/model") or _text(whole, "device/name"),
        rotational=_text(whole, "queue/rotational") == "1",
        read_only=bool(read_only),
    )


def serial_of(whole: Number) -> str:
    """Return a disk's serial, from the place that its driver uses.

    virtio and zram: ``serial``; NVMe, MMC: ``device/serial``; SCSI, ATA and USB: page 0x80 of the
    vital product data (SPC-4, 7.8.13), after its 4-byte header.
    """
    for name in ("serial", "device/serial"):
        if found := _text(whole, name):
            return found
    try:
        page = (directory(whole) / "device" / "vpd_pg80").read_bytes()[4:]
    except OSError:
        page = b""
    text = page.decode("ascii", errors="replace").strip("\0 ")
    return text or backing_file(whole)


def _ask(descriptor: int, request: int = _BLKROGET, width: int = 4) -> int:
    """Return the number that an ioctl returns."""
    answer = array.array("B", bytes(width))
    fcntl.ioctl(descriptor, request, answer, True)
    return int.from_bytes(answer.tobytes(), "little")


def _number_in(entry: Path) -> Number:
    major, _, minor = (entry / "dev").read_text(encoding="ascii").strip().partition(":")
    return int(major), int(minor)


def _text(number: Number, name: str) -> str:
    try:
        path = directory(number) / name
        return path.read_bytes().decode("utf-8", errors="replace").strip("\0 \n")
    except OSError:
        return ""
