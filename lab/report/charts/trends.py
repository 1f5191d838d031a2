"""How a scenario's figures moved from run to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lab.report.charts import CURVES
from lab.report.charts.draw import SERIES, SHAPES, UPRIGHT, WIDTH, Picture, legend
from lab.report.charts.points import mark, scale_of, slug
from lab.report.content.document import Page
from lab.report.content.figures import Row, axes_text, metric_words, rows_of

HEIGHT = 240


def trends(pages: Sequence[Page]) -> Iterator[Picture]:
    """A picture for each workload and metric over runs of one scenario, the oldest first.

    Cells beyond as many as can be told apart are left to the table.
    """
    found: dict[tuple[str, str], list[tuple[Page, Row]]] = {}
    for page in pages:
        for cell in page.result.cells:
            for row in rows_of(cell, page.judged):
                if row.measured is not None:
                    found.setdefault((row.workload, row.metric), []).append((page, row))
    for (workload, metric), rows in found.items():
        newest = list(dict.fromkeys(row.cell.id for _, row in reversed(rows)))[:CURVES]
        yield _trend(workload, metric, [(p, r) for p, r in rows if r.cell.id in newest])


def _image(page: Page) -> str:
    return str((page.result.environment.get("image") or {}).get("name", ""))


def _curves(rows: Sequence[tuple[Page, Row]]) -> list[str]:
    """The curve of each: a cell's name; with the image's, where there are several. Cells that have
    one name and are not the same, as where ``--set`` changed what is no axis, get their id."""
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


def _trend(workload: str, metric: str, rows: Sequence[tuple[Page, Row]]) -> Picture:
    measure = scale_of([row for _, row in rows])
    values = [
        mark(row, (), measure)
        | {
            "started": page.result.run.started,
            "curve": curve_name,
            "tip": f"{page.result.run.id}: {mark(row, (), measure)['tip']}",
        }
        for (page, row), curve_name in zip(rows, _curves(rows), strict=True)
    ]
    names = list(dict.fromkeys(v["curve"] for v in values))
    ends = [SERIES[i % len(SERIES)] for i in range(len(names))]
    shapes = [SHAPES[i % len(SHAPES)] for i in range(len(names))]
    x = {
        "field": "started",
        "type": "temporal",
        "title": "run started, UTC",
        "scale": {"type": "utc"},
        "axis": {"grid": False, "tickCount": 5, "labelOverlap": True, "format": "%d %b %H:%M"},
    }
    y: dict[str, Any] = {
        "field": "measured",
        "type": "quantitative",
        "title": measure.title,
        "axis": UPRIGHT,
    }
    key = {"symbolSize": 80, **legend(names)} if len(names) > 1 else None
    curve = {"field": "curve", "type": "nominal", "sort": names, "legend": key}
    colour = {**curve, "scale": {"domain": names, "range": ends}}
    shape = {**curve, "scale": {"domain": names, "range": shapes}}
    words = metric_words(metric)
    return Picture(
        name=slug("trend", rows[0][0].result.run.scenario, workload, metric),
        title=f"{workload}, {words}",
        subtitle="medians of each run · whisker: their intervals · pale: doubtful",
        caption="; ".join(v["tip"] for v in values),
        spec={
            "width": WIDTH,
            "height": HEIGHT,
            "autosize": {"type": "fit-x", "contains": "padding"},
            "data": {"values": values},
            "layer": [
                {
                    "mark": {"type": "line", "strokeWidth": 1.5},
                    "encoding": {"x": x, "y": y, "color": colour},
                },
                {
                    "transform": [{"filter": "isValid(datum.low)"}],
                    "mark": {"type": "errorbar", "ticks": {"size": 6}},
                    "encoding": {
                        "x": x,
                        "y": {**y, "field": "low"},
                        "y2": {"field": "high"},
                        "color": colour,
                    },
                },
                {
                    "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
                    "encoding": {
                        "x": x,
                        "y": y,
                        "color": colour,
                        "shape": shape,
                        "fillOpacity": {"field": "opacity", "type": "quantitative", "scale": None},
                        "description": {"field": "tip", "type": "nominal"},
                    },
                },
            ],
        },
    )
