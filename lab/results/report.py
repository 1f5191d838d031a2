"""Reports from stored runs: pages, charts and a site. Needs neither libvirt nor QEMU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from lab.analysis import measure
from lab.analysis.suites import SuiteTest
from lab.analysis.timeline import timeline
from lab.compile.cell.metrics import metrics_of
from lab.core.errors import InputError
from lab.core.units import format_seconds, shortened
from lab.host.system import files
from lab.model.result.document import CellResult, Outcome
from lab.model.result.explanation import CellExplanation, Explanation
from lab.model.result.measurement import Check, Latencies, Series
from lab.model.result.timeline import Timeline
from lab.model.scenario.document import Cell
from lab.plugins import catalog
from lab.plugins.workloads._suites import COLOUR
from lab.report.content.drives import unmeasured
from lab.report.content.page_data import Attempt, Evidence, Page, PageCell, PageTest
from lab.report.content.reliability import steps
from lab.report.export.shell import cell_script
from lab.results.again import again
from lab.results.documents import tests_of_run, typed_names, understood
from lab.results.judged import explanation_of_run, result_of
from lab.store.runs import RunStore, StoredCell

LINES: Final = 400
"""Most lines of each file of evidence, from its end, so that a report is small enough to send."""
LOG_SHOWN: Final = 64 * 1024
"""Most characters of each log of a failed test, and of each file of raw output in a site; a longer
one is cut in its middle."""
OUTPUT_SHOWN: Final = 32 * LOG_SHOWN
"""Most characters of a cell's raw output in a site."""


@understood
def page_of(store: RunStore, lab: str = "lab", typed: tuple[str, str] | None = None) -> Page:
    """Return the data of a run's report; ``lab``: the command to type for the program.

    ``typed``: what to type for its scenario and for the run, if not `typed_names`.
    """
    run, result = store.load_run(), result_of(store)
    scenario, name = typed or typed_names(store)
    results = {cell.id: cell for cell in result.cells}
    explained = {cell.id: cell.workloads for cell in _explained(store)}
    tests = tests_of_run(store, result)
    return Page(
        result=result,
        title=run.title,
        question=run.question,
        source=run.source,
        notes=run.notes,
        overrides=run.overrides,
        drives=unmeasured(stored.cell for stored in run.cells),
        claims=run.claims,
        cells=tuple(
            _cell(
                *(store, seeds, results[seeds[0].id], explained.get(seeds[0].id, ())),
                [t for t in tests if t.cell == seeds[0].id],
                again(seeds[0], seeds[0], run, scenario, lab),
            )
            for seeds in run.points
        ),
        better=dict(better for stored in run.cells for better in _better(stored.cell)),
        warnings=store.warnings(),
        steps=steps(
            result,
            lab=lab,
            scenario=scenario,
            run=name,
            overrides=run.overrides,
            reported=True,
        ),
    )


def _better(cell: Cell) -> Iterator[tuple[str, str]]:
    """Yield ``WORKLOAD.METRIC`` of each workload and fault with its better direction."""
    for (name, _), metric in metrics_of(cell).items():
        yield f"{name}.{metric.name}", metric.better


def _cell(
    store: RunStore,
    seeds: Sequence[StoredCell],
    result: CellResult,
    explained: tuple[Explanation, ...],
    tests: Sequence[SuiteTest],
    command: str,
) -> PageCell:
    """Return a cell; ``seeds``: it, and with ``trials: auto`` its further trials."""
    stored = seeds[0]
    raws = [store.raw(store.cell_directory(one.id)) for one in seeds]
    raw = raws[0]
    procedure = store.load_procedure(store.cell_directory(stored.id))
    attempts = [_attempt(store, path) for one in seeds for path in store.attempts(one.id)]
    failed = result.outcome in (Outcome.FAILED, Outcome.LOST)
    failures = attempts if failed else []
    if failed:
        failures.append(
            Attempt(
                name="the cell itself",
                outcome=result.outcome,
                reason=result.reason,
                evidence=_evidence(_failed_raw(store, seeds, raws)),
            )
        )
    ended = [_failed(t) for t in tests if t.test.ending in ("failed", "unfinished") and t.test.logs]
    return PageCell(
        result=result,
        cell=stored.cell,
        explanations=explained,
        series=tuple(
            one if len(seeds) == 1 else one.model_copy(update={"trial": number})
            for number, (seed, own) in enumerate(zip(seeds, raws, strict=True), 1)
            for one in _series(seed.cell, own)
        ),
        latencies=_latencies(stored.cell, raws),
        sync=measure.sync_seen(stored.cell, raw),
        timeline=_timeline(stored.cell, raw, result.checks),
        commands=cell_script(procedure) if procedure else "",
        again=command,
        tests=tuple(map(_test, tests)),
        failures=(*failures, *ended),
        attempts=() if failed else tuple(attempts),
    )


def _explained(store: RunStore) -> tuple[CellExplanation, ...]:
    """Explain a run's cells; empty: it has a plug-in that this lab does not have."""
    try:
        return explanation_of_run(store)
    except catalog.MissingPluginError:
        return ()


def _series(cell: Cell, raw: Mapping[str, str]) -> tuple[Series, ...]:
    try:
        return measure.series(cell, raw)
    except catalog.MissingPluginError:
        return ()


def _latencies(cell: Cell, raws: Sequence[Mapping[str, str]]) -> tuple[Latencies, ...]:
    try:
        return measure.latencies(cell, raws)
    except catalog.MissingPluginError:
        return ()


def _timeline(cell: Cell, raw: Mapping[str, str], checks: Sequence[Check]) -> Timeline | None:
    made = next((c.detail for c in checks if c.name == "array"), "")
    try:
        return timeline(cell, raw, made)
    except (catalog.MissingPluginError, ValueError):
        return None


def _failed_raw(
    store: RunStore, seeds: Sequence[StoredCell], raws: Sequence[dict[str, str]]
) -> dict[str, str]:
    """Return raw output of the first trial that did not end well."""
    for seed, raw in zip(seeds, raws, strict=True):
        ended = store.load_cell(seed.id)
        if ended is not None and ended.outcome.outcome is not Outcome.DONE:
            return raw
    return raws[0]


def _test(found: SuiteTest) -> PageTest:
    in_trial = f"trial {found.trial}: " if found.trial and found.test.reason else ""
    return PageTest(
        claim=found.claim,
        suite=found.claim.partition(f".{found.test.name}")[0],
        name=found.test.name,
        ending=found.test.ending,
        reason=f"{in_trial}{found.test.reason}",
        seconds=found.test.seconds,
    )


def _failed(found: SuiteTest) -> Attempt:
    """Return a failed or unfinished test of a suite, with its logs."""
    test = found.test
    after = f" after {format_seconds(test.seconds)}" if test.seconds is not None else ""
    return Attempt(
        name=found.claim,
        outcome=Outcome.FAILED,
        words=f"{test.ending}{after}",
        reason=test.reason,
        evidence=tuple(
            Evidence(name=name, text=shortened(COLOUR.sub("", text), LOG_SHOWN))
            for name, text in test.logs
        ),
    )


def _attempt(store: RunStore, path: Path) -> Attempt:
    ended = store.load_attempt(path)
    return Attempt(
        name=f"attempt {path.suffix[1:]}",
        outcome=ended.outcome,
        reason=ended.reason or _contention(ended.checks),
        evidence=_evidence(store.raw(path)),
    )


def _contention(checks: Sequence[Check]) -> str:
    return "; ".join(f"{c.name}: {c.detail}" for c in checks if not c.passed)


def _evidence(raw: dict[str, str]) -> tuple[Evidence, ...]:
    """Return console and kernel messages, then output of the tools; without counters."""
    first = ("console.txt", "end.txt", "mdadm-create.txt")
    names = [n for n in first if n in raw]
    names += [n for n in raw if n.endswith(("stderr.txt", "stdout.txt")) and raw[n].strip()]
    return tuple(
        Evidence(name=name, text="\n".join(_readable(raw[name])[-LINES:])) for name in names
    )


def _readable(text: str) -> list[str]:
    """Return lines without those that the lab's programs add to the output of suites."""
    return [line for line in text.splitlines() if not line.startswith("--lab-- {")]


def write_report(store: RunStore, out: Path | None, lab: str) -> Path:
    """Write a run's report into the run directory or to ``out``; return its path."""
    text = page_text(store, page_of(store, lab))
    if out is None:
        return store.save_report(text)
    place = out / f"{store.id}.html" if out.is_dir() else out
    write(place, text)
    return place


@understood
def page_text(_store: RunStore, page: Page, *, index: str = "", stamp: str = "") -> str:
    from lab.report.html.page import run_page

    return run_page(page, index=index, stamp=stamp)


@understood
def write_charts(store: RunStore, directory: Path) -> tuple[Path, ...]:
    """Write each chart of a run as SVG and PNG; return their paths."""
    from lab.report.charts.render import png, svg
    from lab.report.html.page import charts_of

    written = []
    for chart in charts_of(page_of(store)):
        drawn = svg(chart)
        for path, data in (
            (directory / f"{chart.name}.svg", drawn),
            (directory / f"{chart.name}.png", png(drawn)),
        ):
            write(path, data)
            written.append(path)
    return tuple(written)


def check_directory(path: Path, option: str = "--report") -> None:
    """``InputError``: no directory can be made there."""
    nearest = path.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir():
        raise InputError(f"{option} {path}: '{nearest}' is a file, and a directory is needed")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{option} {path}: nothing can be written to '{nearest}'")


def write(path: Path, page: str | bytes, *, durable: bool = True) -> None:
    """Write a file; bytes of file names that are not UTF-8 become escapes."""
    data = page.encode(errors="backslashreplace") if isinstance(page, str) else page
    files.make_directory(path.parent)
    files.write(path, data, durable=durable)
