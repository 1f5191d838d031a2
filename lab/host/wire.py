"""The wire between a process of the lab and who started it: orders come in, events go out.

Standard input is the process' lifeline too: when it closes, whoever started it is gone.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType
from typing import IO, Final, NoReturn

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def opened() -> tuple[int, IO[bytes], bytes]:
    """A descriptor for events, the lifeline, and its first line; one cut off has no end of line.

    Standard output carries events only: whatever a library prints goes to standard error.
    """
    out = os.dup(1)
    os.dup2(2, 1)
    lifeline = os.fdopen(os.dup(0), "rb")
    return out, lifeline, lifeline.readline()


def deaf() -> None:
    """Cleaning up is not interrupted."""
    for kind in _SIGNALS:
        signal.signal(kind, signal.SIG_IGN)


def stop_with(stop: type[BaseException]) -> None:
    """From now on the first signal raises ``stop``, and those after it are not heard."""

    def raise_it(_signal: int, _frame: FrameType | None) -> None:
        deaf()
        raise stop

    for kind in _SIGNALS:
        signal.signal(kind, raise_it)


def leave(status: int) -> NoReturn:
    """End the process without taking the interpreter apart.

    Threads of libvirt's and paramiko's may still be in it: of some hundred processes two died of a
    segmentation fault when everything was done.
    """
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(status)
