"""Heat maps: a square for each pair of axis values, with its value and difference from theory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lab.core.base import Model
from lab.report.charts.render import WIDTH

ROW: Final = 38
"""Pixels of a row."""
DARK: Final = 0.65
"""Fraction of the greatest value above which a square's text is white."""


class Square(Model):
    """One square."""

    across: str
    down: str
    value: float
    text: str
    off: str = ""
    """Difference from theory."""
    tip: str


def heat_map(
    squares: Sequence[Square],
    *,
    across: tuple[str, Sequence[str]],
    down: tuple[str, Sequence[str]],
    title: str,
    most: float,
) -> dict[str, Any]:
    """Return the specification; ``across`` and ``down``: an axis's title and its values in order.

    ``title`` is that of the colours, whose scale ends at ``most``.
    """
    most = most or 1.0
    dark = f"datum.value > {most * DARK!r}"
    on = {"condition": {"test": dark, "value": "#ffffff"}, "value": "#000000"}
    text = {"type": "text", "fontSize": 12}
    colour = {
        "field": "value",
        "type": "quantitative",
        "scale": {"scheme": {"name": "blues", "extent": [0.05, 0.9]}, "domain": [0, most]},
        "legend": {
            "title": title,
            "titleFontWeight": "normal",
            "titleLimit": WIDTH,
            "gradientLength": WIDTH // 2,
            "tickCount": 4,
        },
    }
    tip = {"field": "tip", "type": "nominal"}
    return {
        "width": WIDTH,
        "height": {"step": ROW},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": [s.model_dump() for s in squares]},
        "encoding": {
            "x": _axis("across", *across) | {"axis": {"labelAngle": 0, "title": across[0]}},
            "y": _axis("down", *down) | {"axis": {"title": down[0]}},
        },
        "layer": [
            {"mark": {"type": "rect"}, "encoding": {"color": colour, "description": tip}},
            {
                "mark": {**text, "dy": -6},
                "encoding": {"text": {"field": "text"}, "fill": on},
            },
            {
                "mark": {**text, "dy": 9, "fontSize": 10},
                "encoding": {"text": {"field": "off"}, "fill": on},
            },
        ],
    }


def _axis(field: str, _title: str, values: Sequence[str]) -> dict[str, Any]:
    return {"field": field, "type": "ordinal", "sort": list(values)}
