"""What a stored run says about one claim, for comparing versions of Linux or mdadm."""

from __future__ import annotations

from collections.abc import Iterator

from lab.analysis.compare import CERTAIN
from lab.analysis.counted import figure_of
from lab.analysis.noise import disks_of, share_of
from lab.capabilities.bisect.logic.sides import Observed, Seen
from lab.capabilities.bisect.model import Subject
from lab.compile.scenario.fields import fields_of
from lab.model.result.document import CellMeasurement, CellResult, Outcome, Result
from lab.model.result.regression import SYSTEM
from lab.model.scenario.claim import Verdict, matches
from lab.store.runs import RunStore, StoredRun


def observed(run: RunStore, result: Result, claim: str, metric: str | None) -> Observed:
    """Return the claim's verdict, and a metric's values in the cells that it is about.

    A cell that did not finish is the reason, if there is one.
    """
    stored = run.load_run()
    judged = next(one for one in result.claims if one.id == claim)
    failed = next(
        (
            f"{cell.id}: {cell.outcome.value}: {cell.reason.partition(chr(10))[0]}"
            for cell in result.cells
            if cell.outcome is not Outcome.DONE
        ),
        "",
    )
    return Observed(
        verdict=judged.verdict if not failed or judged.verdict in _DONE else Verdict.NOT_TESTED,
        reason=failed or judged.reason,
        measured=judged.measured,
        values=tuple(_values(stored, result, claim, metric)) if metric else (),
    )


_SYSTEM = (*SYSTEM, "guest.mdadm")
_DONE = (Verdict.HOLDS, Verdict.REFUTED)


def _values(stored: StoredRun, result: Result, claim: str, metric: str) -> Iterator[Seen]:
    cells = {cell.id: cell.cell for cell in stored.cells}
    spoken = next(one for one in stored.claims if one.id == claim)
    for found in result.cells:
        if found.id not in cells or found.outcome is not Outcome.DONE:
            continue
        cell = cells[found.id]
        fields = fields_of(cell, stored.claims)
        named = {v.workload for v in spoken.values if matches(v.where, fields)}
        for one in _figures(found, named, metric):
            if not found.doubts(one.workload):
                axes = {k: v for k, v in found.axes.items() if k not in _SYSTEM}
                subject = Subject(axes=axes, workload=one.workload, metric=metric, unit=one.unit)
                noise = share_of(stored.noise, disks_of(cell), metric, CERTAIN)
                yield Seen(subject=subject, figure=one, noise=noise)


def _figures(found: CellResult, named: set[str], metric: str) -> Iterator[CellMeasurement]:
    """Yield the metric of each named workload and fault."""
    for name in sorted(named):
        if one := figure_of(found, name, metric):
            yield one
