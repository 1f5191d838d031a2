"""File locks (``flock(2)``) with a timeout; the error names the holder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lab.core.errors import HostError
from lab.host.system import clock
from lab.host.system.pids import is_stopped

_GLANCE: Final = 0.05
"""Seconds between two attempts."""


class LockedError(HostError):
    """Another process held a lock for too long."""


def take(
    descriptor: int,
    path: Path,
    *,
    seconds: float,
    what: str,
    waiting: Callable[[], None] = lambda: None,
    glance: float = _GLANCE,
    shared: bool = False,
) -> None:
    """Lock an open file; ``LockedError`` if another process holds it for longer than ``seconds``.

    ``what``: what the holder is doing. ``waiting`` is called once if this process has to wait.
    ``shared``: other processes may hold a shared lock too.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    countdown: clock.Countdown | None = None
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if countdown is None:
                countdown = clock.Countdown(clock.limit(seconds))
                waiting()
            elif countdown.left() <= 0:
                raise LockedError(
                    f"gave up after {countdown.seconds:.0f} s waiting for {what}: the file "
                    f"'{path}' is locked by {holder(descriptor)}",
                    hint="if that process hangs, end it and try again",
                ) from None
            clock.pause(glance)
        else:
            return


def is_still(path: Path, descriptor: int) -> bool:
    """Return whether an open file is the one at its path: a lock file may have been removed."""
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def wait_for_all(descriptor: int) -> None:
    """Lock an open file once no other process holds it, without a timeout."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def holder(descriptor: int) -> str:
    """Return the process that holds the lock on an open file, in words, from ``/proc/locks``."""
    status = os.fstat(descriptor)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        rows = []
    # /proc/locks has another device for a file on btrfs or overlayfs: match the inode number only.
    same = [
        r for r in rows if len(r) > 5 and r[1] == "FLOCK" and r[5].endswith(f":{status.st_ino}")
    ]
    same.sort(key=lambda row: not row[5].startswith(device))
    if not same or not same[0][4].isdigit():
        return "an unknown process"
    pid = int(same[0][4])
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except (OSError, ValueError):
        command = ""
    stopped = ", which is stopped" if is_stopped(pid) else ""
    return f"process {pid} ({command[:80] or 'gone'}){stopped}"
