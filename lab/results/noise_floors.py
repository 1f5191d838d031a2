"""This host's noise, from the stored runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from lab.analysis.noise import Repetition, disks_of, floors
from lab.core.errors import InputError
from lab.model.result.document import CellClock, Outcome
from lab.model.result.measurement import SECONDS
from lab.model.result.noise import NoiseFloor
from lab.results.documents import understood
from lab.store import runs as store
from lab.store.runs import RunStore, StoredRun

SHORTEST: Final = 3.0
"""Shortest step in seconds whose values count: chance effects of guest and host are a larger
fraction of a shorter step."""

LATEST: Final = 40
"""Most runs to read, newest first, so that a run does not wait long for it."""

_FACTS: Final = ("accelerator", "qemu", "libvirt", "lab")
_OF_THE_HOST: Final = ("name", "machine", "cpu", "cpus", "kernel")


def place_of(environment: Mapping[str, Any]) -> str:
    """Return all facts of a host that may change a value; only runs with equal facts are
    compared."""
    host = environment.get("host") or {}
    whole = {name: environment.get(name) for name in _FACTS}
    whole |= {f"host.{name}": host.get(name) for name in _OF_THE_HOST}
    return json.dumps(whole, sort_keys=True)


def noise_of(environment: Mapping[str, Any]) -> tuple[NoiseFloor, ...]:
    """Return the noise floors of this host, from cells that ran more than once."""
    return noise_here(environment)[0]


def noise_here(environment: Mapping[str, Any]) -> tuple[tuple[NoiseFloor, ...], int]:
    """Return the noise floors, and the number of runs of this host with the same facts."""
    runs = list(_runs(place_of(environment)))
    found = floors(one for _, repetitions in runs for one in repetitions)
    return found, len(runs)


def _runs(here: str) -> Iterator[tuple[RunStore, list[Repetition]]]:
    """Yield finished runs of such a host; skip unreadable ones."""
    for run in islice(store.every(), LATEST):
        with suppress(InputError):
            if (repetitions := _if_here(run, here)) is not None:
                yield run, repetitions


@understood
def _if_here(run: RunStore, here: str) -> list[Repetition] | None:
    stored = run.load_run()
    if not stored.finished or place_of(stored.environment) != here:
        return None
    return list(_of_run(run, stored))


def _of_run(run: RunStore, stored: StoredRun) -> Iterator[Repetition]:
    result = run.load_result()
    cells = {cell.id: cell.cell for cell in stored.cells}
    image = json.dumps(stored.environment.get("image"), sort_keys=True)
    for cell in result.cells if result else ():
        if cell.clock is CellClock.REAL and cell.id in cells and cell.outcome is Outcome.DONE:
            # After a fault a value depends on md's own speed, and short steps vary more than
            # others.
            names = {workload.name for workload in cells[cell.id].workloads}
            short = {
                one.workload
                for one in cell.measurements
                if one.metric == SECONDS.name and one.median < SHORTEST
            }
            for one in cell.measurements:
                if one.workload not in names - short or cell.doubts(one.workload):
                    continue  # a failed check explains the value, so it is not noise
                yield Repetition(
                    what=(cell.id, image, one.workload, one.metric),
                    disks=disks_of(cells[cell.id]),
                    metric=one.metric,
                    run=stored.id,
                    figure=one.median,
                )
