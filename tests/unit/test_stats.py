"""Each method gives its source's result for the source's own example."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.core.statistics import (
    Interval,
    Spread,
    difference,
    enough_for,
    median_interval,
    pooled,
    ratio,
    reach,
    t_quantile,
)


@pytest.mark.parametrize(
    ("size", "level", "rank"),
    [
        # Conover 1999, table A3 (n = 16, p = 0.5): ranks 4 and 13 of 16 are a 97.87 % interval.
        (16, 0.95, 3),
        (16, 0.98, 2),
        # With fewer than 6 values no interval reaches 95 %.
        *((size, 0.95, 0) for size in range(1, 9)),
        (9, 0.95, 1),
        (100, 0.95, 39),
    ],
)
def test_an_interval_of_the_median_has_the_ranks_of_the_binomial(
    size: int, level: float, rank: int
) -> None:
    found = median_interval([float(n) for n in range(size)], level)
    assert (found.low, found.high) == (rank, size - 1 - rank)


@pytest.mark.parametrize("size", [6, 7, 9, 16])
def test_an_interval_of_the_median_covers_it_at_its_level(size: int) -> None:
    """All 2^n ways to be below or above the true median have the same probability."""
    rank = int(median_interval([float(n) for n in range(size)]).low)
    below = [sum(ways) for ways in itertools.product((0, 1), repeat=size)]
    held = sum(rank < count < size - rank for count in below) / 2**size
    assert held >= 0.95
    narrower = sum(rank + 1 < count < size - rank - 1 for count in below) / 2**size
    assert narrower < 0.95


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=12), st.floats(0.5, 0.999))
def test_an_interval_holds_its_median_and_never_leaves_the_data(
    values: list[float], level: float
) -> None:
    found = median_interval(values, level)
    assert min(values) <= found.low <= found.middle <= found.high <= max(values)
    wider = median_interval(values, (1 + level) / 2)
    assert wider.low <= found.low <= found.high <= wider.high


@pytest.mark.parametrize(
    ("chance", "freedom", "printed"),
    [
        # NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
        *[(0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 5, 2.571), (0.975, 9, 2.262)],
        *[(0.975, 10, 2.228), (0.975, 30, 2.042), (0.975, 100, 1.984)],
        *[(0.9, 7, 1.415), (0.95, 4, 2.132), (0.999, 3, 10.215), (0.999, 20, 3.552)],
    ],
)
def test_students_t_is_that_of_the_tables(chance: float, freedom: int, printed: float) -> None:
    assert t_quantile(chance, freedom) == pytest.approx(printed, abs=6e-4)


PEAK_FLOW = """
190 220 200 200|220 200 240 230|260 260 240 280|210 300 280 265|270 265 280 270|280 280 270 275
260 280 280 300|275 275 275 305|280 290 300 290|320 290 300 290|300 300 310 300|270 250 330 370
320 330 330 330|335 320 335 375|350 320 340 365|360 320 350 345|330 340 380 390|335 385 360 370
400 420 425 420|430 460 480 470"""


def test_bland_and_altmans_twenty_children() -> None:
    """BMJ 312:1654: a mean square of 460.52, a deviation of 21.5 l/min, a repeatability of 60."""
    lines = PEAK_FLOW.strip().replace("\n", "|").split("|")
    found = pooled([[float(word) for word in line.split()] for line in lines])
    assert found.freedom == 60
    assert found.deviation**2 == pytest.approx(460.52, abs=0.005)
    assert found.deviation == pytest.approx(21.5, abs=0.05)
    # With 1.96; Student's t with 60 degrees of freedom is 2.000.
    assert reach(found) * math.sqrt(2) * 1.96 / 2.000 == pytest.approx(60, abs=0.6)


def test_groups_of_one_say_nothing() -> None:
    assert pooled([]) == pooled([[3.0], [4.0]]) == Spread(deviation=0.0, freedom=0)
    assert pooled([[1.0, 3.0], [100.0]]) == Spread(deviation=math.sqrt(2), freedom=1)


def test_newcombes_difference_of_two_proportions() -> None:
    """Newcombe 1998, method 10: 56 of 70 less 48 of 80 lies between 0.0524 and 0.3339."""
    first = Interval(middle=0.8, low=0.69183355, high=0.87695261)
    second = Interval(middle=0.6, low=0.49045465, high=0.70038172)
    found = difference(first, second)
    assert found.middle == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_a_ratio_is_a_difference_of_logarithms() -> None:
    one = Interval(middle=100, low=99, high=101)
    found = ratio(one, one)
    assert found.middle == 1
    assert (found.low, found.high) == pytest.approx((1 / 1.0142, 1.0142), abs=1e-4)
    assert ratio(Interval(middle=1, low=-1, high=2), one).low == 0
    with pytest.raises(ValueError, match="no logarithm"):
        ratio(one, Interval(middle=0, low=0, high=1))


def test_an_interval_lies_within_limits_or_not_or_in_part() -> None:
    found = Interval(middle=10, low=9, high=11)
    assert found.within(9, 11) is True
    assert found.within(11.5, 20) is False
    assert found.within(0, 8.5) is False
    assert found.within(10, 20) is None
    assert found.widened(0.1).low == pytest.approx(8.1)
    assert found.widened(0.1).high == pytest.approx(12.1)
    assert found.widened(0.1).within(9, 11) is None


@pytest.mark.parametrize("percentile", [50, 75, 95, 99, 99.9, 99.99])
def test_a_percentile_is_supported_from_the_first_sample_that_reaches_beyond_it(
    percentile: float,
) -> None:
    enough, below = enough_for(percentile), percentile / 100
    assert below**enough <= 0.025 < below ** (enough - 1)


@pytest.mark.parametrize(("size", "covers"), [(368, True), (60, False)])
def test_too_small_a_sample_seldom_reaches_the_percentile(size: int, covers: bool) -> None:
    """The negative control has 60 values for the 99th percentile."""
    dice = random.Random(7)
    reached = sum(max(dice.random() for _ in range(size)) > 0.99 for _ in range(2000)) / 2000
    assert (reached >= 0.965) is covers
