"""Leases of real disks: locked files in a directory that all users of a host share.

A disk's lease is an exclusive lock. A partition's is exclusive on itself and shared on its disk, so
two partitions of one disk can be leased separately, but not together with the disk. A lock belongs
to an open file: it ends when the last process with that file has ended. The files are never
removed: two processes could then lock different files of the same name.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from lab.host.real_disks.device import Device, Number
from lab.host.real_disks.users import Objection, Rule, holders_of_file


def take(place: Path, device: Device) -> list[int] | Objection:
    """Return open files that hold the lease, or an objection that names the holder.

    ``OSError``: the directory cannot be used.
    """
    wanted = [(device.whole, fcntl.LOCK_SH)] if device.partition else []
    wanted.append((device.number, fcntl.LOCK_EX))
    files: list[int] = []
    directory = -1
    try:
        directory = _prepare(place)
        for number, kind in wanted:
            files.append(_open(place, directory, number))
            fcntl.flock(files[-1], kind | fcntl.LOCK_NB)
            if os.fstat(files[-1]).st_nlink != 1:
                raise PermissionError(f"{_path(place, number)} was removed just now: try again")
    except BlockingIOError:
        who = holders_of_file(files[-1]) or "a process of another user"
        release(files)
        path = _path(place, number)
        return Objection(rule=Rule.LEASED, evidence=f"{path} is locked by {who}")
    except BaseException:
        release(files)
        raise
    finally:
        if directory >= 0:
            os.close(directory)
    return files


def release(files: list[int]) -> None:
    """Release a lease; other processes that have its files keep it."""
    while files:
        os.close(files.pop())


def _path(place: Path, number: Number) -> Path:
    return place / f"{number[0]}-{number[1]}"


def _prepare(place: Path) -> int:
    """Return the open directory. Each user can create files in it and remove only their own.

    ``PermissionError``: it belongs to another user, or others may remove its files.
    """
    try:
        place.mkdir(mode=0o700)
        place.chmod(0o1777)
    except FileExistsError:
        pass
    try:
        directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise NotADirectoryError(f"{place} is not a directory: remove it") from None
    try:
        there = os.fstat(directory)
        if there.st_uid not in (0, os.geteuid()):
            raise PermissionError(
                f"{place} belongs to user {there.st_uid}, who may remove its locks; as root: rm -r "
                f"{place}; install -d -m 1777 {place}"
            )
        mode = stat.S_IMODE(there.st_mode)
        if mode & 0o022 and not mode & stat.S_ISVTX:
            raise PermissionError(
                f"others may remove the locks in {place} (mode {mode:o}): chmod 1777 {place}"
            )
    except BaseException:
        os.close(directory)
        raise
    return directory


def _open(place: Path, directory: int, number: Number) -> int:
    """Return the lock file, of any owner; ``PermissionError``: it is not a regular file.

    It is opened for writing only, so that QEMU never takes it for the disk in a descriptor set.
    ``O_CREAT`` on another user's file is refused in such a directory (``fs.protected_regular``).
    ``O_NONBLOCK``: opening a FIFO must not wait.
    """
    path = _path(place, number)
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    while True:
        try:
            kind = stat.S_IFMT(os.stat(path.name, dir_fd=directory, follow_symlinks=False).st_mode)
            if kind != stat.S_IFREG:  # opening a device may have effects
                raise PermissionError(f"{path} is {_KINDS.get(kind, 'not a file')}: remove it")
            file = os.open(path.name, flags, dir_fd=directory)
        except FileNotFoundError:
            pass
        else:
            return _checked(path, file)
        try:
            made = os.open(path.name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
        except FileExistsError:
            continue
        os.fchmod(made, 0o666)
        return made


_KINDS = {stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a directory"}


def _checked(path: Path, file: int) -> int:
    """Return the open file, if it is a lock file and not another file under a second name."""
    there = os.fstat(file)
    wrong = ""
    if not stat.S_ISREG(there.st_mode):
        wrong = "is not a regular file"
    elif there.st_nlink != 1:
        wrong = f"has {there.st_nlink} names, a lock has one"
    elif there.st_size:
        wrong = f"holds {there.st_size} bytes, a lock is empty"
    if wrong:
        os.close(file)
        raise PermissionError(f"{path} {wrong}: remove it")
    return file
