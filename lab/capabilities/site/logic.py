"""The data of the site of all runs: results, links, commands and change points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

from lab.analysis.history import history
from lab.analysis.noise import disks_of
from lab.capabilities.site.model import Site, SiteCell, SiteChange, SiteMetric, SiteRun
from lab.model.result.document import CellResult, Result
from lab.model.result.history import Point
from lab.model.result.measurement import COUNTERS, MetricKind
from lab.plugins import catalog
from lab.plugins.faults._shared import COMMON
from lab.report.content.figures import axes_text, metric_words
from lab.report.content.page_data import Page

_FACTS: Final = ("accelerator", "branch", "commit", "guest", "lab", "libvirt", "qemu")
"""Facts of the environment that the site compares. Of host and image it has the names."""
_COUNTERS: Final = frozenset(metric.name for metric in COUNTERS)


def site_of(pages: Sequence[Page], added: Sequence[Page | Result] = ()) -> Site:
    """Return the data of these runs, newest first.

    ``added``: runs and results from files; they are in no series of change points.
    """
    runs = [
        _run(one) if isinstance(one, Page) else SiteRun(result=slim(one))
        for one in (*pages, *added)
    ]
    runs.sort(key=lambda run: run.result.run.started, reverse=True)
    return Site(runs=tuple(runs), metrics=_metrics(), changes=tuple(_changes(pages)))


def _metrics() -> dict[str, SiteMetric]:
    tools = [catalog.workload(name).metrics for name in catalog.plugin_names("workloads")]
    faults = [catalog.fault_kind(name).metrics for name in catalog.plugin_names("faults")]
    known = {m.name: m for own in (COMMON, *faults, *tools, COUNTERS) for m in own}
    return {
        name: SiteMetric(
            words=metric_words(name),
            unit=metric.unit,
            better=metric.better,
            counted=metric.kind is MetricKind.COUNTED,
        )
        for name, metric in sorted(known.items())
    }


def _run(page: Page) -> SiteRun:
    return SiteRun(
        result=slim(page.result),
        title=page.title,
        report=page.link,
        scenario=page.scenario_file,
        cells={
            cell.result.id: SiteCell(
                label=axes_text(cell.result.axes) or cell.result.id,
                command=cell.again,
                report=f"{page.link}#cell-{quote(cell.result.id)}",
                output=cell.output,
                fixed=cell.result.id in page.fixed,
            )
            for cell in page.cells
        },
    )


def slim(result: Result) -> Result:
    """Return a result without what the site does not show: it is a third as large."""
    facts: dict[str, Any] = {k: v for k, v in result.environment.items() if k in _FACTS}
    for place in ("host", "image"):
        if name := (result.environment.get(place) or {}).get("name"):
            facts[place] = {"name": name}
    return result.model_copy(
        update={
            "run": result.run.model_copy(update={"directory": None}),
            "answer": result.answer.model_copy(update={"values": ()}),
            "environment": facts,
            "cells": tuple(map(_cell, result.cells)),
            "claims": tuple(
                claim.model_copy(update={"parts": (), "values": ()}) for claim in result.claims
            ),
        }
    )


def _cell(cell: CellResult) -> CellResult:
    doubted = {check for m in cell.measurements for check in cell.doubts(m.workload)}
    update: dict[str, Any] = {
        "checks": tuple(check for check in cell.checks if check in doubted),
        "counters": (),
        "shapes": (),
        "digest": None,
        "predictions": tuple(p.model_copy(update={"reason": ""}) for p in cell.predictions),
    }
    return cell.model_copy(update=update)


def _changes(pages: Sequence[Page]) -> Iterator[SiteChange]:
    """Yield the change points of each metric of each scenario, but of counters."""
    found: dict[tuple[str, str], list[Point]] = {}
    for page in sorted(pages, key=lambda page: page.result.run.started):
        for point in _points(page):
            found.setdefault((point.scenario, point.metric), []).append(point)
    for (_, metric), points in found.items():
        for change in history(metric, points).changes:
            yield SiteChange(metric=metric, **change.model_dump())


def _points(page: Page) -> Iterator[Point]:
    """Yield a run's values, as `lab.capabilities.history.run` has them."""
    result = page.result
    for cell in page.cells:
        disks = disks_of(cell.cell)
        for one in cell.result.measurements:
            if one.metric not in _COUNTERS:
                yield Point(
                    run=result.run.id,
                    scenario=result.run.scenario,
                    started=result.run.started,
                    cell=cell.result.id,
                    axes=cell.result.axes,
                    **one.model_dump(exclude={"no_seed_changes_it"}),
                    contended=bool(cell.result.doubts(one.workload)),
                    disks=disks,
                    noise=result.environment.get("noise") or (),
                    branch=result.environment.get("branch"),
                )
