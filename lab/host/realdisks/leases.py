"""Leases of real disks: locked files in a place that all users of a host share.

A disk's lease is exclusive; a partition's is exclusive on itself and shared on its disk, so that
two partitions of one disk may be leased apart, and not the disk beside them. A lock belongs to an
open file: it ends when the last process that was given the file is gone, however it went. The
files stay where they are, for a file that is removed could be locked twice.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from lab.host.realdisks.device import Device, Number
from lab.host.realdisks.users import Objection, Rule, holders_of_file


def take(place: Path, device: Device) -> list[int] | Objection:
    """Open files that hold the lease; or who has it. ``OSError``: the place cannot be used."""
    wanted = [(device.whole, fcntl.LOCK_SH)] if device.partition else []
    wanted.append((device.number, fcntl.LOCK_EX))
    files: list[int] = []
    try:
        _prepare(place)
        for number, kind in wanted:
            files.append(_open(place, number))
            fcntl.flock(files[-1], kind | fcntl.LOCK_NB)
    except BlockingIOError:
        who = holders_of_file(files[-1]) or "a process that cannot be seen"
        release(files)
        path = _path(place, number)
        return Objection(rule=Rule.LEASED, evidence=f"{path} is locked by {who}")
    except BaseException:
        release(files)
        raise
    return files


def release(files: list[int]) -> None:
    """Let go of a lease; one that was handed to another process goes on there."""
    while files:
        os.close(files.pop())


def _path(place: Path, number: Number) -> Path:
    return place / f"{number[0]}-{number[1]}"


def _prepare(place: Path) -> None:
    """The directory, in which each user may make files and remove only his own."""
    try:
        place.mkdir(mode=0o700)
        place.chmod(0o1777)
    except FileExistsError:
        if not stat.S_ISDIR(place.lstat().st_mode):
            raise NotADirectoryError(f"{place} is no directory") from None


def _open(place: Path, number: Number) -> int:
    """The lock's file, whoever made it first.

    It is opened for writing only: in a set of descriptors QEMU never takes it for the disk.
    ``O_CREAT`` on another user's file is refused in such a directory (``fs.protected_regular``).
    """
    path = _path(place, number)
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        try:
            file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        os.fchmod(file, 0o666)
        return file
