"""Intervals of a value and of a ratio of two values, and the basis of these intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from lab.analysis.sequential import EACH, ENOUGH, LOOKS, RANKS, can_decide, interval, look_after
from lab.core.statistics import Interval, Spread, median_interval, ratio, reach
from lab.model.result.document import Basis, Part

_CERTAIN: Final = (Basis.FIXED, Basis.COUNTED)
_WEAKEST: Final = (Basis.TRIALS, Basis.NOISE, Basis.SEEDS, Basis.COUNTED, Basis.FIXED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Spread of logarithms of a workload's metric between the trials of cells of one kind."""

    spread: Spread
    cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A cell's values, one per trial, with their seeds or their noise."""

    values: tuple[float, ...]
    basis: Basis
    seeds: tuple[int, ...] = ()
    """Seeds of the trials, with ``Basis.SEEDS``."""
    noise: Spread | None = None
    """Relative deviation between runs, with ``Basis.NOISE``."""
    kind: Kind | None = None

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.values)

    @property
    def interval(self) -> Interval | None:
        """Return the interval of the value; ``None``: unknown."""
        if self.basis in _CERTAIN:
            return Interval(middle=self.middle, low=min(self.values), high=max(self.values))
        if min(self.values) <= 0:
            return None if self.noise else interval(self.values)
        logs = [math.log(value) for value in self.values]
        if self.noise is None:
            return _raised(interval(logs, self.kind.spread if self.kind else None))
        found, off = median_interval(logs), reach(self.noise, 1 - EACH)
        return _raised(Interval(middle=found.middle, low=found.low - off, high=found.high + off))

    def part(self, at_least: float, at_most: float) -> Part:
        """Return the value with its limits."""
        drawn = self.values if self.basis is Basis.SEEDS else ()
        return _part(self.middle, self.interval, (self,), at_least, at_most, drawn=drawn)


def quotient(first: Estimate, second: Estimate, at_least: float, at_most: float) -> Part:
    """Return ``first / second`` with its limits; ``ValueError``: one of the values is not positive.

    Values are paired by seed if both have seeds.
    """
    both = (first, second)
    if min(*first.values, *second.values) <= 0:
        raise ValueError("a value is not positive")
    if not any(e.basis is Basis.SEEDS for e in both) or any(
        e.basis not in (Basis.SEEDS, Basis.FIXED) for e in both
    ):
        return _apart(both, at_least, at_most)
    seeds = [e.seeds for e in both if e.seeds]
    common = [seed for seed in seeds[0] if seed in seeds[-1]]
    if not common:
        return _apart(both, at_least, at_most)
    one, other = (_by_seed(e, common) for e in both)
    ratios = [a / b for a, b in zip(one, other, strict=True)]
    logs = [math.log(value) for value in ratios]
    kind = _kind(both)
    found = _raised(interval(logs, kind.spread if kind else None))
    middle = found.middle if found else math.exp(median(logs))
    return _part(middle, found, both, at_least, at_most, trials=len(common), drawn=ratios)


def _apart(both: tuple[Estimate, Estimate], at_least: float, at_most: float) -> Part:
    first, second = (e.interval for e in both)
    found = ratio(first, second) if first and second else None
    return _part(both[0].middle / both[1].middle, found, both, at_least, at_most)


def _part(
    middle: float,
    found: Interval | None,
    estimates: Sequence[Estimate],
    at_least: float,
    at_most: float,
    trials: int | None = None,
    drawn: Sequence[float] = (),
) -> Part:
    chance = [e for e in estimates if e.basis not in _CERTAIN] or estimates
    return Part(
        measured=middle,
        low=found.low if found else None,
        high=found.high if found else None,
        at_least=None if at_least == -math.inf else at_least,
        at_most=None if at_most == math.inf else at_most,
        trials=trials or min(len(e.values) for e in chance),
        basis=min((e.basis for e in estimates), key=_WEAKEST.index),
        decidable=can_decide(drawn, at_least, at_most),
    )


def _by_seed(estimate: Estimate, seeds: Sequence[int]) -> list[float]:
    if not estimate.seeds:
        return [estimate.middle] * len(seeds)
    values = dict(zip(estimate.seeds, estimate.values, strict=True))
    return [values[seed] for seed in seeds]


def _kind(estimates: Sequence[Estimate]) -> Kind | None:
    """Return the spread of the difference of two independent logarithms; ``None``: unknown."""
    kinds = [e.kind for e in estimates if e.basis is not Basis.FIXED]
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    return Kind(
        spread=Spread(
            deviation=math.hypot(*(k.spread.deviation for k in known)),
            freedom=min(k.spread.freedom for k in known),
        ),
        cells=min(k.cells for k in known),
    )


def _raised(found: Interval | None) -> Interval | None:
    """Return the interval of a value from that of its logarithm."""
    if found is None:
        return None
    return Interval(
        middle=math.exp(found.middle),
        low=math.exp(found.low),
        high=math.exp(min(found.high, _LARGEST)),
    )


_LARGEST: Final = 700.0
"""Largest logarithm whose value is a floating-point number."""


def look_for(trials: int, cells: int, freedom: int = 0) -> int | None:
    """Return the trials of the next look at cells that have ``trials``; ``None``: there is none.

    ``cells``: number of cells of the kind that get these trials, which make an early look possible;
    ``freedom``: degrees of freedom that are known from others.
    """
    after = look_after(trials)
    return next(
        (n for n in LOOKS if n > after and (n in RANKS or freedom + cells * (n - 1) >= ENOUGH)),
        None,
    )
