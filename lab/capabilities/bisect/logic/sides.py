"""Whether a version's measurement is that of the good end or of the bad one. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lab.analysis.compare import LEAST, figure_change
from lab.capabilities.bisect.model import Side, Subject
from lab.model.result.comparison import Change
from lab.model.result.document import CellMeasurement
from lab.model.scenario.claim import Verdict

DECIDED = (Verdict.HOLDS, Verdict.REFUTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A value in one cell, and the noise of its runs."""

    subject: Subject
    figure: CellMeasurement
    noise: float = 0.0
    """Relative error at the level of `compare.CERTAIN`; 0: unknown, or there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was measured with one version."""

    verdict: Verdict
    reason: str = ""
    measured: float | None = None
    """What the claim compares with its limits."""
    values: Sequence[Seen] = ()
    """With ``--metric``: this metric of every cell and workload that the claim is about."""

    def of(self, subject: Subject) -> Seen | None:
        """Return this value; ``None``: it was not measured."""
        return next((one for one in self.values if one.subject == subject), None)


def undecided(one: Observed, metric: str | None) -> str:
    """Return why a version gives no answer; empty: it gives one."""
    if metric is not None:
        if not one.values:
            return one.reason or f"no value of {metric} was measured"
        return ""
    if one.verdict in DECIDED:
        return ""
    return one.reason or f"the claim is {one.verdict.value.replace('_', ' ')}"


def subject_of(good: Observed, bad: Observed) -> Subject | None:
    """Return the value that differs most between both ends, beyond noise; ``None``: none does."""
    found = dict[float, Subject]()
    for one in good.values:
        other = bad.of(one.subject)
        if other is not None and _differ(one, other):
            found[_distance(one, other)] = one.subject
    return found[max(found)] if found else None


def equal(good: Observed, bad: Observed, metric: str | None) -> bool:
    """Return whether both ends give the same answer."""
    return good.verdict is bad.verdict if metric is None else subject_of(good, bad) is None


def side_of(one: Observed, good: Observed, bad: Observed, subject: Subject | None) -> Side | str:
    """Return the end whose answer this is; a text: why it is neither.

    ``subject``: the value to compare; ``None``: the verdict.
    """
    if subject is None:
        if one.verdict is good.verdict:
            return Side.GOOD
        return Side.BAD if one.verdict is bad.verdict else undecided(one, None)
    mine, first, last = one.of(subject), good.of(subject), bad.of(subject)
    if mine is None or first is None or last is None:
        return one.reason or f"{subject.workload} {subject.metric} was not measured"
    near = _distance(mine, first) <= _distance(mine, last)
    side, other = (Side.GOOD, last) if near else (Side.BAD, first)
    if _differ(mine, other):
        return side
    return f"{subject.workload} {subject.metric} is between both ends, within noise"


def _differ(one: Seen, other: Seen) -> bool:
    """Return whether two values differ by `compare.LEAST` or more, and by more than noise."""
    change = figure_change(one.figure, other.figure, noise=(one.noise, other.noise))
    if change is None:  # one of them is 0
        return _distance(one, other) >= LEAST
    return change.verdict is Change.CHANGED and abs(change.change or 0.0) >= LEAST


def _distance(one: Seen, other: Seen) -> float:
    """Return the logarithm of the quotient, its sign removed; of a 0 infinity."""
    a, b = one.figure.median, other.figure.median
    if a == b:
        return 0.0
    return abs(math.log(a / b)) if a > 0 < b else math.inf
