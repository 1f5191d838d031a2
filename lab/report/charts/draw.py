"""A picture is a Vega-Lite specification, plain data; here it becomes SVG and PNG.

vl-convert brings Vega's own JavaScript and the engine that runs it, and reaches no network. Its
first picture takes half a second, each further one some 30 ms, so it is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any, Final
from xml.etree import ElementTree

from lab.core.base import Model
from lab.core.printable import printable

WIDTH: Final = 440
"""Of a picture, in pixels: two stand side by side on a desk, one on a telephone can be read."""

LETTERS: Final = 62
"""As many as a line of that width has room for."""
SYMBOL: Final = 4
"""Letters that have the room of a legend's symbol."""

INK: Final = "#1b1f24"
MUTED: Final = "#5c6670"
GRID: Final = "#d9dee3"
PAPER: Final = "#ffffff"
MEASURED: Final = "#0072b2"
PUBLISHED: Final = "#d55e00"
READS: Final = "#56b4e9"
WRITES: Final = "#e69f00"
SERIES: Final = (
    *(MEASURED, PUBLISHED, "#009e73", "#cc79a7"),
    *(WRITES, READS, "#6b4c9a", "#7a5c00"),
)
"""Okabe and Ito's colours, which people tell apart whatever they see of colours, and two more."""
SHAPES: Final = (
    *("circle", "square", "triangle-up", "diamond"),
    *("triangle-down", "cross", "triangle-right", "triangle-left"),
)
"""Beside the colours, for print in black and white."""

UPRIGHT: Final = {
    "titleAngle": 0,
    "titleAlign": "left",
    "titleAnchor": "end",
    "titleX": 0,
    "titleY": -10,
    "tickCount": 6,
}
"""An axis whose title stands above it and can be read without turning one's head."""

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
        "title": None,
        "symbolStrokeWidth": 2,
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
    """A label in lines of so many letters, parted between words alone, and best behind a comma."""
    parts = [p.replace(" ", _TIED) if len(p) < letters else p for p in text.split(", ")]
    found = wrap(", ".join(parts), letters, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_TIED, " ") for line in found] or [""]


def legend(names: Sequence[str]) -> dict[str, Any]:
    """In as many columns as the longest of its names leaves room for, none cut off."""
    longest = max(map(len, names), default=0) + SYMBOL
    columns = max(1, min(3, LETTERS // longest))
    return {"columns": columns, "labelLimit": WIDTH // columns}


class Picture(Model):
    """One picture: what it is called, what it says in words, and how it is drawn."""

    name: str
    """Of its files, without the ending."""
    title: str
    subtitle: str
    """What its marks mean."""
    caption: str
    """What to see in it, for those who do not see it too."""
    spec: dict[str, Any]
    """Vega-Lite, without title and style."""


def whole(picture: Picture) -> dict[str, Any]:
    """The specification with title and style: what Vega-Lite is given."""
    subtitle = [x for line in picture.subtitle.split("\n") for x in wrap(line, LETTERS)]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": PAPER,
        "padding": 8,
        "title": {"text": wrap(picture.title, LETTERS * 4 // 5), "subtitle": subtitle},
        "config": _CONFIG,
        **picture.spec,
    }


def svg(picture: Picture) -> str:
    """The picture as a document of its own; each mark says what it is when pointed at."""
    import vl_convert

    return with_titles(vl_convert.vegalite_to_svg(_shown(whole(picture))), picture)


def _shown(spec: Any) -> Any:
    """The specification with each text of others as it can stand in XML."""
    if isinstance(spec, dict):
        return {_shown(name): _shown(value) for name, value in spec.items()}
    if isinstance(spec, list | tuple):
        return [_shown(value) for value in spec]
    return printable(spec) if isinstance(spec, str) else spec


def png(drawn: str) -> bytes:
    """An SVG as pixels, two for each of its own."""
    import vl_convert

    return bytes(vl_convert.svg_to_png(drawn, scale=2))


def with_titles(drawn: str, picture: Picture) -> str:
    """Vega's descriptions of marks as ``<title>``, which browsers show; the picture's own too."""
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(drawn)  # noqa: S314  Vega's own output
    for element in root.iter():
        said = element.get("aria-label")
        if said and element.tag != f"{{{_SVG}}}g":
            ElementTree.SubElement(element, f"{{{_SVG}}}title").text = said
    root.set("role", "img")
    root.set("aria-label", printable(f"{picture.title}. {picture.caption}"))
    return ElementTree.tostring(root, encoding="unicode")
