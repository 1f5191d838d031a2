"""Steady state, as SNIA's Solid State Storage Performance Test Specification (PTS) defines it.

Version 2.0.2, 2.1.24: in a window of rounds the values' range is at most 20 % of their mean, and
the least-squares line through them rises or falls by at most 10 % of it from the first round to the
last. The tests of the PTS have windows of five rounds, and 25 rounds at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

WINDOW: Final = 5
"""Rounds of a window."""
RANGE: Final = 0.2
"""Largest difference of two values, as a fraction of the mean."""
SLOPE: Final = 0.1
"""Largest change of the line between the first and the last round, as a fraction of the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Consecutive rounds, and how far they differ."""

    last: int
    """Number of its last round, from 1."""
    range: float
    """Difference of its largest and its smallest value, as a fraction of the mean."""
    slope: float
    """Change of the line between its first and last round, as a fraction of the mean."""

    @property
    def steady(self) -> bool:
        """Whether both are within their limits."""
        return self.range <= RANGE and abs(self.slope) <= SLOPE

    @property
    def rounds(self) -> slice:
        """Its rounds in a list of all."""
        return slice(self.last - WINDOW, self.last)


def steady_window(values: Sequence[float]) -> Window:
    """Return the first steady window, or the last window if none is steady.

    ``values``: a positive one of each round; ``ValueError``: too few rounds for a window.
    """
    windows = [_window(values, last) for last in range(WINDOW, len(values) + 1)]
    if not windows:
        raise ValueError(f"expected {WINDOW} rounds or more, found {len(values)}")
    return next((window for window in windows if window.steady), windows[-1])


def _window(values: Sequence[float], last: int) -> Window:
    own = values[last - WINDOW : last]
    mean = fmean(own)
    places = [number - (WINDOW - 1) / 2 for number in range(WINDOW)]
    slope = sum(x * y for x, y in zip(places, own, strict=True)) / sum(x * x for x in places)
    return Window(last=last, range=(max(own) - min(own)) / mean, slope=slope * (WINDOW - 1) / mean)
