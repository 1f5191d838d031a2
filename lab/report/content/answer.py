"""The values of an answer: their names, and the range in which a claim about them holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from lab.model.result.document import ComparedValue, Result
from lab.model.scenario.claim import Bound, Claim, Monotonic, Order, Ratio, Same
from lab.report.content.figures import axes_text, figure_name, telling

MOST: Final = 12
"""Most values of the answer's chart."""

Range = tuple[float | None, float | None]
"""Lowest and highest value with which a claim holds; ``None``: no bound on that side."""


def answer_values(result: Result) -> list[ComparedValue]:
    """Return the values of the answer's chart: those with the first one's metric.

    Empty: nothing was measured, or there are too many for one chart.
    """
    every = result.answer.values
    values = [v for v in every if v.metric == every[0].metric]
    return values if len(values) <= MOST else []


def value_names(result: Result, values: Sequence[ComparedValue]) -> list[str]:
    """Return what distinguishes each value: axes of its cell, then its workload and its disk."""
    cells = {cell.id: cell for cell in result.cells}
    of_cells = {value.cell for value in values} if len(values) > 1 else set(cells)
    axes = telling([cell.axes for cell in result.cells if cell.id in of_cells])
    several = len({figure_name(v.workload, v.metric) for v in values}) > 1
    names = []
    for value in values:
        where = axes_text({axis: cells[value.cell].axes[axis] for axis in axes}) if axes else ""
        workload = figure_name(value.workload, value.metric) if several or not where else ""
        names.append(", ".join(filter(None, (workload, where, value.disk))))
    return names


def allowed_values(
    claim: Claim, values: Sequence[ComparedValue]
) -> Iterator[tuple[ComparedValue, Range]]:
    """Yield values with the range in which the claim holds, given its other values."""
    match claim.expect:
        case Bound(near=None) as bound:
            yield values[0], (bound.at_least, bound.at_most)
        case Bound(near=float(near), within=within):
            yield values[0], (near * (1 - within), near * (1 + within))
        case Ratio() as wanted:
            of, to = values
            limits = (wanted.at_least, wanted.at_most)
            low, high = (None if limit is None else limit * to.measured for limit in limits)
            yield of, (low, high)
        case Order(margin=margin):
            for value, following in pairwise(values):
                yield value, (following.measured * (1 + margin), None)
        case Same(within=within):
            middle = median(value.measured for value in values)
            for value in values:
                yield value, (middle * (1 - within), middle * (1 + within))
        case Monotonic(direction="rising", tolerance=slack):
            for before, value in pairwise(values):
                yield value, (before.measured * (1 - slack), None)
        case Monotonic(tolerance=slack):
            for before, value in pairwise(values):
                yield value, (None, before.measured * (1 + slack))
