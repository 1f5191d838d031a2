"""A chart: a Vega-Lite specification with title, style and legend, drawn as SVG and PNG.

vl-convert runs Vega's JavaScript in its own engine, without a network. The first chart takes half a
second, each further one about 30 ms. So vl-convert is imported when the first chart is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any, Final
from xml.etree import ElementTree

from lab.core.base import Model
from lab.core.printable import printable

WIDTH: Final = 360
"""Pixels: three charts fit next to each other on a desktop, and a telephone shows one in about its
own size, so that its text can be read there."""

LETTERS: Final = 50
"""Most letters in a line of that width."""
SYMBOL: Final = 4
"""Width of a legend's symbol, in letters."""

INK: Final = "#1b1f24"
MUTED: Final = "#5c6670"
GRID: Final = "#d9dee3"
PAPER: Final = "#ffffff"
MEASURED: Final = "#0072b2"
PUBLISHED: Final = "#d55e00"
READS: Final = "#56b4e9"
WRITES: Final = "#e69f00"
ALLOWED: Final = "#b9e3d3"
"""Background of the range in which a claim holds: a paler green."""
BOUND: Final = "#00664b"
"""Ends of that range. All colours except greys and these greens are from Okabe and Ito's palette,
which colour-blind people can distinguish."""

SHAPES: Final = {
    "square": "square",
    "circle": "circle",
    "ring": "M-.9,0A.9,.9,0,1,1,.9,0A.9,.9,0,1,1,-.9,0ZM-.5,0A.5,.5,0,1,0,.5,0A.5,.5,0,1,0,-.5,0Z",
    "diamond": "diamond",
    "upright": "M-.25,-1L.25,-1L.25,1L-.25,1Z",
    "thin": "M-.1,-1L.1,-1L.1,1L-.1,1Z",
    "line": "M-1,-.2L1,-.2L1,.2L-1,.2Z",
    "dashes": "M-1,-.2L-.2,-.2L-.2,.2L-1,.2ZM.2,-.2L1,-.2L1,.2L.2,.2Z",
    "dots": "M-1,-.2L-.6,-.2L-.6,.2L-1,.2ZM-.2,-.2L.2,-.2L.2,.2L-.2,.2ZM.6,-.2L1,-.2L1,.2L.6,.2Z",
    "whisker": "M-1,-.6L-.8,-.6L-.8,-.1L.8,-.1L.8,-.6L1,-.6L1,.6L.8,.6L.8,.1L-.8,.1L-.8,.6L-1,.6Z",
}
"""Symbols of the legend: Vega's names, or SVG paths between -1 and 1."""

_TIED: Final = "\N{NO-BREAK SPACE}"
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_SVG: Final = "http://www.w3.org/2000/svg"

_AXIS: Final = {
    "labelColor": INK,
    "titleColor": MUTED,
    "titleFontWeight": "normal",
    "gridColor": GRID,
    "domainColor": MUTED,
    "tickColor": MUTED,
    "labelFontSize": 12,
    "titleFontSize": 12,
    "labelLimit": 0,
}
_CONFIG: Final[dict[str, Any]] = {
    "font": _FONT,
    "view": {"stroke": None},
    "axis": _AXIS,
    "header": {"labelColor": INK, "labelFontSize": 12, "titleColor": MUTED},
    "legend": {
        "orient": "bottom",
        "direction": "horizontal",
        "labelColor": INK,
        "labelFontSize": 12,
        "titleColor": MUTED,
    },
    "title": {
        "anchor": "start",
        "frame": "bounds",
        "color": INK,
        "fontSize": 14,
        "fontWeight": "bold",
        "subtitleColor": MUTED,
        "subtitleFontSize": 12,
        "offset": 12,
    },
}


def lines(text: str, letters: int) -> list[str]:
    """Split a label into lines of at most ``letters``, between words, after a comma if possible."""
    parts = [p.replace(" ", _TIED) if len(p) < letters else p for p in text.split(", ")]
    found = wrap(", ".join(parts), letters, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_TIED, " ") for line in found] or [""]


class Key(Model):
    """One entry of a legend."""

    name: str
    colour: str
    shape: str
    """A key of `SHAPES`."""


def legend(keys: Sequence[Key]) -> dict[str, Any]:
    """Return a layer that draws only the legend of the other layers."""
    names = [key.name for key in keys]
    longest = max(map(len, names), default=0) + SYMBOL
    columns = max(1, min(3, LETTERS // longest))
    shown = {
        "title": None,
        "columns": columns,
        "labelLimit": 0,
        "symbolSize": 110,
        "symbolOpacity": 1,
        "symbolStrokeWidth": 0,
    }
    field = {"field": "key", "type": "nominal", "sort": names, "legend": shown}
    colours = {"domain": names, "range": [key.colour for key in keys]}
    shapes = {"domain": names, "range": [SHAPES[key.shape] for key in keys]}
    return {
        "data": {"values": [{"key": name} for name in names]},
        "mark": {"type": "point", "filled": True, "opacity": 0, "aria": False},
        "encoding": {"fill": {**field, "scale": colours}, "shape": {**field, "scale": shapes}},
    }


class Chart(Model):
    """One chart: its names, its values in words, and its specification."""

    name: str
    """Name of its files, without the suffix."""
    title: str
    subtitle: str
    """Notes below the title; the legend explains the marks."""
    caption: str
    """Its values in words, for screen readers."""
    spec: dict[str, Any]
    """Vega-Lite specification, without title and style."""


def specification(chart: Chart) -> dict[str, Any]:
    """Return the complete Vega-Lite specification, with title and style."""
    subtitle = [x for line in chart.subtitle.split("\n") for x in wrap(line, LETTERS)]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": PAPER,
        "padding": 8,
        "title": {"text": wrap(chart.title, LETTERS * 4 // 5)}
        | ({"subtitle": subtitle} if subtitle else {}),
        "config": _CONFIG,
        **chart.spec,
    }


def svg(chart: Chart) -> str:
    """Return a complete SVG document; pointing at a mark shows its values."""
    import vl_convert

    return with_titles(vl_convert.vegalite_to_svg(_shown(specification(chart))), chart)


def _shown(spec: Any) -> Any:
    """Escape control characters in the specification: vl-convert aborts the process on them."""
    if isinstance(spec, dict):
        return {_shown(name): _shown(value) for name, value in spec.items()}
    if isinstance(spec, list | tuple):
        return [_shown(value) for value in spec]
    return printable(spec) if isinstance(spec, str) else spec


def png(drawn: str) -> bytes:
    """Return an SVG as PNG, with two pixels per SVG pixel."""
    import vl_convert

    return bytes(vl_convert.svg_to_png(drawn, scale=2))


def with_titles(drawn: str, chart: Chart) -> str:
    """Add a ``<title>`` per mark, which browsers show, and the chart's description to the SVG."""
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(drawn)  # noqa: S314  Vega's own output
    for element in root.iter():
        said = element.get("aria-label")
        if said and element.tag != f"{{{_SVG}}}g":
            ElementTree.SubElement(element, f"{{{_SVG}}}title").text = said
    root.set("role", "img")
    words = (chart.title, *chart.subtitle.split("\n"), chart.caption)
    root.set("aria-label", printable(". ".join(filter(None, words))))
    return ElementTree.tostring(root, encoding="unicode")
