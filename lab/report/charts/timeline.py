"""The timeline of a cell with faults: a lane for each disk, md's work behind, faults as lines."""

from __future__ import annotations

from typing import Any, Final

from lab.model.result.timeline import DiskState, Timeline
from lab.model.scenario.claim import Verdict
from lab.report.charts.cells import shown_cells
from lab.report.charts.data import slug
from lab.report.charts.render import (
    BOUND,
    INK,
    MEASURED,
    MUTED,
    PUBLISHED,
    READS,
    Chart,
    Key,
    legend,
)
from lab.report.content.fault_rows import FaultRow, fault_rows
from lab.report.content.figures import axes_text
from lab.report.content.page_data import Page, PageCell

WIDTH: Final = 1040
"""Width of the lanes in pixels. A narrow window scrolls."""
LANE: Final = 34
BAR: Final = 24
"""Height of a lane and of its bar in pixels."""
HEAD: Final = 20
"""Height of the names of md's work above the lanes."""
LETTER: Final = 6.5
LINE: Final = 15
"""Pixels of a letter and of a line of text."""
ON_BAR: Final = "#101214"
"""Text on a bar; the same in both schemes, as the bars are."""

COLOURS: Final = {
    DiskState.IN_SYNC: "#009e73",
    DiskState.REBUILDING: READS,
    DiskState.SPARE: "#c2c8ce",
    DiskState.FAULTY: PUBLISHED,
    DiskState.GONE: "none",
}
"""Colours of Okabe and Ito. A state stands also on its bar, except the usual one."""
_VERDICTS: Final = {Verdict.HOLDS: BOUND, Verdict.REFUTED: PUBLISHED}


def timelines(page: Page) -> tuple[tuple[PageCell, Chart], ...]:
    """Return the timeline of each shown cell that has one."""
    return tuple(
        (cell, _chart(page, cell, cell.timeline)) for cell in shown_cells(page)[0] if cell.timeline
    )


def _chart(page: Page, cell: PageCell, found: Timeline) -> Chart:
    rows = fault_rows(page, cell)
    where = axes_text(cell.result.axes)
    trials = cell.cell.trials
    title = f"Timeline of the faults{f': {where}' if where else ''}"
    said = [
        f"{row.at.at:.2f} s {row.what} ({', '.join(filter(None, (*row.found, row.claims)))})"
        for row in rows
    ]
    return Chart(
        name=slug("timeline", cell.result.id),
        title=title,
        subtitle=f"trial 1 of {trials}" if trials > 1 else "",
        caption="; ".join(said),
        spec=_spec(found, rows),
    )


def _spec(found: Timeline, rows: tuple[FaultRow, ...]) -> dict[str, Any]:
    below = HEAD + LANE * len(found.disks) + 8
    labels = _labels(found, rows, below)
    height = max([below, *(label["bottom"] for label in labels)])
    x = {
        "field": "x",
        "type": "quantitative",
        "scale": {"domain": [found.begin, found.end], "nice": False, "zero": False},
        "axis": {"title": _clock(found), "grid": False, "tickCount": 12},
    }
    return {
        "width": WIDTH,
        "height": height,
        "layer": [
            legend(_keys(found)),
            *_works(found, x, below),
            *_lanes(found, x),
            *_faults(labels, x),
        ],
    }


def _clock(found: Timeline) -> str:
    anew = "; after a power cut it begins anew, and here it goes on" if found.boots[1:] else ""
    return f"seconds of the guest's clock{anew}"


def _layer(mark: dict[str, Any], data: list[dict[str, Any]], x: Any, **more: Any) -> dict[str, Any]:
    """Return a layer whose vertical places are pixels."""
    y = {"type": "quantitative", "scale": None, "axis": None}
    encoding: dict[str, Any] = {"x": x, "y": {**y, "field": "y"}}
    if mark["type"] in ("rect", "rule"):
        encoding["y2"] = {"field": "y2"}
    if mark["type"] == "rect":
        encoding["x2"] = {"field": "x2"}
    if mark["type"] == "text":
        encoding["text"] = {"field": "text"}
    return {"data": {"values": data}, "mark": mark, "encoding": encoding | more}


def _pixels(found: Timeline, seconds: float) -> float:
    return seconds / (found.end - found.begin) * WIDTH


def _works(found: Timeline, x: Any, below: float) -> list[dict[str, Any]]:
    tip = {"description": {"field": "tip", "type": "nominal"}}
    bands, names = [], []
    free = found.begin
    for work in found.works:
        least = 2 * (found.end - found.begin) / WIDTH  # two pixels, to be seen
        end = max(work.end, work.begin + least)
        said = f"{work.action}, {work.begin:.2f} to {work.end:.2f} s"
        bands.append(
            {
                "x": work.begin,
                "x2": end,
                "y": 0,
                "y2": below,
                "tip": said if work.ended else f"{said}, not ended",
            }
        )
        middle = (work.begin + work.end) / 2
        wide = len(work.action) * LETTER * (found.end - found.begin) / WIDTH
        if middle - wide / 2 > free:
            names.append({"x": middle, "y": HEAD / 2, "text": work.action})
            free = middle + wide / 2
    text = {"type": "text", "color": MEASURED, "fontSize": 12, "aria": False}
    return [
        _layer({"type": "rect", "color": MEASURED, "opacity": 0.14}, bands, x, **tip),
        _layer(text, names, x),
    ]


def _lanes(found: Timeline, x: Any) -> list[dict[str, Any]]:
    tip = {"description": {"field": "tip", "type": "nominal"}}
    layers = []
    texts = []
    for state, colour in COLOURS.items():
        bars = []
        for span in found.spans:
            if span.state is not state:
                continue
            top = HEAD + LANE * found.disks.index(span.disk) + (LANE - BAR) / 2
            said = f"{span.disk}: {state.value}, {span.begin:.2f} to {span.end:.2f} s"
            bars.append({"x": span.begin, "x2": span.end, "y": top, "y2": top + BAR, "tip": said})
            wide = _pixels(found, span.end - span.begin) > len(state.value) * LETTER + 6
            if wide and state is not DiskState.IN_SYNC:
                middle = (span.begin + span.end) / 2
                texts.append({"x": middle, "y": top + BAR / 2, "text": state.value, "of": state})
        mark: dict[str, Any] = {"type": "rect", "color": colour, "opacity": 1}
        if state is DiskState.GONE:
            mark = {"type": "rect", "filled": False, "stroke": MUTED, "strokeDash": [2, 3]}
        layers.append(_layer(mark, bars, x, **tip))
    for gone, colour in ((True, MUTED), (False, ON_BAR)):
        text = {"type": "text", "color": colour, "fontSize": 12, "aria": False}
        own = [t for t in texts if (t["of"] is DiskState.GONE) is gone]
        layers.append(_layer(text, own, x))
    names = [
        {"x": found.begin, "y": HEAD + LANE * (n + 0.5), "text": disk}
        for n, disk in enumerate(found.disks)
    ]
    text = {"type": "text", "color": INK, "fontSize": 13, "align": "right", "dx": -8}
    return [*layers, _layer(text, names, x)]


def _labels(found: Timeline, rows: tuple[FaultRow, ...], below: float) -> list[dict[str, Any]]:
    """Return a label for each fault, below those of later faults whose lines would cross it."""
    places: list[tuple[float, int]] = []
    labels: list[dict[str, Any]] = []
    for number, row in reversed([*enumerate(rows, 1)]):
        texts = [f"{number} {row.what}", *row.found, row.claims]
        colours = [
            INK,
            *(MUTED for _ in row.found),
            _VERDICTS.get(row.verdict or Verdict.HOLDS, MUTED),
        ]
        left = _pixels(found, row.at.at - found.begin)
        right = left + max(map(len, texts)) * LETTER + 8
        place = 1 + max((n for at, n in places if at < right), default=-1)
        places.append((left, place))
        top = below + place * (LINE * 4 + 6)
        labels.append(
            {
                "x": row.at.at,
                "y": 0,
                "y2": top + LINE * sum(map(bool, texts)),
                "top": top,
                "bottom": top + LINE * 4 + 6,
                "texts": [*zip(texts, colours, strict=True)],
                "tip": f"{row.at.at:.2f} s: {'; '.join(filter(None, texts))}",
            }
        )
    return labels


def _faults(labels: list[dict[str, Any]], x: Any) -> list[dict[str, Any]]:
    tip = {"description": {"field": "tip", "type": "nominal"}}
    lines = [{key: label[key] for key in ("x", "y", "y2", "tip")} for label in labels]
    layers = [_layer({"type": "rule", "color": INK, "strokeWidth": 1.5}, lines, x, **tip)]
    colour = {"color": {"field": "colour", "type": "nominal", "scale": None}}
    for bold in (True, False):
        texts = [
            {"x": label["x"], "y": label["top"] + LINE * (n + 0.5), "text": text, "colour": own}
            for label in labels
            for n, (text, own) in enumerate(label["texts"])
            if text and (n == 0) is bold
        ]
        mark = {"type": "text", "fontSize": 12, "aria": False, "align": "left", "dx": 5}
        weight = {"fontWeight": "bold" if bold else "normal"}
        layers.append(_layer({**mark, **weight}, texts, x, **colour))
    return layers


def _keys(found: Timeline) -> list[Key]:
    states = {span.state for span in found.spans}
    keys = [
        Key(name=state.value, colour=colour, shape="square")
        for state, colour in COLOURS.items()
        if state in states and state is not DiskState.GONE
    ]
    return [*keys, Key(name="md at work", colour=MEASURED + "38", shape="square")]
