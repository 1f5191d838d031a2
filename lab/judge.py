"""Claims against measurements: pure, re-runnable on any stored run.

A claim about cells or workloads that are not there is ``not_tested``; one whose cells failed is
``inconclusive``: that the lab could not find out is no evidence against anybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import assert_never

from lab.model.calibration import CALIBRATED
from lab.model.claim import Bound, Claim, Monotonic, Order, Ratio, Same, Value, Verdict
from lab.model.measurement import UNCONTENDED
from lab.model.result import CellResult, ClaimResult, Outcome
from lab.model.scenario import AxisValue
from lab.units import format_rate, parse_rate


class _MissingError(Exception):
    """A value is not there; ``verdict`` says what that makes of the claim."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A cell's result, with what a claim may ask of it."""

    result: CellResult
    fields: Mapping[str, AxisValue]
    """Values of the dotted names that claims use."""
    published: bool
    """Whether the cell is the one that was published, not changed by a ``--set``."""
    bitmap: tuple[str, ...] = ()
    """What its bitmap's cost hangs on; empty without one."""
    bitmap_shares: Mapping[str, float] = field(default_factory=dict)
    """Workload to the part of the disks' operations that can be writes of the bitmap, at most."""


def judge(claims: Sequence[Claim], cells: Sequence[Judged]) -> tuple[ClaimResult, ...]:
    """A verdict for every claim, in order."""
    return tuple(_judge(claim, cells) for claim in claims)


def _judge(claim: Claim, cells: Sequence[Judged]) -> ClaimResult:
    expected = in_words(claim)
    try:
        holds, measured, reason = _hold(claim, cells)
        _check_bitmaps(claim, cells)
    except _MissingError as missing:
        return ClaimResult(
            id=claim.id,
            says=claim.says,
            verdict=missing.verdict,
            published=claim.published,
            expected=expected,
            reason=str(missing),
        )
    return ClaimResult(
        id=claim.id,
        says=claim.says,
        verdict=Verdict.HOLDS if holds else Verdict.REFUTED,
        measured=measured,
        published=claim.published,
        expected=expected,
        reason=reason,
    )


def _hold(claim: Claim, cells: Sequence[Judged]) -> tuple[bool, float, str]:
    """Whether it holds, the figure to show, and why."""
    match claim.expect:
        case Bound() as bound:
            value = _value(bound.value, cells)
            low, high = limits(bound)
            return (
                low <= value <= high,
                value,
                f"{_show(bound.value, value)} was measured"
                + (f", {_percent(value, bound.near)} off" if bound.near else ""),
            )
        case Ratio() as ratio:
            of, to = _value(ratio.of, cells), _value(ratio.to, cells)
            if to == 0:
                raise _MissingError(Verdict.INCONCLUSIVE, "the ratio's second value is 0")
            value = of / to
            low = ratio.at_least if ratio.at_least is not None else float("-inf")
            high = ratio.at_most if ratio.at_most is not None else float("inf")
            shown = f"{_show(ratio.of, of)} to {_show(ratio.to, to)} is {value:.3f}"
            return low <= value <= high, value, shown
        case Order() as order:
            values = [_value(v, cells) for v in order.values]
            holds = all(a > b * (1 + order.margin) for a, b in pairwise(values))
            return holds, values[0], _list(order.values, values)
        case Same() as same:
            values = [_value(v, cells) for v in same.values]
            middle = median(values)
            worst = max(abs(v - middle) for v in values)
            holds = worst <= same.within * abs(middle)
            return holds, middle, _list(same.values, values)
        case Monotonic() as monotonic:
            values = _along(monotonic, cells)
            signed = values if monotonic.direction == "rising" else values[::-1]
            slack = 1 - monotonic.tolerance
            holds = all(b >= a * slack for a, b in pairwise(signed))
            return holds, values[-1], _list([monotonic.value] * len(values), values)
        case _:
            assert_never(claim.expect)


LEAST_TOLERANCE = 0.02
"""Nobody asks a measurement for more: a throttle is as exact."""


def _tolerance(claim: Claim) -> float:
    """By what part a figure must be able to move, so that the claim is put to the test."""
    match claim.expect:
        case Ratio() as ratio:
            bounds = [b for b in (ratio.at_least, ratio.at_most) if b is not None and b > 0]
            tolerance = min((1 - min(b, 1 / b) for b in bounds), default=0.0)
        case Order() as order:
            tolerance = order.margin
        case Same() as same:
            tolerance = same.within
        case Monotonic() as monotonic:
            tolerance = monotonic.tolerance
        case _:
            tolerance = 0.0
    return max(tolerance, LEAST_TOLERANCE)


def _compared(claim: Claim, cells: Sequence[Judged]) -> list[tuple[Value, Judged]]:
    """The cells that a claim compares with each other, in its order."""
    if isinstance(claim.expect, Monotonic):
        along = claim.expect.along
        picked = _cells(claim.expect.value, cells)
        picked.sort(key=lambda cell: _place(cell, along))
        return [(claim.expect.value, cell) for cell in picked]
    return [(value, _cells(value, cells)[0]) for value in claim.values]


def _check_bitmaps(claim: Claim, cells: Sequence[Judged]) -> None:
    """Cells that differ in their bitmaps show no difference where neither writes one.

    Then a claim that they are alike is as little borne out as one that they differ is refuted.
    """
    tolerance = _tolerance(claim)
    for (one, left), (other, right) in pairwise(_compared(claim, cells)):
        if left.bitmap == right.bitmap:
            continue
        shares = [
            cell.bitmap_shares[value.workload]
            for value, cell in ((one, left), (other, right))
            if value.workload in cell.bitmap_shares
        ]
        if shares and max(shares) < tolerance:
            raise _MissingError(
                Verdict.INCONCLUSIVE,
                f"the cells {left.result.id} and {right.result.id} cannot show a bitmap: at most "
                f"{max(shares):.2%} of their disks' operations write it, and the claim is about "
                f"{tolerance:.0%}; a smaller array.bitmap_chunk has more bits to set",
            )


def limits(bound: Bound) -> tuple[float, float]:
    """Lowest and highest value that a bound allows."""
    if bound.near is not None:
        return bound.near * (1 - bound.within), bound.near * (1 + bound.within)
    low = bound.at_least if bound.at_least is not None else float("-inf")
    high = bound.at_most if bound.at_most is not None else float("inf")
    return low, high


def matches(where: Mapping[str, AxisValue], fields: Mapping[str, AxisValue]) -> bool:
    """Whether a cell is one that ``where`` picks; ``512KiB`` and ``524288`` are the same size."""
    return all(_equal(fields.get(name), value) for name, value in where.items())


def _equal(found: AxisValue, wanted: AxisValue) -> bool:
    if found == wanted:
        return True
    if isinstance(found, int) and not isinstance(found, bool) and isinstance(wanted, str):
        try:
            return found == parse_rate(wanted)
        except ValueError:
            return False
    return found is not None and wanted is not None and str(found) == str(wanted)


def _cells(value: Value, cells: Sequence[Judged]) -> list[Judged]:
    picked = [c for c in cells if matches(value.where, c.fields)]
    if not picked:
        where = ", ".join(f"{k}: {v}" for k, v in value.where.items())
        raise _MissingError(Verdict.NOT_TESTED, f"this run has no cell with {where}")
    if not any(c.published for c in picked):
        raise _MissingError(
            Verdict.NOT_TESTED, "--set changed the cell, so the claim does not speak of it"
        )
    return [c for c in picked if c.published]


def _value(value: Value, cells: Sequence[Judged]) -> float:
    picked = _cells(value, cells)
    if len(picked) > 1:
        ids = ", ".join(c.result.id for c in picked)
        raise _MissingError(Verdict.NOT_TESTED, f"the claim picks more than one cell: {ids}")
    return _measured(value, picked[0].result)


_DOUBTS = {UNCONTENDED: "was contended", CALIBRATED: "has disks that are not as they should be"}
"""Checks that leave a figure standing, and take its verdict away."""


def _measured(value: Value, result: CellResult) -> float:
    if result.outcome is not Outcome.DONE:
        first = result.reason.splitlines()[0] if result.reason else "no reason was kept"
        raise _MissingError(
            Verdict.INCONCLUSIVE, f"the cell {result.id} is {result.outcome.value}: {first}"
        )
    for check in result.checks:
        if check.name in _DOUBTS and not check.passed:
            doubt = _DOUBTS[check.name]
            raise _MissingError(
                Verdict.INCONCLUSIVE, f"the cell {result.id} {doubt}: {check.detail}"
            )
    for measurement in result.measurements:
        if (measurement.workload, measurement.metric) == (value.workload, value.metric):
            return measurement.median
    if any(measurement.workload == value.workload for measurement in result.measurements):
        raise _MissingError(
            Verdict.NOT_TESTED,
            f"'{value.workload}' gave no {value.metric} in the cell {result.id}: it was not asked"
            " for, or over too quickly to be measured",
        )
    raise _MissingError(Verdict.NOT_TESTED, f"there is no workload '{value.workload}' in this run")


def _along(monotonic: Monotonic, cells: Sequence[Judged]) -> list[float]:
    picked = _cells(monotonic.value, cells)
    if any(c.fields.get(monotonic.along) is None for c in picked) or len(picked) < 2:
        raise _MissingError(
            Verdict.NOT_TESTED, f"this run has no two cells along {monotonic.along}"
        )

    picked.sort(key=lambda cell: _place(cell, monotonic.along))
    return [_measured(monotonic.value, c.result) for c in picked]


def _place(cell: Judged, along: str) -> float:
    """Where a cell stands along an axis of numbers; words stay in the order of the axis."""
    at = cell.fields.get(along)
    return float(at) if isinstance(at, int | float) else 0.0


def _show(value: Value, figure: float) -> str:
    return format_rate(figure) if value.metric == "throughput" else f"{figure:.4g}"


def _list(values: Sequence[Value], figures: Sequence[float]) -> str:
    return ", ".join(_show(v, f) for v, f in zip(values, figures, strict=True))


def _percent(value: float, near: float | None) -> str:
    return f"{round((value - near) / near, 3) + 0.0:+.1%}" if near else ""  # and never -0.0%


def in_words(claim: Claim) -> str:
    """The expectation as a person reads it."""
    match claim.expect:
        case Bound() as bound:
            if bound.near is not None:
                return f"{_show(bound.value, bound.near)} ±{bound.within:.0%}"
            low, high = limits(bound)
            parts = [f"at least {_show(bound.value, low)}"] if bound.at_least is not None else []
            parts += [f"at most {_show(bound.value, high)}"] if bound.at_most is not None else []
            return " and ".join(parts)
        case Ratio() as ratio:
            parts = [f"at least {ratio.at_least:.3g}"] if ratio.at_least is not None else []
            parts += [f"at most {ratio.at_most:.3g}"] if ratio.at_most is not None else []
            return f"{ratio.of.workload} to {ratio.to.workload}: " + " and ".join(parts)
        case Order() as order:
            return f"falling in this order, by {order.margin:.0%} each"
        case Same() as same:
            return f"the same within {same.within:.0%}"
        case Monotonic() as monotonic:
            return f"{monotonic.direction} along {monotonic.along}"
        case _:
            assert_never(claim.expect)
