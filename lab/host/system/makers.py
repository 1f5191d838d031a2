"""Who is making a run: a file in its directory, locked for as long as the process lives.

The lock (flock(2)) ends with the process, however that ends, and does not go with a copy of the
directory. What stands in the file says who it is, and on which host: a lock that another host holds
on a shared file system is none of this host's processes.
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
"""Seconds to try for the lock: whoever looks at it holds it for a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """A process."""

    pid: int = 0
    started: int = 0
    """Clock ticks since boot, ``proc(5)``: process ids come again."""
    boot: str = ""
    host: str = ""


def boot_id() -> str:
    """What tells this boot of the host from others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _me() -> Maker:
    pid = os.getpid()
    return Maker(pid=pid, started=started_ticks(pid), boot=boot_id(), host=platform.node())


@contextlib.contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Be the maker of what is in a directory; ``InputError`` where another process is."""
    path = directory / NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
                f"'{directory.name}' is still under way: process {other.pid or 'unknown'}"
                f" on {other.host or 'this host'} is making it",
                hint="wait for its end, or stop it with Ctrl-C, and then resume it",
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
    """The process of this host that makes what is in a directory; ``None``: there is none."""
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
        found = _read(descriptor)  # a file system without locks: the process itself tells
        if not found.pid or started_ticks(found.pid) != found.started:
            return None
    finally:
        os.close(descriptor)
    here = (found.boot, found.host) in (("", ""), (boot_id(), platform.node()))
    return found if here else None


def _lock(descriptor: int, kind: int) -> bool:
    """Try for the lock, and never wait."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(descriptor: int) -> Maker:
    """What stands in the file; nothing, where its maker is just writing it."""
    try:
        return Maker(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):
        return Maker()
