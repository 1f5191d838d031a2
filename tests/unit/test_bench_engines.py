"""Values of both engines, side by side: what counts as a difference."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench import engines


def pair(native: Sequence[float], emulated: Sequence[float]) -> engines.Pair:
    key = ("array.level=5", "write", "iops")
    return engines.Pair(scenario="q", key=key, unit="1/s", native=native, emulated=emulated)


@pytest.mark.parametrize(
    ("native", "emulated", "differs"),
    [
        ([100, 102, 98], [100, 101, 99], False),
        ([120, 122, 118], [100, 101, 99], True),
        ([120, 80, 110], [100, 140, 70], False),  # less than chance makes it
        ([102, 102, 102], [100, 100, 100], True),  # no seed changes them
        ([100.5], [100], False),  # less than 1 %
        ([120], [100], True),  # counts, of which one trial is enough
        ([120], [100, 90], False),  # one trial has no interval
        ([1], [0], True),
        ([0], [0], False),
    ],
)
def test_a_difference_is_more_than_one_percent_and_more_than_chance(
    native: Sequence[float], emulated: Sequence[float], differs: bool
) -> None:
    assert pair(native, emulated).differs is differs


def test_the_interval_of_the_difference_is_welchs() -> None:
    """By hand: variances 4 and 1, three trials each: 2.94 degrees of freedom, of which 2 count."""
    row = pair([118, 120, 122], [99, 100, 101])
    assert row.chance == pytest.approx(4.303 * (4 / 3 + 1 / 3) ** 0.5 / 100, rel=1e-3)


def test_the_table_names_what_differs_and_counts_the_rest() -> None:
    text = engines.table([pair([100], [100]), pair([120], [100]), pair([50], [100])])
    assert text.index("-50.0%") < text.index("+20.0%")
    assert text.endswith("2 of 3 values differ by more than 1%.")
