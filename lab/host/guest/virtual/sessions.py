"""Sessions in a guest in virtual time: the guest runs while one is open, and is suspended
otherwise.

Each session holds a shared lock on a file in the guest's directory, and starts a watcher first. The
watcher waits for the exclusive lock, and gets it when no session is left: the kernel releases the
locks of every process that ends. Then it suspends the guest.

``python -m lab.host.guest.virtual.sessions DIRECTORY`` is the watcher. It prints a line when it has
opened the file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lab.core.errors import GuestError
from lab.host.guest.registry import GuestRecord
from lab.host.guest.virtual import suspend
from lab.host.system import locks, process

LOCK: Final = "sessions"
SUSPENDING: Final = 60.0
"""Most seconds that a watcher holds the lock: QEMU replies within ten seconds or not at all."""


def run(
    record: GuestRecord,
    argv: Sequence[str],
    environment: Mapping[str, str] = MappingProxyType({}),
    watch: Callable[[], str] = lambda: "",
) -> int:
    """Resume the guest, run a program on this terminal, and return its exit status.

    ``environment``: variables that the program gets as well. ``watch``: as for `process.attached`.
    """
    path = record.path / LOCK
    with path.open("a") as file:
        what = "a process that suspends the guest"
        locks.take(file.fileno(), path, seconds=SUSPENDING, what=what, shared=True)
        process.start_watcher(
            process.python("-m", "lab.host.guest.virtual.sessions", str(record.path))
        )
        suspend.go_on(record.path)
        return process.attached(argv, environment, watch)


def watch(directory: Path) -> None:
    """Wait until no session is left, and suspend the guest."""
    try:
        file = (directory / LOCK).open("a")
    except OSError:  # the guest has ended
        return
    with file:
        sys.stdout.write("watching\n")
        sys.stdout.flush()
        locks.wait_for_all(file.fileno())
        try:
            suspend.stop(directory)
        except GuestError:
            return  # the guest has ended


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
