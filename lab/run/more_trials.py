"""Further trials of the cells of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lab.analysis.judge import wanted
from lab.compile.scenario.identity import cell_id
from lab.host.system import clock
from lab.model.result.document import Outcome
from lab.model.scenario.document import AutoTrials, Cell
from lab.results.documents import judged_of
from lab.run.scheduling.trials import TrialsState, next_round
from lab.run.worker_pool import Say
from lab.store.runs import RunStore, StoredCell

Run = Callable[[Sequence[Cell]], None]
"""Run cells and store them."""


def until_decided(store: RunStore, auto: AutoTrials, at_once: int, run: Run, say: Say) -> None:
    """Add trials with new seeds to the cells of open claims, round by round.

    ``at_once``: most guests that run at once.
    """
    began = clock.now()
    while True:
        stored = store.load_run()
        judged = {one.result.id: one for one in judged_of(store)}
        firsts = {point[0].id: point for point in stored.points}
        trials = {name: len(point) for name, point in firsts.items()}
        done = {n for n, one in judged.items() if one.result.outcome is Outcome.DONE}
        found = next_round(
            TrialsState(
                trials=trials,
                wanted={
                    name: look
                    for name, look in wanted(stored.claims, list(judged.values())).items()
                    if name in done
                },
                most=auto.most,
                seconds={n: one.result.seconds.total / trials[n] for n, one in judged.items()},
                left=auto.minutes * 60 - (clock.now() - began) if auto.minutes else float("inf"),
                at_once=at_once,
            )
        )
        if found.stopped:
            say(f"claims stay open: {found.stopped}")
        if not found.trials:
            return
        say(f"claims are open: {told(found.trials)}")
        add_trials(store, found.trials, run)


def told(trials: Mapping[str, int]) -> str:
    """Return these numbers of trials, by cell, in words."""
    count = len(trials)
    return f"{sum(trials.values())} more trials of {count} cell{'' if count == 1 else 's'}"


def add_trials(store: RunStore, trials: Mapping[str, int], run: Run) -> None:
    """Add that many trials with new seeds to each of these cells, and run them."""
    stored = store.load_run()
    more = []
    for first, *further in stored.points:
        last = (first, *further)[-1]
        for step in range(1, trials.get(first.id, 0) + 1):
            cell = last.cell.model_copy(update={"seed": last.cell.seed + step})
            more.append(StoredCell(id=cell_id(cell), cell=cell, published=last.published))
    store.save_run(stored.model_copy(update={"cells": (*stored.cells, *more)}))
    run([one.cell for one in more])
