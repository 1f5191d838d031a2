"""Statistics of few, slow measurements: exact where that is possible, and never by chance.

Nothing here draws random numbers: the bootstrap of a median has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean, median, variance
from typing import Final

LEVEL: Final = 0.95
"""Share of intervals that hold the true value, where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure, and between which two it lies."""

    middle: float
    low: float
    high: float

    def widened(self, share: float) -> Interval:
        """Both ends further out by a share of themselves."""
        return Interval(
            middle=self.middle,
            low=self.low - share * abs(self.low),
            high=self.high + share * abs(self.high),
        )

    def within(self, low: float, high: float) -> bool | None:
        """Whether it lies between two limits: wholly, not at all, or (``None``) in part."""
        if low <= self.low and self.high <= high:
            return True
        return False if self.high < low or self.low > high else None


def resampled_medians(size: int) -> Iterator[tuple[int, int, float]]:
    """What the median of a bootstrap sample is, and how likely: no sample is drawn.

    Yields ranks of its two middle values in the data (0 is the smallest; the same one twice where
    the size is odd) and the probability. Efron 1979, "Bootstrap methods: another look at the
    jackknife", Annals of Statistics 7, section 3, for odd sizes; for even ones the joint
    probability of the two middle order statistics, as Evans, Leemis and Drew 2006, "The
    distribution of order statistics for discrete random variables with applications to
    bootstrapping", INFORMS Journal on Computing 18.
    """
    half = size // 2
    if size % 2:
        ends = [_at_least(half + 1, size, rank / size) for rank in range(size + 1)]
        yield from ((rank, rank, high - low) for rank, (low, high) in enumerate(pairwise(ends)))
        return
    below = [(rank / size) ** half for rank in range(size + 1)]
    for rank in range(size):
        here = below[rank + 1] - below[rank]
        apart = 0.0
        for other in range(rank + 1, size):
            above = below[size - other] - below[size - other - 1]
            chance = math.comb(size, half) * here * above
            apart += chance
            yield rank, other, chance
        # The lower of the two is this value, with whatever above it; less what was told already.
        alone = _at_least(half, size, (rank + 1) / size) - _at_least(half, size, rank / size)
        yield rank, rank, alone - apart


def _at_least(wins: int, tries: int, chance: float) -> float:
    """Probability of so many wins or more (binomial)."""
    return math.fsum(
        math.comb(tries, n) * chance**n * (1 - chance) ** (tries - n)
        for n in range(wins, tries + 1)
    )


def median_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The median and its bootstrap percentile interval.

    Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3, for endlessly many
    resamples. One value is its own interval. At the usual level two to five values span it from
    the smallest to the largest: a percentile interval cannot leave the data. Beyond ``MANY`` values
    the interval is that of the ranks n/2 ± z √n/2 (Conover 1999, "Practical Nonparametric
    Statistics", section 3.2).
    """
    ordered = sorted(values)
    tail = (1 - level) / 2
    if len(ordered) > MANY:
        return _by_ranks(ordered, tail)
    found: dict[float, float] = {}
    for first, second, chance in resampled_medians(len(ordered)):
        at = (ordered[first] + ordered[second]) / 2
        found[at] = found.get(at, 0.0) + chance
    return Interval(
        middle=median(ordered),
        low=_quantile(sorted(found.items()), tail),
        high=_quantile(sorted(found.items(), reverse=True), tail),
    )


MANY: Final = 100
"""Values beyond which the exact distribution costs time and tells nothing more."""


def _quantile(steps: Sequence[tuple[float, float]], tail: float) -> float:
    """The first value up to which more than ``tail`` of the probability lies."""
    passed = 0.0
    for value, chance in steps:
        passed += chance
        if passed > tail:
            return value
    return steps[-1][0]


def _by_ranks(ordered: Sequence[float], tail: float) -> Interval:
    size = len(ordered)
    reach = NormalDist().inv_cdf(1 - tail) * math.sqrt(size) / 2
    low, high = math.floor(size / 2 - reach), math.ceil(size / 2 + reach)
    return Interval(
        middle=median(ordered), low=ordered[max(low, 0)], high=ordered[min(high, size - 1)]
    )


def t_quantile(chance: float, freedom: int) -> float:
    """The value that Student's t exceeds with probability ``1 - chance``; ``chance`` above a half.

    By halving on the finite series of Abramowitz and Stegun 1964, 26.7.3 and 26.7.4.
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


def _between(value: float, freedom: int) -> float:
    """Probability that t lies between ``-value`` and ``value``."""
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
    """How far repetitions of the same thing lie apart: a standard deviation, and what it is of."""

    deviation: float
    freedom: int
    """Degrees of freedom: repetitions less groups."""


def pooled(groups: Sequence[Sequence[float]]) -> Spread:
    """Standard deviation within groups of repetitions; groups of one say nothing.

    Bland and Altman 1996, "Measurement error", BMJ 312:1654: the root of the variances' mean, each
    weighted by its degrees of freedom.
    """
    told = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in told)
    if not freedom:
        return Spread(deviation=0.0, freedom=0)
    within = math.fsum(variance(group) * (len(group) - 1) for group in told)
    return Spread(deviation=math.sqrt(within / freedom), freedom=freedom)


def reach(spread: Spread, level: float = LEVEL) -> float:
    """How far one more repetition lies from the true value, at most, at that level.

    Times √2 it is the repeatability of Bland and Altman 1996 (2.77 deviations), with Student's t
    in place of 1.96 since the deviation is itself an estimate from few repetitions.
    """
    return t_quantile((1 + level) / 2, spread.freedom) * spread.deviation


def difference(first: Interval, second: Interval) -> Interval:
    """The first less the second, each known as an interval of the same level.

    The method of variance estimates recovery: Zou and Donner 2008, "Construction of confidence
    limits about effect measures", Statistics in Medicine 27:1693, after Newcombe 1998.
    """
    middle = first.middle - second.middle
    down = math.hypot(first.middle - first.low, second.high - second.middle)
    up = math.hypot(first.high - first.middle, second.middle - second.low)
    return Interval(middle=middle, low=middle - down, high=middle + up)


def ratio(first: Interval, second: Interval) -> Interval:
    """The first by the second, as the difference of their logarithms; both must be positive."""
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


def cliffs_delta(first: Sequence[float], second: Sequence[float]) -> float:
    """How often a value of the second is larger than one of the first, less how often smaller.

    From -1 to 1, and 0 where neither is more often so. Cliff 1993, "Dominance statistics",
    Psychological Bulletin 114:494.
    """
    return fmean((b > a) - (b < a) for a in first for b in second)


def shift(first: Sequence[float], second: Sequence[float]) -> float:
    """By how much the second lies higher: the median of all differences between the two.

    Hodges and Lehmann 1963, "Estimates of location based on rank tests", Annals of Mathematical
    Statistics 34:598; Hollander and Wolfe 1973, chapter 4.
    """
    return median(b - a for a in first for b in second)
