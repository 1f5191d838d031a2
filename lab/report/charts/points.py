"""What pictures are drawn from: a row for each figure, and the axes that its cells differ in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lab.model.scenario.document import AxisValue
from lab.report.content.figures import (
    Row,
    axes_text,
    axis_heads,
    figure,
    interval,
    metric_words,
    telling,
)

Axes = Mapping[str, AxisValue]

_UNITS: Final = {
    "B/s": ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")),
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "1/s": ((1.0, ""),),
    "1": ((1.0, ""),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """By what to divide figures for an axis, and how the axis is titled."""

    factor: float
    title: str

    def of(self, value: float | None) -> float | None:
        """A figure on this scale."""
        return None if value is None else value / self.factor


def scale(metric: str, unit: str, values: Iterable[float]) -> Scale:
    """The largest unit that the largest figure has at least one of."""
    most = max((abs(v) for v in values), default=0.0)
    known = _UNITS.get(unit, ((1.0, unit),))
    factor, name = next(((f, n) for f, n in known if most >= f), known[-1])
    words = metric_words(metric) + (" per second" if unit == "1/s" and metric != "iops" else "")
    return Scale(factor=factor, title=f"{words}, {name}" if name else words)


def scale_of(rows: Sequence[Row]) -> Scale:
    """The scale of rows of one metric."""
    unit = next((r.measurement.unit for r in rows if r.measurement), "")
    values = [v for r in rows for v in (r.measured, r.predicted, r.published) if v is not None]
    return scale(rows[0].metric, unit, values)


def varying(rows: Sequence[Row]) -> dict[str, tuple[AxisValue, ...]]:
    """Axes that tell the rows' cells apart."""
    return telling([row.cell.axes for row in rows])


def longest(rows: Sequence[Row], axis: str, axes: Iterable[str]) -> int:
    """Numbers along an axis of cells that agree in the other ``axes``, at the most."""
    apart = [a for a in axes if a != axis]
    counts = Counter(
        tuple(row.cell.axes[a] for a in apart) for row in rows if row.cell.axes[axis] is not None
    )
    return max(counts.values(), default=0)


def is_numeric(values: Sequence[AxisValue]) -> bool:
    """Whether there are two numbers, and nothing else but what was left out."""
    given = [v for v in values if v is not None]
    numbers = [v for v in given if isinstance(v, int | float) and not isinstance(v, bool)]
    return len(numbers) > 1 and len(numbers) == len(given)


def ordered(values: Sequence[AxisValue]) -> list[AxisValue]:
    """Numbers by size with what was left out before them; anything else as it came."""
    if not is_numeric(values):
        return list(values)
    return sorted(values, key=lambda v: (v is not None, float(v) if v is not None else 0.0))


def at(row: Row, fixed: Axes) -> bool:
    """Whether the row's cell has these axis values."""
    return all(row.cell.axes.get(axis) == value for axis, value in fixed.items())


def point(axis: str, value: AxisValue) -> str:
    """One axis value with its name where the value alone says too little."""
    return axes_text({axis: value})


def short_name(axis: str) -> str:
    """An axis' name for a heading."""
    return axis_heads([axis])[0]


def mark(row: Row, axes: Sequence[str], measure: Scale) -> dict[str, Any]:
    """A row as Vega-Lite takes it; ``axes`` are those that its label names."""
    label = axes_text({a: row.cell.axes[a] for a in axes}) or row.workload
    found: dict[str, Any] = {
        "label": label,
        "measured": measure.of(row.measured),
        "predicted": measure.of(row.predicted),
        "published": measure.of(row.published),
        "opacity": 0.45 if row.doubted else 1,
        "text": "" if row.measured is None else figure(row.metric, row.measured),
        "tip": tip(row),
    }
    if row.doubted:
        found["text"] += " ?"
    if row.measurement and len(row.measurement.values) > 1:
        low, high = interval(row.measurement)
        found |= {"low": measure.of(low), "high": measure.of(high)}
    return found


def tip(row: Row) -> str:
    """A row in words."""
    where = axes_text(row.cell.axes) or row.cell.id
    parts = [f"{where}: {row.workload} {metric_words(row.metric)}"]
    if row.measured is not None:
        parts.append(f"measured {figure(row.metric, row.measured)}")
    if row.measurement and len(row.measurement.values) > 1:
        low, high = (figure(row.metric, v) for v in interval(row.measurement))
        parts.append(f"{len(row.measurement.values)} trials, the median within {low} to {high}")
    if row.predicted is not None:
        parts.append(f"theory {figure(row.metric, row.predicted)}")
    if row.published is not None:
        parts.append(f"published {figure(row.metric, row.published)}")
    if row.doubted:
        parts.append("doubtful")
    return "; ".join(parts)


def slug(*words: object) -> str:
    """A file's name made of words."""
    text = "-".join(str(w) for w in words if w not in ("", None))
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:120]
