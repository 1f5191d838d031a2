"""Waiting with a limit and a reason."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

from lab.core.errors import InputError, TroubleError

T = TypeVar("T")
LOOK: Final = 1.0
"""Seconds between two checks of a :class:`Countdown`."""
VARIABLE: Final = "LAB_LIMITS"
"""Environment variable: a factor for every wait limit, for tests."""


def now() -> float:
    """Return seconds on a monotonic clock."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Sleep for ``seconds``, at most a minute."""
    time.sleep(min(seconds, 60.0))


def limit(seconds: float) -> float:
    """Return a limit in seconds, times ``LAB_LIMITS`` if set."""
    text = os.environ.get(VARIABLE)
    if not text:
        return seconds
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0.0 < factor < float("inf"):
        raise InputError(f"{VARIABLE}={text}: expected a positive number, such as 2")
    return seconds * factor


class Countdown:
    """A wait limit that counts only while this process runs.

    Check it at least every :data:`LOOK` seconds. A check that comes much later means that this
    process was stopped (Ctrl-Z, a frozen virtual machine). Other processes may have been stopped
    too, so the gap does not count. ``CLOCK_MONOTONIC`` itself does not count suspend.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] | None = None) -> None:
        """``clock``: another clock than this host's, such as the time that a guest got."""
        self.seconds = seconds
        self._clock = clock or now
        self._left, self._looked = seconds, self._clock()

    def left(self) -> float:
        """Return the remaining seconds; 0 or less: the wait is over."""
        moment = self._clock()
        self._left -= min(moment - self._looked, 2 * LOOK)
        self._looked = moment
        return self._left

    def again(self) -> None:
        """Start again from the full limit."""
        self._left, self._looked = self.seconds, self._clock()


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
