"""Statistics of few, slow measurements.

All formulas are closed and use no random numbers, so a stored run gets the same verdict each time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, takewhile
from statistics import median, variance
from typing import Final

LEVEL: Final = 0.95
"""Default confidence level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its confidence limits."""

    middle: float
    low: float
    high: float

    def widened(self, share: float) -> Interval:
        """Return the interval with each limit moved outward by ``share`` of its value."""
        return Interval(
            middle=self.middle,
            low=self.low - share * abs(self.low),
            high=self.high + share * abs(self.high),
        )

    def within(self, low: float, high: float) -> bool | None:
        """Return ``True``: wholly between two limits; ``False``: wholly outside; ``None``:
        partly."""
        if low <= self.low and self.high <= high:
            return True
        return False if self.high < low or self.low > high else None


def median_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the median and its confidence interval, by order statistics.

    Exact for every distribution (Conover 1999, "Practical Nonparametric Statistics", section 3.2):
    the number of values below the true median is binomial with probability 1/2. Five values or
    fewer cannot reach 95 %; their interval is their range.
    """
    ordered = sorted(values)
    size = len(ordered)
    tail = Fraction((1 - level) / 2) * 2**size
    ways = accumulate(math.comb(size, below) for below in range((size + 1) // 2))
    rank = max(sum(1 for _ in takewhile(lambda total: total <= tail, ways)) - 1, 0)
    return Interval(middle=median(ordered), low=ordered[rank], high=ordered[-1 - rank])


def enough_for(percentile: float, level: float = LEVEL) -> int:
    """Return the fewest values of a sample that supports a percentile, from 50 to below 100.

    The percentile's interval by order statistics (as in ``median_interval``) then has an upper
    limit within the sample: all values lie below the percentile with a probability of
    ``(1 - level) / 2`` at most. S. S. Wilks, "Determination of sample sizes for setting tolerance
    limits", Annals of Mathematical Statistics 12(1), 1941.
    """
    return math.ceil(math.log((1 - level) / 2) / math.log(percentile / 100))


def t_quantile(chance: float, freedom: int) -> float:
    """Return the quantile of Student's t with ``freedom`` degrees of freedom; ``chance`` above 1/2.

    Bisection on the finite series of Abramowitz and Stegun 1964, 26.7.3 and 26.7.4.
    """
    low, high = 0.0, 1.0
    while (1 + _between(high, freedom)) / 2 < chance:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if (1 + _between(middle, freedom)) / 2 < chance:
            low = middle
        else:
            high = middle
    return high


def t_outside(value: float, freedom: int) -> float:
    """Return the probability that Student's t is further from 0 than ``value``, which is not
    negative."""
    return max(1 - _between(value, freedom), 0.0)


def _between(value: float, freedom: int) -> float:
    """Return the probability that t lies between ``-value`` and ``value``."""
    angle = math.atan(value / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for step in range(1, freedom, 2):
        total += term
        term *= square * (step + odd) / (step + 1 + odd)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A standard deviation estimated from repetitions."""

    deviation: float
    freedom: int
    """Degrees of freedom: repetitions minus groups."""


def pooled(groups: Sequence[Sequence[float]]) -> Spread:
    """Return the pooled standard deviation within groups; groups of one do not count.

    Bland and Altman 1996, "Measurement error", BMJ 312:1654: the root of the mean variance,
    weighted by degrees of freedom.
    """
    repeated = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in repeated)
    if not freedom:
        return Spread(deviation=0.0, freedom=0)
    within = math.fsum(variance(group) * (len(group) - 1) for group in repeated)
    return Spread(deviation=math.sqrt(within / freedom), freedom=freedom)


def reach(spread: Spread, level: float = LEVEL) -> float:
    """Return half the width of the confidence interval of one repetition.

    Times √2 it is the repeatability of Bland and Altman 1996 (2.77 deviations), with Student's t
    instead of 1.96, because the deviation is estimated from few repetitions.
    """
    return t_quantile((1 + level) / 2, spread.freedom) * spread.deviation


def difference(first: Interval, second: Interval) -> Interval:
    """Return ``first - second`` for two intervals of the same level.

    The method of variance estimates recovery: Zou and Donner 2008, "Construction of confidence
    limits about effect measures", Statistics in Medicine 27:1693, after Newcombe 1998.
    """
    middle = first.middle - second.middle
    down = math.hypot(first.middle - first.low, second.high - second.middle)
    up = math.hypot(first.high - first.middle, second.middle - second.low)
    return Interval(middle=middle, low=middle - down, high=middle + up)


def ratio(first: Interval, second: Interval) -> Interval:
    """Return ``first / second`` by the difference of logarithms; ``ValueError``: one is not
    positive."""
    apart = difference(_logarithm(first), _logarithm(second))
    middle = first.middle / second.middle
    return Interval(
        middle=middle,
        low=middle * math.exp(apart.low - apart.middle),
        high=middle * math.exp(apart.high - apart.middle),
    )


def _logarithm(value: Interval) -> Interval:
    if value.middle <= 0:
        raise ValueError(f"{value.middle} has no logarithm")
    low = math.log(value.low) if value.low > 0 else -math.inf
    return Interval(middle=math.log(value.middle), low=low, high=math.log(value.high))
