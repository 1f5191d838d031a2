"""A cell's values: what its tools measured, and what its disks counted. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lab.compile.cell.metrics import COUNTS
from lab.model.result.document import CellMeasurement, CellResult
from lab.model.result.measurement import Measurement

WRITES: Final = "disk_writes"


def counts_of(
    result: CellResult, workload: str, metric: str, disk: str | None = None
) -> tuple[float, ...]:
    """Return a counter of one disk or of all, for each trial; empty: there is none, or flushes are
    among the writes."""
    if metric not in COUNTS:
        return ()
    field = metric.removeprefix("disk_")  # of MemberCounters
    sums: dict[int, int] = {}
    for each in result.counters:
        if each.workload == workload and disk in (None, each.serial):
            if metric == WRITES and each.with_flushes:
                return ()
            sums[each.trial] = sums.get(each.trial, 0) + getattr(each, field)
    return tuple(map(float, sums.values()))


def counter_of(
    result: CellResult, workload: str, metric: str, disk: str | None = None
) -> CellMeasurement | None:
    """Return a counter of one disk or of all, in the form of a measurement."""
    counts = counts_of(result, workload, metric, disk)
    if not counts:
        return None
    unit = COUNTS[metric].unit
    one = Measurement(workload=workload, metric=metric, unit=unit, values=counts)
    return CellMeasurement.of(one, 0.0)


def figure_of(
    result: CellResult, workload: str, metric: str, disk: str | None = None
) -> CellMeasurement | None:
    """Return the value that a claim means: a counter, what the tool measured, or the array's
    shape."""
    if metric in COUNTS:
        return counter_of(result, workload, metric, disk)
    every = (*result.measurements, *result.shapes)
    measured = (m for m in every if (m.workload, m.metric) == (workload, metric))
    return next(measured, None) if disk is None else None


def figures_of(result: CellResult) -> Iterator[CellMeasurement]:
    """Yield all values of a cell but shapes; counters are sums over its disks."""
    yield from result.measurements
    for workload in sorted({c.workload for c in result.counters}):
        for metric in COUNTS:
            if found := counter_of(result, workload, metric):
                yield found
