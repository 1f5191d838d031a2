"""Change points: steps, drift, outliers, noise alone, short series, and one branch against another.

The rates of false alarms are those of ``lab results history``: 1 % for all series together.
"""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest

from lab.analysis.change_points import change_points, difference, fewest
from lab.analysis.history import history
from lab.analysis.noise import SEALED
from lab.core.statistics import Spread
from lab.model.result.history import Point
from lab.model.result.noise import NoiseFloor

CHANCE = 0.001
QUIET = 0.005
KNOWN = Spread(deviation=QUIET, freedom=20)


def normal(dice: random.Random, count: int, middle: float = 1.0) -> list[float]:
    return [math.log(middle) + dice.gauss(0, QUIET) for _ in range(count)]


def places(values: list[float], noise: Spread | None = None, **more: Any) -> list[int]:
    return [split.at for split in change_points(values, CHANCE, noise, **more)]


def energy(values: list[float], at: int) -> float:
    """Q from its definition, by all pairs."""
    left, right = values[:at], values[at:]
    n, m = len(left), len(right)

    def mean(pairs: list[float]) -> float:
        return sum(pairs) / len(pairs) if pairs else 0.0

    apart = mean([abs(x - y) for x in left for y in right])
    inside = [[abs(x - y) for i, x in enumerate(s) for y in s[:i]] for s in (left, right)]
    return n * m / (n + m) * (2 * apart - mean(inside[0]) - mean(inside[1]))


def test_a_split_is_where_the_energy_distance_is_largest() -> None:
    values = [3.0, 1.0, 2.0, 2.5, 1.5, 9.0, 8.0, 9.5, 7.0, 8.5, 9.1, 7.7, 8.8, 2.2]
    best = max(range(2, len(values) - 1), key=lambda at: energy(values, at))
    [split] = change_points(values, 0.05)
    assert split.at == best == 5
    assert (split.start, split.end) == (0, len(values))


@pytest.mark.parametrize("noise", [None, KNOWN])
@pytest.mark.parametrize("share", [1.03, 0.97])
def test_a_step_is_found_at_its_run(share: float, noise: Spread | None) -> None:
    """A step of 3 %, six times the noise."""
    dice = random.Random(1)
    found = [places([*normal(dice, 12), *normal(dice, 8, share)], noise) for _ in range(20)]
    assert sum(at == [12] for at in found) >= 19


@pytest.mark.parametrize("noise", [None, KNOWN])
def test_several_steps_are_found(noise: Spread | None) -> None:
    dice = random.Random(2)
    values = [*normal(dice, 15), *normal(dice, 15, 1.1), *normal(dice, 15, 1.02)]
    found = change_points(values, CHANCE, noise)
    assert [split.at for split in found] == [15, 30]
    assert [(split.start, split.end) for split in found] == [(0, 30), (15, 45)]


@pytest.mark.parametrize("noise", [None, KNOWN])
def test_noise_alone_is_no_change(noise: Spread | None) -> None:
    """At 2 % a series, of 400 about 8 have a false alarm; 15 or more have a chance of 2 %."""
    dice = random.Random(3)
    alarms = sum(bool(change_points(normal(dice, 24), 0.02, noise)) for _ in range(400))
    assert alarms <= 14


def test_noise_that_is_not_normal_is_no_change_either() -> None:
    """Permutations assume nothing of the noise: here a tenth of the runs are far off."""
    dice = random.Random(4)

    def one() -> float:
        return dice.gauss(0, QUIET) + (dice.random() < 0.1) * dice.expovariate(1) * 0.2

    alarms = sum(bool(change_points([one() for _ in range(24)], 0.02)) for _ in range(400))
    assert alarms <= 14


def test_a_floor_that_is_too_low_gives_false_alarms() -> None:
    """Negative control: with a third of the true noise, noise is called a change."""
    dice = random.Random(5)
    low = Spread(deviation=QUIET / 3, freedom=20)
    alarms = sum(bool(change_points(normal(dice, 24), 0.02, low)) for _ in range(100))
    assert alarms > 30


def test_a_threshold_from_run_to_run_misses_what_is_found() -> None:
    """A step of the noise's size is in no pair of runs, and in the series."""
    dice = random.Random(6)
    found = [places([*normal(dice, 30), *normal(dice, 30, 1.0 + 2 * QUIET)]) for _ in range(10)]
    assert sum(len(at) == 1 and abs(at[0] - 30) <= 4 for at in found) >= 9


@pytest.mark.parametrize("noise", [None, KNOWN])
@pytest.mark.parametrize("at", [0, 10, 19])
def test_an_outlier_is_no_change(at: int, noise: Spread | None) -> None:
    dice = random.Random(7)
    for _ in range(10):
        values = normal(dice, 20)
        values[at] += 0.3
        assert places(values, noise) == []


def test_a_drift_is_a_staircase() -> None:
    """There is no single run to name; the whole change is shown in steps."""
    dice = random.Random(8)
    values = [v + 0.1 * n / 40 for n, v in enumerate(normal(dice, 40))]
    for noise in (None, KNOWN):
        found = places(values, noise)
        assert 2 <= len(found) <= 8
        assert all(b - a >= 2 for a, b in pairwise(found))


def test_a_short_series_needs_known_noise() -> None:
    dice = random.Random(9)
    least = fewest(CHANCE)
    assert least == 15
    step = [*normal(dice, 4), *normal(dice, 2, 1.2)]
    assert places(step) == []
    assert places(step, KNOWN) == [4]
    assert places(step[:5], KNOWN) == []  # one run may be an outlier
    assert places(step[:5], KNOWN, side=1) == [4]
    half = least // 2
    for _ in range(5):
        assert places([*normal(dice, half), *normal(dice, half + 1, 1.2)]) == [half]
        assert places([*normal(dice, half), *normal(dice, half, 1.2)]) == []
    assert [places(step[:n], KNOWN) for n in range(4)] == [[]] * 4


def test_equal_values_never_change() -> None:
    assert places([1.0] * 30) == []
    assert places([1.0] * 30, Spread(deviation=0.0, freedom=5)) == []


def test_a_series_has_the_same_change_points_each_time() -> None:
    dice = random.Random(10)
    values = [*normal(dice, 15), *normal(dice, 15, 1.02)]
    assert change_points(values, CHANCE) == change_points(list(values), CHANCE)


def test_two_samples_differ_or_not() -> None:
    dice = random.Random(11)
    first = normal(dice, 10)
    assert difference(first, normal(dice, 10, 1.05), CHANCE) <= CHANCE
    assert difference(first, normal(dice, 3, 1.05), CHANCE, KNOWN) <= CHANCE
    assert difference(first, normal(dice, 3, 1.05), CHANCE) > CHANCE  # one of 286 orders
    alarms = [difference(normal(dice, 8), normal(dice, 8), 0.02) <= 0.02 for _ in range(300)]
    assert sum(alarms) <= 12


def point(run: int, value: float, branch: str | None = None, **more: Any) -> Point:
    return Point(
        run=f"r{run:03}",
        scenario="s",
        started=f"2026-01-01T00:{run:02}:00+00:00",
        cell="c",
        axes={},
        workload="write",
        metric="throughput",
        unit="B/s",
        median=value,
        values=(value,),
        branch=branch,
        **more,
    )


FLOOR = NoiseFloor(disks="throttle", metric="throughput", deviation=QUIET, freedom=20, runs=5)
THROTTLE: dict[str, Any] = {"disks": "throttle", "noise": (FLOOR,)}


def test_a_sealed_run_that_differs_is_a_change_at_once() -> None:
    values = [1e7, 1e7 * (1 + 1e-5), 1e7, 0.99e7]
    found = history("throughput", [point(n, v, disks=SEALED) for n, v in enumerate(values)])
    [change] = found.changes
    assert (change.run, change.previous, change.runs) == ("r003", "r002", (3, 1))
    assert change.change == pytest.approx(-0.01)
    unknown = history("throughput", [point(n, v, disks="hdd") for n, v in enumerate(values)])
    assert (unknown.changes, unknown.too_short) == ((), 1)
    assert unknown.fewest == fewest(0.01)


def test_a_contended_run_is_shown_and_not_used() -> None:
    values = [1e7] * 5 + [0.8e7] * 2
    points = [point(n, v, contended=v < 1e7, **THROTTLE) for n, v in enumerate(values)]
    found = history("throughput", points)
    assert (len(found.points), found.changes) == (7, ())
    quiet = history("throughput", [p.model_copy(update={"contended": False}) for p in points])
    assert [change.run for change in quiet.changes] == ["r005"]


def test_branches_are_series_of_their_own_and_compared_on_request() -> None:
    """The branch has the new level of the base, not that from before the base's change point."""
    base = [1e7] * 6 + [0.9e7] * 4
    points = [point(n, v, "main", **THROTTLE) for n, v in enumerate(base)]
    same = [point(20 + n, 0.9e7, "same", **THROTTLE) for n in range(3)]
    slow = [point(30 + n, 0.8e7, "slow", **THROTTLE) for n in range(3)]
    every = [*points, *same, *slow]
    found = history("throughput", every)
    assert [(c.branch, c.run) for c in found.changes] == [("main", "r006")]
    assert found.differences == ()
    [none] = history("throughput", every, "same", "main").differences
    assert (none.differs, none.change, none.runs) == (False, 0, (4, 3))
    compared = history("throughput", every, "slow", "main")
    [other] = compared.differences
    assert other.differs
    assert other.change == pytest.approx(0.8 / 0.9 - 1)
    assert {p.branch for p in compared.points} == {"main", "slow"}
