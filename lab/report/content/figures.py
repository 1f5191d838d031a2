"""Figures and axis values as people write them, and which of a cell's figures they speak of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lab.core.units import format_figure, format_size, format_times
from lab.model.result.document import DOUBTS, CellClock, CellMeasurement, CellResult, Result
from lab.model.scenario.claim import Bound, Claim, matches
from lab.model.scenario.document import AxisValue

figure: Final = format_figure
"""A figure as people write it, by the name of its metric."""

SHOWN: Final = ("throughput", "iops", "seconds")
"""Metrics that a page has room for; all are in the JSON."""

SMALL: Final = 128 * 1024
"""Bytes of a request below which operations per second are shown, not bytes."""

_SIZES: Final = ("chunk", "size", "offset", "bytes_per_second", ".bs")


def axis_value(name: str, value: object) -> str:
    """An axis value as people write it; sizes with their unit."""
    if isinstance(value, int) and not isinstance(value, bool) and f".{name}".endswith(_SIZES):
        return format_size(value)
    return "default" if value is None else str(value)


def axis_names(axes: Sequence[str]) -> list[str]:
    """The last part of each dotted name, where that tells them apart."""
    short = [name.rpartition(".")[2] for name in axes]
    return [s if short.count(s) == 1 else a for s, a in zip(short, axes, strict=True)]


def axis_heads(axes: Sequence[str]) -> list[str]:
    """The axes' names as headings."""
    named = zip(axes, axis_names(axes), strict=True)
    return ["disks" if axis == "disks.count" else _words(name) for axis, name in named]


def _words(name: str) -> str:
    """A field's name in words; files below ``/sys`` keep theirs."""
    return name if "/" in name else name.replace("_", " ")


def telling(points: Sequence[Mapping[str, AxisValue]]) -> dict[str, tuple[AxisValue, ...]]:
    """Axes that tell points of the matrix apart, their values in the scenario's order.

    An axis whose value follows from those of the axes before it says nothing more, and is left out.
    """
    kept: dict[str, tuple[AxisValue, ...]] = {}
    for axis in dict.fromkeys(a for axes in points for a in axes):
        known = {tuple(axes.get(a) for a in kept) for axes in points}
        told = {(*(axes.get(a) for a in kept), axes.get(axis)) for axes in points}
        if len(told) > len(known):
            kept[axis] = tuple(dict.fromkeys(axes.get(axis) for axes in points))
    return kept


def axes_text(axes: Mapping[str, AxisValue]) -> str:
    """A point of the matrix in one line: ``parity-last, 5 disks, chunk 64KiB``.

    What a cell leaves out is left out here too, but where that is all there is to say.
    """
    given = {a: v for a, v in axes.items() if v is not None} or axes
    names = dict(zip(axes, axis_names(list(axes)), strict=True))
    return ", ".join(_axis_text(a, names[a], v) for a, v in given.items())


def _axis_text(axis: str, name: str, value: AxisValue) -> str:
    """One axis value in words; those that say of themselves what they are stand alone."""
    words = _words(name)
    if value is None:
        return f"{words} default"
    text = axis_value(axis, value)
    if axis == "disks.count":
        return f"{text} disk" if value == 1 else f"{text} disks"
    if axis == "array.level" and text.isdecimal():
        return f"RAID {text}"
    if axis == "array.bitmap":
        return "no bitmap" if value == "none" else f"{text} bitmap"
    plain = not isinstance(value, str) or value == "none" or text.isdecimal()
    return f"{words} {text}" if plain else text


_METRICS: Final = {"iops": "IOPS", "seconds": "time"}


def metric_words(metric: str) -> str:
    """A metric's name as people write it: ``IOPS``, ``read throughput``, ``sync time``."""
    return " ".join(_METRICS.get(word, word) for word in metric.split("_"))


def figure_name(workload: str, metric: str) -> str:
    """A workload, and of which of its metrics a figure is, where that is not said by its unit."""
    return workload if metric in SHOWN else f"{workload} {metric_words(metric)}"


def claim_figure(claim: Claim | None, value: float | None) -> str:
    """A claim's figure: of one metric, or one figure by another; empty where there is none."""
    if value is None:
        return ""
    if claim is None or claim.expect.kind == "ratio":
        return f"{format_times(value)} times"
    return figure(claim.values[0].metric, value)


def percent(share: float) -> str:
    """A difference with its sign, and none where it is nothing: ``+1.3%``, ``0.0%``."""
    return f"{share:+.1%}" if abs(share) >= 0.0005 else "0.0%"


def interval(measurement: CellMeasurement) -> tuple[float, float]:
    """Where a measurement's median lies, the host's noise counted in: its error bar, wherever one
    is shown."""
    found = measurement.interval
    return found.low, found.high


def spread(measurement: CellMeasurement) -> str:
    """How far the interval's farther end is from the median; empty where it has no width."""
    low, high = interval(measurement)
    if low == high or not measurement.median:
        return ""
    off = max(measurement.median - low, high - measurement.median) / abs(measurement.median)
    return f"±{off:.1%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of one workload in one cell, with all that stands beside it."""

    cell: CellResult
    workload: str
    metric: str
    measurement: CellMeasurement | None = None
    predicted: float | None = None
    published: float | None = None
    allowed: tuple[float | None, float | None] | None = None
    """Where a claim about this value alone holds; ``None`` within: no bound on that side."""

    @property
    def measured(self) -> float | None:
        """The median."""
        return self.measurement.median if self.measurement else None

    @property
    def doubted(self) -> bool:
        """Whether the workload was contended, or the cell's disks are not as they should be."""
        return bool(self.cell.doubts(self.workload))

    @property
    def off(self) -> float | None:
        """By which part the measured figure differs from the predicted one."""
        if self.measured is None or not self.predicted:
            return None
        return self.measured / self.predicted - 1


def rows_of(cell: CellResult, claims: Sequence[Claim] = (), *, all_: bool = False) -> list[Row]:
    """The figures that people speak of, or all; seconds only where there is nothing better."""
    expected = {(p.workload, p.metric): p.value for p in cell.predictions}
    found = {(m.workload, m.metric): m for m in cell.measurements}
    figures = {key: m.median for key, m in found.items()} or expected
    workloads = list(dict.fromkeys(workload for workload, _ in figures))
    return [
        Row(
            cell=cell,
            workload=workload,
            metric=metric,
            measurement=found.get((workload, metric)),
            predicted=expected.get((workload, metric)),
            published=published(cell, workload, metric, claims),
            allowed=allowed(cell, workload, metric, claims),
        )
        for workload in workloads
        for metric in _metrics(figures, workload, all_=all_)
    ]


def _metrics(figures: Mapping[tuple[str, str], float], workload: str, *, all_: bool) -> list[str]:
    """Throughput or operations, else seconds, else whatever the tool has names of its own for."""
    own = [m for w, m in figures if w == workload]
    if all_:
        return own
    best = [m for m in own if m in SHOWN[:2] and m == _spoken(figures, workload)]
    return best or [m for m in own if m in SHOWN] or own


def _spoken(figures: Mapping[tuple[str, str], float], workload: str) -> str:
    """Whether people speak of a workload's operations or of its bytes: of small ones, the first."""
    operations = figures.get((workload, "iops"), 0.0)
    small = figures.get((workload, "throughput"), 0.0) < SMALL * operations
    return "iops" if small else "throughput"


def published(
    cell: CellResult, workload: str, metric: str, claims: Sequence[Claim]
) -> float | None:
    """The published value that a claim names for this one."""
    found = (c.published for c, _ in _bounds(cell, workload, metric, claims))
    return next((value for value in found if value is not None), None)


def allowed(
    cell: CellResult, workload: str, metric: str, claims: Sequence[Claim]
) -> tuple[float | None, float | None] | None:
    """The bounds within which a claim about this value holds."""
    for _, bound in _bounds(cell, workload, metric, claims):
        if bound.near is not None:
            return bound.near * (1 - bound.within), bound.near * (1 + bound.within)
        return bound.at_least, bound.at_most
    return None


def _bounds(
    cell: CellResult, workload: str, metric: str, claims: Sequence[Claim]
) -> Iterator[tuple[Claim, Bound]]:
    for claim in claims:
        bound = claim.expect
        if isinstance(bound, Bound):
            value = bound.value
            same = (value.workload, value.metric, value.disk) == (workload, metric, None)
            if same and matches(value.where, cell.axes):
                yield claim, bound


def contended(cells: Sequence[CellResult]) -> Iterator[str]:
    """What was contended or not as it should be, a sentence for each cell."""
    for cell in cells:
        for check in cell.checks:
            if check.name in DOUBTS and not check.passed:
                yield f"{axes_text(cell.axes) or cell.id}: {check.detail}"


def clock_words(result: Result) -> str:
    """How a run's times were counted; empty: by the host's clock."""
    clocks = {cell.clock for cell in result.cells}
    if CellClock.VIRTUAL in clocks:
        return "virtual time, unsealed"
    return "virtual time" if CellClock.SEALED in clocks else ""
