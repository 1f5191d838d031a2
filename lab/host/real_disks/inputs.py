"""Opens disks and images for reading only, and tells whether others changed them meanwhile.

The descriptors are ``O_RDONLY``: no process that inherits them can write through them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lab.core import qemu_img
from lab.core.errors import InputError
from lab.core.units import GIB, MIB
from lab.host.real_disks import leases
from lab.host.real_disks.device import Device, read
from lab.host.real_disks.users import Objection, held, mounted, opened, swap
from lab.host.system import process

_EDGE: Final = 4 * MIB
"""Bytes at each end of a disk whose digest is kept: partition tables, superblocks, bitmaps."""
_MAGIC: Final = b"QFI\xfb"


@dataclass(slots=True, kw_only=True)
class Input:
    """An open disk or image."""

    path: Path
    descriptor: int
    """Open for reading; of qcow2: a raw copy without its holes."""
    size: int
    """Bytes of the disk that it holds."""
    device: Device | None = None
    """``None``: it is a file."""
    _before: tuple[object, ...] = ()
    _leases: list[int] = field(default_factory=list)
    packed: int = -1
    """Of qcow2: the file itself."""

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there, fewer at the end; none where the disk cannot be read."""
        if offset < 0 or length <= 0 or offset >= self.size:
            return b""
        parts, end = [], min(offset + length, self.size)
        while offset < end:
            try:
                part = os.pread(self.descriptor, min(end - offset, 16 * MIB), offset)
            except OSError:
                break
            if not part:
                if self.packed >= 0:
                    parts.append(bytes(end - offset))
                break
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def changed(self) -> str:
        """Return how it differs from when it was opened, as a sentence; empty: it does not."""
        problems = _objections(self.device, self.descriptor) if self.device else ()
        if problems:
            return f"'{self.path}' is in use now: {problems[0].evidence}"
        if _state(self) != self._before:
            return f"'{self.path}' was changed by another process while the lab read it"
        return ""

    def close(self) -> None:
        leases.release(self._leases)
        for number in (self.descriptor, self.packed):
            if number >= 0:
                with contextlib.suppress(OSError):
                    os.close(number)
        self.descriptor = self.packed = -1


def open_input(path: Path, work: Path, lease: Path) -> Input:
    """Open a disk or an image for reading.

    ``work``: a directory for a readable copy of a qcow2 file. ``lease``: the directory of leases.
    ``InputError``: it cannot be opened, is in use, or has a header that names other files.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"'{path}' cannot be opened for reading: {error.strerror}") from error
    found = Input(path=path, descriptor=descriptor, size=0)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISBLK(mode):
            _claim(found, lease)
        elif stat.S_ISREG(mode):
            found.size = os.fstat(descriptor).st_size
            if writer := _writer(descriptor):
                raise InputError(
                    f"'{path}' is open for writing in {writer}: it may change at any time",
                    hint="end that program, or copy the file, and try again",
                )
            if os.pread(descriptor, 4, 0) == _MAGIC:
                _unpack(found, work)
        else:
            raise InputError(
                f"'{path}' is neither a disk nor an image: give a block device or a file"
            )
        if not found.size:
            raise InputError(f"'{path}' is empty")
        found._before = _state(found)
    except BaseException:
        found.close()
        raise
    return found


def _claim(found: Input, lease: Path) -> None:
    device = read(found.descriptor)
    if problems := _objections(device, found.descriptor):
        said = "; ".join(f"{problem.rule.value}: {problem.evidence}" for problem in problems)
        raise InputError(
            f"the disk '{found.path}' is in use: {said}",
            hint="stop what uses it (an array that was assembled in part: mdadm --stop /dev/mdN)",
        )
    taken = leases.take(lease, device)
    if isinstance(taken, Objection):
        raise InputError(f"the disk '{found.path}' is in use: {taken.evidence}")
    found.device, found.size, found._leases = device, device.size, taken


def _objections(device: Device | None, descriptor: int) -> tuple[Objection, ...]:
    """Return who uses the disk. A read-only disk and old signatures are what a rescue is for."""
    if device is None:
        return ()
    number = device.number
    return (*mounted(number), *swap(number), *held(number), *opened(number, (), (descriptor,)))


def _unpack(found: Input, work: Path) -> None:
    """Make the raw copy of a qcow2 file, which is read from then on, also by guests.

    QEMU gets the open file, and opens no other one: its name may be one of QEMU's protocols, or
    lead elsewhere by then.
    """
    _check_alone(found)
    before, opened = os.fstat(found.descriptor), f"/proc/self/fd/{found.descriptor}"
    shared = (found.descriptor,)
    facts = json.loads(
        process.run(qemu_img.info(opened, qemu_img.QCOW2), timeout=60, descriptors=shared).stdout
    )
    copy = work / f"{found.path.name}.{found.descriptor}.raw"
    words = qemu_img.convert(opened, qemu_img.QCOW2, copy, qemu_img.RAW)

    def watch(_process: int) -> str:
        # Its clusters may share their data, so a file of 1 MB can have any number of bytes.
        few = shutil.disk_usage(work).free < GIB
        return f"unpacking '{found.path}' left less than 1 GiB of disk space" if few else ""

    try:
        process.run(words, timeout=3600, watch=watch, descriptors=shared)
        _check_alone(found)
        after = os.fstat(found.descriptor)
        # No program can set the time of the last change to the inode, ``inode(7)``.
        if (before.st_size, before.st_ctime_ns) != (after.st_size, after.st_ctime_ns):
            raise InputError(
                f"'{found.path}' was changed by another process while the lab read it",
                hint="end that program, or copy the file, and try again",
            )
        found.packed, found.size = found.descriptor, int(facts["virtual-size"])
        found.descriptor = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        copy.unlink(missing_ok=True)


_DATA_FILE: Final = 4
"""The bit of qcow2's incompatible features for an external data file."""


def _check_alone(found: Input) -> None:
    """``InputError``: the header of a qcow2 file names other files (QEMU's docs/interop/qcow2.txt).

    QEMU itself opens them for some questions about the file.
    """
    head = os.pread(found.descriptor, 104, 0).ljust(104, b"\0")
    _magic, version, backing = struct.unpack_from(">4sIQ", head)
    (features,) = struct.unpack_from(">Q", head, 72)
    if backing or (version > 2 and features & _DATA_FILE):
        raise InputError(
            f"'{found.path}' is a qcow2 file over another file",
            hint=f"make one file of both: qemu-img convert -O raw '{found.path}' disk.raw",
        )


def _state(found: Input) -> tuple[object, ...]:
    """Return what shows a change: times of a file, the kernel's count of writes, digests."""
    facts = os.fstat(found.descriptor if found.packed < 0 else found.packed)
    marks: list[object] = [found.size]
    if found.device is None:
        marks += [facts.st_size, facts.st_mtime_ns, facts.st_ino]
    else:
        marks.append(_written(found.device))
    for begin in (0, max(0, found.size - _EDGE)):
        marks.append(hashlib.sha256(found.read(begin, _EDGE)).hexdigest())
    return tuple(marks)


def _written(device: Device) -> str:
    """Return the sectors that were written to a device since the boot: ``stat`` of sysfs."""
    major, minor = device.number
    try:
        words = Path(f"/sys/dev/block/{major}:{minor}/stat").read_text(encoding="ascii").split()
    except OSError:
        return ""
    return words[6] if len(words) > 6 else ""


def _writer(descriptor: int) -> str:
    """Return a process that has the file open for writing; empty: none that is seen."""
    mine = os.fstat(descriptor)
    for process_ in Path("/proc").glob("[0-9]*"):
        for number, facts in _open_files(process_):
            if (facts.st_dev, facts.st_ino) != (mine.st_dev, mine.st_ino):
                continue
            with contextlib.suppress(OSError, ValueError):
                text = (process_ / "fdinfo" / number).read_text(encoding="ascii")
                flags = int(text.partition("flags:")[2].split()[0], 8)
                if flags & os.O_ACCMODE != os.O_RDONLY:
                    name = (process_ / "comm").read_text(errors="replace").strip()
                    return f"process {process_.name} ({name})"
    return ""


def _open_files(process_: Path) -> Iterator[tuple[str, os.stat_result]]:
    try:
        entries = list((process_ / "fd").iterdir())
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            yield entry.name, entry.stat()
