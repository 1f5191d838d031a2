"""From a run directory to the result document; made again whenever it is asked for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from lab import catalog, measure
from lab.app.calibration import check_of
from lab.compile.scenario import look_up
from lab.compile.suites import suite_of
from lab.errors import ToolError
from lab.host import paths
from lab.judge import Judged, judge
from lab.model.claim import Claim, Verdict
from lab.model.measurement import Prediction
from lab.model.result import CellMeasurement, CellResult, Outcome, Result, Run
from lab.model.scenario import AxisValue, Cell
from lab.noise import disks_of, share_of
from lab.predict import bitmap_updates, predictions
from lab.store import RunStore, StoredCell, StoredOutcome, StoredRun
from lab.suites import SuiteCell, SuiteTest, claims_of, tests_of


def result_of(store: RunStore) -> Result:
    """The whole result: raw output read again, measured again, judged again."""
    run = store.load_run()
    judged, suites = [], []
    for stored in run.cells:
        one, raw = _cell(store, stored, run)
        judged.append(one)
        suites.append(SuiteCell(cell=stored.cell, result=one.result, raw=raw))
    environment = dict(run.environment)
    for stored in run.cells:
        finished = store.load_cell(stored.id)
        if finished and (guest := measure.environment(finished.raw)):
            environment["guest"] = guest
            break
    if run.calibrations:
        environment["calibrations"] = [c.model_dump(mode="json") for c in run.calibrations]
    if run.noise:
        environment["noise"] = [n.model_dump(mode="json") for n in run.noise]
    return Result(
        run=Run(
            id=run.id,
            scenario=run.scenario,
            started=run.started,
            finished=run.finished,
            directory=str(store.directory),
        ),
        environment=environment,
        cells=tuple(j.result for j in judged),
        claims=(*judge(run.claims, judged), *claims_of(suites)),
    )


def tests_of_run(store: RunStore, result: Result) -> tuple[SuiteTest, ...]:
    """Every test of the run's suites with what it has left; empty where it has no suite."""
    run = store.load_run()
    if not any(suite_of(w) for stored in run.cells for w in stored.cell.workloads):
        return ()
    results = {cell.id: cell for cell in result.cells}
    return tests_of(
        [
            SuiteCell(cell=s.cell, result=results[s.id], raw=store.raw(store.cell_directory(s.id)))
            for s in run.cells
        ]
    )


def _cell(store: RunStore, stored: StoredCell, run: StoredRun) -> tuple[Judged, Mapping[str, str]]:
    """A cell's result, and its raw output."""
    finished = store.load_cell(stored.id)
    if finished is None:
        gone = "its files are not there any more"
        reason = gone if run.finished else "the run ended before it"
        outcome = StoredOutcome(outcome=Outcome.SKIPPED, reason=reason)
        raw: Mapping[str, str] = {}
    else:
        outcome, raw = finished.outcome, finished.raw
    result = CellResult(
        id=stored.id,
        axes=stored.cell.axes,
        outcome=outcome.outcome,
        reason=outcome.reason,
        host=_host_of(outcome, run),
        seconds=outcome.seconds,
        checks=(*outcome.checks, *check_of(stored.cell, run.calibrations, outcome.host)),
        predictions=predictions(stored.cell),
    )
    shares: dict[str, float] = {}
    if outcome.outcome is Outcome.DONE:
        try:
            found = measure.measurements(stored.cell, raw)
            counted = measure.counters(stored.cell, raw)
        except ToolError as error:
            result = result.model_copy(update={"outcome": Outcome.FAILED, "reason": error.message})
        else:
            disks = disks_of(stored.cell)
            measured = tuple(
                CellMeasurement.of(m, share_of(run.noise, disks, m.metric)) for m in found
            )
            updates = bitmap_updates(stored.cell, measure.seconds_of(stored.cell, raw))
            shares = measure.bitmap_shares(counted, updates)
            checks = (*result.checks, *measure.bitmap_updated(shares, updates))
            result = result.model_copy(
                update={"measurements": measured, "counters": counted, "checks": checks}
            )
    one = Judged(
        result=result,
        fields=fields_of(stored.cell, run.claims),
        published=stored.published,
        bitmap=_bitmap_of(stored.cell),
        bitmap_shares=shares,
    )
    return one, raw


def _host_of(outcome: StoredOutcome, run: StoredRun) -> str:
    if outcome.outcome is Outcome.SKIPPED:
        return ""
    own = run.environment.get("client") or run.environment.get("host", {}).get("name", "")
    return outcome.host or str(own)


def _bitmap_of(cell: Cell) -> tuple[str, ...]:
    """What the bitmap's cost hangs on; empty without one."""
    array = cell.array
    if array is None or array.bitmap == "none":
        return ()
    base = array.sysfs.get("bitmap/time_base", "")
    return (array.bitmap, str(array.bitmap_chunk), base, str(array.bitmap_disk))


def fields_of(cell: Cell, claims: tuple[Claim, ...]) -> dict[str, AxisValue]:
    """The cell's axes, and its value of every other dotted name that a claim uses."""
    names = {name for claim in claims for value in claim.values for name in value.where}
    parts = {
        "guest": cell.guest,
        "disks": cell.disks,
        "array": cell.array,
        "filesystem": cell.filesystem,
        "workloads": cell.workloads,
        "faults": cell.faults,
    }
    return {name: look_up(parts, name) for name in names} | dict(cell.axes)


def predicted(cell_id: str, cell: Cell) -> CellResult:
    """A cell that was not run, with what theory expects of it."""
    expected: tuple[Prediction, ...] = predictions(cell)
    return CellResult(
        id=cell_id, axes=cell.axes, outcome=Outcome.SKIPPED, reason="", predictions=expected
    )


def typed_names(store: RunStore) -> tuple[str, str]:
    """What to type for a run's scenario, and for the run: their names, or paths where those would
    not be found."""
    scenario, directory = store.load_run().scenario, store.directory.absolute()
    if scenario not in catalog.scenarios():
        scenario = shlex.quote(str(directory / "scenario.yaml"))
    run = store.id if directory.parent == paths.runs() else shlex.quote(str(directory))
    return scenario, run


def summary(store: RunStore) -> dict[str, Any]:
    """One line about a run, without reading its raw output again where its result is kept."""
    run = store.load_run()
    result = store.load_result() or result_of(store)
    verdicts = [c.verdict for c in result.claims]
    return {
        "id": run.id,
        "scenario": run.scenario,
        "started": run.started,
        "finished": run.finished,
        "cells": len(result.cells),
        "holds": verdicts.count(Verdict.HOLDS),
        "refuted": verdicts.count(Verdict.REFUTED),
        "other": len(verdicts) - verdicts.count(Verdict.HOLDS) - verdicts.count(Verdict.REFUTED),
        "state": "finished" if run.finished else "stopped early",
        "directory": str(store.directory),
    }
