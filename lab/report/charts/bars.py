"""Bars: a cell each, with theory's line across, the published figure, and the interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lab.report.charts.ceilings import DISKS, WORDS
from lab.report.charts.draw import INK, MEASURED, MUTED, PUBLISHED, WIDTH, Picture, lines
from lab.report.charts.points import mark, scale_of, slug
from lab.report.content.figures import Row

STEP: Final = 26
"""Pixels from bar to bar."""
LINE: Final = 15
"""Pixels more for each further line of a label."""
LABEL: Final = 27
"""Letters of a label's line: half of the picture is left to the bars."""
ROOM: Final = 1.42
"""How far the axis goes on behind the longest bar, whose figure stands there."""
_ENDS: Final = ("measured", "high", "predicted", "published")


def bars(
    rows: Sequence[Row],
    axes: Sequence[str],
    *,
    title: str,
    fixed: str = "",
    beside: Sequence[Row],
    most: Sequence[tuple[str, int, float]] = (),
) -> Picture:
    """Rows of one metric; ``axes`` name the bars, ``fixed`` says what all of them share.

    The scale has room for the rows ``beside`` them too, so that pictures can be compared. ``most``:
    what so many disks could do at the most, as ``ceilings`` has it.
    """
    measure = scale_of(beside)
    values = [mark(row, axes, measure) for row in rows]
    if not axes:
        values = [v | {"label": r.workload} for v, r in zip(values, rows, strict=True)]
    for value, row in zip(values, rows, strict=True):
        value["lines"] = "\n".join(lines(value["label"], LABEL))
        value["most"] = [measure.of(v) for _, n, v in most if n == row.cell.axes[DISKS]]
    further = max(v["lines"].count("\n") for v in values)
    y: dict[str, Any] = {
        "field": "lines",
        "type": "nominal",
        "sort": [v["lines"] for v in values],
        "axis": {
            "title": None,
            "domain": False,
            "ticks": False,
            "labelExpr": "split(datum.label, '\\n')",
            "labelOffset": {"condition": [_raised(n) for n in range(1, further + 1)], "value": 0},
        },
    }
    others = (mark(row, (), measure) for row in beside)
    ends = [x for v in others for x in (v.get(k) for k in _ENDS) if x is not None]
    ends += [x for v in values for x in v["most"]]
    room = {"domain": [0, max(ends, default=0.0) * ROOM or 1.0], "nice": False}
    x: dict[str, Any] = {"type": "quantitative", "title": measure.title, "scale": room}
    x["axis"] = {"tickCount": 5}
    tip = {"field": "tip", "type": "nominal"}
    thickness = STEP - 8
    layers: list[dict[str, Any]] = [
        {
            "transform": [{"flatten": ["most"]}],
            "mark": {"type": "tick", "color": MUTED, "thickness": 1, "size": thickness + 6},
            "encoding": {"x": {**x, "field": "most"}},
        },
        {
            "mark": {"type": "bar", "color": MEASURED, "height": thickness},
            "encoding": {
                "x": {**x, "field": "measured"},
                "opacity": {"field": "opacity", "type": "quantitative", "scale": None},
                "description": tip,
            },
        },
        {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "errorbar", "ticks": {"size": 8}, "color": INK, "thickness": 1.5},
            "encoding": {
                "x": {**x, "field": "low"},
                "x2": {"field": "high"},
            },
        },
        {
            "transform": [{"filter": "isValid(datum.predicted)"}],
            "mark": {"type": "tick", "color": INK, "thickness": 2.5, "size": thickness + 6},
            "encoding": {"x": {**x, "field": "predicted"}, "description": tip},
        },
        {
            "transform": [{"filter": "isValid(datum.published)"}],
            "mark": {
                "type": "point",
                "shape": "diamond",
                "filled": True,
                "color": PUBLISHED,
                "stroke": "#ffffff",
                "strokeWidth": 1,
                "opacity": 1,
                "size": 110,
            },
            "encoding": {"x": {**x, "field": "published"}, "description": tip},
        },
        {
            "transform": [
                {
                    "calculate": "max(datum.measured, datum.high || 0, datum.predicted || 0,"
                    " datum.published || 0, datum.most[0] || 0)",
                    "as": "end",
                }
            ],
            "mark": {"type": "text", "align": "left", "dx": 9, "color": INK, "fontSize": 12},
            "encoding": {"x": {**x, "field": "end"}, "text": {"field": "text"}},
        },
    ]
    said = ["bar: measured"]
    if any(v["predicted"] is not None for v in values):
        said.append("line across: theory")
    if any(v["published"] is not None for v in values):
        said.append("diamond: published")
    if any(v["most"] for v in values):
        said.append(f"thin: (N-1)·B and N·B, {WORDS}")
    if any("low" in v for v in values):
        said.append("whisker: interval of the median")
    if any(v["opacity"] < 1 for v in values):
        said.append("pale, ?: doubtful")
    return Picture(
        name=slug(title, fixed),
        title=f"{title}: {fixed}" if fixed else title,
        subtitle=" · ".join(said),
        caption="; ".join(f"{v['label']} {v['text']}" for v in values),
        spec={
            "width": WIDTH,
            "height": {"step": STEP + further * LINE},
            "autosize": {"type": "fit-x", "contains": "padding"},
            "data": {"values": values},
            "encoding": {"y": y},
            "layer": layers,
        },
    )


def _raised(further: int) -> dict[str, Any]:
    """A label of several lines stands with their middle beside its bar, not with the first one."""
    test = f"length(split(datum.label, '\\n')) == {further + 1}"
    return {"test": test, "value": -further * LINE / 2}
