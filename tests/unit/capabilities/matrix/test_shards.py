"""Shards and budgets: every job once, shards of equal time, the most informative first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.capabilities.matrix.logic.shards import (
    Estimate,
    Reason,
    informative,
    parse_shard,
    shards,
    within,
)
from lab.core.errors import InputError

PIECES = st.lists(
    st.builds(
        Estimate,
        id=st.text("abcdef@-", min_size=1, max_size=6),
        seconds=st.floats(0.1, 1000),
        reason=st.sampled_from(list(Reason)),
        last=st.sampled_from(["", "2026-01-01", "2026-01-02"]),
    ),
    max_size=40,
    unique_by=lambda piece: piece.id,
)


@given(PIECES, st.integers(1, 9), st.randoms(use_true_random=False))
def test_every_part_is_in_one_share_and_shares_are_alike(
    pieces: list[Estimate], of: int, chance: object
) -> None:
    cut = shards(pieces, of)
    assert len(cut) == of
    assert sorted(name for share in cut for name in share) == sorted(p.id for p in pieces)
    seconds = {p.id: p.seconds for p in pieces}
    loads = [sum(seconds[name] for name in share) for share in cut]
    longest = max(seconds.values(), default=0)
    assert max(loads) - min(loads) <= longest + 1e-9
    assert max(loads) <= sum(loads) / of + longest + 1e-9
    # Every machine with the same files makes the same shards, whatever the order of the files.
    mixed = list(pieces)
    chance.shuffle(mixed)  # type: ignore[attr-defined]
    assert [set(share) for share in shards(mixed, of)] == [set(share) for share in cut]


def test_shares_go_by_time_and_not_by_number() -> None:
    pieces = [
        Estimate(id="long", seconds=90),
        *(Estimate(id=f"s{n}", seconds=30) for n in range(3)),
    ]
    assert shards(pieces, 2) == (("long",), ("s0", "s1", "s2"))


@given(PIECES, st.floats(0, 5000))
def test_a_budget_is_kept_and_nothing_is_forgotten(pieces: list[Estimate], budget: float) -> None:
    taken, left = within(pieces, budget)
    assert sorted(taken + left) == sorted(p.id for p in pieces)
    seconds = {p.id: p.seconds for p in pieces}
    spent = sum(seconds[name] for name in taken)
    assert spent <= budget + 1e-9
    if left:  # the cheapest of the left-out jobs would exceed the budget
        assert spent + min(seconds[name] for name in left) > budget - 1e-9


def test_the_most_informative_come_first_and_the_cheap_before_the_dear() -> None:
    def piece(name: str, reason: Reason, seconds: float = 1, last: str = "") -> Estimate:
        return Estimate(id=name, seconds=seconds, reason=reason, last=last)

    pieces = [
        piece("known, new, cheap", Reason.KNOWN, 1, "2026-02-02"),
        piece("known, old, dear", Reason.KNOWN, 9, "2026-01-01"),
        piece("flipped", Reason.FLIPPED, 1, "2026-02-02"),
        piece("unclear", Reason.UNCLEAR, 5, "2026-02-02"),
        piece("changed, dear", Reason.CHANGED, 9, "2026-01-01"),
        piece("changed, cheap", Reason.CHANGED, 2, "2026-02-02"),
        piece("never, dear", Reason.NEVER, 100),
        piece("never, cheap", Reason.NEVER, 10),
    ]
    assert [p.id for p in informative(pieces)] == [
        "never, cheap",
        "never, dear",
        "changed, cheap",
        "changed, dear",
        "unclear",
        "flipped",
        "known, old, dear",
        "known, new, cheap",
    ]
    # A job that is too long is skipped for later ones.
    assert within(pieces, 13) == (
        ["never, cheap", "changed, cheap", "flipped"],
        ["never, dear", "changed, dear", "unclear", "known, old, dear", "known, new, cheap"],
    )


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b", "1/0", "-1/2", "1/99999"])
def test_a_share_that_is_not_there_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected K/N"):
        parse_shard(text)
    assert parse_shard("2/4") == (2, 4)
