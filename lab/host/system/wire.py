"""The connection between a process of the lab and its parent: commands in, events out.

Standard input is also the lifeline: when it closes, the parent has ended. Each side detects that
the other is stopped: the child sends an empty line every few seconds as heartbeat, and unread lines
show that the parent does not run.
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
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType
from typing import IO, Final, NoReturn

from pydantic import ValidationError

from lab.core.errors import TroubleError
from lab.host.system import clock

SILENCE: Final = 60.0
"""Seconds without a heartbeat after which a process of the lab is killed."""
BEAT: Final = 2.0
"""Seconds between heartbeats."""
UNREAD: Final = 600.0
"""Seconds that a process's events may stay unread: long enough for Ctrl-Z and a break."""
COMPUTES: Final = 300.0
"""CPU seconds of the main thread without an event after which a process counts as stuck. The
longest work between two events is the digest of a region: 3 s for each GiB that a guest wrote."""
_LAST: Final = 5.0
"""Timeout in seconds for writing the last lines."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def opened() -> tuple[int, IO[bytes], bytes]:
    """Return a descriptor for events, the lifeline, and its first line; an incomplete one has no
    newline.

    Standard output carries events only: other output, such as a library's, goes to standard error.
    """
    out = os.dup(1)
    os.dup2(2, 1)
    lifeline = os.fdopen(os.dup(0), "rb")
    return out, lifeline, lifeline.readline()


class Teller:
    """Writes lines to the parent, in a thread, so that a full pipe blocks nothing.

    ``abandoned`` is the last line if nothing was read for :data:`UNREAD` seconds; then this process
    gets SIGTERM. ``stuck``: the same if the main thread computed for :data:`COMPUTES` and told
    nothing. From then on only events are written, so that the parent kills this process if the
    signal does not end it.
    """

    def __init__(self, out: int, abandoned: bytes, stuck: bytes) -> None:
        self._out, self._abandoned, self._stuck = out, abandoned, stuck
        main = threading.main_thread().ident
        assert main is not None
        self._clock = time.pthread_getcpuclockid(main)
        self._computed = time.clock_gettime(self._clock)
        """CPU seconds of the main thread at the last event."""
        os.set_blocking(out, False)
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def tell(self, line: bytes) -> None:
        """Write a line; if the parent has ended, clean-up continues."""
        self._computed = time.clock_gettime(self._clock)
        self._lines.put(line + b"\n")

    def close(self) -> None:
        """Write the remaining lines, and stop."""
        self._ended.set()
        self._lines.put(b"")
        self._thread.join(_LAST)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the parent has ended: the lifeline reports it
            self._write_all()

    def _write_all(self) -> None:
        countdown = clock.Countdown(clock.limit(UNREAD))
        left, given, told, beat = b"", False, clock.now(), b""
        unread = 0
        most = clock.limit(COMPUTES)
        while left or not self._ended.is_set() or not self._lines.empty():
            with contextlib.suppress(Empty):
                left += self._lines.get(timeout=clock.LOOK)
            stuck = time.clock_gettime(self._clock) - self._computed > most
            if not left and not stuck and clock.now() - told >= BEAT:
                beat = b"\n"
            if stuck and not given:
                given = True
                left += self._stuck + b"\n"
                os.kill(os.getpid(), signal.SIGTERM)
            if (now := _unread(self._out)) < max(unread, 1):
                countdown.again()  # the parent reads
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
    """Return the number of unread bytes in a pipe; 0 for anything else."""
    found = array.array("i", [0])
    try:
        fcntl.ioctl(out, termios.FIONREAD, found)
    except OSError:
        return 0
    return found[0]


def follow(
    lifeline: IO[bytes], take: Callable[[bytes], None], refuse: Callable[[TroubleError], None]
) -> None:
    """Pass each complete line to ``take``, and end this process with SIGTERM after the last one.

    ``refuse`` gets the error of an invalid line. Reading continues after any error, because the
    lifeline's end means that the parent has ended.
    """
    try:
        for line in lifeline:
            if not line.endswith(b"\n"):
                continue
            try:
                take(line)
            except ValidationError as error:
                refuse(TroubleError(f"invalid command: {line[:120]!r}: {error.errors()[0]['msg']}"))
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def ignore_signals() -> None:
    for kind in _SIGNALS:
        signal.signal(kind, signal.SIG_IGN)


def stop_with(stop: type[BaseException]) -> None:
    """Make the first signal raise ``stop``; later signals are ignored."""

    def raise_it(_signal: int, _frame: FrameType | None) -> None:
        ignore_signals()
        raise stop

    for kind in _SIGNALS:
        signal.signal(kind, raise_it)


def leave(status: int) -> NoReturn:
    """End the process without shutting the interpreter down.

    Threads of libvirt and paramiko may still run: of some hundred processes two ended with a
    segmentation fault after their work was done.
    """
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(status)
