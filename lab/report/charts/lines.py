"""Line charts: one panel per line, on shared scales, with the other lines in grey behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from lab.core.base import Model
from lab.report.charts.render import (
    ALLOWED,
    GRID,
    INK,
    MEASURED,
    MUTED,
    PAPER,
    PUBLISHED,
    Key,
    legend,
)

HEIGHT: Final = 200
SMALL: Final = 84
"""Height of a panel in pixels if there are several."""
INNER: Final = (300, 138)
"""Width of a panel in pixels: alone, and in one of two columns."""
LEAST: Final = 3
"""Fewest points of a line."""
NAME: Final = 19
"""Letters of a line's name that fit above a panel in one of two columns."""
LETTER: Final = 7
"""Pixels of a letter below the horizontal axis."""
TEXTS: Final = (9, 4)
"""Most points of a line whose values are printed: alone, and in one of two columns."""


FALL: Final = 0.1
"""Fraction of the axis; after a steeper fall the second point's value is printed below it."""


class Point(Model):
    """One point of a line. All numbers except ``x`` are on the axis's scale."""

    line: str
    x: float | str
    y: float
    part: int = 0
    """Points of one line with different parts, such as those of different trials, are not
    joined."""
    text: str = ""
    tip: str
    doubted: bool = False
    low: float | None = None
    high: float | None = None
    predicted: float | None = None
    published: float | None = None
    unknown: bool = False
    """The value has an interval, and one trial does not tell it."""
    allowed: tuple[float | None, float | None] | None = None
    """Range in which a claim holds; ``None``: no bound on that side."""

    @property
    def top(self) -> float:
        """The highest position of all its marks."""
        marks = (self.y, self.high, self.predicted, self.published, *(self.allowed or ()))
        return max(v or 0.0 for v in marks)


class Level(Model):
    """A horizontal line across all panels."""

    name: str
    y: float
    shape: str = "dashes"
    """A key of `DASHES`."""


class Limit(Model):
    """A grey line behind all panels."""

    name: str
    shape: str
    """A key of `DASHES`."""
    points: tuple[tuple[float, float], ...]


DASHES: Final = {"dashes": [6, 4], "dots": [2, 3]}


def line_chart(
    points: Sequence[Point],
    *,
    x: Mapping[str, Any],
    levels: Sequence[Level] = (),
    limits: Sequence[Limit] = (),
    shaded: str = "",
) -> dict[str, Any]:
    """Return the specification; ``x`` is the horizontal axis in Vega-Lite's form.

    The vertical axis has no title: the chart's subtitle names it once for all panels.
    ``shaded``: meaning of the shaded background; empty: it is not shaded.
    """
    names = list(dict.fromkeys(p.line for p in points))
    several = len(names) > 1
    counts = Counter((p.line, p.part) for p in points)
    ends = [*(p.top for p in points), *(v.y for v in levels)]
    top = max([*ends, *(y for limit in limits for _, y in limit.points)], default=0.0) * 1.1 or 1.0
    shown = max(counts.values(), default=0) <= TEXTS[several]
    values = [_value(p, top, joined=counts[p.line, p.part] >= LEAST) for p in points]
    for before, value in pairwise(values):  # a falling line would cross a text above it
        same = before["line"] == value["line"]
        value["below"] = same and before["y"] - value["y"] > top * FALL
    y: dict[str, Any] = {
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [0, top], "nice": False},
        "axis": {"tickCount": 4 if several else 6},
    }
    at = {**x, "field": "x"}
    layers = [
        legend(_keys(points, levels, limits, shaded)),
        *_behind(at, y, values, levels, limits, top=top, several=several, shaded=bool(shaded)),
        *_lines(at, y, shown=shown),
    ]
    texts = [str(v) for v in x.get("sort", ())]
    fits = len(texts) * max(map(len, texts), default=0) * LETTER <= INNER[1]
    columns = 2 if several and fits and max(map(len, names)) <= NAME else 1
    panel = {"width": INNER[columns > 1], "height": SMALL if several else HEIGHT, "layer": layers}
    header = {"title": None, "labelFontWeight": "bold", "labelAnchor": "start", "labels": several}
    facet = {"field": "line", "type": "nominal", "sort": names, "header": header}
    return {
        "data": {"values": values},
        "facet": facet,
        "columns": columns,
        "spacing": 14,
        "spec": panel,
    }


def _value(point: Point, top: float, *, joined: bool) -> dict[str, Any]:
    value = point.model_dump(exclude={"allowed"}) | {"joined": joined}
    value["opacity"] = 0.45 if point.doubted else 1
    if point.allowed:
        least, most = point.allowed
        value |= {"least": least or 0.0, "most": top if most is None else most}
    return value


def _behind(
    x: dict[str, Any],
    y: dict[str, Any],
    values: Sequence[dict[str, Any]],
    levels: Sequence[Level],
    limits: Sequence[Limit],
    *,
    top: float,
    several: bool,
    shaded: bool,
) -> list[dict[str, Any]]:
    """Return the layers behind a panel's own line: shading, the other lines, levels and limits."""
    found: list[dict[str, Any]] = []
    if shaded:
        end = max(v["x"] for v in values)
        found.append(
            {
                "data": {"values": [{"x": 0, "to": end, "y": 0, "top": top}]},
                "mark": {"type": "rect", "color": GRID, "opacity": 0.6},
                "encoding": {
                    "x": x,
                    "x2": {"field": "to"},
                    "y": {**y, "field": "y"},
                    "y2": {"field": "top"},
                },
            }
        )
    if several:
        others = [{"x": v["x"], "y": v["y"], "of": f"{v['line']} {v['part']}"} for v in values]
        found.append(
            {
                "data": {"values": others},
                "mark": {"type": "line", "color": GRID, "strokeWidth": 1.5},
                "encoding": {"x": x, "y": {**y, "field": "y"}, "detail": {"field": "of"}},
            }
        )
    for level in levels:
        mark = {"type": "rule", "color": INK, "strokeDash": DASHES[level.shape]}
        found.append(
            {
                "data": {"values": [{"y": level.y}]},
                "mark": {**mark, "strokeWidth": 1.5},
                "encoding": {"y": {**y, "field": "y"}},
            }
        )
    for limit in limits:
        data = [{"x": a, "y": b, "name": limit.name} for a, b in limit.points]
        line = {"type": "line", "color": MUTED, "strokeDash": DASHES[limit.shape]}
        encoding = {"x": x, "y": {**y, "field": "y"}}
        found.append({"data": {"values": data}, "mark": line, "encoding": encoding})
    return found


def _lines(x: dict[str, Any], y: dict[str, Any], *, shown: bool) -> list[dict[str, Any]]:
    """Return a panel's own line, with theory, intervals, claims and values."""
    tip = {"field": "tip", "type": "nominal"}
    part = {"field": "part", "type": "nominal"}

    def layer(mark: dict[str, Any], test: str, field: str, **more: Any) -> dict[str, Any]:
        return {
            "transform": [{"filter": test}],
            "mark": mark,
            "encoding": {"x": x, "y": {**y, "field": field}, **more},
        }

    theory = {"type": "line", "color": INK, "strokeDash": DASHES["dashes"], "strokeWidth": 1.5}
    line = {"type": "line", "color": MEASURED, "strokeWidth": 2}
    band = {"type": "rule", "color": ALLOWED, "strokeWidth": 14}
    whisker = {"type": "errorbar", "ticks": {"size": 8}, "thickness": 1.5, "color": INK}
    dot = {"type": "point", "filled": True, "size": 55, "opacity": 1, "color": MEASURED}
    ring = {"fill": PAPER, "stroke": MEASURED, "strokeWidth": 1.5, "size": 45}
    diamond = {"type": "point", "shape": "diamond", "size": 150, "strokeWidth": 2}
    text = {"type": "text", "color": INK, "fontSize": 11}
    pale = {"field": "opacity", "type": "quantitative", "scale": None}
    found = [
        layer(band, "isValid(datum.least)", "least", y2={"field": "most"}),
        layer(theory, "datum.joined && isValid(datum.predicted)", "predicted"),
        layer(line, "datum.joined", "y", detail=part),
        layer(whisker, "isValid(datum.low)", "low", y2={"field": "high"}),
        layer(dot, "!datum.unknown", "y", fillOpacity=pale, description=tip),
        layer({**dot, **ring}, "datum.unknown", "y", description=tip),
        layer(
            {**diamond, "color": PUBLISHED},
            "isValid(datum.published)",
            "published",
            description=tip,
        ),
    ]
    if shown:
        shown_text = {"field": "text"}
        found.append(layer({**text, "dy": -10}, "!datum.below", "y", text=shown_text))
        found.append(layer({**text, "dy": 12}, "datum.below", "y", text=shown_text))
    return found


def _keys(
    points: Sequence[Point], levels: Sequence[Level], limits: Sequence[Limit], shaded: str
) -> list[Key]:
    keys = [Key(name="measured", colour=MEASURED, shape="circle")]
    counts = Counter((p.line, p.part) for p in points if p.predicted is not None)
    if max(counts.values(), default=0) >= LEAST:
        keys.append(Key(name="theory", colour=INK, shape="dashes"))
    if any(p.published is not None for p in points):
        keys.append(Key(name="published", colour=PUBLISHED, shape="diamond"))
    if any(p.allowed for p in points):
        keys.append(Key(name="claim holds", colour=ALLOWED, shape="square"))
    keys += [Key(name=v.name, colour=INK, shape=v.shape) for v in levels]
    keys += [Key(name=v.name, colour=MUTED, shape=v.shape) for v in limits]
    if any(p.low is not None for p in points):
        keys.append(Key(name="95% interval", colour=INK, shape="whisker"))
    if any(p.unknown for p in points):
        keys.append(Key(name="interval unknown", colour=MEASURED, shape="ring"))
    if any(p.doubted for p in points):
        keys.append(Key(name="doubtful", colour=MEASURED + "73", shape="circle"))
    if len({p.line for p in points}) > 1:
        keys.append(Key(name="the other panels", colour=GRID, shape="line"))
    if shaded:
        keys.append(Key(name=shaded, colour=GRID, shape="square"))
    return keys
