"""The list of all runs, from what is kept of them. It imports no models unless a run has changed.

A run that was judged on this host is judged again if anything has changed that its verdicts depend
on. One that was not judged here yet has the verdicts that it recorded at its end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab.host.system import clock
from lab.store import judgements
from lab.store.judgements import State

PATIENCE = 5.0
"""Seconds of judging until the list says why it takes so long, and between two such lines."""


def every_row(say: Callable[[str], None]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entry of every run, newest first, and a sentence about each unreadable file.

    ``say`` hears that runs are judged again, if it takes long.
    """
    rows, broken = [], list[str]()
    directories = judgements.directories()
    told = clock.now()
    for number, directory in enumerate(directories):
        state = judgements.state_of(directory)
        row = _kept(state) if state is not None else None
        if row is None:
            if clock.now() - told > PATIENCE:
                told = clock.now()
                say(f"judging runs again that changed: {number} of {len(directories)} are done")
            row = _new(directory, state, broken)
        if row is not None:
            rows.append(row)
    return rows, broken


def _kept(state: State) -> dict[str, Any] | None:
    """Return a run's kept entry; ``None``: there is none, or something has changed."""
    judged = judgements.path_of(state.directory, judgements.SUMMARY).exists()
    place = state.place(judgements.SUMMARY if judged else judgements.RECORDED)
    text = place.read() if place is not None else None
    if text is not None:
        with suppress(ValueError):
            row: dict[str, Any] = json.loads(text)
            return row
    return None


def _new(directory: Path, state: State | None, broken: list[str]) -> dict[str, Any] | None:
    """Return a run's new entry; ``None``: it has none, and ``broken`` gets the reason."""
    from lab.core.errors import InputError
    from lab.results.judged import summary
    from lab.store.runs import RunStore

    run = RunStore(directory)
    try:
        row = summary(run, state)
    except InputError as error:
        broken.append(str(error))
        return None
    broken += run.warnings()
    return row
