"""Waiting: never without a limit and a reason."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

from lab.core.errors import InputError, TroubleError

T = TypeVar("T")
LOOK: Final = 1.0
"""Seconds between two looks of whoever waits with a :class:`Countdown`."""
VARIABLE: Final = "LAB_LIMITS"
"""Environment variable: a factor for every limit on a wait, for tests."""


def now() -> float:
    """Seconds on a clock that never goes back."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Do nothing for a bounded time."""
    time.sleep(min(seconds, 60.0))


def limit(seconds: float) -> float:
    """Return a limit in seconds, times ``LAB_LIMITS`` where that is set."""
    text = os.environ.get(VARIABLE)
    if not text:
        return seconds
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0.0 < factor < float("inf"):
        raise InputError(f"{VARIABLE}: '{text}' is not a positive number")
    return seconds * factor


class Countdown:
    """A limit on a wait that counts only while this process runs.

    Look at it at least every :data:`LOOK` seconds. A look that comes much later finds that this
    process was stopped (Ctrl-Z, a frozen virtual machine): others may have been stopped too, so
    the gap does not count. The clock does not count suspend (``CLOCK_MONOTONIC``).
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left, self._looked = seconds, now()

    def left(self) -> float:
        """Return the seconds that are left; 0 or less: the wait is over."""
        moment = now()
        self._left -= min(moment - self._looked, 2 * LOOK)
        self._looked = moment
        return self._left

    def again(self) -> None:
        """Start again from the full limit."""
        self._left, self._looked = self.seconds, now()


def wait_until(
    attempt: Callable[[], T | None], *, timeout: float, reason: str, interval: float = 0.05
) -> T:
    """Return the first result of ``attempt`` that is not ``None``.

    ``reason`` completes the sentence "gave up after N seconds waiting for …". ``interval`` is
    :data:`LOOK` at most.
    """
    countdown = Countdown(limit(timeout))
    while True:
        found = attempt()
        if found is not None:
            return found
        if countdown.left() <= 0:
            raise TroubleError(
                f"gave up after {countdown.seconds:.0f} seconds waiting for {reason}"
            )
        time.sleep(interval)
