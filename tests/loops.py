"""Loop devices as real block devices for tests; root has them on every host."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.core.units import MIB
from lab.host.real_disks import guard
from lab.host.real_disks.guard import Ground, Held, Named, Refusal

SIZE = 16 * MIB
_LIBC = ctypes.CDLL(None, use_errno=True)


def run(argv: Sequence[str]) -> tuple[int, str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def told(*argv: str | Path) -> str:
    """Return a program's output; it must succeed."""
    done = subprocess.run(
        [str(a) for a in argv], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, (argv, done.stderr)
    return done.stdout.strip()


def mount(source: str, point: Path, kind: str = "ext4") -> int:
    """Call ``mount(2)``; return 0 or an ``errno``."""
    words = (source.encode(), str(point).encode(), kind.encode())
    return 0 if _LIBC.mount(*words, 0, None) == 0 else ctypes.get_errno()


def unmount(point: Path) -> None:
    assert _LIBC.umount2(str(point).encode(), 0) == 0


def swap_on(device: str) -> int:
    """Call ``swapon(2)``; return 0 or an ``errno``."""
    return 0 if _LIBC.swapon(device.encode(), 0) == 0 else ctypes.get_errno()


def swap_off(device: str) -> None:
    assert _LIBC.swapoff(device.encode()) == 0


@dataclass
class Loop:
    """A loop device and its stable name."""

    device: str
    file: Path
    name: Path

    @property
    def named(self) -> Named:
        """Return the facts with which a scenario names it now."""
        return Named(path=str(self.name), size=SIZE, serial=str(self.file))


@dataclass
class Bay:
    """Attaches and detaches loop devices; has the guard's configuration."""

    path: Path
    _devices: list[str] = field(default_factory=list)

    @property
    def ground(self) -> Ground:
        return Ground(
            names=self.path / "by-id",
            leases=self.path / "leases",
            system=(),
            own=(),
            run=run,
        )

    def attach(self, file: Path, *options: str) -> str:
        """Attach a file; return the loop device."""
        device = told("losetup", "--find", "--show", "--partscan", *options, file)
        self._devices.append(device)
        return device

    def detach(self, device: str) -> None:
        """Detach a device; it may be detached already."""
        self._devices.remove(device)
        subprocess.run(["losetup", "--detach", device], check=False, capture_output=True)

    def loop(self, name: str, *options: str, size: int = SIZE) -> Loop:
        """Return a blank disk with a stable name."""
        file = self.path / f"{name}.raw"
        with file.open("wb") as handle:
            handle.truncate(size)
        device = self.attach(file, *options)
        link = self.path / "by-id" / name
        link.symlink_to(device)
        return Loop(device=device, file=file, name=link)

    def partitioned(self, name: str, label: str = "gpt") -> tuple[Loop, Loop, Loop]:
        """Return a disk and its two partitions, each with a stable name."""
        disk = self.loop(name)
        TABLES[label](disk.device, ((MIB, 4 * MIB), (8 * MIB, 4 * MIB)))
        told("partx", "--add", disk.device)
        parts = []
        for number in (1, 2):
            device = f"{disk.device}p{number}"
            _node(device)
            link = self.path / "by-id" / f"{name}-part{number}"
            link.symlink_to(device)
            parts.append(Loop(device=device, file=disk.file, name=link))
        return disk, parts[0], parts[1]

    def take(self, disk: Loop, *erase: str, ground: Ground | None = None) -> Held | Refusal:
        return guard.take(ground or self.ground, disk.named, erase)

    def close(self) -> None:
        for device in self._devices:
            subprocess.run(["losetup", "--detach", device], check=False, capture_output=True)


Places = Sequence[tuple[int, int]]
"""Offset and length of partitions in bytes."""


def write(device: str, offset: int, text: bytes) -> None:
    """Write bytes to a device without claiming it."""
    with Path(device).open("r+b") as file:
        file.seek(offset)
        file.write(text)


def dos(device: str, places: Places = (), kind: int = 0x83) -> None:
    """Write a DOS partition table."""
    sector = bytearray(512)
    for number, (start, length) in enumerate(places):
        entry = struct.pack("<B3xB3xII", 0, kind, start // 512, length // 512)
        sector[446 + 16 * number : 462 + 16 * number] = entry
    sector[510:] = b"\x55\xaa"
    write(device, 0, bytes(sector))


def gpt(device: str, places: Places = ()) -> None:
    """Write a GUID partition table and its copy (UEFI specification, 5.3)."""
    last = SIZE // 512 - 1
    dos(device, ((512, last * 512),), kind=0xEE)
    entries = b"".join(
        struct.pack(
            "<16s16sQQQ72s",
            uuid.UUID("0fc63daf-8483-4772-8e79-3d69d8477de4").bytes_le,
            uuid.uuid4().bytes_le,
            start // 512,
            (start + length) // 512 - 1,
            0,
            b"",
        )
        for start, length in places
    ).ljust(128 * 128, b"\0")
    disk = uuid.uuid4().bytes_le
    for mine, other, table in ((1, last, 2), (last, 1, last - 32)):

        def head(crc: int, at: tuple[int, int, int] = (mine, other, table)) -> bytes:
            return struct.pack(
                "<8sIIIIQQQQ16sQIII",
                *(b"EFI PART", 0x10000, 92, crc, 0, at[0], at[1], 34, last - 33, disk, at[2]),
                *(128, 128, zlib.crc32(entries)),
            )

        write(device, 512 * mine, head(zlib.crc32(head(0))).ljust(512, b"\0"))
        write(device, 512 * table, entries)


TABLES = {"dos": dos, "gpt": gpt}


def _node(device: str) -> None:
    """Make the node of a partition if neither udev nor devtmpfs made it."""
    number = (Path("/sys/class/block") / Path(device).name / "dev").read_text().strip()
    if not Path(device).exists():
        major, _, minor = number.partition(":")
        os.mknod(device, 0o600 | 0o060000, os.makedev(int(major), int(minor)))


def bay(path: Path) -> Iterator[Bay]:
    """Yield a bay; skip the test if loop devices are not available."""
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("loop devices need root and /dev/loop-control")
    (path / "by-id").mkdir(parents=True)
    made = Bay(path)
    try:
        yield made
    finally:
        made.close()
