"""The wire between a process of the lab and who started it: orders come in, events go out.

Standard input is the process' lifeline too: when it closes, whoever started it is gone. Each side
notices when the other is stopped: an empty line every few seconds is the process' sign of life,
and lines that nobody reads show that whoever started it does not run.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType
from typing import IO, Final, NoReturn

from pydantic import ValidationError

from lab.core.errors import TroubleError
from lab.host.system import clock

SILENCE: Final = 60.0
"""Seconds without a sign of life after which a process of the lab is killed."""
BEAT: Final = 2.0
"""Seconds between signs of life."""
UNREAD: Final = 600.0
"""Seconds for which nobody may read what a process tells: long enough for Ctrl-Z and a coffee."""
_LAST: Final = 5.0
"""Seconds for the last lines to be written."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def opened() -> tuple[int, IO[bytes], bytes]:
    """A descriptor for events, the lifeline, and its first line; one cut off has no end of line.

    Standard output carries events only: whatever a library prints goes to standard error.
    """
    out = os.dup(1)
    os.dup2(2, 1)
    lifeline = os.fdopen(os.dup(0), "rb")
    return out, lifeline, lifeline.readline()


class Teller:
    """Writes lines to whoever started this process, in a thread: nobody waits for a full pipe.

    ``abandoned`` is the last line where nobody has read any for :data:`UNREAD` seconds; then this
    process gets SIGTERM.
    """

    def __init__(self, out: int, abandoned: bytes) -> None:
        self._out, self._abandoned = out, abandoned
        os.set_blocking(out, False)
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def tell(self, line: bytes) -> None:
        """Write a line; a reader that has gone is no reason to stop cleaning up."""
        self._lines.put(line + b"\n")

    def close(self) -> None:
        """Write what is left, and stop."""
        self._ended.set()
        self._lines.put(b"")
        self._thread.join(_LAST)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # nobody reads any more: the lifeline tells that
            self._write_all()

    def _write_all(self) -> None:
        countdown = clock.Countdown(clock.limit(UNREAD))
        left, given, told, beat = b"", False, clock.now(), b""
        unread = 0
        while left or not self._ended.is_set() or not self._lines.empty():
            with contextlib.suppress(Empty):
                left += self._lines.get(timeout=clock.LOOK)
            if not left and clock.now() - told >= BEAT:
                beat = b"\n"
            if (now := _unread(self._out)) < max(unread, 1):
                countdown.again()  # somebody reads
            elif countdown.left() <= 0 and not given:
                given = True
                left += self._abandoned + b"\n"
                os.kill(os.getpid(), signal.SIGTERM)
            written = 0
            with contextlib.suppress(BlockingIOError):
                written = os.write(self._out, left or beat) if left or beat else 0
            told = clock.now() if written else told
            left, beat, unread = left[written:], b"", now + written


def _unread(out: int) -> int:
    """Bytes in a pipe that nobody has read; 0 of anything that is no pipe."""
    found = array.array("i", [0])
    try:
        fcntl.ioctl(out, termios.FIONREAD, found)
    except OSError:
        return 0
    return found[0]


def follow(
    lifeline: IO[bytes], take: Callable[[bytes], None], refuse: Callable[[TroubleError], None]
) -> None:
    """Hand each whole line to ``take``, and end this process with SIGTERM after the last one.

    ``refuse`` gets the error of a line that is not an order. The lifeline is read on whatever
    fails: its end means that whoever started this process is gone.
    """
    try:
        for line in lifeline:
            if not line.endswith(b"\n"):
                continue
            try:
                take(line)
            except ValidationError as error:
                refuse(
                    TroubleError(
                        f"an order cannot be read: {line[:120]!r}: {error.errors()[0]['msg']}"
                    )
                )
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


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
