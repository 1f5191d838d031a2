"""The search for the first bad version: any planted change is found, whatever is skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.capabilities.bisect.logic.search import Ended, Measure, State, expected, following, path
from lab.capabilities.bisect.model import Ending, Side

G, B, S = Side.GOOD, Side.BAD, Side.SKIPPED
ONE = ("6.12",) * 9
TWO = ("6.1", "6.1", "6.1", "6.12", "6.12", "6.12")
THREE = ("5.10", "5.10", "6.1", "6.1", "6.12", "6.12", "7.2")


def ended(branches: Sequence[str], answers: Sequence[Side]) -> tuple[Ended, list[int]]:
    """Return the result, and the versions that were measured."""
    order = path(branches, lambda n: answers[n])
    found = following(State(branches=branches, answers={n: answers[n] for n in order}))
    assert isinstance(found, Ended)
    return found, order


@pytest.mark.parametrize(
    ("branches", "answers", "ending", "pair", "measured"),
    [
        (ONE, (G, G, G, G, G, G, G, G, B), Ending.FOUND, (7, 8), [0, 8, 4, 6, 7]),
        (ONE, (G, B, B, B, B, B, B, B, B), Ending.FOUND, (0, 1), [0, 8, 4, 2, 1]),
        (ONE, (G, G, G, G, S, B, B, B, B), Ending.FOUND, (3, 5), [0, 8, 4, 3, 5]),
        (ONE, (G, S, S, S, S, S, S, S, B), Ending.FOUND, (0, 8), [0, 8, 4, 3, 5, 2, 6, 1, 7]),
        (ONE, (G, B, G, G, G, G, G, G, B), Ending.FOUND, (7, 8), [0, 8, 4, 6, 7]),
        (ONE, (G, G, G, G, G, G, G, G, G), Ending.SAME, (0, 8), [0, 8]),
        (ONE, (G, G, G, G, B, B, B, B, S), Ending.OPEN, (8, 8), [0, 8]),
        (ONE, (S, G, G, G, B, B, B, B, B), Ending.OPEN, (0, 0), [0]),
        (("6.1",), (G,), Ending.SAME, (0, 0), [0]),
        (("6.1", "6.1"), (G, B), Ending.FOUND, (0, 1), [0, 1]),
        (("6.1", "6.12"), (G, B), Ending.BRANCH, (0, 1), [0, 1]),
        # the first version of 6.12 is bad, and the last one of 6.1 good: between the branches
        (TWO, (G, G, G, B, B, B), Ending.BRANCH, (2, 3), [0, 5, 3, 2]),
        # a fix or a regression that came to 6.1 as well is looked for there
        (TWO, (G, B, B, B, B, B), Ending.FOUND, (0, 1), [0, 5, 3, 2, 1]),
        (TWO, (G, G, G, G, B, B), Ending.FOUND, (3, 4), [0, 5, 3, 4]),
        # in 6.1 it came after the end of its line here, and to 6.12 before the first one here
        (TWO, (G, G, B, G, G, B), Ending.FOUND, (4, 5), [0, 5, 3, 4]),
        (TWO, (G, G, S, B, B, B), Ending.BRANCH, (1, 3), [0, 5, 3, 2, 1]),
        (TWO, (G, G, G, S, B, B), Ending.BRANCH, (2, 4), [0, 5, 3, 4, 2]),
        (TWO, (G, S, S, S, S, B), Ending.BRANCH, (0, 5), [0, 5, 3, 4, 2, 1]),
        (THREE, (G, G, G, G, G, G, B), Ending.BRANCH, (5, 6), [0, 6, 2, 4, 5]),
        (THREE, (G, G, G, B, B, B, B), Ending.FOUND, (2, 3), [0, 6, 2, 4, 3]),
        (THREE, (G, G, S, S, B, B, B), Ending.BRANCH, (1, 4), [0, 6, 2, 3, 4, 1]),
    ],
)
def test_what_is_measured_and_what_is_found(
    branches: Sequence[str],
    answers: Sequence[Side],
    ending: Ending,
    pair: tuple[int, int],
    measured: list[int],
) -> None:
    found, order = ended(branches, answers)
    assert (found.ending, (found.good, found.bad)) == (ending, pair)
    assert order == measured


def test_skipped_versions_between_the_pair_are_named() -> None:
    found, _ = ended(ONE, (G, G, S, S, S, B, B, B, B))
    assert (found.good, found.bad, found.between) == (1, 5, (2, 3, 4))
    found, _ = ended(TWO, (G, G, S, S, B, B))
    assert (found.good, found.bad, found.between) == (1, 4, (2, 3))


branches = st.lists(st.integers(1, 12), min_size=1, max_size=5).map(
    lambda sizes: [f"6.{n}" for n, size in enumerate(sizes) for _ in range(size)]
)


@given(st.data(), branches.filter(lambda found: len(found) > 1))
def test_a_planted_change_is_found(data: st.DataObject, branches: Sequence[str]) -> None:
    """Whatever is skipped: the pair is good and bad, and all between them were skipped."""
    last = len(branches) - 1
    first_bad = data.draw(st.integers(1, last))
    skipped = data.draw(st.sets(st.integers(0, last))) - {0, last}
    answers = [S if n in skipped else B if n >= first_bad else G for n in range(len(branches))]
    found, order = ended(branches, answers)
    assert len(order) == len(set(order))
    assert answers[found.good] is G
    assert answers[found.bad] is B
    assert found.good < first_bad <= found.bad
    assert set(range(found.good + 1, found.bad)) == set(found.between) <= skipped
    same = branches[found.good] == branches[found.bad]
    assert found.ending is (Ending.FOUND if same else Ending.BRANCH)


@given(st.data(), branches.filter(lambda found: len(found) > 1))
def test_any_answers_end_with_a_true_pair(data: st.DataObject, branches: Sequence[str]) -> None:
    """Answers in no order at all: what is reported was measured, and no version twice."""
    middle = st.sampled_from([G, B, S])
    answers = [G, *(data.draw(middle) for _ in branches[2:]), B]
    found, order = ended(branches, answers)
    assert len(order) == len(set(order))
    assert answers[found.good] is G
    assert answers[found.bad] is B
    assert {found.good, found.bad} <= set(order)
    assert found.good < found.bad


def test_a_search_that_was_stopped_goes_on_where_it_was() -> None:
    """The next version follows from the answers alone, in whatever order they are stored."""
    answers = (G, G, G, G, G, B, B, B, B)
    order = path(ONE, lambda n: answers[n])
    for done in range(len(order)):
        known: Mapping[int, Side] = {n: answers[n] for n in reversed(order[:done])}
        assert following(State(branches=ONE, answers=known)) == Measure(order[done])


def test_the_number_of_steps_is_known_before() -> None:
    fifteen = expected(("6.12",) * 15)
    assert fifteen.most == 6
    assert 5 < fifteen.steps < 6
    assert expected(("6.12",) * 2).most == 2
    assert expected(("6.12",)).most == 1
    assert expected(("6.12",) * 100).most == 9
