"""Exports of a run: tables, fio's JSON, JUnit, Markdown, OpenMetrics, a bundle, a script."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any, Final

from lab.analysis.counted import counter_of, figures_of
from lab.compile.cell.metrics import COUNTS
from lab.core.errors import InputError
from lab.host.system import untrusted
from lab.model.result.document import CellMeasurement, CellResult, Result, RunState
from lab.model.scenario.document import Cell
from lab.report.export.markdown import summary
from lab.report.export.openmetrics import openmetrics as metrics
from lab.results import tables as archive
from lab.results.documents import guest_of, understood
from lab.results.fio_tree import fio_tree
from lab.results.judged import result_of
from lab.results.junit import junit_of
from lab.results.script import script_of
from lab.store import bundles, names
from lab.store.runs import RunStore, StoredCell


class Form(StrEnum):
    """Formats of an export."""

    CSV = "csv"
    PARQUET = "parquet"
    FIO = "fio"
    JUNIT = "junit"
    SUMMARY = "summary"
    OPENMETRICS = "openmetrics"
    BUNDLE = "bundle"
    SCRIPT = "script"


WHOLE: Final = (Form.JUNIT, Form.SUMMARY, Form.OPENMETRICS)
"""Texts of a whole run."""
TABLES: Final = (Form.CSV, Form.PARQUET)
PACKAGE: Final = ".datapackage.json"
"""How the name of a table's dictionary ends."""


def text_of(run: RunStore, form: Form, cell: str | None = None) -> str:
    """Return a run as text; ``InputError``: the format is no text of a whole run."""
    if form not in WHOLE:
        raise InputError(f"--out -: {form.value} is written to a file: give its name")
    if cell is not None:
        raise InputError(f"--cell: {form.value} is of a whole run, whose claims compare its cells")
    if form is Form.JUNIT:
        return junit_of(run)
    return understood(_written)(run, form)


def _written(run: RunStore, form: Form) -> str:
    result = result_of(run)
    return summary(result, title=run.load_run().title) if form is Form.SUMMARY else metrics(result)


def export(run: RunStore, form: Form, out: Path, cell: str | None) -> list[Path]:
    """Write a run, or one cell of it, to a new file or directory; return the written files.

    ``InputError``: ``out`` exists, or the run has nothing in this format.
    """
    stored = run.load_run()
    chosen = [seeds for seeds in stored.points if cell is None or cell in [c.id for c in seeds]]
    if not chosen:
        raise InputError(f"'{run.id}' has no cell '{cell}' (there are: {_ids(stored.cells)})")
    if form in WHOLE:
        untrusted.write_text(text_of(run, form, cell), out)
        return [out]
    if form is Form.FIO:
        return untrusted.write_tree(fio_tree(run, chosen), out)
    if form is Form.BUNDLE:
        return [_bundle(run, [one for seeds in chosen for one in seeds], out)]
    if form is Form.SCRIPT:
        if len(chosen) > 1:
            raise InputError(
                "a script is of one cell",
                hint=f"say which with --cell: {_ids(stored.cells)}",
            )
        (seeds,) = chosen
        one = next((c for c in seeds if c.id == cell), seeds[0])
        return untrusted.write_tree(script_of(run, one), out)
    cells = {first.id: first.cell for first, *_ in chosen}
    guests = {id_: guest_of(run, id_) for id_ in cells}
    rows = list(_rows(result_of(run), cells, guests))
    units = {a: "B" for cell in cells.values() for a in cell.axes if a.endswith(_SIZES)}
    package = out.with_name(out.name + PACKAGE)
    untrusted.write_text(archive.dictionary(rows, units, out), package)
    try:
        archive.write_table(rows, out, form.value)
    except BaseException:
        package.unlink()
        raise
    return [out, package]


_SIZES: Final = ("chunk", "size", ".bs")


def _bundle(run: RunStore, cells: list[StoredCell], out: Path) -> Path:
    if not bundles.is_bundle(out.name):
        raise InputError(f"--out: '{out}' is not a bundle's name: it must end with {names.BUNDLE}")
    if run.load_state()[1] is RunState.RUNNING:
        raise InputError(f"'{run.id}' is still running", hint="export it when it has ended")
    result = result_of(run)
    ids = {cell.id for cell in cells}
    result = result.model_copy(
        update={
            "run": result.run.model_copy(update={"directory": None}),
            "cells": tuple(cell for cell in result.cells if cell.id in ids),
        }
    )
    bundles.write(run, cells, result.model_dump_json(by_alias=True, indent=1), out)
    return out


def _ids(cells: tuple[StoredCell, ...]) -> str:
    return ", ".join(c.id for c in cells)


def _rows(
    result: Result, cells: dict[str, Cell], guests: dict[str, dict[str, str]]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each trial of each metric; for a cell without values one without a metric."""
    environment = result.environment
    only = {} if "guests" in environment else environment.get("guest", {})
    axes = list(dict.fromkeys(name for cell in cells.values() for name in cell.axes))
    common = {
        "run": result.run.id,
        "scenario": result.run.scenario,
        "started": result.run.started,
        "accelerator": result.environment.get("accelerator"),
        "qemu": result.environment.get("qemu"),
    }
    for cell in result.cells:
        if cell.id in cells:
            own = {name: cell.axes.get(name) for name in axes}
            for figure in _figures(cell, cells[cell.id]):
                guest = guests[cell.id] or only
                system = {name: guest.get(name) for name in ("kernel", "mdadm")}
                yield {
                    **common,
                    **system,
                    "cell": cell.id,
                    "outcome": cell.outcome.value,
                    **own,
                    **figure,
                }


def _figures(cell: CellResult, asked: Cell) -> Iterator[dict[str, Any]]:
    expected = {(p.workload, p.metric): p.value for p in cell.predictions}
    tools = {workload.name: workload.tool for workload in asked.workloads}
    tools |= {fault.name: fault.fault for fault in asked.faults}
    empty = dict.fromkeys(
        ("workload", "tool", "disk", "metric", "unit", "trial", "value", "median", "low", "high")
    )
    figures: list[tuple[CellMeasurement, str | None]] = [(one, None) for one in figures_of(cell)]
    known = {(one.workload, one.metric) for one, _ in figures}
    figures += [(s, None) for s in cell.shapes if (s.workload, s.metric) not in known]
    serials = dict.fromkeys(one.serial for one in cell.counters)
    named = dict.fromkeys(one.workload for one in cell.counters)
    figures += [
        (one, serial)
        for name, serial, metric in product(named, serials, COUNTS)
        if (one := counter_of(cell, name, metric, serial)) is not None
    ]
    if not figures:
        yield {**empty, "predicted": None}
    for one, disk in figures:
        for trial, value in enumerate(one.values, 1):
            yield {
                "workload": one.workload,
                "tool": tools[one.workload],
                "disk": disk,
                "metric": one.metric,
                "unit": one.unit,
                "trial": trial,
                "value": value,
                "median": one.median,
                "low": one.low,
                "high": one.high,
                "predicted": expected.get((one.workload, one.metric)) if disk is None else None,
            }
