"""A map of two axes: each cell its figure, and how far it is from theory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lab.report.charts.draw import WIDTH, Picture
from lab.report.charts.points import mark, ordered, scale_of, short_name, slug
from lab.report.content.figures import Row, axis_value, percent

ROW: Final = 38
"""Pixels of a row."""


def heat(rows: Sequence[Row], across: str, down: str, *, title: str, fixed: str = "") -> Picture:
    """Rows of one metric by two axes."""
    measure = scale_of(rows)
    values = []
    for row in rows:
        if row.measured is None:
            continue
        values.append(
            mark(row, (down, across), measure)
            | {
                "across": axis_value(across, row.cell.axes[across]),
                "down": axis_value(down, row.cell.axes[down]),
                "off": "" if row.off is None else percent(row.off),
            }
        )
    most = max((v["measured"] for v in values), default=1.0)
    x = _axis(across, "across", rows) | {"axis": {"labelAngle": 0, "title": short_name(across)}}
    y = _axis(down, "down", rows) | {"axis": {"title": short_name(down)}}
    dark = f"datum.measured > {most * 0.65!r}"
    on = {"condition": {"test": dark, "value": "#ffffff"}, "value": "#000000"}
    shown = {"type": "text", "fontSize": 12}
    spec: dict[str, Any] = {
        "width": WIDTH,
        "height": {"step": ROW},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": values},
        "encoding": {"x": x, "y": y},
        "layer": [
            {
                "mark": {"type": "rect"},
                "encoding": {
                    "color": {
                        "field": "measured",
                        "type": "quantitative",
                        "scale": {
                            "scheme": {"name": "blues", "extent": [0.05, 0.9]},
                            "domain": [0, most],
                        },
                        "legend": None,
                    },
                    "description": {"field": "tip", "type": "nominal"},
                },
            },
            {
                "mark": {**shown, "dy": -6},
                "encoding": {"text": {"field": "text"}, "color": on},
            },
            {
                "mark": {**shown, "dy": 9, "fontSize": 10},
                "encoding": {"text": {"field": "off"}, "color": on},
            },
        ],
    }
    theory = any(v["off"] for v in values)
    return Picture(
        name=slug(title, "by", short_name(down), "and", short_name(across), fixed),
        title=f"{title} by {short_name(down)} and {short_name(across)}"
        + (f": {fixed}" if fixed else ""),
        subtitle="pale: nothing · dark: most" + (" · below: off theory by" if theory else ""),
        caption="; ".join(f"{v['label']} {v['text']}" for v in values),
        spec=spec,
    )


def _axis(axis: str, field: str, rows: Sequence[Row]) -> dict[str, Any]:
    values = ordered(tuple(dict.fromkeys(row.cell.axes[axis] for row in rows)))
    return {"field": field, "type": "ordinal", "sort": [axis_value(axis, v) for v in values]}
