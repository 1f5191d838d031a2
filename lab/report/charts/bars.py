"""Bar charts: one bar per row, its value at its end; bars of one group share a heading."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lab.core.base import Model
from lab.core.printable import printable
from lab.report.charts.render import (
    ALLOWED,
    BOUND,
    INK,
    LETTERS,
    MEASURED,
    MUTED,
    PAPER,
    PUBLISHED,
    WIDTH,
    Key,
    legend,
    lines,
)

STEP: Final = 26
"""Pixels from bar to bar if the labels are to the left of their bars."""
HIGH: Final = 14
"""Pixels of a bar's height; the range in which a claim holds is higher."""
LINE: Final = 15
"""Pixels of a line of text."""
LABEL: Final = 14
"""Most letters of labels to the left of their bars. If one is longer, all are above their bars, so
that the bars keep their length on a telephone."""
LETTER: Final = 6.8
"""Pixels of a letter of a value."""
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
    unknown: bool = False
    """The value has an interval, and one trial does not tell it."""
    predicted: float | None = None
    published: float | None = None
    allowed: tuple[float | None, float | None] | None = None
    """Range in which a claim holds; ``None``: no bound on that side."""
    limits: tuple[float, ...] = ()
    """Values that the disks' limits allow."""

    @property
    def length(self) -> float:
        """Its length."""
        return sum(self.parts.values())

    @property
    def end(self) -> float:
        """The farthest position of all marks in the bar's row."""
        marks = (self.low, self.high, self.predicted, self.published, *self.limits)
        return max(self.length, *(v or 0.0 for v in (*marks, *(self.allowed or ()))))

    def text_at(self, wide: float) -> float:
        """Return where its value begins: at the bar's end, or behind the marks that the text would
        cover. ``wide``: width of the text."""
        found = self.length
        for mark in sorted(m for m in (self.high, self.predicted, self.published) if m is not None):
            if found < mark < found + wide:
                found = mark
        return found


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
    above = max(len(text) for bar in bars for text in (bar.label, bar.group)) > LABEL
    labels, rows, headings = _rows(bars, LETTERS if above else LABEL)
    further = max(map(len, labels)) - 1
    parts = [part for row, bar in rows for part in _parts(row, bar, series)]
    pixel = end / (WIDTH if above else WIDTH - LETTER * LABEL)
    values = [_value(row, bar, end, pixel) for row, bar in rows]
    y: dict[str, Any] = {
        "field": "row",
        "type": "ordinal",
        "scale": {"domain": list(range(len(labels)))},
        "axis": _row_axis(labels, headings, further, above=above),
    }
    room = {"domain": [0, end], "nice": False}
    axis = {"tickCount": 4} | ({"tickMinStep": 1} if all(map(_whole, bars)) else {})
    x = {"type": "quantitative", "title": title, "scale": room, "axis": axis}
    tip = {"field": "tip", "type": "nominal"}
    paint = {"field": "colour", "type": "nominal", "scale": None}
    pale = {"field": "opacity", "type": "quantitative", "scale": None}
    tick = {"type": "tick", "size": HIGH + 6}

    def layer(mark: Mapping[str, Any], at: str, to: str = "", **more: Any) -> dict[str, Any]:
        ends = {"x": {**x, "field": at}} | ({"x2": {"field": to}} if to else {})
        return {
            "transform": [{"filter": f"isValid(datum.{at})"}],
            "mark": dict(mark),
            "encoding": {"y": y, **ends, **more},
        }

    def flat(mark: Mapping[str, Any], field: str) -> dict[str, Any]:
        found = layer(mark, field)
        return {**found, "transform": [{"flatten": [field]}, *found["transform"]]}

    solid = layer({"type": "bar", "height": HIGH}, "from", "to", color=paint, opacity=pale)
    solid["encoding"]["description"] = tip
    diamond = {"type": "point", "shape": "diamond", "filled": True, "color": PUBLISHED}
    edge = {"stroke": PAPER, "strokeWidth": 1, "opacity": 1, "size": 110}
    whisker = {"type": "errorbar", "ticks": {"size": 8}, "color": INK, "thickness": 1.5}
    ring = {"type": "point", "shape": "circle", "filled": False, "color": INK, "size": 40}
    text = {"type": "text", "align": "left", "dx": 9, "fontSize": 12}
    said = {"field": "text"}
    return {
        "width": WIDTH,
        "height": {"step": STEP + (further + above) * LINE},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": values},
        "layer": [
            legend(_keys(bars, series, limits)),
            layer({"type": "bar", "color": ALLOWED, "height": STEP - 2}, "least", "most"),
            flat({**tick, "color": MUTED, "thickness": 1}, "limits"),
            {"data": {"values": parts}, **solid},
            flat({**tick, "size": STEP - 2, "color": BOUND, "thickness": 2}, "bounds"),
            layer(whisker, "low", "high"),
            layer({**tick, "color": INK, "thickness": 2.5}, "predicted", description=tip),
            layer({**diamond, **edge}, "published", description=tip),
            layer({**ring, "fill": PAPER, "strokeWidth": 1.5, "opacity": 1}, "uncertain"),
            layer({**text, "stroke": PAPER, "strokeWidth": 4, "aria": False}, "at", text=said),
            layer({**text, "color": INK}, "at", text=said),
        ],
    }


def _whole(bar: Bar) -> bool:
    return bar.length == int(bar.length)


def _rows(
    bars: Sequence[Bar], letters: int
) -> tuple[list[list[str]], list[tuple[int, Bar]], list[int]]:
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
            labels.append(lines(group, letters))
        rows.append((len(labels), bar))
        labels.append(lines(bar.label, letters))
    return labels, rows, headings


def _row_axis(
    labels: list[list[str]], headings: list[int], further: int, *, above: bool
) -> dict[str, Any]:
    shown = json.dumps([[printable(t) for t in label] for label in labels], ensure_ascii=False)
    texts = f"({shown})[datum.value]"
    bold = {"test": f"indexof({headings}, datum.value) >= 0", "value": "bold"}
    # The last line of a label is above its bar, or the label's middle is next to it; Vega would
    # put the first line there.
    up, by = (-(STEP + LINE) / 2 + 1, LINE) if above else (0.0, LINE / 2)
    raised = [
        {"test": f"length({texts}) == {n + 1}", "value": up - n * by} for n in range(1, further + 1)
    ]
    return {
        "title": None,
        "domain": False,
        "ticks": False,
        "labelExpr": texts,
        "labelFontWeight": {"condition": bold, "value": "normal"},
        "labelOffset": {"condition": raised, "value": up} if raised else up,
    } | ({"labelAlign": "left", "labelPadding": 0} if above else {})


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


def _value(row: int, bar: Bar, end: float, pixel: float) -> dict[str, Any]:
    value = bar.model_dump(exclude={"parts", "allowed", "unknown"})
    value |= {"row": row, "measured": bar.length, "bounds": []}
    value["at"] = bar.text_at((len(bar.text) * LETTER + 8) * pixel)
    if bar.unknown:
        value["uncertain"] = bar.length
    if bar.allowed:
        least, most = bar.allowed
        value |= {"least": least or 0.0, "most": end if most is None else most}
        value["bounds"] = [bound for bound in bar.allowed if bound]
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
    if any(bar.unknown for bar in bars):
        keys.append(Key(name="interval unknown", colour=INK, shape="ring"))
    if any(bar.doubted for bar in bars):
        keys.append(Key(name="doubtful", colour=PALE, shape="square"))
    return keys


PALE: Final = MEASURED + "73"
"""A doubtful bar's colour: 45% opacity."""
