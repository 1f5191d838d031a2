"""Reports from stored runs: pages, charts and a site. Needs neither libvirt nor QEMU."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pydantic import ValidationError

from lab import __version__
from lab.analysis import measure
from lab.analysis.suites import SuiteTest
from lab.compile.cell.metrics import metrics_of
from lab.core.base import KEPT
from lab.core.errors import InputError
from lab.core.printable import as_name, printable
from lab.core.units import format_seconds, shortened
from lab.host.system import files, untrusted
from lab.model.matrix.record import JobState, MatrixResult
from lab.model.result.document import CellResult, Outcome, Result, RunState
from lab.model.result.explanation import CellExplanation, Explanation
from lab.model.result.measurement import Check, Series
from lab.model.scenario.document import Cell
from lab.plugins import catalog
from lab.plugins.workloads._suites import COLOUR
from lab.report.content.document import Attempt, Evidence, Page, PageCell, PageTest
from lab.report.content.reliability import steps
from lab.report.export.shell import cell_script
from lab.results.again import again
from lab.results.documents import tests_of_run, typed_names, understood
from lab.results.judged import explanation_of_run, result_of
from lab.results.trend import regressions_of
from lab.store import bundles
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
        sync=measure.sync_seen(stored.cell, raw),
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
    text = _page(store, page_of(store, lab))
    if out is None:
        return store.save_report(text)
    place = out / f"{store.id}.html" if out.is_dir() else out
    _write(place, text)
    return place


@understood
def _page(_store: RunStore, page: Page, *, index: str = "", stamp: str = "") -> str:
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
            _write(path, data)
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


def write_site(
    runs: Sequence[RunStore],
    directory: Path,
    lab: str,
    say: Callable[[str], None],
    *,
    matrix: MatrixResult | None = None,
    added: Sequence[Path] = (),
) -> Path:
    """Write the site of all runs: a report of each, each cell's raw output, a page to explore all
    values, and a badge. Return the page's path.

    With ``matrix``, page and badge show that matrix run. Otherwise the badge shows each scenario's
    last run on each image. ``added``: bundles, and results that are only explored; badge and change
    points leave both out. The page and ``say`` report unreadable runs. ``InputError``: no run can
    be read, or a file of ``added`` cannot.
    """
    from lab.report.html.site import index_page

    pages: list[Page] = []
    broken: list[str] = []
    others = _others(added, {store.id for store in runs}, directory, lab)
    for store in runs:
        try:
            page = _published(store, page_of(store, lab), directory)
        except InputError as error:
            broken.append(str(error))
            say(str(error))
            continue
        pages.append(page)
    for page in (*pages, *(one for one in others if isinstance(one, Page))):
        for sentence in page.warnings:
            say(sentence)
    if not pages and not added:
        raise InputError("there is no run to report on", hint="`lab up scenario NAME` makes one")
    index = directory / "index.html"
    worse = matrix.regressions if matrix else regressions_of(runs)
    _write(index, index_page(pages, broken, worse, matrix, others))
    _write(directory / "badge.svg", _badge(pages, matrix))
    return index


def _others(
    files_: Sequence[Path], taken: set[str], directory: Path, lab: str
) -> list[Page | Result]:
    """Return the runs of bundles, with their reports written, and the results of other files.

    ``taken``: ids of the site's runs; those of the files are added.
    """
    found: list[Page | Result] = []
    for file in files_:
        if not bundles.is_bundle(file.name):
            result = result_from(file)
            _take(result.run.id, taken, file)
            found.append(result)
            continue
        with bundles.opened(str(file)) as store:
            _take(store.id, taken, file)
            place, typed = shlex.quote(str(file.absolute())), typed_names(store)[0]
            if typed not in catalog.scenarios():
                typed = shlex.quote(str(directory / f"{store.id}.files" / "scenario.yaml"))
            page = page_of(store, lab, (typed, place))
            run = page.result.run.model_copy(update={"directory": str(file.absolute())})
            steps_ = ((f"{lab} results import {place}", "store this run with the others"),)
            update: dict[str, Any] = {
                "result": page.result.model_copy(update={"run": run}),
                "steps": steps_,
            }
            found.append(_published(store, page.model_copy(update=update), directory))
    return found


def _take(id_: str, taken: set[str], file: Path) -> None:
    if id_ in taken:
        raise InputError(
            f"--add: '{file}' is the run '{id_}', and a run with this id is in the site",
            hint=f"compare them: lab results compare {id_} {file}",
        )
    taken.add(id_)


def _published(store: RunStore, page: Page, directory: Path) -> Page:
    """Write a run's report and raw output into a site, unless they are there; return the page with
    its links.

    A report is drawn from the page and this version alone, so equal ones give the same report.
    """
    name = f"{store.id}.html"
    page, outputs = _with_outputs(store, page.model_copy(update={"link": _link(name)}))
    stamp = _stamp(page, outputs)
    there = all((directory / path).is_file() for path in outputs)
    if there and _stamp_of(directory / name) == stamp:
        return page
    text = _page(store, page, index="index.html", stamp=stamp)
    for path, output in outputs.items():
        _write(directory / path, output, durable=False)
    _write(directory / name, text)
    return page


def _stamp(page: Page, outputs: Mapping[str, str]) -> str:
    """Return a digest of all that a report and its files are made from."""
    made_from = hashlib.sha256(_drawn_by())
    made_from.update(json.dumps(page.model_dump(mode="json")).encode())
    for path, output in outputs.items():
        made_from.update(f"\n{path} {len(output)}\n{output}".encode(errors="replace"))
    return made_from.hexdigest()


@cache
def _drawn_by() -> bytes:
    """Return the version of the lab, and a digest of the code and templates that draw reports."""
    import lab.report

    code = hashlib.sha256()
    for file in sorted(Path(lab.report.__path__[0]).rglob("*")):
        if file.suffix in (".py", ".j2", ".css"):
            code.update(file.read_bytes())
    return f"{__version__} {code.hexdigest()}\n".encode()


def _stamp_of(report: Path) -> str:
    """Return the stamp in a report of a site; empty: there is none."""
    try:
        with report.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return ""
    found = _STAMP.search(head)
    return found[1].decode() if found else ""


_HEAD: Final = 1024
"""Bytes of a report until its stamp, at most."""
_STAMP: Final = re.compile(rb'<meta name="lab-stamp" content="([0-9a-f]{64})">')


def _link(name: str) -> str:
    """Return a file's URL; colons too are escaped, since they would end a scheme."""
    return quote(os.fsencode(name))


@understood
def _with_outputs(store: RunStore, page: Page) -> tuple[Page, dict[str, str]]:
    """Return the page with links to its scenario file and to each cell's raw output, and these
    files by their paths in the site."""
    place = f"{store.id}.files"
    outputs = {f"{place}/scenario.yaml": printable(store.scenario_text())}
    cells = []
    for number, (seeds, cell) in enumerate(zip(store.load_run().points, page.cells, strict=True)):
        path = f"{place}/{number}-{as_name(cell.result.id)}.txt"
        outputs[path] = printable(_output(store, seeds, cell))
        cells.append(cell.model_copy(update={"output": _link(path)}))
    file = _link(f"{place}/scenario.yaml")
    return page.model_copy(update={"cells": tuple(cells), "scenario_file": file}), outputs


def _output(store: RunStore, seeds: Sequence[StoredCell], cell: PageCell) -> str:
    """Return a cell's commands and the raw output of each of its seeds."""
    parts = [f"# run {store.id}, cell {cell.result.id}\n# commands\n\n{cell.commands}"]
    for seed in seeds:
        trial = f"seed {seed.cell.seed}: " if len(seeds) > 1 else ""
        parts += [
            f"# ==== {trial}{name}\n\n{shortened(text, LOG_SHOWN)}"
            for name, text in store.raw(store.cell_directory(seed.id)).items()
        ]
    return shortened("\n".join(parts), OUTPUT_SHOWN)


def result_from(path: Path) -> Result:
    """Return a result document from a file; ``InputError``: it has none."""
    try:
        data = untrusted.read(path.parent, path.name)
        return Result.model_validate_json(data, context=KEPT)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"--add: '{path}' cannot be read: {reason}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"--add: '{path}' has no result: {where}{': ' if where else ''}{first['msg']}",
            hint="`lab results show RUN --json` prints one",
        ) from error


def _badge(pages: Sequence[Page], matrix: MatrixResult | None) -> str:
    from lab.report.html.badge import matrix_badge, verdicts_badge

    if matrix is not None:
        claims = [claim for job in matrix.jobs for claim in job.claims]
        broken = sum(p.job.state is JobState.BROKEN or bool(p.failed_cells) for p in matrix.jobs)
        fails = sum(claim.fails for claim in claims)
        return matrix_badge(matrix.run.matrix, [c.ending for c in claims], fails, broken)
    last: dict[tuple[str, str], Page] = {}
    for page in pages:
        image = (page.result.environment.get("image") or {}).get("name", "")
        if page.result.run.state is not RunState.RUNNING:
            last.setdefault((page.result.run.scenario, image), page)
    verdicts = [claim.verdict for page in last.values() for claim in page.result.claims]
    return verdicts_badge("raid-lab", verdicts)


def _write(path: Path, page: str | bytes, *, durable: bool = True) -> None:
    """Write a file; bytes of file names that are not UTF-8 become escapes."""
    data = page.encode(errors="backslashreplace") if isinstance(page, str) else page
    files.make_directory(path.parent)
    files.write(path, data, durable=durable)
