"""How fast a workload was from second to second, and what the array was busy with beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lab.model.result.measurement import Series, SyncSeen
from lab.report.charts.draw import GRID, INK, MEASURED, PUBLISHED, UPRIGHT, WIDTH, Picture
from lab.report.charts.points import Scale, scale, slug
from lab.report.content.document import PageCell
from lab.report.content.figures import axes_text, figure

HEIGHT: Final = 200
_METRICS: Final = {"B/s": "throughput", "1/s": "iops"}
_WAYS: Final = {"read": MEASURED, "write": PUBLISHED, "trim": INK}


def traces(cell: PageCell) -> Iterator[Picture]:
    """A picture for each workload that kept a log."""
    for workload in dict.fromkeys(s.workload for s in cell.series):
        yield _trace(cell, [s for s in cell.series if s.workload == workload])


def _trace(cell: PageCell, series: list[Series]) -> Picture:
    workload, metric = series[0].workload, _METRICS.get(series[0].unit, "throughput")
    measure = scale(metric, series[0].unit, [v for s in series for v in s.values])
    values = [
        {
            "at": at,
            "value": measure.of(value),
            "way": s.direction,
            "trial": s.trial,
            "tip": f"{s.direction}, trial {s.trial}, {at:g} s: {figure(metric, value)}",
        }
        for s in series
        for at, value in zip(s.seconds, s.values, strict=True)
    ]
    ways = list(dict.fromkeys(s.direction for s in series))
    several = len({s.trial for s in series}) > 1
    x = {
        "field": "at",
        "type": "quantitative",
        "title": "seconds",
        "scale": {"domainMin": 0, "nice": False},
        "axis": {"tickCount": 6},
    }
    y = {
        "field": "value",
        "type": "quantitative",
        "title": measure.title,
        "axis": UPRIGHT,
    }
    colour: dict[str, Any] = {
        "field": "way",
        "type": "nominal",
        "scale": {"domain": ways, "range": [_WAYS[w] for w in ways]},
        "legend": {} if len(ways) > 1 else None,
    }
    lines: dict[str, Any] = {
        "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 30, "filled": True}},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "description": {"field": "tip", "type": "nominal"},
        },
    }
    if several:
        lines["encoding"]["detail"] = {"field": "trial"}
    end = max((at for s in series for at in s.seconds), default=0.0)
    expected = {(p.workload, p.metric): p.value for p in cell.result.predictions}
    theory = expected.get((workload, metric)) if len(ways) == 1 else None
    busy = sync_words(cell.sync)
    said = f"{len({s.trial for s in series})} trials" if several else "second by second"
    said += " · dashed: theory's mean" if theory is not None else ""
    where = axes_text(cell.result.axes)
    return Picture(
        name=slug("over-time", workload, cell.result.id),
        title=f"{workload} over time" + (f": {where}" if where else ""),
        subtitle=f"{said}\nshaded: {busy}" if busy else said,
        caption=busy or f"{workload}, from the tool's own log",
        spec={
            "width": WIDTH,
            "height": HEIGHT,
            "autosize": {"type": "fit-x", "contains": "padding"},
            "data": {"values": values},
            "layer": [*_busy(cell.sync, end), lines, *_mean(theory, measure)],
        },
    )


def sync_words(sync: SyncSeen | None) -> str:
    """What was seen of a resync, in words."""
    if sync is None:
        return ""
    if sync.before is None:
        return f"a {sync.action} that began meanwhile, {sync.after:.0%} done at the cell's end"
    begin = f"a {sync.action} under way from the beginning, {sync.before:.0%} done"
    if sync.after is None:
        return f"{begin}; over before the cell's end, nobody saw when"
    return f"{begin} then and {sync.after:.0%} at the cell's end"


def _busy(sync: SyncSeen | None, end: float) -> list[dict[str, Any]]:
    if sync is None:
        return []
    return [
        {
            "data": {"values": [{"from": 0, "to": end}]},
            "mark": {"type": "rect", "color": GRID, "opacity": 0.6},
            "encoding": {"x": {"field": "from", "type": "quantitative"}, "x2": {"field": "to"}},
        }
    ]


def _mean(theory: float | None, measure: Scale) -> list[dict[str, Any]]:
    if theory is None:
        return []
    return [
        {
            "data": {"values": [{"value": measure.of(theory)}]},
            "mark": {"type": "rule", "color": INK, "strokeDash": [6, 4], "strokeWidth": 1.5},
            "encoding": {"y": {"field": "value", "type": "quantitative"}},
        }
    ]
