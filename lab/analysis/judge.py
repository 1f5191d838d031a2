"""Claims against measurements: pure, re-runnable on any stored run.

A claim about cells or workloads that are not there, or not yet, is ``not_tested``; one whose cells
failed is ``inconclusive``: that the lab could not find out is no evidence against anybody. Each
figure is an interval: the median's, with the host's noise. What lies wholly inside an expectation
holds, what lies wholly outside is refuted, and what does neither is inconclusive, as of two
one-sided tests (Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15:657).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import assert_never

from lab.core.statistics import Interval, ratio
from lab.core.units import format_figure, format_times
from lab.model.result.calibration import CALIBRATED, VIRTUAL_DRIVES
from lab.model.result.document import CellMeasurement, CellResult, ClaimResult, Outcome
from lab.model.result.measurement import COUNTERS, GUEST_CPU, UNCONTENDED
from lab.model.scenario.claim import (
    Bound,
    Claim,
    Monotonic,
    Order,
    Ratio,
    Same,
    Value,
    Verdict,
    matches,
)
from lab.model.scenario.document import AxisValue


class _MissingError(Exception):
    """A value is not there; ``verdict`` says what that makes of the claim."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCell:
    """A cell's result, with what a claim may ask of it."""

    result: CellResult
    fields: Mapping[str, AxisValue]
    """Values of the dotted names that claims use."""
    published: bool
    """Whether the cell is the one that was published, not changed by a ``--set``."""
    bitmap: tuple[str, ...] = ()
    """What its bitmap's cost hangs on; empty without one."""
    bitmap_shares: Mapping[str, float] = field(default_factory=dict)
    """Workload to the part of the disks' operations that can be writes of the bitmap, at most;
    without those of which that says nothing."""


def judge(claims: Sequence[Claim], cells: Sequence[JudgedCell]) -> tuple[ClaimResult, ...]:
    """A verdict for every claim, in order, and what theory would have it be."""
    said = [_as_predicted(cell) for cell in cells]
    return tuple(
        _judge(claim, cells).model_copy(update={"predicted": _predicted(claim, said)})
        for claim in claims
    )


def _as_predicted(cell: JudgedCell) -> JudgedCell:
    """The cell as it would be if it had given exactly what theory expects."""
    found = tuple(
        CellMeasurement(
            workload=p.workload, metric=p.metric, unit="", values=(p.value,), median=p.value
        )
        for p in cell.result.predictions
    )
    update = {"outcome": Outcome.DONE, "measurements": found, "checks": (), "counters": ()}
    return replace(cell, result=cell.result.model_copy(update=update))


def _predicted(claim: Claim, cells: Sequence[JudgedCell]) -> float | None:
    """The figure of the claim by theory; ``None`` where theory is silent on a part of it."""
    try:
        return _hold(claim, cells)[1]
    except _MissingError:
        return None


def _judge(claim: Claim, cells: Sequence[JudgedCell]) -> ClaimResult:
    expected = in_words(claim)
    try:
        holds, measured, reason = _hold(claim, cells)
    except _MissingError as missing:
        return ClaimResult(
            id=claim.id,
            says=claim.says,
            verdict=missing.verdict,
            published=claim.published,
            expected=expected,
            reason=str(missing),
        )
    verdict = _VERDICTS[holds]
    if unshown := _unshown_bitmap(claim, cells):
        verdict = Verdict.INCONCLUSIVE
        reason += f"; {unshown}"
    elif holds is None:
        reason += f"; {_UNDECIDED}"
    elif not holds and (share := _guest_share(claim, measured, cells)):
        verdict = Verdict.INCONCLUSIVE
        reason += f"; the guest itself takes up to {share:.0%} of these disks' time for a request"
    return ClaimResult(
        id=claim.id,
        says=claim.says,
        verdict=verdict,
        measured=measured,
        published=claim.published,
        expected=expected,
        reason=reason,
    )


_VERDICTS = {True: Verdict.HOLDS, False: Verdict.REFUTED, None: Verdict.INCONCLUSIVE}
_UNDECIDED = "too close to tell: trials and runs on this host vary by more"


def _hold(claim: Claim, cells: Sequence[JudgedCell]) -> tuple[bool | None, float, str]:
    """Whether it holds (``None``: too close to tell), the figure to show, and why."""
    match claim.expect:
        case Bound() as bound:
            value = _value(bound.value, cells)
            near = bound.near if bound.within else None
            off = f", {_percent(value.middle, near)} off" if near else ""
            said = f"{_show(bound.value, value)} was measured{off}"
            return value.within(*limits(bound)), value.middle, said
        case Ratio() as wanted:
            of, to = _value(wanted.of, cells), _value(wanted.to, cells)
            value = _quotient(of, to)
            low = wanted.at_least if wanted.at_least is not None else float("-inf")
            high = wanted.at_most if wanted.at_most is not None else float("inf")
            times = f"{format_times(value.middle)}{_scatter(value)}"
            shown = f"{_show(wanted.of, of)} is {times} times {_show(wanted.to, to)}"
            return value.within(low, high), value.middle, shown
        case Order() as order:
            values = [_value(v, cells) for v in order.values]
            least = 1 + order.margin
            steps = [_quotient(a, b) for a, b in pairwise(values)]
            holds = _all([None if s.low <= least < s.high else s.low > least for s in steps])
            return holds, values[0].middle, _list(order.values, values)
        case Same() as same:
            values = [_value(v, cells) for v in same.values]
            middle = median(v.middle for v in values)
            slack = same.within * abs(middle)
            holds = _all([v.within(middle - slack, middle + slack) for v in values])
            return holds, middle, _list(same.values, values)
        case Monotonic() as monotonic:
            values = _along(monotonic, cells)
            signed = values if monotonic.direction == "rising" else values[::-1]
            least = 1 - monotonic.tolerance
            steps = [_quotient(b, a) for a, b in pairwise(signed)]
            holds = _all([s.within(least, float("inf")) for s in steps])
            return holds, values[-1].middle, _list([monotonic.value] * len(values), values)
        case _:
            assert_never(claim.expect)


def _guest_share(claim: Claim, value: float, cells: Sequence[JudgedCell]) -> float:
    """The guest's part of a modelled disk's time, where a bound is missed by no more.

    Of runs of earlier versions, which calibrated such disks.
    """
    if not isinstance(claim.expect, Bound):
        return 0.0
    picked = _cells(claim.expect.value, cells)
    share = max((c.guest_share for cell in picked for c in cell.result.checks), default=0.0)
    low, high = limits(claim.expect)
    too_low = value < low <= value * (1 + share)  # a rate
    too_high = value > high >= value / (1 + share)  # a time
    return share if too_low or too_high else 0.0


LEAST_TOLERANCE = 0.02
"""Nobody asks a measurement for more: a throttle is as exact."""


def _tolerance(claim: Claim) -> float:
    """By what part a figure must be able to move, so that the claim is put to the test."""
    match claim.expect:
        case Ratio() as wanted:
            bounds = [b for b in (wanted.at_least, wanted.at_most) if b is not None and b > 0]
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


def _compared(claim: Claim, cells: Sequence[JudgedCell]) -> list[tuple[Value, JudgedCell]]:
    """The cells that a claim compares with each other, in its order."""
    if isinstance(claim.expect, Monotonic):
        value = claim.expect.value
        return [(value, cell) for cell in _placed(_cells(value, cells), claim.expect.along)]
    return [(value, _cells(value, cells)[0]) for value in claim.values]


def _unshown_bitmap(claim: Claim, cells: Sequence[JudgedCell]) -> str:
    """Why cells that differ in their bitmaps can show no difference: neither writes one.

    Then a claim that they are alike is as little borne out as one that they differ is refuted,
    however narrow the figures' intervals are.
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
            return (
                f"the cells {left.result.id} and {right.result.id} cannot show a bitmap: at most "
                f"{max(shares):.2%} of their disks' operations write it, and the claim is about "
                f"{tolerance:.0%}; a smaller array.bitmap_chunk has more bits to set"
            )
    return ""


def _all(parts: Sequence[bool | None]) -> bool | None:
    """Whether all hold; one that does not decides, and else one that nobody can tell."""
    return False if False in parts else None if None in parts else True


def _quotient(first: Interval, second: Interval) -> Interval:
    if first.middle <= 0 or second.middle <= 0:
        raise _MissingError(
            Verdict.INCONCLUSIVE, "no ratio can be computed: one of the values is 0"
        )
    return ratio(first, second)


def limits(bound: Bound) -> tuple[float, float]:
    """Lowest and highest value that a bound allows."""
    if bound.near is not None:
        return bound.near * (1 - bound.within), bound.near * (1 + bound.within)
    low = bound.at_least if bound.at_least is not None else float("-inf")
    high = bound.at_most if bound.at_most is not None else float("inf")
    return low, high


def _cells(value: Value, cells: Sequence[JudgedCell]) -> list[JudgedCell]:
    picked = [c for c in cells if matches(value.where, c.fields)]
    if not picked:
        said = (f"{k}: {'default' if v is None else v}" for k, v in value.where.items())
        where = ", ".join(said)
        raise _MissingError(Verdict.NOT_TESTED, f"this run has no cell with {where}")
    if not any(c.published for c in picked):
        raise _MissingError(
            Verdict.NOT_TESTED, "--set changed the cell, so the claim does not speak of it"
        )
    return [c for c in picked if c.published]


def _value(value: Value, cells: Sequence[JudgedCell]) -> Interval:
    picked = _cells(value, cells)
    if len(picked) > 1:
        ids = ", ".join(c.result.id for c in picked)
        raise _MissingError(Verdict.NOT_TESTED, f"the claim picks more than one cell: {ids}")
    return _measured(value, picked[0].result)


_DOUBTS = {
    UNCONTENDED: "was contended",
    CALIBRATED: "has disks that failed their calibration",
    VIRTUAL_DRIVES: "has modelled drives in real time",
    GUEST_CPU: "was busy itself",
}
"""``DOUBTS`` in words: these checks take a value's verdict away."""


def _measured(value: Value, result: CellResult) -> Interval:
    if result.pending:
        raise _MissingError(Verdict.NOT_TESTED, result.reason)
    if result.outcome is not Outcome.DONE:
        first = result.reason.splitlines()[0] if result.reason else "no reason was kept"
        raise _MissingError(
            Verdict.INCONCLUSIVE, f"the cell {result.id} is {result.outcome.value}: {first}"
        )
    for check in result.doubts(value.workload):
        whose = f"'{check.workload}' in the cell" if check.workload else "the cell"
        raise _MissingError(
            Verdict.INCONCLUSIVE, f"{whose} {result.id} {_DOUBTS[check.name]}: {check.detail}"
        )
    counted = _counted(value, result)
    if counted is not None:
        return counted
    for measurement in result.measurements:
        same = (measurement.workload, measurement.metric) == (value.workload, value.metric)
        if same and value.disk is None:
            return measurement.interval
    if any(measurement.workload == value.workload for measurement in result.measurements):
        raise _MissingError(
            Verdict.NOT_TESTED,
            f"'{value.workload}' gave no {value.metric} in the cell {result.id}: it was not"
            " requested, or the workload was too short to measure it",
        )
    raise _MissingError(
        Verdict.NOT_TESTED,
        f"'{value.workload}' has no values in the cell {result.id}: there is no such workload, or a"
        " fault ended it",
    )


_FIELDS = {m.name: m.name.removeprefix("disk_") for m in COUNTERS}
"""Counted metric to the field of ``MemberCounters`` that it adds up."""


def _counted(value: Value, result: CellResult) -> Interval | None:
    """The disks' own counters, of one or of all; the median of the trials."""
    field = _FIELDS.get(value.metric)
    sums: dict[int, int] = {}
    for each in result.counters:
        if field and each.workload == value.workload and value.disk in (None, each.serial):
            sums[each.trial] = sums.get(each.trial, 0) + getattr(each, field)
    if not sums:
        return None
    middle = float(median(sums.values()))
    return Interval(middle=middle, low=middle, high=middle)


def _along(monotonic: Monotonic, cells: Sequence[JudgedCell]) -> list[Interval]:
    picked = _cells(monotonic.value, cells)
    along = monotonic.along
    places = [c.fields.get(along) for c in picked]
    if None in places or len(picked) < 2:
        raise _MissingError(Verdict.NOT_TESTED, f"this run has no two cells along {along}")
    if twice := [place for place in places if places.count(place) > 1]:
        why = f"the claim picks more than one cell at {along}: {twice[0]}"
        raise _MissingError(Verdict.NOT_TESTED, why)
    return [_measured(monotonic.value, c.result) for c in _placed(picked, along)]


def _placed(cells: Sequence[JudgedCell], along: str) -> list[JudgedCell]:
    """In the order of an axis of numbers; words stay in the order of the axis."""
    places = [c.fields.get(along) for c in cells]
    numbers = [float(place) for place in places if isinstance(place, int | float)]
    if len(numbers) < len(places):
        return list(cells)
    return [cell for _, cell in sorted(zip(numbers, cells, strict=True), key=lambda at: at[0])]


def _show(value: Value, figure: Interval) -> str:
    return f"{format_figure(value.metric, figure.middle)}{_scatter(figure)}"


def _scatter(figure: Interval) -> str:
    """How far it may be off; nothing where nobody knows."""
    off = max(figure.high - figure.middle, figure.middle - figure.low)
    return f" ±{off / abs(figure.middle):.1%}" if off and figure.middle else ""


def _exact(value: Value, figure: float) -> str:
    return _show(value, Interval(middle=figure, low=figure, high=figure))


def _list(values: Sequence[Value], figures: Sequence[Interval]) -> str:
    said = [_show(v, f) for v, f in zip(values, figures, strict=True)]
    return f"each {said[0]}" if len(set(said)) == 1 < len(said) else ", ".join(said)


def _percent(value: float, near: float) -> str:
    return f"{round((value - near) / near, 3) + 0.0:+.1%}"  # and never -0.0%


def in_words(claim: Claim) -> str:
    """The expectation as a person reads it."""
    match claim.expect:
        case Bound() as bound:
            if bound.near is not None:
                slack = f" ±{100 * bound.within:.3g}%" if bound.within else ""
                return f"{_exact(bound.value, bound.near)}{slack}"
            low, high = limits(bound)
            parts = [f"at least {_exact(bound.value, low)}"] if bound.at_least is not None else []
            parts += [f"at most {_exact(bound.value, high)}"] if bound.at_most is not None else []
            return " and ".join(parts)
        case Ratio() as wanted:
            parts = [f"at least {wanted.at_least:.3g}"] if wanted.at_least is not None else []
            parts += [f"at most {wanted.at_most:.3g}"] if wanted.at_most is not None else []
            said = f"{' and '.join(parts)} times"
            one, other = wanted.of.workload, wanted.to.workload
            return said if one == other else f"{one} {said} {other}"
        case Order() as order:
            each = f", by {100 * order.margin:.3g}% each" if order.margin else ""
            return f"falling in this order{each}"
        case Same() as same:
            return f"the same within {same.within:.0%}"
        case Monotonic() as monotonic:
            return f"{monotonic.direction} along {monotonic.along}"
        case _:
            assert_never(claim.expect)
