"""Curves along an axis of numbers, with theory dashed, and what N disks could do at the most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lab.model.scenario.document import Cell
from lab.report.charts.ceilings import DISKS, WORDS, ceilings
from lab.report.charts.draw import INK, MUTED, SERIES, SHAPES, UPRIGHT, WIDTH, Picture, legend
from lab.report.charts.points import (
    Scale,
    is_numeric,
    mark,
    ordered,
    scale,
    scale_of,
    short_name,
    slug,
)
from lab.report.content.figures import Row, axes_text, axis_value

HEIGHT: Final = 230
LEAST: Final = 3
"""Points of a curve: through two goes any."""


def curves(
    rows: Sequence[Row],
    along: str,
    apart: Sequence[str],
    *,
    title: str,
    fixed: str = "",
    cells: Mapping[str, Cell],
) -> Picture:
    """Rows of one metric along an axis, a curve for each combination of the axes ``apart``."""
    disks = along == DISKS
    most_of = ceilings(rows, cells) if disks else []
    measure = scale_of(rows)
    if most_of:
        most = max(value for _, _, value in most_of)
        unit = "1/s" if rows[0].metric == "iops" else "B/s"
        measure = scale(rows[0].metric, unit, [most])
    values = [
        mark(row, apart, measure)
        | {
            "at": row.cell.axes[along] if disks else axis_value(along, row.cell.axes[along]),
            "curve": axes_text({a: row.cell.axes[a] for a in apart}) or row.workload,
        }
        for row in rows
    ]
    names = list(dict.fromkeys(v["curve"] for v in values))
    counts = Counter(v["curve"] for v in values)
    for value, row in zip(values, rows, strict=True):
        alone = counts[value["curve"]] == 1
        value["lonely"] = alone and row.cell.axes[along] is None
        value["joined"] = counts[value["curve"]] >= LEAST
    x = _along(along, rows, disks=disks)
    spec = {
        "width": WIDTH,
        "height": HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": values},
        "layer": [*_layers(x, names, measure), *_limits(x, most_of, measure)],
        "resolve": {"scale": {"color": "shared", "shape": "shared"}},
    }
    said = ["points: measured"]
    if any(v["predicted"] is not None for v in values):
        said.append("dashed: theory")
    if any(v["published"] is not None for v in values):
        said.append("open diamond: published")
    if any("low" in v for v in values):
        said.append("whisker: interval of the median")
    if most_of:
        said.append(WORDS)
    lonely = [v["curve"] for v in values if v["lonely"]]
    if lonely:
        said.append(f"dotted: {', '.join(lonely)}")
    return Picture(
        name=slug(title, "by", short_name(along), fixed),
        title=f"{title} by {short_name(along)}" + (f": {fixed}" if fixed else ""),
        subtitle=" · ".join(said),
        caption="; ".join(
            f"{v['curve']}: {v['text']}"
            if v["lonely"]
            else f"{v['curve']} at {v['at']}: {v['text']}"
            for v in values
        ),
        spec=spec,
    )


def _along(along: str, rows: Sequence[Row], *, disks: bool) -> dict[str, Any]:
    values = ordered(tuple(dict.fromkeys(row.cell.axes[along] for row in rows)))
    title = "disks" if disks else short_name(along)
    if disks and is_numeric(values):
        numbers = [v for v in values if isinstance(v, int | float)]
        return {
            "field": "at",
            "type": "quantitative",
            "scale": {"domain": [min(numbers) - 0.5, max(numbers) + 0.5], "nice": False},
            "axis": {"values": numbers, "format": "d", "title": title, "grid": False},
        }
    return {
        "field": "at",
        "type": "ordinal",
        "sort": [axis_value(along, v) for v in values],
        "scale": {"type": "point", "padding": 0.4},
        "axis": {"title": title, "labelAngle": 0, "grid": False},
    }


def _layers(x: dict[str, Any], names: Sequence[str], measure: Scale) -> list[dict[str, Any]]:
    count = len(names)
    colours = [SERIES[i % len(SERIES)] for i in range(count)]
    shapes = [SHAPES[i % len(SHAPES)] for i in range(count)]
    key = None if count < 2 else {"symbolSize": 80, "symbolOpacity": 1, **legend(names)}
    curve = {"field": "curve", "type": "nominal", "sort": list(names)}
    colour = {**curve, "scale": {"domain": list(names), "range": colours}, "legend": key}
    shape = {**curve, "scale": {"domain": list(names), "range": shapes}, "legend": key}
    y: dict[str, Any] = {
        "type": "quantitative",
        "title": measure.title,
        "scale": {"zero": True},
        "axis": UPRIGHT,
    }
    tip = {"field": "tip", "type": "nominal"}
    return [
        {
            "transform": [{"filter": "datum.lonely && isValid(datum.measured)"}],
            "mark": {"type": "rule", "strokeDash": [2, 3], "strokeWidth": 1.5},
            "encoding": {"y": {**y, "field": "measured"}, "color": colour, "description": tip},
        },
        {
            "transform": [{"filter": "datum.joined && isValid(datum.predicted)"}],
            "mark": {"type": "line", "strokeDash": [6, 4], "strokeWidth": 1.5, "opacity": 0.9},
            "encoding": {"x": x, "y": {**y, "field": "predicted"}, "color": colour},
        },
        {
            "transform": [{"filter": "datum.joined && isValid(datum.measured)"}],
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {"x": x, "y": {**y, "field": "measured"}, "color": colour},
        },
        {
            "transform": [{"filter": "!datum.lonely && isValid(datum.low)"}],
            "mark": {"type": "errorbar", "ticks": {"size": 8}, "thickness": 1.5, "color": INK},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "transform": [{"filter": "!datum.lonely && isValid(datum.measured)"}],
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {
                "x": x,
                "y": {**y, "field": "measured"},
                "color": colour,
                "shape": shape,
                "fillOpacity": {"field": "opacity", "type": "quantitative", "scale": None},
                "description": tip,
            },
        },
        {
            "transform": [{"filter": "!datum.joined && !datum.lonely && isValid(datum.measured)"}],
            "mark": {"type": "text", "align": "left", "dx": 9, "fontSize": 12},
            "encoding": {
                "x": x,
                "y": {**y, "field": "measured"},
                "text": {"field": "text"},
                "color": colour,
            },
        },
        {
            "transform": [{"filter": "!datum.lonely && isValid(datum.published)"}],
            "mark": {"type": "point", "shape": "diamond", "size": 190, "strokeWidth": 2},
            "encoding": {
                "x": x,
                "y": {**y, "field": "published"},
                "color": colour,
                "description": tip,
            },
        },
    ]


def _limits(
    x: dict[str, Any], most_of: Sequence[tuple[str, int, float]], measure: Scale
) -> list[dict[str, Any]]:
    if not most_of:
        return []
    values = [{"of": name, "at": n, "limit": measure.of(value)} for name, n, value in most_of]
    last = max(n for _, n, _ in most_of)
    y = {"field": "limit", "type": "quantitative"}
    return [
        {
            "data": {"values": values},
            "mark": {"type": "line", "color": MUTED, "strokeDash": [2, 3], "strokeWidth": 1.5},
            "encoding": {"x": x, "y": y, "detail": {"field": "of"}},
        },
        {
            "data": {"values": [v for v in values if v["at"] == last]},
            "mark": {"type": "text", "color": MUTED, "align": "left", "dx": 5, "fontSize": 12},
            "encoding": {"x": x, "y": y, "text": {"field": "of"}},
        },
    ]
