"""Regressions over stored runs: values that got worse, and the version that made them worse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lab.analysis.known_failures import systems
from lab.analysis.noise import disks_of
from lab.analysis.regressions import Sighting, regressions
from lab.compile.scenario.fields import fields_of
from lab.compile.scenario.identity import identity
from lab.core.errors import InputError
from lab.model.matrix.file import SYSTEM
from lab.model.matrix.record import Regression
from lab.model.result.document import CellResult, Outcome, Result
from lab.model.scenario.claim import matches
from lab.model.scenario.document import Cell
from lab.plugins import catalog
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
        for one in _of_cell(stored, result, found, cells[found.id])
    ]


def _of_cell(
    stored: StoredRun, result: Result, found: CellResult, cell: Cell
) -> Iterator[Sighting]:
    kernel, mdadm = systems(result)
    if kernel is None or mdadm is None:
        return
    verdicts = {claim.id: claim.verdict for claim in result.claims}
    fields = fields_of(cell, stored.claims)
    better = {
        (workload.name, metric.name): metric.better
        for workload in cell.workloads
        for metric in catalog.workload(workload.tool).metrics
    }
    figures = {
        (one.workload, one.metric): one
        for one in found.measurements
        if not found.doubts(one.workload)
    }
    for claim in stored.claims:
        spoken = {
            (value.workload, value.metric)
            for value in claim.values
            if value.disk is None and matches(value.where, fields)
        }
        for key in sorted(spoken & figures.keys() & better.keys()):
            yield Sighting(
                scenario=stored.scenario,
                claim=claim.id,
                cell=f"{identity(cell)} {cell.guest.cpus} {cell.guest.memory}",
                axes={name: value for name, value in found.axes.items() if name not in SYSTEM},
                kernel=kernel,
                mdadm=mdadm,
                run=stored.id,
                started=stored.started,
                figure=figures[key],
                better=better[key],
                disks=disks_of(cell),
                noise=stored.noise,
                verdict=verdicts[claim.id],
                facts={name: str(stored.environment.get(name)) for name in FACTS},
            )
