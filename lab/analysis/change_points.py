"""Change points of a series of values, and the difference of two samples. Pure.

E-divisive: D. S. Matteson and N. A. James, "A nonparametric approach for multiple change point
analysis of multivariate data", Journal of the American Statistical Association 109:334, 2014. A
segment is split where the energy distance of its two sides is largest, if that is significant; then
each side is a segment. As in Apache Otava and at MongoDB (D. Daly et al., "The use of change point
detection to identify software performance regressions in a continuous integration system", ICPE
2020) both sides reach to the segment's ends.

Significance depends on what is known:

- Nothing: the paper's permutation test. It needs many values: ``fewest`` says how many.
- The noise of one value, from repetitions: Student's t of the two medians, times the number of
  possible splits (Bonferroni), as Otava uses Student's t instead of permutations.

Values are logarithms, so that changes are ratios.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_high, median_low
from typing import Final

from lab.core.statistics import Spread, t_outside

SIDE: Final = 2
"""Fewest values on each side of a change point. One value that differs may be an outlier."""

ROUGH: Final = math.pi / 2
"""Variance of a median divided by that of a mean, of many normal values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A change point."""

    at: int
    """Index of the first value after it."""
    start: int
    """First value of the segment before it."""
    end: int
    """One more than the last value of the segment after it."""
    chance: float
    """Probability of such a split, or a clearer one, in a segment without a change."""


def change_points(
    values: Sequence[float], chance: float, noise: Spread | None = None, side: int = SIDE
) -> tuple[Split, ...]:
    """Return the change points, in order, each with a probability of ``chance`` or less.

    ``noise``: deviation of one value; ``None``: unknown. The random permutations are the same in
    each call, so a series has the same change points each time.
    """
    found = sorted(_split(values, 0, len(values), chance, noise, side))
    places = [0, *(at for at, _ in found), len(values)]
    return tuple(
        Split(at=at, start=places[n], end=places[n + 2], chance=p)
        for n, (at, p) in enumerate(found)
    )


def _split(
    values: Sequence[float], start: int, end: int, chance: float, noise: Spread | None, side: int
) -> list[tuple[int, float]]:
    own = values[start:end]
    if len(own) < 2 * side:
        return []
    at, energy = _best(own, side)
    if noise is not None:
        p = min(_t_test(own[:at], own[at:], noise) * (len(own) - 2 * side + 1), 1.0)
    elif chance < _least(len(own)):
        return []
    else:
        p = _permuted(own, lambda energies: max(_sides(energies, side)), energy, chance)
    if p > chance:
        return []
    middle = start + at
    return [
        (middle, p),
        *_split(values, start, middle, chance, noise, side),
        *_split(values, middle, end, chance, noise, side),
    ]


def difference(
    first: Sequence[float], second: Sequence[float], chance: float, noise: Spread | None = None
) -> float:
    """Return the probability of a difference such as that of two samples, if there is none.

    The energy test of two samples with permutations, exact to ``chance``; with known noise,
    Student's t.
    """
    if noise is not None:
        return _t_test(first, second, noise)
    size = len(first)
    if min(len(first), len(second)) < SIDE:
        return 1.0
    both = (*first, *second)
    seen = _energies(_Distances(both), range(len(both)))[size - 1]
    return _permuted(both, lambda energies: energies[size - 1], seen, chance)


def fewest(chance: float) -> int:
    """Return the fewest values in which a change point can have this probability, with unknown
    noise."""
    return next(n for n in range(2 * SIDE, 1000) if _least(n) <= chance)


def _least(size: int) -> float:
    """Return a probability that the permutation test reaches for certain, if two equal sides differ
    wholly: twice that of this order and the opposite one, since permutations are a sample."""
    return 4 / math.comb(size, size // 2)


class _Distances:
    """The distances between values, and what else is the same for all their permutations."""

    def __init__(self, values: Sequence[float]) -> None:
        count = len(values)
        rows = [[abs(one - other) for other in values] for one in values]
        self.rows: Final = [(row, sum(row)) for row in rows]
        """Of each value its distances to all values, and their sum."""
        self.every: Final = sum(total for _, total in self.rows) / 2
        apart = 2 / count
        self.weights: Final = [
            (
                apart + (apart * (count - n) / (n - 1) if n > 1 else 0),
                apart + (apart * n / (count - n - 1) if n < count - 1 else 0),
            )
            for n in range(1, count)
        ]
        """Of each split what Q loses by the distances inside its left side and its right side."""


def _energies(distances: _Distances, order: Sequence[int]) -> list[float]:
    """Return Q of each split of the values in this order, after the first one, the second and so
    on.

    Q = nm/(n+m) (2 E|X-Y| - E|X-X'| - E|Y-Y'|), the paper's equation 5 with exponent 1.
    Between the sides are all distances but those inside them.
    """
    whole = 2 / len(order) * distances.every
    found = []
    left, right = 0.0, distances.every
    for n, (inside_left, inside_right) in enumerate(distances.weights):
        row, total = distances.rows[order[n]]
        near = sum(map(row.__getitem__, order[:n]))
        left += near
        right -= total - near
        found.append(whole - left * inside_left - right * inside_right)
    return found


def _sides(energies: Sequence[float], side: int) -> Sequence[float]:
    """Return the values for splits with so many values on each side."""
    return energies[side - 1 : len(energies) + 1 - side]


def _best(values: Sequence[float], side: int) -> tuple[int, float]:
    """Return the split with the largest Q; of equal ones the first."""
    energies = _sides(_energies(_Distances(values), range(len(values))), side)
    most = max(energies)
    return energies.index(most) + side, most


def _permuted(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float],
    seen: float,
    chance: float,
) -> float:
    """Return the fraction of permutations whose energies have this statistic or more; stop early if
    that is surely more than ``chance``."""
    dice = random.Random(len(values))  # noqa: S311  not a secret
    tries = math.ceil(5 / chance) - 1
    distances = _Distances(values)
    order, more = list(range(len(values))), 1
    for done in range(1, tries + 1):
        dice.shuffle(order)
        more += statistic(_energies(distances, order)) >= seen * (1 - 1e-9) - 1e-15
        if more > chance * (tries + 1):
            return more / (done + 1)
    return more / (tries + 1)


def _t_test(first: Sequence[float], second: Sequence[float], noise: Spread) -> float:
    """Return the probability of the difference of two medians.

    Of an even number of values the middle one that is nearer to the other side counts, so that one
    outlier of two values is no difference.
    """
    up = sum(second) / len(second) > sum(first) / len(first)
    low, high = (first, second) if up else (second, first)
    apart = median_low(high) - median_high(low)
    if apart <= 0:
        return 1.0
    error = noise.deviation * math.sqrt(sum(_variance(len(side)) for side in (first, second)))
    return t_outside(apart / error, noise.freedom) if error else 0.0


def _variance(count: int) -> float:
    """Return the variance of the median of so many values of variance 1, or a little more."""
    return 1.0 if count <= SIDE else ROUGH / count
