"""Makes result documents from run directories."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from lab.analysis import measure
from lab.analysis.answer import answer
from lab.analysis.disk_speed import check_of
from lab.analysis.judge import JudgedCell, judge
from lab.analysis.margin import margins
from lab.analysis.noise import disks_of, share_of, spread_of
from lab.analysis.predict import bitmap_updates, predictions
from lab.analysis.suites import SuiteCell, SuiteTest, claims_of, tests_of
from lab.compile.cell.metrics import metrics_of
from lab.compile.cell.stroke import short_stroke
from lab.compile.guest.seeds import draws, seeds_of
from lab.compile.guest.suite_steps import suite_of
from lab.compile.guest.virtual_time import is_sealed
from lab.compile.scenario.fields import fields_of
from lab.core.errors import InputError, ToolError
from lab.core.statistics import Spread
from lab.host.system import paths
from lab.model.result.document import (
    UNDER_WAY,
    Answer,
    CellClock,
    CellMeasurement,
    CellResult,
    Digest,
    Outcome,
    PhaseSeconds,
    Result,
    Run,
    RunState,
)
from lab.model.result.measurement import (
    SHORT_STROKE,
    UNCONTENDED,
    Check,
    Measurement,
    Prediction,
)
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import Cell
from lab.plugins import catalog
from lab.report.content.exploration import explored
from lab.store.runs import RunStore, StoredCell, StoredOutcome, StoredRun

P = ParamSpec("P")
R = TypeVar("R")


def understood(
    function: Callable[Concatenate[RunStore, P], R],
) -> Callable[Concatenate[RunStore, P], R]:
    """Make a function of a stored run raise ``InputError`` if the run's values are absurd.

    Each file may be valid on its own; no list of checks covers all combinations.
    """

    @wraps(function)
    def checked(store: RunStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(store, *args, **kwargs)
        except _ABSURD as error:
            first = (str(error).splitlines() or [""])[0]
            raise InputError(
                f"nothing can be made of the run '{store.directory}': {type(error).__name__}: "
                f"{first}",
                hint="its files were changed, or the lab is wrong: --debug shows where",
            ) from error

    return checked


_ABSURD: Final = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError),
    *(RecursionError, TypeError, ValueError),
)


@understood
def result_of(store: RunStore) -> Result:
    """Return the result, measured and judged from the raw output."""
    run, state = store.load_state()
    judged, suites = _cells(store, run, _MISSING[state])
    environment = dict(run.environment)
    guests = _guests(store, run)
    if guests:
        environment["guest"] = guests[0]
    if len(guests) > 1:
        environment["guests"] = guests
    if run.calibrations:
        environment["calibrations"] = [c.model_dump(mode="json") for c in run.calibrations]
    if run.noise:
        environment["noise"] = [n.model_dump(mode="json") for n in run.noise]
    claims = (*judge(run.claims, judged), *claims_of(suites))
    return Result(
        answer=answer(run.question, run.claims, claims) if claims else _explored(run, judged),
        run=Run(
            id=run.id,
            scenario=run.scenario,
            started=run.started,
            finished=run.finished,
            directory=str(store.directory),
            state=state,
        ),
        environment=environment,
        cells=tuple(j.result for j in judged),
        claims=claims,
    )


def _explored(run: StoredRun, judged: Sequence[JudgedCell]) -> Answer:
    names = {workload.name for stored in run.cells for workload in stored.cell.workloads}
    return explored(run.question, [j.result for j in judged], names)


def _guests(store: RunStore, run: StoredRun) -> list[dict[str, str]]:
    """Return what the guests say of themselves, in the order of the cells, each once."""
    found: list[dict[str, str]] = []
    for stored in run.cells:
        # Each cell is asked only if cells boot different systems.
        if found and len({one.cell.guest.system for one in run.cells}) == 1:
            break
        guest = guest_of(store, stored.id)
        if guest and guest not in found:
            found.append(guest)
    return found


def guest_of(store: RunStore, cell: str) -> dict[str, str]:
    """Return what a cell's guest says of itself; empty: nothing is known."""
    text = store.files.text("cells", cell, "raw", "environment.txt")
    return measure.environment({"environment.txt": text or ""})


def judged_of(store: RunStore) -> list[JudgedCell]:
    """The cells of a run that is under way, measured, with what claims may ask of them."""
    return _cells(store, store.load_run(), UNDER_WAY)[0]


def _cells(
    store: RunStore, run: StoredRun, missing: str
) -> tuple[list[JudgedCell], list[SuiteCell]]:
    judged, suites = [], []
    for stored, *others in run.points:
        one, raw = _cell(store, stored, run, missing)
        suites.append(SuiteCell(cell=stored.cell, result=one.result, raw=raw))
        judged.append(joined([one, *(_cell(store, o, run, missing)[0] for o in others)]))
    return judged, suites


_MISSING: Final = {
    RunState.RUNNING: UNDER_WAY,
    RunState.FINISHED: "its files are not there any more",
    RunState.STOPPED: "the run ended before it",
}
"""Why a cell is missing."""


def tests_of_run(store: RunStore, result: Result) -> tuple[SuiteTest, ...]:
    """Return every test of the run's suites with its logs; empty: it has no suite, or one that this
    lab does not have."""
    run = store.load_run()
    tools = {w.tool for stored in run.cells for w in stored.cell.workloads}
    if any(catalog.missing_plugin("workloads", tool) for tool in tools):
        return ()
    if not any(suite_of(w) for stored in run.cells for w in stored.cell.workloads):
        return ()
    results = {cell.id: cell for cell in result.cells}
    return tests_of(
        [
            SuiteCell(cell=s.cell, result=results[s.id], raw=store.raw(store.cell_directory(s.id)))
            for s, *_ in run.points
        ]
    )


def _cell(
    store: RunStore, stored: StoredCell, run: StoredRun, missing: str
) -> tuple[JudgedCell, Mapping[str, str]]:
    """Return a cell's result, and its raw output. A cell with absurd values has failed."""
    try:
        return _known(store, stored, run, missing)
    except _ABSURD as error:
        first = (str(error).splitlines() or [""])[0]
        reason = f"nothing can be made of its files: {type(error).__name__}: {first}"
        failed = CellResult(
            id=stored.id, axes=stored.cell.axes, outcome=Outcome.FAILED, reason=reason
        )
        return JudgedCell(
            result=failed, fields=dict(stored.cell.axes), published=stored.published
        ), {}


def _known(
    store: RunStore, stored: StoredCell, run: StoredRun, missing: str
) -> tuple[JudgedCell, Mapping[str, str]]:
    finished = store.load_cell(stored.id)
    if finished is None:
        outcome = StoredOutcome(outcome=Outcome.SKIPPED, reason=missing)
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
        guest_seconds=outcome.guest_seconds,
        clock=outcome.clock or (CellClock.SEALED if is_sealed(stored.cell) else CellClock.REAL),
        digest=outcome.digest,
        reused_from=outcome.reused_from,
        checks=(
            *_checks(stored.cell, outcome, raw),
            *_stroke(stored.cell),
            *measure.guest_cpu(stored.cell, raw),
            *measure.at_rest(stored.cell, raw),
            *check_of(stored.cell, run.calibrations, outcome.host),
        ),
        predictions=predictions(
            stored.cell, measure.busy_shares(stored.cell, raw), kernel_of(run, stored.cell, raw)
        ),
    )
    shares: dict[str, float] = {}
    if outcome.outcome is Outcome.DONE:
        try:
            found, wrong = measure.measured(stored.cell, raw)
            counted = measure.counters(stored.cell, raw)
        except ToolError as error:
            result = result.model_copy(update={"outcome": Outcome.FAILED, "reason": error.message})
        else:
            disks = disks_of(stored.cell)
            sealed = result.clock is CellClock.SEALED
            measured = tuple(
                CellMeasurement.of_seeds(m)
                if sealed
                else CellMeasurement.of(m, share_of(run.noise, disks, m.metric))
                for m in found
            )
            updates = bitmap_updates(stored.cell, measure.seconds_of(stored.cell, raw))
            shares = measure.bitmap_shares(counted, updates)
            checks = (
                *result.checks,
                *measure.bitmap_updated(shares, updates),
                *measure.steady_state(stored.cell, raw),
                *wrong,
            )
            result = result.model_copy(
                update={
                    "measurements": measured,
                    "shapes": tuple(
                        CellMeasurement.of(m, 0.0)
                        for m in measure.shapes(stored.cell, raw, outcome.checks)
                    ),
                    "unsupported": measure.unsupported(stored.cell, raw),
                    "counters": counted,
                    "checks": checks,
                }
            )
    one = JudgedCell(
        result=result,
        fields=fields_of(stored.cell, run.claims),
        published=stored.published,
        bitmap=_bitmap_of(stored.cell),
        bitmap_shares=shares,
        seeds=seeds_of(stored.cell) if result.clock is CellClock.SEALED else (),
        drawn=draws(stored.cell),
        noise=_noise(stored.cell, run, result),
        disks=disks_of(stored.cell),
        margins=margins(stored.cell),
        counted=measure.counted(stored.cell),
        steps=measure.steps(stored.cell),
        units={key: metric.unit for key, metric in metrics_of(stored.cell).items()},
    )
    return one, raw


def _stroke(cell: Cell) -> Iterator[Check]:
    note = short_stroke(cell)
    if note is not None:
        yield Check(name=SHORT_STROKE, passed=True, detail=note)


def kernel_of(run: StoredRun, cell: Cell, raw: Mapping[str, str]) -> str | None:
    """Return the version of a cell's kernel: what the guest said, else that of the run's image."""
    image = run.environment.get("image") or {}
    alone = cell.guest.kernel is None and image.get("name") == cell.guest.image
    return measure.environment(raw).get("kernel") or (image.get("kernel") if alone else None)


def joined(seeds: Sequence[JudgedCell]) -> JudgedCell:
    """One cell of those that differ in their seeds only. Seeds that have not run yet are left out.

    If one seed did not end well, the cell did not: leaving it out would choose among seeds.
    """
    there = [one for one in seeds if one.result.outcome is not Outcome.SKIPPED] or seeds[:1]
    first = there[0]
    if len(there) == 1:
        return first
    results = [one.result for one in there]
    wrong = next((r for r in results if r.outcome is not Outcome.DONE), None)
    if wrong is not None:
        number = next(one.seeds for one in there if one.result is wrong)
        reason = f"seed {', '.join(map(str, number))}: {wrong.reason}"
        update: dict[str, Any] = {"outcome": wrong.outcome, "reason": reason}
        return replace(first, result=first.result.model_copy(update=update))
    digests = [r.digest for r in results if r.digest is not None]
    fewest = {
        (u.workload, u.metric): u
        for u in sorted((u for r in results for u in r.unsupported), key=lambda u: -u.requests)
    }
    update = {
        "unsupported": tuple(fewest.values()),
        "measurements": _joined_values([result.measurements for result in results]),
        "shapes": _joined_values([result.shapes for result in results]),
        "counters": tuple(
            c.model_copy(update={"trial": number})
            for number, result in enumerate(results, 1)
            for c in result.counters
        ),
        "checks": _joined_checks(results),
        "seconds": _sum([r.seconds for r in results]),
        "guest_seconds": sum(r.guest_seconds or 0 for r in results) or None,
        "digest": _joined_digest(digests) if len(digests) == len(there) else None,
    }
    shares = {
        name: max(one.bitmap_shares.get(name, 0.0) for one in there) for name in first.bitmap_shares
    }
    return replace(
        first,
        result=first.result.model_copy(update=update),
        seeds=tuple(seed for one in there for seed in one.seeds),
        bitmap_shares=shares,
    )


def _joined_values(
    seeds: Sequence[Sequence[CellMeasurement]],
) -> tuple[CellMeasurement, ...]:
    """Each measurement that all seeds have, with the values of all."""
    values: dict[tuple[str, str], list[CellMeasurement]] = {}
    for measurements in seeds:
        for m in measurements:
            values.setdefault((m.workload, m.metric), []).append(m)
    return tuple(
        CellMeasurement.of_seeds(
            Measurement(
                workload=ms[0].workload,
                metric=ms[0].metric,
                unit=ms[0].unit,
                values=tuple(v for m in ms for v in m.values),
            )
        )
        for ms in values.values()
        if len(ms) == len(seeds)
    )


def _joined_checks(results: Sequence[CellResult]) -> tuple[Check, ...]:
    """Each check once; a failed one stands for those of all seeds."""
    found: dict[tuple[str, str | None], Check] = {}
    for result in results:
        for check in result.checks:
            known = found.setdefault((check.name, check.workload), check)
            if known.passed and not check.passed:
                found[check.name, check.workload] = check
    return tuple(found.values())


def _sum(seconds: Sequence[PhaseSeconds]) -> PhaseSeconds:
    names = PhaseSeconds.model_fields
    return PhaseSeconds(**{name: sum(getattr(s, name) for s in seconds) for name in names})


def _joined_digest(digests: Sequence[Digest]) -> Digest:
    def of(texts: Sequence[str]) -> str:
        return hashlib.sha256(" ".join(texts).encode()).hexdigest()

    return Digest(
        inputs=of([d.inputs for d in digests]),
        results=of([d.results for d in digests]),
        seeds=tuple(seed for d in digests for seed in d.seeds),
        snapshot=digests[0].snapshot,
    )


def _noise(cell: Cell, run: StoredRun, result: CellResult) -> dict[str, Spread]:
    """What was known of the host's noise when the cell ran in real time."""
    if result.clock is not CellClock.REAL:
        return {}
    found = {m.metric: spread_of(run.noise, disks_of(cell), m.metric) for m in result.measurements}
    return {metric: spread for metric, spread in found.items() if spread is not None}


def _checks(cell: Cell, outcome: StoredOutcome, raw: Mapping[str, str]) -> tuple[Check, ...]:
    """Return a cell's stored checks.

    Earlier versions stored one contention check per cell. A failed one is replaced by checks per
    workload from the raw output, unless these find no contended workload.
    """
    old = [c for c in outcome.checks if c.name == UNCONTENDED and not (c.passed or c.workload)]
    kernel = measure.environment(raw).get("kernel")
    again = measure.contention(cell, raw, predictions(cell, kernel=kernel)) if old else ()
    if all(check.passed for check in again):
        return outcome.checks
    return (*(c for c in outcome.checks if c not in old), *again)


def _host_of(outcome: StoredOutcome, run: StoredRun) -> str:
    if outcome.outcome is Outcome.SKIPPED:
        return ""
    own = run.environment.get("client") or run.environment.get("host", {}).get("name", "")
    return outcome.host or str(own)


def _bitmap_of(cell: Cell) -> tuple[str, ...]:
    """Return the fields that the bitmap's cost depends on; empty: there is no bitmap."""
    array = cell.array
    if array is None or array.bitmap == "none":
        return ()
    base = array.sysfs.get("bitmap/time_base", "")
    return (array.bitmap, str(array.bitmap_chunk), base, str(array.bitmap_disk))


def predicted(cell_id: str, cell: Cell, kernel: str | None = None) -> CellResult:
    """Return the result of a cell that was not run, with theory's predictions."""
    expected: tuple[Prediction, ...] = predictions(cell, kernel=kernel)
    return CellResult(
        id=cell_id, axes=cell.axes, outcome=Outcome.SKIPPED, reason="", predictions=expected
    )


def typed_names(store: RunStore) -> tuple[str, str]:
    """Return what to type for a run's scenario and for the run: names, or paths if there is no
    name."""
    scenario, directory = store.load_run().scenario, store.directory.absolute()
    if scenario not in catalog.scenarios():
        scenario = shlex.quote(str(directory / "scenario.yaml"))
    run = store.id if directory.parent == paths.runs() else shlex.quote(str(directory))
    return scenario, run


def row_of(result: Result) -> dict[str, Any]:
    """Return the entry of a list."""
    verdicts = [c.verdict for c in result.claims]
    return {
        "id": result.run.id,
        "scenario": result.run.scenario,
        "started": result.run.started,
        "finished": result.run.finished,
        "cells": len(result.cells),
        "ended": sum(c.outcome is not Outcome.SKIPPED for c in result.cells),
        "holds": verdicts.count(Verdict.HOLDS),
        "refuted": verdicts.count(Verdict.REFUTED),
        "other": len(verdicts) - verdicts.count(Verdict.HOLDS) - verdicts.count(Verdict.REFUTED),
        "state": result.run.state.value,
        "directory": result.run.directory,
    }
