"""Suspends a guest in virtual time: an idle one uses a whole CPU, a suspended one none.

QEMU has a second QMP socket for that, so that libvirt need not be opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from drive.monitor import Monitor
from lab.core.errors import GuestError
from lab.host.system import clock

SOCKET: Final = "qmp"
"""Name of the socket in the guest's directory."""
_ANSWER: Final = 10.0
"""Timeout in seconds for QEMU's reply; another process may be using the socket."""


def stop(directory: Path) -> None:
    """Stop the guest's CPU and clock; ``GuestError``: QEMU does not reply."""
    _ask(directory, "stop")


def go_on(directory: Path) -> None:
    """Resume the guest; ``GuestError``: QEMU does not reply."""
    _ask(directory, "cont")


def is_suspended(directory: Path) -> bool:
    """Return whether the guest is stopped; false if QEMU does not reply."""
    with contextlib.suppress(GuestError):
        return not _ask(directory, "query-status")["running"]
    return False


def _ask(directory: Path, command: str) -> Any:
    with _troubles(directory), Monitor(directory / SOCKET, clock.limit(_ANSWER)) as monitor:
        return monitor.ask(command)


@contextlib.contextmanager
def _troubles(directory: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise GuestError(
            f"QEMU of the guest '{directory.name}' does not answer on '{directory / SOCKET}':"
            f" {error}"
        ) from error
