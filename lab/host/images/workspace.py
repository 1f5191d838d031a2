"""Working directories and locks for building images. Partial images are never visible."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from lab.compile.image.build import namespaced
from lab.core.errors import HostError, LabError
from lab.host.system import locks, paths, process
from lab.host.system.clock import pause

WORK: Final = ".work-"
LOCK: Final = ".lock-"
REMOVING: Final = ".removing-"
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
            if _is_still(lock, descriptor):
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

    Ctrl-C, SIGTERM and SIGHUP remove it too. After ``kill -9`` `prune` removes it, because its lock
    is free.
    """
    with _ended_by_signals():
        work: Path | None = None
        descriptor = -1
        try:
            with exclusive("workspaces", waiting=lambda: None):
                work = Path(tempfile.mkdtemp(prefix=f"{WORK}{name}-", dir=made(parent or home())))
                descriptor = os.open(work / "lock", os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield work
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise disk_full(name, parent) from error
            raise
        finally:
            if work is not None:
                discard(work)
            if descriptor >= 0:
                os.close(descriptor)


def discard(directory: Path) -> None:
    """Remove a working directory, which may hold files of subordinate users."""
    for attempt in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.lexists(directory):
            return
        if os.geteuid() != 0:
            argv = namespaced(("rm", "-rf", "--", str(directory)), root=False)
            process.run(argv, check=False, timeout=120)
        if not os.path.lexists(directory):
            return
        pause(0.05 * (attempt + 1))  # a process that is being killed may still be writing
    raise HostError(
        f"the directory '{directory}' could not be removed", hint="try again: lab image prune"
    )


def remove_if_dead(work: Path) -> bool:
    """Remove a leftover, unless its process still holds the lock; return whether it was removed."""
    with exclusive("workspaces", waiting=lambda: None):
        lock = work / "lock"
        descriptor = -1
        try:
            if lock.exists():
                descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            discard(work)
        except BlockingIOError:
            return False
        except (OSError, LabError):
            return False
        finally:
            if descriptor >= 0:
                os.close(descriptor)
    return True


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


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


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
