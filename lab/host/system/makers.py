"""The process that writes a run. It locks a file in the run's directory.

The lock (flock(2)) ends with the process, and is not copied with the directory. The file names
process and host: on a shared file system another host may hold the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from lab.core.errors import InputError, TroubleError, unwritable
from lab.host.system import clock
from lab.host.system.pids import started_ticks

NAME: Final = ".maker"
PATIENCE: Final = 1.0
"""Seconds to try for the lock: a process that checks it holds it for a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """A process."""

    pid: int = 0
    started: int = 0
    """Clock ticks since boot, ``proc(5)``: process ids are reused."""
    boot: str = ""
    host: str = ""


def boot_id() -> str:
    """Return an id that changes with each boot of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _me() -> Maker:
    pid = os.getpid()
    return Maker(pid=pid, started=started_ticks(pid), boot=boot_id(), host=platform.node())


@contextlib.contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Lock a directory as its writer; ``InputError``: another process has locked it."""
    path = directory / NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        with contextlib.suppress(TroubleError):
            clock.wait_until(
                lambda: _lock(descriptor, fcntl.LOCK_EX) or None, timeout=PATIENCE, reason="a lock"
            )
        if not _lock(descriptor, fcntl.LOCK_EX):
            other = _read(descriptor)
            raise InputError(
                f"'{directory.name}' is still running: process {other.pid or 'unknown'} on "
                f"{other.host or 'this host'} writes it",
                hint="wait until it ends, or stop it with Ctrl-C, then resume it",
            )
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(asdict(_me())).encode(), 0)
        except OSError as error:
            raise unwritable(path, error) from error
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(directory: Path) -> Maker | None:
    """Return the process of this host that writes the directory; ``None``: none does."""
    try:
        descriptor = os.open(directory / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if _lock(descriptor, fcntl.LOCK_SH):
            return None
        found = _read(descriptor)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            return None
        found = _read(descriptor)  # the file system has no locks: check the process itself
        if not found.pid or started_ticks(found.pid) != found.started:
            return None
    finally:
        os.close(descriptor)
    here = (found.boot, found.host) in (("", ""), (boot_id(), platform.node()))
    return found if here else None


def _lock(descriptor: int, kind: int) -> bool:
    """Try to lock without waiting; return whether it worked."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(descriptor: int) -> Maker:
    """Return the file's contents; empty while its process is writing it."""
    try:
        return Maker(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):
        return Maker()
