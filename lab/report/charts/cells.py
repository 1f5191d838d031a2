"""Charts of single cells: bytes of each disk, and a workload's speed over time."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final

from lab.core.units import MIB, format_value
from lab.model.result.document import MemberCounters
from lab.model.result.measurement import Series, SyncSeen
from lab.report.charts.bars import Bar, bar_chart
from lab.report.charts.data import scale, slug, varying
from lab.report.charts.lines import Level, Point, line_chart
from lab.report.charts.render import READS, WRITES, Chart
from lab.report.charts.values import narrowed
from lab.report.content.figures import axes_text, rows_of
from lab.report.content.page_data import Page, PageCell

CELLS: Final = 12
"""Most cells with charts of their own; the tables have the values of all."""
_METRICS: Final = {"B/s": "throughput", "1/s": "iops"}


def cell_charts(page: Page) -> tuple[Chart, ...]:
    """Return charts of the shown cells: bytes by disk, then speed over time."""
    found: list[Chart] = []
    for cell in shown_cells(page)[0]:
        chart = disk_chart(cell)
        found += [chart] if chart else []
        found += time_charts(cell)
    return tuple(found)


def shown_cells(page: Page) -> tuple[tuple[PageCell, ...], str]:
    """Return the cells that get charts, and their common axis values if other cells get none."""
    if len(page.cells) <= CELLS:
        return page.cells, ""
    rows = [row for cell in page.result.cells for row in rows_of(cell)]
    kept, shared = narrowed(rows, varying(rows), CELLS)
    ids = {row.cell.id for row in kept}
    return tuple(c for c in page.cells if c.result.id in ids), shared


def disk_chart(cell: PageCell) -> Chart | None:
    """Return bytes by disk and workload, which show a parity disk's load. ``None``: no counters."""
    expected = {
        (e.workload, m.serial): (m.read_bytes + m.written_bytes) / MIB
        for e in cell.explanations
        for m in e.members
        if m.read_bytes is not None and m.written_bytes is not None
    }
    counted: dict[tuple[str, str], list[MemberCounters]] = {}
    for counters in cell.result.counters:
        counted.setdefault((counters.workload, counters.serial), []).append(counters)
    bars = [
        _disk(workload, serial, trials, expected.get((workload, serial)))
        for (workload, serial), trials in counted.items()
    ]
    if not any(sum(bar.parts.values()) for bar in bars):
        return None
    groups = list(dict.fromkeys(bar.group for bar in bars))
    where = axes_text(cell.result.axes)
    return Chart(
        name=slug("members", cell.result.id),
        title=f"Bytes by disk: {where}" if where else "Bytes by disk",
        subtitle="counted by the guest's kernel (/proc/diskstats)",
        caption="; ".join(bar.tip for bar in bars),
        spec=bar_chart(
            sorted(bars, key=lambda bar: groups.index(bar.group)),
            title="MiB, median of the trials",
            series={"read": READS, "written": WRITES},
        ),
    )


def _disk(workload: str, serial: str, trials: list[MemberCounters], expected: float | None) -> Bar:
    read = median(c.read_bytes for c in trials) / MIB
    written = median(c.written_bytes for c in trials) / MIB
    theory = "" if expected is None else f"; theory {expected:.1f} MiB"
    said = f"{read:.1f} MiB read, {written:.1f} MiB written"
    return Bar(
        label=serial,
        group=workload,
        parts={"read": read, "written": written},
        predicted=expected,
        text=f"{read + written:.1f}",
        tip=f"{workload}, {serial}: {said}{theory}",
    )


def time_charts(cell: PageCell) -> Iterator[Chart]:
    """Yield a chart for each workload with a log, with a line for each direction, and one for each
    of its samples."""
    for key in dict.fromkeys(map(_of_one_chart, cell.series)):
        yield _over_time(cell, [s for s in cell.series if _of_one_chart(s) == key])


def _of_one_chart(series: Series) -> tuple[str, str]:
    """Return what the series of a chart share: workload, and the name of a sample."""
    speed = series.direction in ("read", "write", "trim")
    return series.workload, "" if speed else series.direction


def _over_time(cell: PageCell, series: list[Series]) -> Chart:
    workload, unit = series[0].workload, series[0].unit
    sample = _of_one_chart(series[0])[1]
    metric = sample or _METRICS.get(unit, "throughput")
    measure = scale(metric, unit, [v for s in series for v in s.values], "" if sample else "higher")
    points = [
        Point(
            line=s.direction,
            x=at,
            y=measure.of(value),
            part=s.trial,
            text=measure.short(value),
            tip=f"{s.direction}, trial {s.trial}, {at:g} s: {format_value(value, unit)}",
        )
        for s in series
        for at, value in zip(s.seconds, s.values, strict=True)
    ]
    expected = {(p.workload, p.metric): p.value for p in cell.result.predictions}
    theory = expected.get((workload, metric)) if len({s.direction for s in series}) == 1 else None
    trials = len({s.trial for s in series})
    words = sync_words(cell.sync)
    where = axes_text(cell.result.axes)
    x = {
        "type": "quantitative",
        "title": "seconds",
        "scale": {"domainMin": 0, "nice": False},
        "axis": {"tickCount": 6, "grid": False},
    }
    action = cell.sync.action if cell.sync else ""
    return Chart(
        name=slug("over-time", workload, *filter(None, [sample]), cell.result.id),
        title=f"{workload}{f', {sample},' if sample else ''} over time"
        + (f": {where}" if where else ""),
        subtitle="\n".join(
            filter(None, (measure.title, f"{trials} trials" if trials > 1 else "", words))
        ),
        caption=words or f"{workload}, {'sampled in the guest' if sample else _OWN_LOG}",
        spec=line_chart(
            points,
            x=x,
            levels=[Level(name="theory's mean", y=measure.of(theory))] if theory else (),
            shaded=f"with a {action}" if words else "",
        ),
    )


_OWN_LOG: Final = "from the tool's own log"


def sync_words(sync: SyncSeen | None) -> str:
    """Return a resync's progress in words; empty: there was none."""
    if sync is None:
        return ""
    if sync.before is None:
        return f"a {sync.action} began meanwhile, {sync.after:.0%} done at the cell's end"
    begin = f"a {sync.action} ran from the beginning, {sync.before:.0%} done"
    if sync.after is None:
        return f"{begin}; it ended before the cell, at an unknown time"
    return f"{begin} then and {sync.after:.0%} at the cell's end"
