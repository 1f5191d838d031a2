"""Intervals of trials that may stop as soon as they decide. Pure.

A comparison may be looked at after 4, 6, 8, 17, 24 and 32 trials. Each look spends a part of the
comparison's error (Lan and DeMets 1983, "Discrete sequential boundaries for clinical trials",
Biometrika 70:659). The parts are added up (Bonferroni), so that nothing is needed about how looks
depend on each other, and stopping at any of them is allowed.

From 17 trials on the limits are two of the values in order, which is exact for every distribution
(Conover 1999, "Practical Nonparametric Statistics", section 3.2). Fewer than 17 values cannot do
that: if half of the seeds come out above the bound and half below, n of them are on one side with a
probability of ``2 ** (1 - n)``. So the early looks are Student's t, never narrower than the spread
of all cells of the kind allows. They decide what is far from its bound.

Why this method, and what was simulated: docs/decisions/0025-sequential-trials.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import median
from typing import Final

from lab.core.statistics import Interval, Spread, t_quantile

ERROR: Final = 0.01
"""Probability that any verdict of all shipped scenarios is wrong, at most."""
COMPARISONS: Final = 200
"""Comparisons that share it equally: at least as many as the shipped claims consist of."""
EACH: Final = ERROR / COMPARISONS
"""Error of one comparison."""

EARLY: Final = (4, 6, 8)
"""Trials of the looks with Student's t."""
RANKS: Final = {17: 1, 24: 2, 32: 5}
"""Trials of the exact looks, to the rank of the lower limit; the upper has it from the top."""
LOOKS: Final = (*EARLY, *RANKS)
LEAST: Final = LOOKS[0]
MOST: Final = LOOKS[-1]
"""The largest budget of ``trials: auto``."""
ENOUGH: Final = min(RANKS) - 2
"""Degrees of freedom that the spread of a kind needs for an early look. In cells with two states
one shows only one of them in all its trials with a probability of 1/2 for each degree of
freedom."""


def outside(trials: int, rank: int) -> float:
    """The probability that the true median is not between these two of the ordered values."""
    ways = sum(math.comb(trials, below) for below in range(rank))
    return ways / float(2 ** (trials - 1))


def early_error() -> float:
    """What the exact looks leave of ``EACH``, for each early look."""
    return (EACH - sum(outside(*look) for look in RANKS.items())) / len(EARLY)


def look_after(trials: int) -> int:
    """Trials of the last look that so many trials reach; 0: none."""
    return max((look for look in LOOKS if look <= trials), default=0)


def can_decide(values: Sequence[float], at_least: float, at_most: float) -> bool:
    """Return whether further trials can put the interval inside the limits, or beyond one of them.

    The last look has the widest rank, so as many values on the wrong side rule an outcome out,
    whatever comes after them. Its value is exact: it changes no verdict, and needs no allowance.
    """
    few = RANKS[MOST]
    below, above = (sum(v < at_least for v in values), sum(v > at_most for v in values))
    holds = max(below, above) < few
    refuted = min(len(values) - below, len(values) - above) < few
    return holds or refuted


def interval(values: Sequence[float], others: Spread | None = None) -> Interval | None:
    """Where the median of all seeds' values lies; ``None``: not known from so few trials.

    ``values``: one per seed, in the order in which they ran. Those after the last look wait for the
    next one. ``others``: standard deviation of such values in all cells of their kind.
    """
    count = look_after(len(values))
    seen = sorted(values[:count])
    if count in RANKS:
        rank = RANKS[count]
        return Interval(middle=median(seen), low=seen[rank - 1], high=seen[-rank])
    if not seen or others is None or others.freedom < ENOUGH:
        return None
    mean = math.fsum(seen) / count
    own = math.sqrt(math.fsum((v - mean) ** 2 for v in seen) / (count - 1))
    half = max(
        _quantile(count - 1) * own / math.sqrt(count), _quantile(others.freedom) * others.deviation
    )
    return Interval(middle=median(seen), low=mean - half, high=mean + half)


@cache
def _quantile(freedom: int) -> float:
    return t_quantile(1 - early_error() / 2, freedom)
