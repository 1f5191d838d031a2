"""How often verdicts of trials that stop early are wrong, and how often there is one.

The spread between seeds is an assumption of the simulation: md cells of 10,000 requests on modelled
drives differ by 0.3 to 2 % (standard deviation) from seed to seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import pytest

from lab.analysis import sequential
from lab.analysis.measure import counted
from lab.analysis.sequential import (
    COMPARISONS,
    EACH,
    EARLY,
    ENOUGH,
    ERROR,
    LEAST,
    LOOKS,
    MOST,
    RANKS,
    can_decide,
    early_error,
    interval,
    look_after,
    outside,
)
from lab.compile.guest.seeds import draws
from lab.compile.scenario.compiler import compile_scenario
from lab.core.statistics import Interval, Spread, median_interval, pooled
from lab.model.result.measurement import COUNTERS
from lab.model.scenario.claim import Claim, Monotonic, Order, Same
from lab.plugins import catalog

Draw = Callable[[random.Random], float]
"""A value between seeds, in units of its spread; its median over all seeds is 0."""

MARGIN = math.log(1.01)
SPREADS = (0.003, 0.02)


def normal(dice: random.Random) -> float:
    return dice.gauss(0, 1)


def skewed(dice: random.Random) -> float:
    return dice.expovariate(1) - math.log(2)


def very_skewed(dice: random.Random) -> float:
    return math.exp(dice.gauss(0, 1)) - 1


def two_states(dice: random.Random) -> float:
    return dice.choice((-1, 1)) + dice.gauss(0, 0.02)


def tied(dice: random.Random) -> float:
    return float(round(dice.gauss(0, 1)))


def outliers(dice: random.Random) -> float:
    return dice.gauss(0, 1) if dice.random() < 0.9 else dice.gauss(0, 5)


def a_third(dice: random.Random) -> float:
    return dice.gauss(0, 1 / 3)


def constant(dice: random.Random) -> float:
    return 0.0


def compared(
    dice: random.Random,
    draws: Sequence[Draw],
    *,
    spread: float = 0.01,
    truth: float = 0.0,
    bound: float = 0.0,
    look: Callable[[Sequence[float], Spread], Interval | None] = interval,
    looks: Sequence[int] = LOOKS,
) -> tuple[float, int]:
    """The side of the bound where the first cell over the second is found, and the trials used.

    0: they end undecided. All cells are of one kind.
    """
    cells = [[spread * draw(dice) for _ in range(MOST)] for draw in draws]
    apart = [truth + a - b for a, b in zip(cells[0], cells[1], strict=True)]
    for count in looks:
        kind = pooled_fast([cell[:count] for cell in cells])
        both = Spread(deviation=kind.deviation * math.sqrt(2), freedom=kind.freedom)
        found = look(apart[:count], both)
        if found is not None and not found.low <= bound <= found.high:
            return math.copysign(1, found.low - bound), count
    return 0, MOST


def pooled_fast(cells: Sequence[Sequence[float]]) -> Spread:
    """``pooled`` without its exact fractions, which take 20 times as long."""
    means = [math.fsum(cell) / len(cell) for cell in cells]
    squares = sum((v - m) ** 2 for cell, m in zip(cells, means, strict=True) for v in cell)
    freedom = sum(len(cell) - 1 for cell in cells)
    return Spread(deviation=math.sqrt(squares / freedom), freedom=freedom)


def test_the_fast_spread_is_the_exact_one() -> None:
    dice = random.Random(1)
    cells = [[dice.gauss(5, 1) for _ in range(size)] for size in (4, 6, 9)]
    fast, exact = pooled_fast(cells), pooled(cells)
    assert fast.freedom == exact.freedom
    assert fast.deviation == pytest.approx(exact.deviation)


def test_all_looks_together_spend_the_error_and_no_more() -> None:
    exact = sum(outside(trials, rank) for trials, rank in RANKS.items())
    assert exact + len(EARLY) * early_error() == pytest.approx(EACH)
    assert early_error() > 0
    assert EACH * COMPARISONS == ERROR == 0.01
    assert sorted(LOOKS) == list(LOOKS)
    assert (LEAST, MOST) == (4, 32)


def comparisons(claim: Claim, cells: int = 2) -> int:
    """Return the number of a claim's comparisons; ``cells``: number of cells along an axis."""
    match claim.expect:
        case Order(values=values):
            return len(values) - 1
        case Same(values=values):
            return len(values) if len(values) > 2 else 1
        case Monotonic():
            return cells - 1
        case _:
            return 1


def test_the_shipped_claims_have_no_more_comparisons_than_share_the_error() -> None:
    """Values that are counted, or that no seed changes, are not estimated from seeds.

    So comparisons of them have no error.
    """
    count = 0
    for name in catalog.scenarios():
        compiled = compile_scenario(catalog.scenario_path(name))
        cells = compiled.cells
        known = {m.name for m in COUNTERS} | {m for cell in cells for _, m in counted(cell)}
        drawn = {w for cell in cells for w in draws(cell)}
        drawn |= {fault.name for cell in cells for fault in cell.faults}
        for claim in compiled.scenario.claims:
            if any(v.metric not in known and v.workload in drawn for v in claim.values):
                count += comparisons(claim, len(cells))
    assert 130 < count <= COMPARISONS


@pytest.mark.parametrize(("trials", "rank"), RANKS.items())
def test_the_error_of_an_exact_look_is_that_of_counted_cases(trials: int, rank: int) -> None:
    """Conover: the number of values below the median is binomial; here by Pascal's triangle."""
    row = [1]
    for _ in range(trials):
        row = [1, *map(sum, pairwise(row)), 1]
    assert outside(trials, rank) == 2 * list(accumulate(row))[rank - 1] / 2**trials
    values = [float(n) for n in range(trials)]
    found = interval(values)
    assert found is not None
    same = median_interval(values, 1 - outside(trials, rank))
    assert (found.low, found.high) == (same.low, same.high)


def test_there_is_no_interval_between_looks() -> None:
    kind = Spread(deviation=0.1, freedom=ENOUGH)
    values = [math.sin(n) for n in range(40)]
    for count in range(LEAST):
        assert interval(values[:count], kind) is None
    for count in range(LEAST, 40):
        assert interval(values[:count], kind) == interval(values[: look_after(count)], kind)
    assert [look_after(n) for n in (3, 4, 5, 8, 16, 17, 31, 32)] == [0, 4, 4, 8, 8, 17, 24, 32]


def test_few_trials_need_to_know_how_far_the_kind_scatters() -> None:
    values = [1.0, 1.1, 0.9, 1.0]
    assert interval(values) is None
    assert interval(values, Spread(deviation=0.1, freedom=ENOUGH - 1)) is None
    found = interval(values, Spread(deviation=0.0, freedom=ENOUGH))
    wider = interval(values, Spread(deviation=1.0, freedom=ENOUGH))
    assert found is not None
    assert wider is not None
    assert wider.low < found.low < 1 < found.high < wider.high


def test_equal_values_of_a_kind_that_does_not_scatter_are_a_point() -> None:
    found = interval([2.0] * 4, Spread(deviation=0.0, freedom=ENOUGH))
    assert found == Interval(middle=2, low=2, high=2)
    assert interval([2.0] * 17) == found


PAIRS = {
    "normal": (normal, normal),
    "skewed": (skewed, constant),
    "very skewed": (very_skewed, constant),
    "two states": (two_states, two_states),
    "two states in one cell": (two_states, constant),
    "tied": (tied, tied),
    "outliers": (outliers, outliers),
    "two states, six cells": (two_states,) * 6,
    "normal, six cells": (normal,) * 6,
    "two states in one of six cells": (two_states, *(a_third,) * 5),
}
FAMILIES = 10
"""Of 200 comparisons each, all on their bound, which is the worst case."""


@pytest.mark.parametrize("draws", PAIRS.values(), ids=PAIRS.keys())
def test_verdicts_on_the_bound_are_wrong_as_seldom_as_promised(draws: tuple[Draw, ...]) -> None:
    """2000 comparisons may be wrong 0.1 times; twice has a probability of 0.5 %."""
    dice = random.Random(19)
    wrong = sum(bool(compared(dice, draws)[0]) for _ in range(FAMILIES * COMPARISONS))
    assert wrong <= 1


@pytest.mark.parametrize("draws", [PAIRS["normal"], PAIRS["skewed"]])
def test_what_is_exactly_on_the_margin_is_not_decided(
    draws: tuple[Draw, ...],
) -> None:
    dice = random.Random(20)
    seen = [compared(dice, draws, truth=MARGIN, bound=MARGIN)[0] for _ in range(500)]
    assert not any(seen)


@pytest.mark.parametrize(("low", "high"), [(0.0, math.inf), (-0.5, 0.5), (-math.inf, 1.0)])
def test_trials_end_early_only_if_no_later_look_could_decide(low: float, high: float) -> None:
    dice, ended = random.Random(11), 0
    for _ in range(400):
        middle = dice.choice((-1, -0.5, 0, 0.5, 1))
        values = [middle + dice.gauss(0, 1) for _ in range(MOST)]
        looked = (n for n in range(MOST) if not can_decide(values[:n], low, high))
        shown = next(looked, MOST + 1)
        ended += shown < MOST
        for look in LOOKS:
            found = interval(values[:look]) if look >= shown else None
            assert found is None or found.within(low, high) is None
        assert shown > max(EARLY)
    assert ended > 100


def test_what_is_on_its_bound_mostly_ends_after_17_trials() -> None:
    dice = random.Random(12)
    drawn = [[dice.gauss(0, 1) for _ in range(min(RANKS))] for _ in range(400)]
    assert sum(not can_decide(values, 0, math.inf) for values in drawn) > 0.9 * len(drawn)


def test_the_early_looks_spend_what_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an error that can be measured: 20 % for all looks."""
    monkeypatch.setattr(sequential, "EACH", 0.2)
    sequential._quantile.cache_clear()
    dice = random.Random(21)
    runs = 2000
    wrong = sum(
        bool(compared(dice, [normal] * 2, looks=EARLY, look=without_guard)[0]) for _ in range(runs)
    )
    sequential._quantile.cache_clear()
    assert 0.08 < wrong / runs <= 0.2


def without_guard(values: Sequence[float], others: Spread) -> Interval | None:
    return interval(values, Spread(deviation=0.0, freedom=ENOUGH))


def test_without_the_scatter_of_the_kind_two_states_would_be_decided_wrongly() -> None:
    """The rule is needed: four trials show one of two states in one of eight cells."""
    dice = random.Random(22)
    draws = (two_states, constant)
    runs = 400
    wrong = sum(bool(compared(dice, draws, look=without_guard)[0]) for _ in range(runs))
    assert wrong / runs > 0.05


def test_the_limit_of_early_looks_is_one_cell_with_two_states_among_cells_without_scatter() -> None:
    """The one assumption: cells of a kind are alike. From 17 trials on it is not needed."""
    dice = random.Random(27)
    draws = (two_states, *(constant,) * 5)
    early = [compared(dice, draws, looks=EARLY)[0] for _ in range(300)]
    assert any(early)
    assert not any(compared(dice, draws, looks=tuple(RANKS))[0] for _ in range(300))


def test_looking_after_each_trial_with_an_interval_of_95_percent_is_often_wrong() -> None:
    """What sequential looks are for: the plain interval errs in every fourth comparison."""

    def plain(values: Sequence[float], others: Spread) -> Interval | None:
        return median_interval(values)

    dice = random.Random(23)
    runs, looks = 300, range(6, MOST + 1)
    wrong = sum(bool(compared(dice, [normal] * 2, look=plain, looks=looks)[0]) for _ in range(runs))
    assert wrong / runs > 0.15


@pytest.mark.parametrize("cells", [2, 4])
def test_effects_of_5_percent_are_decided_within_the_budget(cells: int) -> None:
    """Outside the margin of 1 %, whatever the spread is between 0.3 and 2 %."""
    dice = random.Random(24)
    runs = 400
    found = [
        compared(
            dice,
            [normal] * cells,
            spread=dice.uniform(*SPREADS),
            truth=math.log(1.05),
            bound=MARGIN,
        )[0]
        for _ in range(runs)
    ]
    assert found.count(1) / runs >= 0.9
    assert found.count(-1) == 0


def test_large_effects_need_few_trials() -> None:
    """20 % in a scenario of six cells: most are decided after four or six trials."""
    dice = random.Random(25)
    found = [
        compared(dice, [normal] * 6, spread=dice.uniform(*SPREADS), truth=math.log(1.2) - MARGIN)
        for _ in range(200)
    ]
    assert all(side == 1 for side, _ in found)
    assert sum(count for _, count in found) / len(found) < 8


def test_no_difference_is_shown_too() -> None:
    """Two equal cells lie inside the margin: above -1 % and below 1 %."""
    dice = random.Random(26)
    runs = 200

    def equal(spread: float) -> bool:
        cells = [[spread * dice.gauss(0, 1) for _ in range(MOST)] for _ in range(2)]
        apart = [a - b for a, b in zip(*cells, strict=True)]
        found = interval(apart)
        assert found is not None
        return found.within(-MARGIN, MARGIN) is True

    assert sum(equal(0.003) for _ in range(runs)) / runs > 0.99
