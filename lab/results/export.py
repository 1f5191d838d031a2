"""Exports of a run: tables, fio's JSON, JUnit, and a bundle that runs one cell elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from lab.core.errors import InputError
from lab.host.system import untrusted
from lab.model.result.document import CellResult, Result
from lab.model.scenario.document import Cell
from lab.results import tables as archive
from lab.results.bundle import bundle_of
from lab.results.documents import result_of
from lab.results.fio_tree import fio_tree
from lab.results.junit import junit_of
from lab.store.runs import RunStore, StoredCell


class Form(StrEnum):
    """Formats of an export."""

    CSV = "csv"
    PARQUET = "parquet"
    FIO = "fio"
    BUNDLE = "bundle"
    JUNIT = "junit"


def export(run: RunStore, form: Form, out: Path, cell: str | None) -> list[Path]:
    """Write a run, or one cell of it, to a new file or directory; return the written files.

    ``InputError``: ``out`` exists, or the run has nothing in this format.
    """
    stored = run.load_run()
    chosen = [seeds for seeds in stored.points if cell is None or cell in [c.id for c in seeds]]
    if not chosen:
        raise InputError(f"'{run.id}' has no cell '{cell}' (there are: {_ids(stored.cells)})")
    if form is Form.JUNIT:
        if cell is not None:
            raise InputError("--cell: JUnit is of a whole run, whose claims compare its cells")
        untrusted.write_text(junit_of(run), out)
        return [out]
    if form is Form.FIO:
        return untrusted.write_tree(fio_tree(run, chosen), out)
    if form is Form.BUNDLE:
        if len(chosen) > 1:
            raise InputError(
                "a bundle is of one cell",
                hint=f"say which with --cell: {_ids(stored.cells)}",
            )
        (seeds,) = chosen
        one = next((c for c in seeds if c.id == cell), seeds[0])
        return untrusted.write_tree(bundle_of(run, one), out)
    cells = {first.id: first.cell for first, *_ in chosen}
    rows = list(_rows(result_of(run), cells))
    archive.write_table(rows, out, form.value)
    return [out]


def _ids(cells: tuple[StoredCell, ...]) -> str:
    return ", ".join(c.id for c in cells)


def _rows(result: Result, cells: dict[str, Cell]) -> Iterator[dict[str, Any]]:
    """Yield a row for each trial of each metric; for a cell without values one without a metric."""
    axes = list(dict.fromkeys(name for cell in cells.values() for name in cell.axes))
    guest = result.environment.get("guest", {})
    common = {
        "run": result.run.id,
        "scenario": result.run.scenario,
        "started": result.run.started,
        "accelerator": result.environment.get("accelerator"),
        "qemu": result.environment.get("qemu"),
        "kernel": guest.get("kernel"),
        "mdadm": guest.get("mdadm"),
    }
    for cell in result.cells:
        if cell.id in cells:
            own = {name: cell.axes.get(name) for name in axes}
            for figure in _figures(cell, cells[cell.id]):
                yield {**common, "cell": cell.id, "outcome": cell.outcome.value, **own, **figure}


def _figures(cell: CellResult, asked: Cell) -> Iterator[dict[str, Any]]:
    expected = {(p.workload, p.metric): p.value for p in cell.predictions}
    tools = {workload.name: workload.tool for workload in asked.workloads}
    empty = dict.fromkeys(
        ("workload", "tool", "metric", "unit", "trial", "value", "median", "low", "high")
    )
    if not cell.measurements:
        yield {**empty, "predicted": None}
    for one in cell.measurements:
        for trial, value in enumerate(one.values, 1):
            yield {
                "workload": one.workload,
                "tool": tools[one.workload],
                "metric": one.metric,
                "unit": one.unit,
                "trial": trial,
                "value": value,
                "median": one.median,
                "low": one.low,
                "high": one.high,
                "predicted": expected.get((one.workload, one.metric)),
            }
