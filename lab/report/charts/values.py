"""Charts of a run's values, chosen by the axes in which its cells differ.

Each value is in one kind of chart. Depth and jobs, or two axes with twelve values together: heat
maps. An axis of three numbers or more: lines along it. Anything else: bars. By the number of disks,
lines and bars show the limits N·B and (N-1)·B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

from lab.model.scenario.document import AxisValue, Cell
from lab.report.charts.bars import Bar, bar_chart
from lab.report.charts.data import (
    DISKS,
    LIMITS,
    Scale,
    at,
    in_order,
    is_flag,
    is_numeric,
    label,
    limits,
    longest,
    marks,
    ordered,
    scale_of,
    short_name,
    slug,
    text,
    tip,
    varying,
)
from lab.report.charts.heat_map import Square, heat_map
from lab.report.charts.lines import LEAST, Level, Limit, Point, line_chart
from lab.report.charts.render import MEASURED, Chart
from lab.report.content.answer import answer_values
from lab.report.content.figures import (
    SHOWN,
    Row,
    axes_text,
    axis_value,
    metric_words,
    percent,
    rows_of,
)
from lab.report.content.page_data import Page

BARS: Final = 24
"""Most bars of a chart; with more, further axes are fixed at the first cell's values."""
PANELS: Final = 8
"""Most lines of a chart, each in a panel."""
CHARTS: Final = 4
"""Most charts of one kind for one workload; with more, one at the first cell's axes."""

TINY: Final = 1 / 3
"""A chart of bars whose greatest value is a smaller share of that of all workloads has a scale of
its own."""

DIFFERS: Final = 1.02
"""Least quotient of two sizes of request that differ, of tools without a parameter ``bs``."""

NEAR: Final = 1.3
"""A limit that is a greater multiple of the greatest value is not drawn: it would flatten all."""

ONE_DISK: Final = "B: the limit of one disk"

OFF: Final = "small: difference from theory"

_DEPTH: Final = ("iodepth", "numjobs")
_Values = Mapping[str, tuple[AxisValue, ...]]


def value_charts(page: Page) -> tuple[Chart, ...]:
    """Return charts of measured values, by workload and metric.

    Values that are all in the chart of the answer have no other one. A ranking of cells does not
    show how they follow from the axes, so it replaces none.
    """
    rows = [row for row in _shown(page) if not is_flag(row.measured or 0.0, row.unit)]
    values = answer_values(page.result) if page.result.answer.claims else []
    answered = {(v.cell, v.workload, v.metric) for v in values if v.disk is None}
    if rows and not varying(rows):
        left = [r for r in rows if (r.cell.id, r.workload, r.metric) not in answered]
        return tuple(_single(left, page))
    own = [
        some
        for some in in_order(rows, page)
        if not {(r.cell.id, r.workload, r.metric) for r in some} <= answered
    ]
    return tuple(chart for some in own for chart in _charts(some, rows, page))


def _shown(page: Page) -> Iterator[Row]:
    """Yield the main values; throughput and IOPS of a workload whose size of request differs
    between cells. With one size, each is a multiple of the other."""
    every = [
        row
        for cell in page.result.cells
        for row in rows_of(cell, page.judged, all_=True)
        if row.measured is not None
    ]
    known = {(row.cell.id, row.workload, row.metric): row.measured or 0.0 for row in every}
    given = {
        (cell.result.id, workload.name): float(size)
        for cell in page.cells
        for workload in cell.cell.workloads
        if isinstance(size := workload.parameters.get("bs"), int)
    }
    sizes: dict[str, set[float]] = {}
    for (cell, workload, metric), value in known.items():
        operations = known.get((cell, workload, "iops"))
        if metric == "throughput" and operations:
            size = given.get((cell, workload)) or value / operations
            sizes.setdefault(workload, set()).add(size)
    several = {name for name, own in sizes.items() if max(own) > DIFFERS * min(own)}
    main = {
        (row.cell.id, row.workload, row.metric)
        for cell in page.result.cells
        for row in rows_of(cell)
    }
    for row in every:
        both = row.workload in several and row.metric in SHOWN[:2]
        if both or (row.cell.id, row.workload, row.metric) in main:
            yield row


def _cells(page: Page) -> dict[str, Cell]:
    return {cell.result.id: cell.cell for cell in page.cells}


def _single(rows: Sequence[Row], page: Page) -> Iterator[Chart]:
    """Yield a chart of one cell with a bar for each workload.

    Times of faults have none: each is a different thing.
    """
    workloads = {w.name for cell in page.cells for w in cell.cell.workloads}
    for metric in dict.fromkeys(row.metric for row in rows):
        own = [
            r for r in rows if r.metric == metric and (r.workload in workloads or len(rows) == 1)
        ]
        if not own:
            continue
        yield _bar_chart(own, (), page, title=metric_words(metric), beside=own)


def _title(rows: Sequence[Row]) -> str:
    return f"{rows[0].workload}, {metric_words(rows[0].metric)}"


def _charts(rows: Sequence[Row], all_: Sequence[Row], page: Page) -> Iterator[Chart]:
    """Yield charts of one workload's metric: the first kind that fits."""
    found = [*_heat_maps(rows, page)] or [*_lines(rows, page)]
    yield from found or [_bars(rows, all_, page)]


def _bars(rows: Sequence[Row], all_: Sequence[Row], page: Page) -> Chart:
    """Return bars on the scale that all workloads of that metric share, unless they would be
    too short on it."""
    kept, fixed = narrowed(rows, varying(rows), BARS)
    beside = [row for row in all_ if row.metric == rows[0].metric]
    if _greatest(rows) < TINY * _greatest(beside):
        beside = list(rows)
    most = _near(limits(kept, _cells(page)), kept)
    shown = list(varying(kept))
    return _bar_chart(kept, shown, page, title=_title(rows), fixed=fixed, beside=beside, most=most)


def _near(
    most: Sequence[tuple[str, int, float]], rows: Sequence[Row]
) -> list[tuple[str, int, float]]:
    """Return the limits whose greatest value is near the greatest of the rows."""
    top = NEAR * _greatest(rows)
    far = {name for name, _, value in most if value > top}
    return [limit for limit in most if limit[0] not in far]


def _greatest(rows: Sequence[Row]) -> float:
    values = [v for r in rows for v in (r.measured, r.predicted, r.published) if v is not None]
    return max(values, default=0.0)


def _bar_chart(
    rows: Sequence[Row],
    axes: Sequence[str],
    page: Page,
    *,
    title: str,
    fixed: str = "",
    beside: Sequence[Row],
    most: Sequence[tuple[str, int, float]] = (),
) -> Chart:
    """Return a chart of rows of one metric; ``axes`` name the bars, ``fixed`` is common to all.

    The scale also covers the rows in ``beside``.
    """
    measure = scale_of(beside, page)
    made = [
        Bar(
            label=label(row, axes),
            parts={"measured": measure.of(row.measured or 0.0)},
            text=text(row),
            limits=tuple(measure.of(v) for _, n, v in most if n == row.cell.axes[DISKS]),
            **marks(row, measure, page),
        )
        for row in rows
    ]
    return Chart(
        name=slug(title, fixed),
        title=title,
        subtitle="\n".join(filter(None, (fixed, ONE_DISK if most else ""))),
        caption="; ".join(f"{bar.label} {bar.text}" for bar in made),
        spec=bar_chart(
            made,
            title=measure.title,
            series={"measured": MEASURED},
            limits=", ".join(n for n, _ in reversed(LIMITS) if any(m == n for m, _, _ in most)),
            top=measure.of(_greatest(beside)),
        ),
    )


def _heat_maps(rows: Sequence[Row], page: Page) -> list[Chart]:
    """Return heat maps of two axes; empty: a square would have several values, or one map none."""
    axes = varying(rows)
    pair = _pair(axes)
    groups = [*_groups(rows, axes, pair)] if pair else []
    for _, own in groups:
        if pair and not len({tuple(r.cell.axes[a] for a in pair) for r in own}) == len(own) > 1:
            return []
    every = [row for _, own in groups for row in own]
    return [_heat_map(own, every, *pair, page, fixed=fixed) for fixed, own in groups if pair]


def _lines(rows: Sequence[Row], page: Page) -> list[Chart]:
    """Return lines along the axis of numbers with most values; empty: some cells have too few."""
    axes = varying(rows)
    lined = sorted(_lined(rows, axes), key=lambda axis: -longest(rows, axis, axes))
    for axis in lined:
        apart = _apart({a: v for a, v in axes.items() if a != axis})
        groups = [*_groups(rows, axes, (axis, *apart))]
        if all(longest(own, axis, axes) >= LEAST for _, own in groups):
            return [_line_chart(own, axis, apart, page, fixed=fixed) for fixed, own in groups]
    return []


def _heat_map(
    rows: Sequence[Row], every: Sequence[Row], across: str, down: str, page: Page, *, fixed: str
) -> Chart:
    """Return a heat map; its colours are those of ``every``: all maps of that metric."""
    measure = scale_of(every, page)
    squares = [
        Square(
            across=axis_value(across, row.cell.axes[across]),
            down=axis_value(down, row.cell.axes[down]),
            value=measure.of(row.measured or 0.0),
            text=measure.short(row.measured or 0.0) + (" ?" if row.doubted else ""),
            off="" if row.off is None else percent(row.off),
            tip=tip(row),
        )
        for row in rows
    ]
    by = f"by {short_name(down)} and {short_name(across)}"
    return Chart(
        name=slug(_title(rows), by, fixed),
        title=f"{_title(rows)} {by}",
        subtitle="\n".join(filter(None, (fixed, OFF if any(s.off for s in squares) else ""))),
        caption="; ".join(f"{label(r, (down, across))} {text(r)}" for r in rows),
        spec=heat_map(
            squares,
            across=(short_name(across), _axis_texts(rows, across)),
            down=(short_name(down), _axis_texts(rows, down)),
            title=measure.title,
            most=measure.of(max(row.measured or 0.0 for row in every)),
        ),
    )


def _axis_texts(rows: Sequence[Row], axis: str) -> list[str]:
    return [axis_value(axis, v) for v in ordered(row.cell.axes[axis] for row in rows)]


def _line_chart(
    rows: Sequence[Row], along: str, apart: Sequence[str], page: Page, *, fixed: str
) -> Chart:
    """Return a line along an axis for each combination of the axes ``apart``.

    A cell without a value on the axis is a level across all panels.
    """
    disks = along == DISKS
    most = _near(limits(rows, _cells(page)), rows) if disks else []
    measure = scale_of(rows, page, [v for _, _, v in most])
    named = [(label(row, apart), row) for row in rows]
    counts = Counter(name for name, _ in named)
    alone = [(n, r) for n, r in named if counts[n] == 1 and r.cell.axes[along] is None]
    points = [_point(n, r, along, measure, page) for n, r in named if (n, r) not in alone]
    shapes = ("dots", "dashes")
    levels = [
        Level(name=f"{name}: {text(row)}", y=measure.of(row.measured or 0.0), shape=shapes[i % 2])
        for i, (name, row) in enumerate(alone)
    ]
    title = f"{_title(rows)} by {short_name(along)}"
    said = [f"{p.line} at {axis_value(along, p.x)}: {p.text}" for p in points]
    return Chart(
        name=slug(title, fixed),
        title=title,
        subtitle="\n".join(filter(None, (fixed, measure.title, ONE_DISK if most else ""))),
        caption="; ".join([*said, *(level.name for level in levels)]),
        spec=line_chart(
            points,
            x=_x_axis(along, [row for _, row in named if (_, row) not in alone]),
            levels=levels,
            limits=[
                Limit(
                    name=name,
                    shape=shape,
                    points=tuple((n, measure.of(v)) for m, n, v in most if m == name),
                )
                for name, shape in dict(
                    zip((name for name, _ in LIMITS), shapes, strict=True)
                ).items()
                if any(m == name for m, _, _ in most)
            ],
        ),
    )


def _point(line: str, row: Row, along: str, measure: Scale, page: Page) -> Point:
    value = row.cell.axes[along]
    measured = row.measured or 0.0
    return Point(
        line=line,
        x=float(value) if along == DISKS and isinstance(value, int) else axis_value(along, value),
        y=measure.of(measured),
        text=measure.short(measured) + (" ?" if row.doubted else ""),
        **marks(row, measure, page),
    )


def _x_axis(along: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the horizontal axis: disks by number; other values at equal distances."""
    values = ordered(row.cell.axes[along] for row in rows)
    title = short_name(along)
    if along == DISKS and is_numeric(values):
        numbers = [v for v in values if isinstance(v, int | float)]
        return {
            "type": "quantitative",
            "scale": {"domain": [min(numbers) - 0.5, max(numbers) + 0.5], "nice": False},
            "axis": {"values": numbers, "format": "d", "title": title, "grid": False},
        }
    return {
        "type": "ordinal",
        "sort": [axis_value(along, v) for v in values],
        "scale": {"type": "point", "padding": 0.4},
        "axis": {"title": title, "labelAngle": 0, "grid": False},
    }


def _lined(rows: Sequence[Row], axes: _Values) -> list[str]:
    """Return axes of numbers with enough values for a line."""
    if _is_depth(_pair(axes)):
        return []
    numbers = [a for a, values in axes.items() if is_numeric(values)]
    return [a for a in numbers if longest(rows, a, axes) >= LEAST]


def _is_depth(pair: tuple[str, str] | None) -> bool:
    return pair is not None and all(a.endswith(_DEPTH) for a in pair)


def _pair(axes: _Values) -> tuple[str, str] | None:
    """Return the two axes of a heat map: numbers across, the others down; ``None``: none fit."""
    depth = [a for end in _DEPTH for a in axes if a.endswith(f".{end}")]
    if len(depth) == 2:
        return depth[0], depth[1]
    many = sorted((a for a in axes if len(axes[a]) > 2), key=lambda a: -len(axes[a]))[:2]
    if len(many) < 2 or len(axes[many[0]]) * len(axes[many[1]]) < 12:
        return None
    numbers = [a for a in many if is_numeric(axes[a])]
    across = numbers[0] if numbers else many[0]
    return across, next(a for a in many if a != across)


def _apart(axes: _Values) -> tuple[str, ...]:
    """Return axes whose values get a panel each, words before numbers, up to `PANELS` panels."""
    chosen: list[str] = []
    count = 1
    for axis in sorted(axes, key=lambda a: is_numeric(axes[a])):
        if count * len(axes[axis]) <= PANELS:
            chosen.append(axis)
            count *= len(axes[axis])
    return tuple(a for a in axes if a in chosen)


def _groups(
    rows: Sequence[Row], axes: _Values, inside: Sequence[str]
) -> Iterator[tuple[str, list[Row]]]:
    """Yield rows of each chart, by the axes that it does not show, and their common values."""
    outside = [a for a in axes if a not in inside]
    points = [
        dict(zip(outside, p, strict=True)) for p in product(*(ordered(axes[a]) for a in outside))
    ]
    if len(points) > CHARTS:
        points = [{a: rows[0].cell.axes[a] for a in outside}]
    for point in points:
        own = [row for row in rows if at(row, point)]
        if own:
            yield axes_text(point), own


def narrowed(rows: Sequence[Row], axes: _Values, most: int) -> tuple[list[Row], str]:
    """Return rows of at most ``most`` cells, and the axes fixed at the first cell's values.

    Axes of numbers are fixed first, the number of disks last.
    """
    kept, held = list(rows), dict[str, AxisValue]()
    order = sorted(axes, key=lambda a: (a == DISKS, not is_numeric(axes[a]), -len(axes[a])))
    for axis in order:
        if len({row.cell.id for row in kept}) <= most:
            break
        held[axis] = rows[0].cell.axes[axis]
        kept = [row for row in kept if at(row, held)]
    return kept, axes_text({a: held[a] for a in axes if a in held})
