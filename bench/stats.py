"""Medians and spread; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A sample in four figures; the spread is its range, since samples are small."""

    count: int
    median: float
    low: float
    high: float

    def text(self, show: Callable[[float], str]) -> str:
        """``9.8 (9.6 to 10.1; 6)``: the median, then least, greatest and how many."""
        if self.count == 1:
            return f"{show(self.median)} (once)"
        return f"{show(self.median)} ({show(self.low)} to {show(self.high)}; {self.count})"


def summary(values: Sequence[float]) -> Summary | None:
    """The sample's summary; ``None`` where nothing was measured."""
    if not values:
        return None
    return Summary(count=len(values), median=median(values), low=min(values), high=max(values))


def ratio(over: Summary | None, under: Summary | None) -> float | None:
    """How many times longer one median is than the other; ``None`` without either."""
    if over is None or under is None or under.median <= 0:
        return None
    return over.median / under.median


def makespan(seconds: Mapping[str, float], whole: int) -> tuple[float, bool]:
    """Time of ``whole`` cells one after another, and whether all of them were really run.

    Their sum where all were; else their mean, times the number of cells.
    """
    if not seconds:
        raise ValueError("no cell was run, so there is no makespan")
    total = sum(seconds.values())
    if len(seconds) == whole:
        return total, True
    return total / len(seconds) * whole, False


Key = tuple[str, str]
"""A cell and a workload."""


def deviations(
    together: Mapping[Key, float], alone: Mapping[Key, Sequence[float]]
) -> dict[Key, float]:
    """By how much each figure differs from the median of the same one measured alone, as a share.

    Figures without a counterpart are left out.
    """
    return {
        key: value / median(alone[key]) - 1.0 for key, value in together.items() if alone.get(key)
    }
