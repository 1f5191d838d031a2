"""Charts of latencies: how those of all cells are distributed, in one panel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lab.core.units import format_value
from lab.model.result.measurement import Latencies
from lab.report.charts.data import label, scale, slug, varying
from lab.report.charts.render import (
    INK,
    LETTERS,
    MEASURED,
    MUTED,
    PUBLISHED,
    READS,
    SYMBOL,
    WRITES,
    Chart,
    Key,
    legend,
)
from lab.report.charts.values import PANELS, narrowed
from lab.report.content.figures import Row, rows_of
from lab.report.content.page_data import Page

SIZE: Final = (300, 220)
"""Width and height of the panel in pixels."""
WIDE: Final = 30.0
"""Least quotient of the longest latency and the shortest median for a logarithmic axis."""
COLOURS: Final = (MEASURED, PUBLISHED, "#009e73", "#cc79a7", WRITES, READS, INK, MUTED)
DASHES: Final = (("line", [1, 0]), ("dashes", [6, 4]), ("dots", [2, 3]))


def latency_charts(page: Page) -> tuple[Chart, ...]:
    """Return a chart for each workload and direction whose tool reports its distribution."""
    found: dict[tuple[str, str], list[tuple[Row, Latencies]]] = {}
    for cell in page.cells:
        rows = {row.workload: row for row in reversed(rows_of(cell.result, page.judged))}
        for own in cell.latencies:
            if own.workload in rows:
                found.setdefault((own.workload, own.direction), []).append(
                    (rows[own.workload], own)
                )
    directions = {workload: [d for w, d in found if w == workload] for workload, _ in found}
    return tuple(
        _chart(workload, direction if len(directions[workload]) > 1 else "", own)
        for (workload, direction), own in found.items()
    )


def _chart(workload: str, direction: str, found: Sequence[tuple[Row, Latencies]]) -> Chart:
    rows = [row for row, _ in found]
    kept, fixed = narrowed(rows, varying(rows), PANELS)
    axes = list(varying(kept))
    lines: dict[Latencies, list[str]] = {}
    for row, own in found:
        if row in kept:
            lines.setdefault(own, []).append(label(row, axes))
    longest = max(own.seconds[-1] for own in lines)
    logarithmic = longest > WIDE * min(_at(own, 50) or longest for own in lines)
    measure = scale("latency", "s", [longest])
    unit = measure.title.rpartition(", ")[2]
    named = {_name(names, own): own for own, names in lines.items()}
    title = f"{workload}, {direction + ' ' if direction else ''}latency of requests"
    points = [
        {
            "line": name,
            "x": measure.of(max(seconds, 1e-9)),
            "y": percent,
            "tip": f"{name.partition(':')[0]}: {percent:g}% within {format_value(seconds, 's')}",
        }
        for name, own in named.items()
        for percent, seconds in zip(own.percents, own.seconds, strict=True)
    ]
    words = [f"completion latency, {unit} (left is better){', logarithmic' * logarithmic}"]
    return Chart(
        name=slug(title, fixed),
        title=title,
        subtitle="\n".join(filter(None, (fixed, *words))),
        caption="; ".join(named),
        spec=_spec(points, list(named), logarithmic=logarithmic),
    )


def _at(own: Latencies, percent: float) -> float:
    """Return a percentile in seconds; 0: the tool was not asked for it."""
    return dict(zip(own.percents, own.seconds, strict=True)).get(percent, 0.0)


def _name(names: Sequence[str], own: Latencies) -> str:
    found = (("p50", _at(own, 50)), ("p99", _at(own, 99)))
    said = [f"{word} {format_value(t, 's')}" for word, t in found if t]
    label = " and ".join(names)
    if len(label) > LETTERS - SYMBOL and names[1:]:
        label = f"{names[0]} and {len(names) - 1} more"
    whole = f"{label}: {', '.join(said)}"
    return whole if len(whole) <= LETTERS - SYMBOL else label


def _spec(points: list[dict[str, Any]], names: list[str], *, logarithmic: bool) -> dict[str, Any]:
    width, height = SIZE
    styles = [(COLOURS[n % len(COLOURS)], *DASHES[n % len(DASHES)]) for n, _ in enumerate(names)]
    x: dict[str, Any] = {"field": "x", "type": "quantitative", "title": None}
    x["axis"] = {"tickCount": 5, "grid": False}
    if logarithmic:
        x["scale"] = {"type": "log", "nice": False}
    by = {"field": "line", "type": "nominal", "sort": names, "legend": None}
    colour = {**by, "scale": {"domain": names, "range": [colour for colour, _, _ in styles]}}
    dash = {**by, "scale": {"domain": names, "range": [dash for _, _, dash in styles]}}
    y = {"field": "y", "type": "quantitative", "title": "requests done, %"}
    at = {"x": x, "y": {**y, "scale": {"domain": [0, 100]}, "axis": {"tickCount": 5}}}
    keys = [
        Key(name=name, colour=colour, shape=shape)
        for name, (colour, shape, _) in zip(names, styles, strict=True)
    ]
    line = {"type": "line", "interpolate": "step-after", "strokeWidth": 2}
    dot = {"type": "point", "filled": True, "size": 18, "opacity": 1}
    return {
        "data": {"values": points},
        "width": width,
        "height": height,
        "layer": [
            legend(keys),
            {"mark": line, "encoding": {**at, "color": colour, "strokeDash": dash}},
            {
                "mark": dot,
                "encoding": {
                    **at,
                    "color": colour,
                    "description": {"field": "tip", "type": "nominal"},
                },
            },
        ],
    }
