"""Charts of a scenario's values from run to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lab.analysis.noise import disks_of
from lab.analysis.series import history
from lab.model.result.history import Point as Sighting
from lab.report.charts.data import marks, scale_of, slug, tip
from lab.report.charts.lines import Point, line_chart
from lab.report.charts.render import Chart
from lab.report.charts.values import PANELS
from lab.report.content.document import Page
from lab.report.content.figures import Row, axes_text, metric_words, percent, rows_of

_AXIS: Final = {
    "type": "temporal",
    "title": "run started, UTC",
    "scale": {"type": "utc"},
    "axis": {"grid": False, "tickCount": 3, "labelOverlap": True, "format": "%d %b"},
}


def trends(pages: Sequence[Page]) -> Iterator[Chart]:
    """Yield a chart for each workload and metric over runs of one scenario, oldest first.

    It has a panel for each of the newest cells; the table has the others.
    """
    found: dict[tuple[str, str], list[tuple[Page, Row]]] = {}
    for page in pages:
        for cell in page.result.cells:
            for row in rows_of(cell, page.judged):
                if row.measured is not None:
                    found.setdefault((row.workload, row.metric), []).append((page, row))
    for (workload, metric), rows in found.items():
        newest = list(dict.fromkeys(row.cell.id for _, row in reversed(rows)))[:PANELS]
        yield _trend(workload, metric, [(p, r) for p, r in rows if r.cell.id in newest])


def _image(page: Page) -> str:
    return str((page.result.environment.get("image") or {}).get("name", ""))


def _lines(rows: Sequence[tuple[Page, Row]]) -> list[str]:
    """Return the line of each row: its cell's axes, with the image's name if there are several.

    Different cells with the same axes get their ids, since ``--set`` changed another field.
    """
    several = len({_image(page) for page, _ in rows}) > 1
    names = [
        ", ".join(filter(None, (_image(page) if several else "", axes_text(row.cell.axes))))
        for page, row in rows
    ]
    ids: dict[str, set[str]] = {}
    for name, (_, row) in zip(names, rows, strict=True):
        ids.setdefault(name, set()).add(row.cell.id)
    return [
        name if name and len(ids[name]) == 1 else ", ".join(filter(None, (name, row.cell.id)))
        for name, (_, row) in zip(names, rows, strict=True)
    ]


def _sighting(page: Page, row: Row) -> Sighting:
    """Return a value as a point of a history."""
    assert row.measurement is not None
    result = page.result
    disks = {cell.result.id: disks_of(cell.cell) for cell in page.cells}
    return Sighting(
        run=result.run.id,
        scenario=result.run.scenario,
        started=result.run.started,
        cell=row.cell.id,
        axes=row.cell.axes,
        **row.measurement.model_dump(exclude={"no_seed_changes_it"}),
        contended=row.doubted,
        disks=disks.get(row.cell.id, ""),
        noise=result.environment.get("noise") or (),
        branch=result.environment.get("branch"),
    )


def _trend(workload: str, metric: str, rows: Sequence[tuple[Page, Row]]) -> Chart:
    measure = scale_of([row for _, row in rows], rows[-1][0])
    found = history(metric, [_sighting(page, row) for page, row in rows])
    changed = {(c.run, c.cell): percent(c.change) for c in found.changes}
    points = []
    for (page, row), line in zip(rows, _lines(rows), strict=True):
        change = changed.get((page.result.run.id, row.cell.id), "")
        said = f"{page.result.run.id}: {tip(row)}" + (f"; change point {change}" if change else "")
        points.append(
            Point(
                line=line,
                x=page.result.run.started,
                y=measure.of(row.measured or 0.0),
                text=measure.short(row.measured or 0.0),
                changed=bool(change),
                **marks(row, measure, page) | {"tip": said},
            )
        )
    return Chart(
        name=slug("trend", rows[0][0].result.run.scenario, workload, metric),
        title=f"{workload}, {metric_words(metric)}",
        subtitle=f"{measure.title}; median of each run",
        caption="; ".join(p.tip for p in points),
        spec=line_chart(points, x=_AXIS),
    )
