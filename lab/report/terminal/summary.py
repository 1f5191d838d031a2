"""Many values in a few lines: lowest and highest of each workload, medians per axis value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from lab.model.result.document import CellResult
from lab.model.scenario.document import AxisValue
from lab.report.content.figures import (
    Row,
    axes_text,
    axis_heads,
    figure_name,
    percent,
    spread,
    telling,
)

VALUES: Final = 8
"""Most printed values of an axis; if there are more, only the first and the last."""
WORKLOADS: Final = 6
"""Most workloads in a summary."""

Key = tuple[str, str]
"""A workload and its metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremes:
    """One workload over all cells."""

    workload: str
    lines: tuple[tuple[str, str, str], ...]
    """Label, value and cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Median:
    """The medians of the cells that share one value of one axis."""

    name: str
    figures: tuple[str, ...]
    """By workload; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Summary of all values of a run."""

    cells: int
    figures: int
    workloads: tuple[str, ...]
    extremes: tuple[Extremes, ...]
    medians: tuple[Median, ...]


def overview(cells: Sequence[CellResult], rows: Sequence[Sequence[Row]]) -> Overview:
    """Summarise the measured values."""
    told = telling([cell.axes for cell in cells])
    every = [row for each in rows for row in each if row.measured is not None]
    groups: dict[Key, list[Row]] = {}
    for row in every:
        groups.setdefault((row.workload, row.metric), []).append(row)
    shown = dict(list(groups.items())[:WORKLOADS])
    return Overview(
        cells=len(cells),
        figures=len(every),
        workloads=tuple(figure_name(*key) for key in shown),
        extremes=tuple(
            Extremes(workload=figure_name(*key), lines=_extremes(rows_, tuple(told)))
            for key, rows_ in shown.items()
        ),
        medians=tuple(_medians(told, shown)),
    )


def _extremes(rows: Sequence[Row], axes: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    """Return lowest, median, highest, and largest difference from theory."""
    ordered = sorted(rows, key=lambda row: row.measured or 0.0)
    low, high = ordered[0], ordered[-1]
    middle = low.text(median(row.measured or 0.0 for row in rows))
    lines = [
        ("lowest", _figure(low), _where(low, axes)),
        ("median", middle, ""),
        ("highest", _figure(high), _where(high, axes)),
    ]
    judged = [row for row in rows if row.off is not None]
    if judged:
        worst = max(judged, key=lambda row: abs(row.off or 0.0))
        said = f"{percent(worst.off or 0.0)} off at most"
        lines.append(("theory", said, _where(worst, axes)))
    return tuple(lines)


def _figure(row: Row) -> str:
    assert row.measurement is not None
    bar = spread(row.measurement)
    return f"{row.text(row.measurement.median)} {bar}".rstrip()


def _where(row: Row, axes: Sequence[str]) -> str:
    return axes_text({a: row.cell.axes[a] for a in axes}) + (" ?" if row.doubted else "")


def _medians(
    axes: Mapping[str, Sequence[AxisValue]], groups: Mapping[Key, Sequence[Row]]
) -> Iterator[Median]:
    for name, (axis, found_) in zip(axis_heads(list(axes)), axes.items(), strict=True):
        values = [value for value in found_ if value is not None]
        left_out = len(values) - VALUES if len(values) > VALUES else 0
        half = VALUES // 2
        for number, value in enumerate(values):
            if left_out and half <= number < half + left_out:
                if number == half:
                    nothing = ("",) * len(groups)
                    yield Median(name=f"{name}: {left_out} more values", figures=nothing)
                continue
            figures = []
            for rows in groups.values():
                found = [
                    row.measured
                    for row in rows
                    if row.cell.axes[axis] == value and row.measured is not None
                ]
                figures.append(rows[0].text(median(found)) if found else "")
            yield Median(name=axes_text({axis: value}), figures=tuple(figures))
