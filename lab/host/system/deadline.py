"""Calls that may hang: each runs in a thread and is abandoned after a timeout.

Threads are reused: a call costs some 20 µs, a new thread 100 µs. An abandoned call keeps its
thread. It is a daemon thread, and :func:`lab.host.system.wire.leave` ends the process without
waiting for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from typing_extensions import override

from lab.core.errors import GuestError, TroubleError
from lab.host.system import clock

T = TypeVar("T")
SETTLE: Final = 10.0
"""Timeout in seconds for an interrupted call to finish."""


class _Caller(threading.Thread):
    """A thread that makes one call after another."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="lab-call")
        self.todo: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self.done: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.start()

    @override
    def run(self) -> None:
        while True:
            try:
                self.done.put((self.todo.get()(), None))
            except BaseException as error:  # raised again in the calling thread
                self.done.put((None, error))


_idle: list[_Caller] = []


def call(
    function: Callable[[], T],
    *,
    seconds: float,
    what: str,
    error: type[TroubleError] = GuestError,
    glance: Callable[[], object] = lambda: None,
    moved: Callable[[], object] = lambda: None,
    settle: bool = False,
    time: Callable[[], float] | None = None,
) -> T:
    """Return the result of ``function``; raise ``error`` after ``seconds``.

    ``what`` completes "gave up after N s waiting for …". ``glance`` is called every second and may
    raise. The limit starts again whenever ``moved`` returns a new value. With ``settle`` an
    interrupt waits for the call, which must not continue during clean-up. ``time``: the clock of
    the limit.
    """
    try:
        caller = _idle.pop()
    except IndexError:
        caller = _Caller()
    caller.todo.put(function)
    countdown = clock.Countdown(seconds, time)
    progress = moved()
    while True:
        try:
            value, failed = caller.done.get(timeout=max(0.001, min(clock.LOOK, countdown.left())))
            break
        except Empty:
            pass
        except BaseException:
            if settle:
                with contextlib.suppress(Empty):
                    caller.done.get(timeout=SETTLE)
            raise
        glance()
        if (now := moved()) != progress:
            progress = now
            countdown.again()
        if countdown.left() <= 0:
            raise error(f"gave up after {seconds:.0f} s waiting for {what}")
    _idle.append(caller)
    if failed is not None:
        raise failed
    result: T = value
    return result
