"""Regressions over stored runs: values that got worse, and the version that made them worse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lab.analysis.counted import figure_of
from lab.analysis.noise import disks_of
from lab.analysis.regressions import Sighting, regressions, systems
from lab.compile.cell.metrics import metrics_of
from lab.compile.scenario.fields import fields_of
from lab.compile.scenario.identity import identity
from lab.core.errors import InputError
from lab.model.result.document import CellResult, Outcome, Result
from lab.model.result.regression import SYSTEM, Regression
from lab.model.scenario.claim import matches
from lab.model.scenario.document import Cell
from lab.results.documents import understood
from lab.results.judged import result_of
from lab.store.runs import RunStore, StoredRun

FACTS: Final = ("accelerator", "qemu", "libvirt", "lab")
"""Facts of the environment that may change a value, other than Linux and mdadm."""


def regressions_of(runs: Sequence[RunStore], since: str = "") -> tuple[Regression, ...]:
    """Return regressions over these runs; those first seen after ``since`` are new.

    Unreadable runs are skipped: commands that list runs report them.
    """
    return regressions((one for run in runs for one in _sightings(run)), since)


def _sightings(run: RunStore) -> Iterator[Sighting]:
    try:
        yield from _of_run(run)
    except InputError:
        return


@understood
def _of_run(run: RunStore) -> list[Sighting]:
    stored = run.load_run()
    result = run.load_result() or result_of(run)
    cells = {cell.id: cell.cell for cell in stored.cells}
    return [
        one
        for found in result.cells
        if found.id in cells and found.outcome is Outcome.DONE
        for one in sightings_of(stored, result, found, cells[found.id])
    ]


def sightings_of(
    stored: StoredRun, result: Result, found: CellResult, cell: Cell
) -> Iterator[Sighting]:
    """Yield each value of a cell that a claim uses."""
    kernel, mdadm = systems(result)
    if kernel is None or mdadm is None:
        return
    verdicts = {claim.id: claim.verdict for claim in result.claims}
    fields = fields_of(cell, stored.claims)
    known = metrics_of(cell)
    for claim in stored.claims:
        spoken = {
            (value.workload, value.metric, value.disk or "")
            for value in claim.values
            if matches(value.where, fields)
        }
        for workload, name, disk in sorted(spoken):
            metric = known.get((workload, name))
            figure = figure_of(found, workload, name, disk or None)
            if metric is None or figure is None or found.doubts(workload):
                continue
            yield Sighting(
                scenario=stored.scenario,
                claim=claim.id,
                cell=f"{identity(cell)} {cell.guest.cpus} {cell.guest.memory}",
                axes={name: value for name, value in found.axes.items() if name not in SYSTEM},
                kernel=kernel,
                mdadm=mdadm,
                run=stored.id,
                started=stored.started,
                figure=figure,
                metric=metric,
                disk=disk,
                disks=disks_of(cell),
                noise=stored.noise,
                verdict=verdicts[claim.id],
                facts={name: str(stored.environment.get(name)) for name in FACTS},
            )
