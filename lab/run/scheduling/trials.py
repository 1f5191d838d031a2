"""Which cells get further trials in a run with `trials: auto`: pure functions.

A round of trials ends before the next is decided. Its cells are ordinary tasks of the scheduler,
one for each seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialsState:
    """All that the next round depends on."""

    trials: Mapping[str, int]
    """Finished trials of each cell."""
    wanted: Mapping[str, int]
    """Trials after which a claim that is not decided is looked at next, for each of its cells."""
    most: int
    """Trials of a cell, at most."""
    seconds: Mapping[str, float]
    """Duration of one trial of each cell."""
    left: float = inf
    """Seconds of the budget that are left."""
    at_once: int = 1
    """Guests that run at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The next trials."""

    trials: Mapping[str, int]
    """Trials to add to each cell; empty: the run ends."""
    stopped: str = ""
    """Why wanted trials are not run; empty: all are."""


def next_round(state: TrialsState) -> Round:
    """Return the trials to run next.

    A look beyond ``most`` is not begun, since no trial before it would be looked at. The round is
    not begun if it would end after the budget of time.
    """
    wanted = {
        cell: look - state.trials[cell]
        for cell, look in state.wanted.items()
        if look > state.trials[cell]
    }
    within = {
        cell: count for cell, count in wanted.items() if state.trials[cell] + count <= state.most
    }
    if within and sum(state.seconds[c] * n for c, n in within.items()) / state.at_once > state.left:
        return Round(trials={}, stopped="the next round would take longer than the minutes left")
    if len(within) < len(wanted):
        return Round(trials=within, stopped=f"claims need more than {state.most} trials")
    return Round(trials=within)
