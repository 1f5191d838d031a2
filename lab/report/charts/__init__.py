"""Which pictures a run gets: chosen by the axes that its cells differ in.

Two axes of depth and jobs, or two with three values each: a map. An axis of three numbers or more:
curves along it. Anything else: bars. By the number of disks either has N·B and (N-1)·B. Then for
each cell the bytes of its members, and its workloads over time where they kept a log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

from lab.model.scenario.document import AxisValue, Cell
from lab.report.charts.bars import bars
from lab.report.charts.ceilings import DISKS, ceilings
from lab.report.charts.curves import LEAST, curves
from lab.report.charts.draw import Picture
from lab.report.charts.heat import heat
from lab.report.charts.members import members
from lab.report.charts.points import at, is_numeric, longest, varying
from lab.report.charts.traces import traces
from lab.report.content.document import Page, PageCell
from lab.report.content.figures import Row, axes_text, metric_words, rows_of

BARS: Final = 24
"""More bars than this are not taken in: further axes are held where the first cell has them."""
CURVES: Final = 8
"""As many as there are colours and shapes."""
PANELS: Final = 4
"""Pictures of one kind for one workload; beyond, one where the first cell has its axes."""
CELLS: Final = 12
"""More cells than this get no picture of their own each; their figures are in the tables."""

_DEPTH: Final = ("iodepth", "numjobs")
_Values = Mapping[str, tuple[AxisValue, ...]]


def pictures_of(page: Page) -> tuple[Picture, ...]:
    """Every picture of a run: figures first, then members, then time."""
    return (*figure_pictures(page), *cell_pictures(page))


def figure_pictures(page: Page) -> tuple[Picture, ...]:
    """Pictures of figures, by workload and metric."""
    rows = [
        row
        for cell in page.result.cells
        for row in rows_of(cell, page.judged)
        if row.measured is not None
    ]
    cells = {cell.result.id: cell.cell for cell in page.cells}
    if rows and not varying(rows):
        return tuple(_single(rows))
    kinds = dict.fromkeys((row.workload, row.metric) for row in rows)
    own = [[r for r in rows if (r.workload, r.metric) == kind] for kind in kinds]
    return (
        *(picture for some in own for picture in _bars(some, rows, cells)),
        *(picture for some in own for picture in _along_axes(some, cells)),
    )


def cell_pictures(page: Page) -> tuple[Picture, ...]:
    """Pictures of single cells: of all, or of some."""
    found: list[Picture] = []
    for cell in shown_cells(page)[0]:
        picture = members(cell)
        found += [picture] if picture else []
        found += traces(cell)
    return tuple(found)


def shown_cells(page: Page) -> tuple[tuple[PageCell, ...], str]:
    """The cells that get pictures of their own, and what these share where others get none."""
    if len(page.cells) <= CELLS:
        return page.cells, ""
    rows = [row for cell in page.result.cells for row in rows_of(cell)]
    kept, shared = _narrowed(rows, varying(rows), CELLS)
    ids = {row.cell.id for row in kept}
    return tuple(c for c in page.cells if c.result.id in ids), shared


def _single(rows: Sequence[Row]) -> Iterator[Picture]:
    """One cell: its workloads beside each other."""
    for metric in dict.fromkeys(row.metric for row in rows):
        own = [row for row in rows if row.metric == metric]
        yield bars(own, (), title=metric_words(metric), beside=own)


def _title(rows: Sequence[Row]) -> str:
    return f"{rows[0].workload}, {metric_words(rows[0].metric)}"


def _bars(rows: Sequence[Row], all_: Sequence[Row], cells: Mapping[str, Cell]) -> Iterator[Picture]:
    """One workload's cells, on the scale that all workloads of that metric share."""
    axes = varying(rows)
    words = [a for a in axes if not is_numeric(axes[a])]
    curved = _curved(rows, axes)
    if words or not (curved or _pair(axes)):
        kept, fixed = _narrowed(rows, axes, BARS)
        beside = [row for row in all_ if row.metric == rows[0].metric]
        shown = list(varying(kept))
        most = [] if DISKS in curved else ceilings(kept, cells)
        yield bars(kept, shown, title=_title(rows), fixed=fixed, beside=beside, most=most)


def _along_axes(rows: Sequence[Row], cells: Mapping[str, Cell]) -> Iterator[Picture]:
    """One workload's cells as maps of two axes, and as curves along axes of numbers."""
    axes = varying(rows)
    pair = _pair(axes)
    if pair:
        for fixed, own in _panels(rows, axes, pair):
            if len({tuple(r.cell.axes[a] for a in pair) for r in own}) == len(own) > 1:
                yield heat(own, *pair, title=_title(rows), fixed=fixed)
    for axis in _curved(rows, axes):
        apart = _apart({a: v for a, v in axes.items() if a != axis})
        for fixed, own in _panels(rows, axes, (axis, *apart)):
            if longest(own, axis, axes) >= LEAST:
                yield curves(own, axis, apart, title=_title(rows), fixed=fixed, cells=cells)


def _curved(rows: Sequence[Row], axes: _Values) -> list[str]:
    """Axes of numbers along which there is a curve."""
    if _is_depth(_pair(axes)):
        return []
    numbers = [a for a, values in axes.items() if is_numeric(values)]
    return [a for a in numbers if longest(rows, a, axes) >= LEAST]


def _is_depth(pair: tuple[str, str] | None) -> bool:
    return pair is not None and all(a.endswith(_DEPTH) for a in pair)


def _pair(axes: _Values) -> tuple[str, str] | None:
    """The two axes of a map: across the numbers, down the others."""
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
    """Axes that tell curves apart: as many as there are colours for, words before numbers."""
    chosen: list[str] = []
    count = 1
    for axis in sorted(axes, key=lambda a: is_numeric(axes[a])):
        if count * len(axes[axis]) <= CURVES:
            chosen.append(axis)
            count *= len(axes[axis])
    return tuple(a for a in axes if a in chosen)


def _panels(
    rows: Sequence[Row], axes: _Values, inside: Sequence[str]
) -> Iterator[tuple[str, list[Row]]]:
    """Rows by the axes that are not in the picture: what they share, and they themselves."""
    outside = [a for a in axes if a not in inside]
    points = [dict(zip(outside, p, strict=True)) for p in product(*(axes[a] for a in outside))]
    if len(points) > PANELS:
        points = [{a: rows[0].cell.axes[a] for a in outside}]
    for point in points:
        own = [row for row in rows if at(row, point)]
        if own:
            yield axes_text(point), own


def _narrowed(rows: Sequence[Row], axes: _Values, most: int) -> tuple[list[Row], str]:
    """Rows with one axis after another held, numbers first, until they are few enough."""
    kept, held = list(rows), dict[str, AxisValue]()
    order = sorted(axes, key=lambda a: (a == DISKS, not is_numeric(axes[a]), -len(axes[a])))
    for axis in order:
        if len({row.cell.id for row in kept}) <= most:
            break
        held[axis] = rows[0].cell.axes[axis]
        kept = [row for row in kept if at(row, held)]
    return kept, axes_text({a: held[a] for a in axes if a in held})
