"""Chart data: rows of a report as bars, points and squares, on a common scale."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lab.analysis.compare import TIMED
from lab.core.units import GIB, KIB, MIB
from lab.model.result.document import CellMeasurement, CellResult
from lab.model.scenario.document import AxisValue, Cell
from lab.report.content.figures import (
    Row,
    axes_text,
    axis_heads,
    interval,
    metric_words,
    telling,
)
from lab.report.content.page_data import Page

Axes = Mapping[str, AxisValue]
DISKS: Final = "disks.count"
LIMITS: Final = (("N·B", 0), ("(N-1)·B", 1))
"""Limits of N disks: names, and numbers of disks to subtract. (N-1)·B: one disk holds parity."""

_UNITS: Final = {
    "B/s": ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")),
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "B": ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1.0, "B")),
    "1/s": ((1.0, ""),),
    "1": ((1.0, ""),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis: the divisor of its values, and its title."""

    factor: float
    title: str

    def of(self, value: float) -> float:
        """Return a value on this scale."""
        return value / self.factor

    def maybe(self, value: float | None) -> float | None:
        """Return a value on this scale; ``None`` stays ``None``."""
        return None if value is None else self.of(value)

    def short(self, value: float) -> str:
        """Return a value in few characters; the unit is in the axis's title."""
        scaled = self.of(value)
        if 0 < abs(scaled) < 1:
            return f"{scaled:.2g}"
        digits = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
        return f"{scaled:,.{digits}f}"


def is_flag(value: float, unit: str) -> bool:
    """Return whether a value is yes or no, which a bar says badly."""
    return unit == "1" and value in (0, 1)


def scale(metric: str, unit: str, values: Iterable[float], better: str = "") -> Scale:
    """Return a scale with the largest unit in which the greatest value is at least one."""
    most = max((abs(v) for v in values), default=0.0)
    known = _UNITS.get(unit, ((1.0, unit),))
    factor, name = next(((f, n) for f, n in known if most >= f), known[-1])
    words = metric_words(metric) + (" per second" if unit == "1/s" and metric != "iops" else "")
    title = f"{words}, {name}" if name else words
    return Scale(factor=factor, title=f"{title} ({better} is better)" if better else title)


def scale_of(rows: Sequence[Row], page: Page | None = None, more: Iterable[float] = ()) -> Scale:
    """Return the scale of rows of one metric; ``page`` has the better direction."""
    first = rows[0]
    unit = next((r.measurement.unit for r in rows if r.measurement), "")
    values = [v for r in rows for v in (r.measured, r.predicted, r.published) if v is not None]
    better = page.better.get(f"{first.workload}.{first.metric}", "") if page else ""
    return scale(first.metric, unit, [*values, *more], better)


def in_order(rows: Iterable[Row], page: Page) -> list[list[Row]]:
    """Return rows by workload and metric, in the order of the scenario and of the tool's metrics.

    So equal scenarios have the same order of charts, whichever cells finished.
    """
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(f"{row.workload}.{row.metric}", []).append(row)
    known = list(page.better)
    place = {name: number for number, name in enumerate(known)}
    return [found[name] for name in sorted(found, key=lambda n: (place.get(n, len(known)), n))]


def varying(rows: Sequence[Row]) -> dict[str, tuple[AxisValue, ...]]:
    """Return axes whose values differ between the rows' cells."""
    return telling([row.cell.axes for row in rows])


def longest(rows: Sequence[Row], axis: str, axes: Iterable[str]) -> int:
    """Return the most values along an axis of cells that agree in the other ``axes``."""
    apart = [a for a in axes if a != axis]
    counts = Counter(
        tuple(row.cell.axes[a] for a in apart) for row in rows if row.cell.axes[axis] is not None
    )
    return max(counts.values(), default=0)


def is_numeric(values: Sequence[AxisValue]) -> bool:
    """Return whether there are two numbers or more, and otherwise only omitted values."""
    given = [v for v in values if v is not None]
    numbers = [v for v in given if isinstance(v, int | float) and not isinstance(v, bool)]
    return len(numbers) > 1 and len(numbers) == len(given)


def ordered(values: Iterable[AxisValue]) -> list[AxisValue]:
    """Return distinct values: omitted ones, then numbers by size, others in the given order."""
    distinct = list(dict.fromkeys(values))
    if not is_numeric(distinct):
        return distinct
    return sorted(distinct, key=lambda v: (v is not None, float(v) if v is not None else 0.0))


def at(row: Row, fixed: Axes) -> bool:
    """Return whether the row's cell has these axis values."""
    return all(row.cell.axes.get(axis) == value for axis, value in fixed.items())


def short_name(axis: str) -> str:
    """Return an axis's name for a heading."""
    return axis_heads([axis])[0]


def label(row: Row, axes: Sequence[str]) -> str:
    """Return a row's values of these axes, else its workload."""
    return axes_text({a: row.cell.axes[a] for a in axes}) or row.workload


def text(row: Row) -> str:
    """Return the measured value, with ``?`` if it is doubtful."""
    said = "" if row.measured is None else row.text(row.measured)
    return f"{said} ?" if row.doubted else said


def marks(row: Row, measure: Scale, page: Page) -> dict[str, Any]:
    """Return the common data of bars and points: theory, published value, claim, interval."""
    found: dict[str, Any] = {
        "predicted": measure.maybe(row.predicted),
        "published": measure.maybe(row.published),
        "doubted": row.doubted,
        "tip": tip(row),
    }
    if row.allowed is not None:
        least, most = row.allowed
        found["allowed"] = (measure.maybe(least), measure.maybe(most))
    return found | interval_marks(row.cell, row.measurement, measure, page)


def interval_marks(
    cell: CellResult, measurement: CellMeasurement | None, measure: Scale, page: Page
) -> dict[str, Any]:
    """Return the interval of a value, or that it is unknown; empty: the value has none."""
    if measurement is None or measurement.no_seed_changes_it or cell.id in page.fixed:
        return {}
    if measurement.low is None or measurement.high is None:
        return {"unknown": True} if measurement.unit in TIMED else {}
    if measurement.low == measurement.high:
        return {}
    return {"low": measure.of(measurement.low), "high": measure.of(measurement.high)}


def tip(row: Row) -> str:
    """Return a row in words."""
    where = axes_text(row.cell.axes) or row.cell.id
    parts = [f"{where}: {row.workload} {metric_words(row.metric)}"]
    if row.measured is not None:
        parts.append(f"measured {row.text(row.measured)}")
    if row.measurement and (trials := len(row.measurement.values)):
        low, high = map(row.text, interval(row.measurement))
        span = f" within {low} to {high}" if low != high else ""
        parts.append((f"median of {trials} trials" if trials > 1 else "one trial") + span)
    if row.predicted is not None:
        parts.append(f"theory {row.text(row.predicted)}")
    if row.published is not None:
        parts.append(f"published {row.text(row.published)}")
    if row.doubted:
        parts.append("doubtful")
    return "; ".join(parts)


def disk_limit(cell: Cell, metric: str) -> float | None:
    """Return the limit of one disk in the metric's unit; ``None``: the disks have no common one."""
    found: set[float] = set()
    for disk in cell.disks:
        kind = {"throughput": "bytes", "iops": "operations"}.get(metric)
        given = disk.throttle.model_dump(exclude_none=True)
        limit = given.get(f"total_{kind}_per_second")
        if disk.model != "throttle" or limit is None:
            return None
        found.add(float(limit))
    return found.pop() if len(found) == 1 else None


def limits(rows: Sequence[Row], cells: Mapping[str, Cell]) -> list[tuple[str, int, float]]:
    """Return name, number of disks and value of each limit.

    Empty if the number of disks is no axis, or the disks' limits differ.
    """
    found = {disk_limit(cells[row.cell.id], row.metric) for row in rows}
    counts = sorted({n for row in rows if isinstance(n := row.cell.axes.get(DISKS), int)})
    limit = found.pop() if found else None
    if found or limit is None or len(counts) < 2:
        return []
    return [(name, n, (n - less) * limit) for name, less in LIMITS for n in counts]


def slug(*words: object) -> str:
    """Return a file name made of words."""
    text = "-".join(str(w) for w in words if w not in ("", None))
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:120]
