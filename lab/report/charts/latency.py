"""Charts of latency percentiles: a line over the percentiles for each cell."""

from __future__ import annotations

import re
from typing import Final

from lab.report.charts.data import in_order, label, marks, scale_of, slug, varying
from lab.report.charts.lines import LEAST, Point, line_chart
from lab.report.charts.render import Chart
from lab.report.charts.values import PANELS, narrowed
from lab.report.content.figures import Row, rows_of
from lab.report.content.page_data import Page

_NAME: Final = re.compile(r"((?:read_|write_|trim_)?clat)_(?:p(\d+(?:_\d+)?)|(max))")


LATENCY: Final = "completion latency, {unit} (lower is better), logarithmic"


def latency_charts(page: Page) -> tuple[Chart, ...]:
    """Return a chart for each workload and direction with three percentiles or more."""
    found: dict[tuple[str, str], list[tuple[str, Row]]] = {}
    rows = [r for cell in page.result.cells for r in rows_of(cell, page.judged, all_=True)]
    for row in (row for own in in_order(rows, page) for row in own):
        match = _NAME.fullmatch(row.metric)
        if match and row.measured:
            place = match[3] or match[2].replace("_", ".")
            found.setdefault((row.workload, match[1]), []).append((place, row))
    return tuple(
        _chart(workload, name.removesuffix("clat").removesuffix("_"), rows, page)
        for (workload, name), rows in found.items()
        if len({place for place, _ in rows}) >= LEAST
    )


def _chart(workload: str, direction: str, rows: list[tuple[str, Row]], page: Page) -> Chart:
    every = [row for _, row in rows]
    kept, fixed = narrowed(every, varying(every), PANELS)
    places = sorted({place for place, _ in rows}, key=_order)
    shown = sorted(
        ((place, row) for place, row in rows if row in kept), key=lambda one: _order(one[0])
    )
    measure = scale_of(kept)
    varied = varying(kept)
    title = f"{workload}, {direction + ' ' if direction else ''}latency by percentile"
    points = [
        Point(
            line=label(row, list(varied)),
            x=place,
            y=measure.of(row.measured or 0.0),
            text=measure.short(row.measured or 0.0),
            **marks(row, measure, page),
        )
        for cell in dict.fromkeys(row.cell.id for row in kept)
        for place, row in shown
        if row.cell.id == cell
    ]
    said: dict[str, list[str]] = {}
    for point in points:
        said.setdefault(point.line, []).append(f"{point.x} {point.text}")
    unit = measure.title.rpartition(", ")[2]
    return Chart(
        name=slug(title, fixed),
        title=title,
        subtitle="\n".join(filter(None, (fixed, LATENCY.format(unit=unit)))),
        caption="; ".join(f"{line}: {', '.join(own)} {unit}" for line, own in said.items()),
        spec=line_chart(
            points,
            x={
                "type": "ordinal",
                "sort": places,
                "scale": {"type": "point", "padding": 0.4},
                "axis": {"title": "percentile of requests", "labelAngle": 0, "grid": False},
            },
            logarithmic=True,
        ),
    )


def _order(place: str) -> float:
    return float("inf") if place == "max" else float(place)
