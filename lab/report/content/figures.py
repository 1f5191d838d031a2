"""Measured values and axis values as text, and the main values of a cell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lab.core.units import format_seconds, format_size, format_speed, format_value
from lab.model.result.document import DOUBTS, CellClock, CellMeasurement, CellResult, Result, Run
from lab.model.result.measurement import PREDICTED
from lab.model.scenario.claim import Bound, Claim, Verdict, matches
from lab.model.scenario.document import AxisValue
from lab.plugins.workloads._suites import ENDED

INSIDE: Final = re.compile(
    r"(?<=\d) (?=(?:[kMGT]?B(?:/s)?|[KMGT]iB(?:/s)?|ms|min|s|h|%|disks?)\b)|(?<=\S) (?=±)"
)
"""Spaces within a value, which no line should end at."""

MARKS: Final = {
    Verdict.REFUTED: "✗",
    Verdict.INCONCLUSIVE: "?",
    Verdict.NOT_TESTED: "–",
    Verdict.HOLDS: "✓",
}
"""Marks beside words and colours, for readers who see no colours; the worst verdict first."""

SHOWN: Final = ("throughput", "iops", "seconds")
"""Metrics that reports show; all are in the JSON."""

TESTS: Final = frozenset(metric.name for metric in ENDED)
"""Metrics of a suite: its tests by result."""

SMALL: Final = 128 * 1024
"""Requests below this size in bytes show IOPS instead of throughput."""

_SIZES: Final = ("chunk", "size", "offset", "bytes_per_second", ".bs")


def axis_value(name: str, value: object) -> str:
    """Return an axis value as text; sizes with their unit."""
    if isinstance(value, int) and not isinstance(value, bool) and f".{name}".endswith(_SIZES):
        return format_size(value)
    return "default" if value is None else str(value)


def axis_names(axes: Sequence[str]) -> list[str]:
    """Return the last part of each dotted name if it is unique, else the whole name."""
    short = [name.rpartition(".")[2] for name in axes]
    return [s if short.count(s) == 1 else a for s, a in zip(short, axes, strict=True)]


def axis_heads(axes: Sequence[str]) -> list[str]:
    """Return the axes' names for headings."""
    named = zip(axes, axis_names(axes), strict=True)
    return ["disks" if axis == "disks.count" else _words(name) for axis, name in named]


def _words(name: str) -> str:
    """Return a field's name in words; names of files below ``/sys`` stay."""
    return name if "/" in name else name.replace("_", " ")


def telling(points: Sequence[Mapping[str, AxisValue]]) -> dict[str, tuple[AxisValue, ...]]:
    """Return axes that distinguish the cells, with their values in the scenario's order.

    An axis whose value follows from earlier axes is left out.
    """
    kept: dict[str, tuple[AxisValue, ...]] = {}
    for axis in dict.fromkeys(a for axes in points for a in axes):
        known = {tuple(axes.get(a) for a in kept) for axes in points}
        told = {(*(axes.get(a) for a in kept), axes.get(axis)) for axes in points}
        if len(told) > len(known):
            kept[axis] = tuple(dict.fromkeys(axes.get(axis) for axes in points))
    return kept


def axes_text(axes: Mapping[str, AxisValue]) -> str:
    """Return a point of the matrix on one line: ``parity-last, 5 disks, chunk 64KiB``.

    Omitted values are left out, unless all are omitted.
    """
    given = {a: v for a, v in axes.items() if v is not None} or axes
    names = dict(zip(axes, axis_names(list(axes)), strict=True))
    return ", ".join(_axis_text(a, names[a], v) for a, v in given.items())


def _axis_text(axis: str, name: str, value: AxisValue) -> str:
    """Return one axis value in words, with the axis's name if the value alone is unclear."""
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
    """Return a metric's name in words: ``IOPS``, ``read throughput``, ``clat p99.9``."""
    words = re.sub(r"(_p\d+)_(\d+)$", r"\1.\2", metric).split("_")
    return " ".join(_METRICS.get(word, word) for word in words)


def figure_name(workload: str, metric: str) -> str:
    """Return a workload's name, with the metric's if the unit does not show it."""
    return workload if metric in SHOWN else f"{workload} {metric_words(metric)}"


def claim_text(text: str, value: float | None) -> str:
    """Return a claim's value as the judge wrote it; in results of earlier versions its number."""
    return text or ("" if value is None else format_value(value, ""))


def percent(share: float) -> str:
    """Return a difference with its sign: ``+1.3%``; without one if it is 0: ``0.0%``."""
    return f"{share:+.1%}" if abs(share) >= 0.0005 else "0.0%"


def interval(measurement: CellMeasurement) -> tuple[float, float]:
    """Return the interval of a measurement's median, with the host's noise: its error bar."""
    found = measurement.interval
    return found.low, found.high


def spread(measurement: CellMeasurement) -> str:
    """Return the distance of the interval's farther end from the median; empty if it is 0."""
    low, high = interval(measurement)
    if low == high or not measurement.median:
        return ""
    off = max(measurement.median - low, high - measurement.median) / abs(measurement.median)
    return f"±{off:.1%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One value of one workload in one cell, with prediction, published value and claim."""

    cell: CellResult
    workload: str
    metric: str
    measurement: CellMeasurement | None = None
    predicted: float | None = None
    published: float | None = None
    allowed: tuple[float | None, float | None] | None = None
    """Range in which a claim about this value alone holds; ``None`` in it: no bound on that
    side."""

    @property
    def measured(self) -> float | None:
        """The median."""
        return self.measurement.median if self.measurement else None

    @property
    def unit(self) -> str:
        """The unit of its values."""
        if self.measurement is not None:
            return self.measurement.unit
        return PREDICTED[self.metric].unit if self.metric in PREDICTED else ""

    def text(self, value: float) -> str:
        """Return a value of this metric as text."""
        return format_value(value, self.unit)

    @property
    def doubted(self) -> bool:
        """Whether the workload was contended, or a disk's calibration failed."""
        return bool(self.cell.doubts(self.workload))

    @property
    def off(self) -> float | None:
        """Relative difference from the prediction."""
        if self.measured is None or not self.predicted:
            return None
        return self.measured / self.predicted - 1


def rows_of(cell: CellResult, claims: Sequence[Claim] = (), *, all_: bool = False) -> list[Row]:
    """Return the main values of a cell, or all; seconds only if there is no better one.

    The numbers of a suite's tests are no main values: `tests_ended` has them.
    """
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


def tests_ended(cell: CellResult) -> dict[str, str]:
    """Return how the tests of each suite ended, by workload: ``4 passed, 2 failed``."""
    counts: dict[str, dict[str, float]] = {}
    for m in cell.measurements:
        counts.setdefault(m.workload, {})[m.metric] = m.median
    return {
        workload: ", ".join(f"{own[m.name]:g} {m.name}" for m in ENDED if own[m.name])
        for workload, own in counts.items()
        if own.keys() >= TESTS
    }


def _metrics(figures: Mapping[tuple[str, str], float], workload: str, *, all_: bool) -> list[str]:
    """Return throughput or IOPS, else seconds, else the tool's own metrics."""
    own = [m for w, m in figures if w == workload]
    if all_ or set(own) >= TESTS:
        return own if all_ else []
    best = [m for m in own if m in SHOWN[:2] and m == _spoken(figures, workload)]
    return best or [m for m in own if m in SHOWN] or own


def _spoken(figures: Mapping[tuple[str, str], float], workload: str) -> str:
    """Return IOPS for small requests, else throughput."""
    operations = figures.get((workload, "iops"), 0.0)
    small = figures.get((workload, "throughput"), 0.0) < SMALL * operations
    return "iops" if small else "throughput"


def published(
    cell: CellResult, workload: str, metric: str, claims: Sequence[Claim]
) -> float | None:
    """Return the published value of a claim about this value."""
    found = (c.published for c, _ in _bounds(cell, workload, metric, claims))
    return next((value for value in found if value is not None), None)


def allowed(
    cell: CellResult, workload: str, metric: str, claims: Sequence[Claim]
) -> tuple[float | None, float | None] | None:
    """Return the bounds within which a claim about this value holds."""
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
    """Yield a sentence for each check that makes a cell doubtful."""
    for cell in cells:
        for check in cell.checks:
            if check.name in DOUBTS and not check.passed:
                yield f"{axes_text(cell.axes) or cell.id}: {check.detail}"


def systems_of(environment: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the kernels and the versions of mdadm of a run's guests, each once."""
    guests = environment.get("guests") or [environment.get("guest") or {}]
    kernels = [str(guest.get("kernel") or "") for guest in guests]
    versions = [
        str(guest.get("mdadm") or "").removeprefix("mdadm - v").partition(" ")[0]
        for guest in guests
    ]
    return (
        list(dict.fromkeys(filter(None, kernels))),
        list(dict.fromkeys(filter(None, versions))),
    )


def clock_words(result: Result) -> str:
    """Return the clock of a run in words; empty: the host's."""
    clocks = {cell.clock for cell in result.cells}
    if CellClock.VIRTUAL in clocks:
        return "virtual time, unsealed"
    if CellClock.SEALED not in clocks:
        return ""
    sealed = [cell for cell in result.cells if cell.guest_seconds and not cell.reused_from]
    guest = sum(cell.guest_seconds or 0.0 for cell in sealed)
    guests = sum(cell.seconds.total for cell in sealed)
    if not guest or not guests:
        return "virtual time"
    took = _wall(result.run)
    if took is None:
        return f"virtual time: {format_seconds(guest)}, in {format_seconds(guests)} of its guests"
    said = f"{format_seconds(guest)} in {format_seconds(took)} of the host"
    return f"virtual time: {said} ({format_speed(guest, took)})"


def _wall(run: Run) -> float | None:
    """Return the seconds from a run's start to its end by the host's clock; ``None``: unknown."""
    try:
        begun, ended = (
            datetime.fromisoformat(run.started),
            datetime.fromisoformat(run.finished or ""),
        )
        seconds = (ended - begun).total_seconds()
    except (TypeError, ValueError):
        return None
    return seconds if seconds > 0 else None
