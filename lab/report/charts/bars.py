"""Bar charts: one bar per row, its value at its end; bars of one group share a heading."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lab.core.base import Model
from lab.core.printable import printable
from lab.report.charts.render import (
    ALLOWED,
    INK,
    MEASURED,
    MUTED,
    PUBLISHED,
    WIDTH,
    Key,
    legend,
    lines,
)

STEP: Final = 26
"""Pixels from bar to bar."""
LINE: Final = 15
"""Pixels of each further line of a label."""
LABEL: Final = 27
"""Most letters in a line of a label, so that half of the width is left for the bars."""
ROOM: Final = 1.42
"""Length of the axis divided by that of the longest bar: its value is printed after it."""


class Bar(Model):
    """One bar. All numbers are on the axis's scale."""

    label: str
    group: str = ""
    parts: Mapping[str, float]
    """Length by series; parts are stacked."""
    text: str
    """The value at the bar's end."""
    tip: str
    """Text that appears when the pointer is on the bar."""
    doubted: bool = False
    low: float | None = None
    high: float | None = None
    predicted: float | None = None
    published: float | None = None
    allowed: tuple[float, float | None] | None = None
    """Range in which a claim holds; ``None`` as its end: no upper bound."""
    limits: tuple[float, ...] = ()
    """Values that the disks' limits allow."""

    @property
    def end(self) -> float:
        """The farthest position of all marks in the bar's row."""
        marks = (self.low, self.high, self.predicted, self.published, *self.limits)
        allowed = self.allowed or ()
        return max(sum(self.parts.values()), *(v or 0.0 for v in (*marks, *allowed)))


def bar_chart(
    bars: Sequence[Bar],
    *,
    title: str,
    series: Mapping[str, str],
    limits: str = "",
    top: float = 0.0,
) -> dict[str, Any]:
    """Return the specification; ``title`` is the axis's, ``series`` the colour of each.

    ``limits``: meaning of `Bar.limits`. ``top``: the axis reaches at least this value, so that
    charts are comparable.
    """
    end = max(top, *(bar.end for bar in bars)) * ROOM or 1.0
    labels, rows, headings = _rows(bars)
    further = max(map(len, labels)) - 1
    parts = [part for row, bar in rows for part in _parts(row, bar, series)]
    values = [_value(row, bar, end) for row, bar in rows]
    y: dict[str, Any] = {
        "field": "row",
        "type": "ordinal",
        "scale": {"domain": list(range(len(labels)))},
        "axis": _row_axis(labels, headings, further),
    }
    room = {"domain": [0, end], "nice": False}
    x = {"type": "quantitative", "title": title, "scale": room, "axis": {"tickCount": 5}}
    tip = {"field": "tip", "type": "nominal"}
    paint = {"field": "colour", "type": "nominal", "scale": None}
    pale = {"field": "opacity", "type": "quantitative", "scale": None}
    tick = {"type": "tick", "size": STEP - 2}

    def layer(mark: Mapping[str, Any], at: str, to: str = "", **more: Any) -> dict[str, Any]:
        ends = {"x": {**x, "field": at}} | ({"x2": {"field": to}} if to else {})
        return {
            "transform": [{"filter": f"isValid(datum.{at})"}],
            "mark": dict(mark),
            "encoding": {"y": y, **ends, **more},
        }

    limited = {**layer({**tick, "color": MUTED, "thickness": 1}, "limits")}
    limited["transform"] = [{"flatten": ["limits"]}, *limited["transform"]]
    solid = layer({"type": "bar", "height": STEP - 8}, "from", "to", color=paint, opacity=pale)
    solid["encoding"]["description"] = tip
    diamond = {"type": "point", "shape": "diamond", "filled": True, "color": PUBLISHED}
    edge = {"stroke": "#ffffff", "strokeWidth": 1, "opacity": 1, "size": 110}
    whisker = {"type": "errorbar", "ticks": {"size": 8}, "color": INK, "thickness": 1.5}
    text = {"type": "text", "align": "left", "dx": 9, "color": INK, "fontSize": 12}
    return {
        "width": WIDTH,
        "height": {"step": STEP + further * LINE},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": values},
        "layer": [
            legend(_keys(bars, series, limits)),
            layer({"type": "bar", "color": ALLOWED, "height": STEP - 2}, "least", "most"),
            limited,
            {"data": {"values": parts}, **solid},
            layer(whisker, "low", "high"),
            layer({**tick, "color": INK, "thickness": 2.5}, "predicted", description=tip),
            layer({**diamond, **edge}, "published", description=tip),
            layer(text, "end", text={"field": "text"}),
        ],
    }


def _rows(bars: Sequence[Bar]) -> tuple[list[list[str]], list[tuple[int, Bar]], list[int]]:
    """Return each row's label in lines, the bars with their rows, and the rows that are
    headings."""
    labels: list[list[str]] = []
    rows: list[tuple[int, Bar]] = []
    headings: list[int] = []
    group = ""
    for bar in bars:
        if bar.group != group:
            group = bar.group
            headings.append(len(labels))
            labels.append(lines(group, LABEL))
        rows.append((len(labels), bar))
        labels.append(lines(bar.label, LABEL))
    return labels, rows, headings


def _row_axis(labels: list[list[str]], headings: list[int], further: int) -> dict[str, Any]:
    shown = json.dumps([[printable(t) for t in label] for label in labels], ensure_ascii=False)
    texts = f"({shown})[datum.value]"
    bold = {"test": f"indexof({headings}, datum.value) >= 0", "value": "bold"}
    # A label of several lines is centred on its bar; Vega would centre its first line.
    raised = [
        {"test": f"length({texts}) == {n + 1}", "value": -n * LINE / 2}
        for n in range(1, further + 1)
    ]
    return {
        "title": None,
        "domain": False,
        "ticks": False,
        "labelExpr": texts,
        "labelFontWeight": {"condition": bold, "value": "normal"},
        "labelOffset": {"condition": raised, "value": 0} if raised else 0,
    }


def _parts(row: int, bar: Bar, series: Mapping[str, str]) -> list[dict[str, Any]]:
    found, start = list[dict[str, Any]](), 0.0
    for name, length in bar.parts.items():
        found.append(
            {
                "row": row,
                "series": name,
                "from": start,
                "to": start + length,
                "colour": series[name],
                "opacity": 0.45 if bar.doubted else 1,
                "tip": bar.tip,
            }
        )
        start += length
    return found


def _value(row: int, bar: Bar, end: float) -> dict[str, Any]:
    value = bar.model_dump(exclude={"parts", "allowed"}) | {"row": row, "end": bar.end}
    value["measured"] = sum(bar.parts.values())
    if bar.allowed:
        least, most = bar.allowed
        value |= {"least": least, "most": end if most is None else most}
    return value


def _keys(bars: Sequence[Bar], series: Mapping[str, str], limits: str) -> list[Key]:
    keys = [Key(name=name, colour=colour, shape="square") for name, colour in series.items()]
    if any(bar.predicted is not None for bar in bars):
        keys.append(Key(name="theory", colour=INK, shape="upright"))
    if any(bar.published is not None for bar in bars):
        keys.append(Key(name="published", colour=PUBLISHED, shape="diamond"))
    if any(bar.allowed for bar in bars):
        keys.append(Key(name="claim holds", colour=ALLOWED, shape="square"))
    if any(bar.limits for bar in bars):
        keys.append(Key(name=limits, colour=MUTED, shape="thin"))
    if any(bar.low is not None for bar in bars):
        keys.append(Key(name="95% interval", colour=INK, shape="whisker"))
    if any(bar.doubted for bar in bars):
        keys.append(Key(name="doubtful", colour=PALE, shape="square"))
    return keys


PALE: Final = MEASURED + "73"
"""A doubtful bar's colour: 45% opacity."""
