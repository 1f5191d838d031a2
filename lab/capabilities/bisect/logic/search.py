"""Which version to measure next, and when the first bad one is known. Pure.

Versions of one branch (6.12.x) follow each other. Versions of two branches do not: 6.12.1 does not
descend from 6.1.170, and both descend from 6.1. So if the ends are of two branches, the first
version of each later branch is measured first. If the newest version of the last good branch is
good as well, the change came where the branches part, and no package of one branch is the first bad
one. Otherwise it came within that branch, and is looked for there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lab.capabilities.bisect.model import Ending, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is known so far."""

    branches: Sequence[str]
    """The branch of each version, oldest version first: the first is the good end, the last the bad
    one."""
    answers: Mapping[int, Side]
    """What was measured, by the version's position."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure this version next."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The search has ended."""

    ending: Ending
    good: int = 0
    bad: int = 0
    between: tuple[int, ...] = ()
    """Skipped versions between both, of their branches."""


Next = Measure | Ended


def following(state: State) -> Next:
    """Return the version to measure, or the result.

    The ends come first. The good one is good by definition; the bad one is good as well if both
    give the same answer.
    """
    last = len(state.branches) - 1
    for end in (0, last):
        if end not in state.answers:
            return Measure(end)
        if state.answers[end] is Side.SKIPPED:
            return Ended(ending=Ending.OPEN, good=end, bad=end)
    if last == 0 or state.answers[last] is Side.GOOD:
        return Ended(ending=Ending.SAME, good=0, bad=last)
    return _within(state, 0, last) if _same(state, 0, last) else _across(state, last)


def _same(state: State, first: int, second: int) -> bool:
    return state.branches[first] == state.branches[second]


def _within(state: State, good: int, bad: int) -> Next:
    """Bisect one branch between a good and a bad version."""
    found = _bisect(state, good, bad, list(range(good + 1, bad)))
    if isinstance(found, Measure):
        return found
    good, bad = found
    skipped = tuple(range(good + 1, bad))
    return Ended(ending=Ending.FOUND, good=good, bad=bad, between=skipped)


def _bisect(
    state: State, good: int, bad: int, candidates: Sequence[int]
) -> Measure | tuple[int, int]:
    """Return the candidate to measure, or the last good and the first bad one of those that were
    not skipped. Of those left the one nearest to the middle is taken."""
    left = list(candidates)
    while True:
        left = [one for one in left if good < one < bad]
        usable = [one for one in left if state.answers.get(one) is not Side.SKIPPED]
        if not usable:
            return good, bad
        middle = (len(left) - 1) / 2
        chosen = min(usable, key=lambda one: (abs(left.index(one) - middle), one))
        match state.answers.get(chosen):
            case Side.GOOD:
                good = chosen
            case Side.BAD:
                bad = chosen
            case _:
                return Measure(chosen)


def _across(state: State, last: int) -> Next:
    """Find the branch with the change, then bisect it if the change is within."""
    heads = []
    for branch in dict.fromkeys(state.branches[: last + 1]):
        own = [n for n, its in enumerate(state.branches) if its == branch and 0 < n <= last]
        usable = [n for n in own if state.answers.get(n) is not Side.SKIPPED]
        if branch != state.branches[0] and usable:
            heads.append(usable[0])
    found = _bisect(state, 0, last, [head for head in heads if head != last])
    if isinstance(found, Measure):
        return found
    good, bad = found
    if _same(state, good, bad):
        return _within(state, good, bad)
    own = [n for n in range(good, bad) if _same(state, n, good)]
    newest = max(n for n in own if state.answers.get(n) is not Side.SKIPPED)
    if newest not in state.answers:
        return Measure(newest)
    if state.answers[newest] is Side.BAD:
        return _within(state, good, newest)
    between = tuple(n for n in range(newest + 1, bad) if state.answers.get(n) is Side.SKIPPED)
    return Ended(ending=Ending.BRANCH, good=newest, bad=bad, between=between)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """How many versions will be measured, both ends included."""

    steps: float
    """On average over every place where the change may be."""
    most: int


def expected(branches: Sequence[str]) -> Expected:
    """Return the number of steps if no version is skipped."""
    sides = [
        [Side.BAD if n >= first_bad else Side.GOOD for n in range(len(branches))]
        for first_bad in range(1, len(branches))
    ]
    counts = [len(path(branches, answers.__getitem__)) for answers in sides]
    return Expected(steps=sum(counts) / max(len(counts), 1), most=max(counts, default=1))


def path(branches: Sequence[str], measure: Callable[[int], Side]) -> list[int]:
    """Return the versions that are measured, in order, with these answers."""
    state = State(branches=branches, answers={})
    while isinstance(step := following(state), Measure):
        answers = {**state.answers, step.version: measure(step.version)}
        state = replace(state, answers=answers)
    return list(state.answers)
