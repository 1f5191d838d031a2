"""Curves along an axis of numbers, with theory dashed, and what N disks could do at the most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lab.model.scenario import Cell
from lab.report.figures import Row, axes_text, axis_value
from lab.report.pictures.draw import INK, MUTED, SERIES, SHAPES, UPRIGHT, WIDTH, Picture
from lab.report.pictures.points import (
    Scale,
    is_numeric,
    mark,
    ordered,
    scale,
    scale_of,
    short_name,
    slug,
)

HEIGHT: Final = 230
DISKS: Final = "disks.count"


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
    ceilings = _ceilings(rows, cells) if disks else []
    measure = scale_of(rows)
    if ceilings:
        most = max(value for _, _, value in ceilings)
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
        value["lonely"] = counts[value["curve"]] == 1 and row.cell.axes[along] is None
    x = _along(along, rows, disks=disks)
    spec = {
        "width": WIDTH,
        "height": HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": values},
        "layer": [*_layers(x, names, measure), *_limits(x, ceilings, measure)],
        "resolve": {"scale": {"color": "shared", "shape": "shared"}},
    }
    said = ["points: measured"]
    if any(v["predicted"] is not None for v in values):
        said.append("dashed: theory")
    if any(v["published"] is not None for v in values):
        said.append("open diamond: published")
    if any("low" in v for v in values):
        said.append("whisker: interval of the median")
    if ceilings:
        said.append("B: what one disk's limit lets through")
    if any(v["lonely"] for v in values):
        said.append(f"dotted: without {short_name(along)}")
    return Picture(
        name=slug(title, "by", short_name(along), fixed),
        title=f"{title} by {short_name(along)}" + (f": {fixed}" if fixed else ""),
        subtitle=" · ".join(said),
        caption="; ".join(f"{v['curve']} at {v['at']}: {v['text']}" for v in values),
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
    legend = None if count < 2 else {"symbolSize": 80, "symbolOpacity": 1}
    curve = {"field": "curve", "type": "nominal", "sort": list(names)}
    colour = {**curve, "scale": {"domain": list(names), "range": colours}, "legend": legend}
    shape = {**curve, "scale": {"domain": list(names), "range": shapes}, "legend": legend}
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
            "encoding": {"y": {**y, "field": "measured"}, "color": colour},
        },
        {
            "transform": [{"filter": "isValid(datum.predicted)"}],
            "mark": {"type": "line", "strokeDash": [6, 4], "strokeWidth": 1.5, "opacity": 0.9},
            "encoding": {"x": x, "y": {**y, "field": "predicted"}, "color": colour},
        },
        {
            "transform": [{"filter": "isValid(datum.measured)"}],
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {"x": x, "y": {**y, "field": "measured"}, "color": colour},
        },
        {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "errorbar", "ticks": {"size": 8}, "thickness": 1.5, "color": INK},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "transform": [{"filter": "isValid(datum.measured)"}],
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
            "transform": [{"filter": "isValid(datum.published)"}],
            "mark": {"type": "point", "shape": "diamond", "size": 190, "strokeWidth": 2},
            "encoding": {
                "x": x,
                "y": {**y, "field": "published"},
                "color": colour,
                "description": tip,
            },
        },
    ]


def _ceilings(rows: Sequence[Row], cells: Mapping[str, Cell]) -> list[tuple[str, int, float]]:
    """N·B and (N-1)·B for every number of disks, where all disks have the same limit."""
    limits = {disk_limit(cells[row.cell.id], row.metric) for row in rows}
    limit = limits.pop()
    if limits or limit is None:
        return []
    counts = sorted({n for row in rows if isinstance(n := row.cell.axes[DISKS], int)})
    return [
        (name, n, (n - less) * limit) for name, less in (("N·B", 0), ("(N-1)·B", 1)) for n in counts
    ]


def disk_limit(cell: Cell, metric: str) -> float | None:
    """What the limits of one disk let through, in the metric's unit; ``None``: no one figure."""
    found: set[float] = set()
    for disk in cell.disks:
        kind = {"throughput": "bytes", "iops": "operations"}.get(metric)
        given = disk.throttle.model_dump(exclude_none=True)
        limit = given.get(f"total_{kind}_per_second")
        if disk.model != "throttle" or limit is None:
            return None
        found.add(float(limit))
    return found.pop() if len(found) == 1 else None


def _limits(
    x: dict[str, Any], ceilings: Sequence[tuple[str, int, float]], measure: Scale
) -> list[dict[str, Any]]:
    if not ceilings:
        return []
    values = [{"of": name, "at": n, "limit": measure.of(value)} for name, n, value in ceilings]
    last = max(n for _, n, _ in ceilings)
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
