"""Working directories and locks for building images. Partial images are never visible."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from lab.core.errors import HostError
from lab.host.system import leftovers, locks, paths, unfinished

WORK: Final = ".work-"
LOCK: Final = ".lock-"
TREE: Final = ".tree-"
"""Directories with compiler and headers that are kept for `lab patch`."""
MAKING: Final = 3600.0
"""Timeout in seconds while another process makes the same image."""


def home() -> Path:
    """Return the images directory; create it if missing."""
    return made(paths.images())


def made(directory: Path) -> Path:
    """Return a directory of the lab; create it if missing."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(
            f"the directory '{directory}' cannot be created: {error.strerror}",
            hint="set LAB_HOME to a writable directory",
        ) from error
    return directory


@contextmanager
def exclusive(task: str, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Let one process at a time do this task; ``waiting`` is called if another one does it.

    ``LockedError`` after :data:`MAKING`.
    """
    lock = home() / f"{LOCK}{task}"
    with _ended_by_signals():
        descriptor = _locked(lock, waiting)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
            os.close(descriptor)


def _locked(lock: Path, waiting: Callable[[], None]) -> int:
    """Return an open descriptor that holds the lock. Closing it releases the lock."""
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise HostError(f"'{lock}' cannot be written: {error.strerror}") from error
        try:
            what = f"another process to do the same ({lock.name.removeprefix(LOCK)})"
            locks.take(descriptor, lock, seconds=MAKING, what=what, waiting=waiting)
            if locks.is_still(lock, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the previous holder has removed the file


def environment() -> dict[str, str]:
    """Return the environment of build tools. mke2fs and debugfs are in ``/usr/sbin``, which may not
    be on PATH."""
    return {"PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}


@contextmanager
def workspace(name: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a directory to make an image in, on the same file system; remove it at the end.

    ``parent``: in this directory, instead of that of the images.

    Ctrl-C, SIGTERM and SIGHUP remove it too. After ``kill -9`` it is a leftover.
    """
    with _ended_by_signals():
        work = unfinished.name(made(parent or home()) / f"{WORK.lstrip('.')}{name}-")
        try:
            work.mkdir(mode=0o700)
            yield work
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise disk_full(name, parent) from error
            raise
        finally:
            if os.path.lexists(work):
                leftovers.discard(work)


def remove_free_lock(lock: Path) -> None:
    """Remove a lock file that no process holds."""
    descriptor = -1
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.unlink(missing_ok=True)
    except OSError:
        return
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def disk_full(name: str, parent: Path | None = None) -> HostError:
    """Return the error for a full disk."""
    what = f"the image '{name}' could not be made" if parent is None else "nothing was fetched"
    return HostError(
        f"{what}: the disk of '{parent or paths.images()}' is full",
        hint="free some space, or set LAB_HOME to another disk",
    )


def check_space(name: str, needed: int) -> None:
    """``HostError`` if fewer bytes are free than needed."""
    free = shutil.disk_usage(home()).free
    if free < needed:
        raise HostError(
            f"the image '{name}' needs {needed / 1e9:.1f} GB in '{paths.images()}', and"
            f" {free / 1e9:.1f} GB are free",
            hint="free some space, or set LAB_HOME to another disk",
        )


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the block as Ctrl-C does, with clean-up."""
    replaced = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                replaced[number] = signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
