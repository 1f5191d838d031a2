"""Waiting: never without a limit and a reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from lab.errors import TroubleError

T = TypeVar("T")


def now() -> float:
    """Seconds on a clock that never goes back."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Do nothing for a bounded time."""
    time.sleep(min(seconds, 60.0))


def wait_until(
    attempt: Callable[[], T | None], *, timeout: float, reason: str, interval: float = 0.05
) -> T:
    """Return the first result of ``attempt`` that is not ``None``.

    ``reason`` completes the sentence "gave up after N seconds waiting for …".
    """
    deadline = now() + timeout
    while True:
        found = attempt()
        if found is not None:
            return found
        if now() >= deadline:
            raise TroubleError(f"gave up after {timeout:.0f} seconds waiting for {reason}")
        time.sleep(interval)
