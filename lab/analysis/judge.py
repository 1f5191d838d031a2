"""Judges claims by measurements. Pure: any stored run can be judged again.

A claim about missing or pending cells or workloads is ``not_tested``. A claim about failed cells is
``inconclusive``: a failure of the lab is no evidence. Each comparison is an interval
(``estimate``). A claim holds if the interval lies wholly inside its limits, is refuted if it lies
wholly outside, and is inconclusive otherwise, as in two one-sided tests (Schuirmann 1987, Journal
of Pharmacokinetics and Biopharmaceutics 15:657). It is inconclusive too if the interval is unknown:
one trial without known noise decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isfinite, log
from statistics import median
from typing import Final, TypeGuard, assert_never

from lab.analysis.counted import WRITES, counts_of
from lab.analysis.estimate import Estimate, Kind, look_for, quotient
from lab.analysis.margin import MARGIN
from lab.analysis.sequential import look_after
from lab.compile.cell.metrics import COUNTS
from lab.core.statistics import Spread, pooled
from lab.core.units import apart, format_times, format_value, format_values
from lab.model.result.calibration import CALIBRATED, VIRTUAL_DRIVES
from lab.model.result.document import (
    Basis,
    CellMeasurement,
    CellResult,
    ClaimResult,
    ComparedValue,
    Outcome,
    Part,
)
from lab.model.result.measurement import (
    AT_REST,
    GUEST_CPU,
    NUMBERS,
    STEADY_STATE,
    UNCONTENDED,
    Check,
)
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
    """A value is missing; ``verdict`` is then the claim's verdict."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCell:
    """A cell's result, with the values that claims use."""

    result: CellResult
    fields: Mapping[str, AxisValue]
    """Values of the dotted names that claims use."""
    published: bool
    """Whether the cell is the published one, not changed by a ``--set``."""
    bitmap: tuple[str, ...] = ()
    """Fields that the bitmap's cost depends on; empty: there is no bitmap."""
    bitmap_shares: Mapping[str, float] = field(default_factory=dict)
    """Largest possible fraction of bitmap writes in the disks' operations, by workload; workloads
    with an unknown fraction are left out."""
    seeds: tuple[int, ...] = ()
    """Seeds of its trials in virtual time; empty in real time."""
    drawn: frozenset[str] = frozenset()
    """Names of workloads whose values depend on the seed."""
    noise: Mapping[str, Spread] = field(default_factory=dict)
    """In real time: the host's measured noise floor, by metric."""
    disks: str = ""
    """Models of its disks, as in a noise floor."""
    margins: Mapping[str, float] = field(default_factory=dict)
    """By workload: relative difference below which two values count as equal."""
    steps: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By workload and metric: relative distance of neighbouring values, if the tool has steps."""
    counted: frozenset[tuple[str, str]] = frozenset()
    """Workload and metric of its counted values."""
    units: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Unit of each value that it can have, by workload and metric."""
    kinds: Mapping[tuple[str, str], Kind] = field(default_factory=dict)
    """Spread between trials of all cells of the same kind, by workload and metric."""


def judge(claims: Sequence[Claim], cells: Sequence[JudgedCell]) -> tuple[ClaimResult, ...]:
    """Return a verdict for every claim, in order, with theory's value for each."""
    said = [_as_predicted(cell) for cell in cells]
    known = _with_kinds(cells)
    units = _units(cells)
    return tuple(
        _judge(claim, known, units).model_copy(update={"predicted": _predicted(claim, said)})
        for claim in claims
    )


Units = Mapping[tuple[str, str], str]
"""Units by workload and metric."""


def _units(cells: Sequence[JudgedCell]) -> Units:
    found: dict[tuple[str, str], str] = {}
    for cell in cells:
        found |= cell.units
        found |= {(m.workload, m.metric): m.unit for m in cell.result.measurements}
    return found


def _unit_of(value: Value, units: Units) -> str:
    counter = COUNTS.get(value.metric)
    return counter.unit if counter else units.get((value.workload, value.metric), "")


def wanted(claims: Sequence[Claim], cells: Sequence[JudgedCell]) -> dict[str, int]:
    """Return by cell the number of trials after which an undecided claim is judged again.

    An early look needs the spread of the kind of cell. It comes from the cells that get trials, and
    from other known cells.
    """
    known = _with_kinds(cells)
    open_: list[tuple[int, list[tuple[Value, JudgedCell]]]] = []
    for claim, result in zip(claims, judge(claims, cells), strict=True):
        undecided = [p for p in result.parts if p.holds is None and p.decidable]
        tries = [p.trials for p in undecided if p.basis is Basis.SEEDS]
        if result.verdict is Verdict.INCONCLUSIVE and tries and _undecided(result):
            compared = [(v, c) for v, c in _compared(claim, known) if _varies(v, c)]
            open_.append((min(tries), compared))
    found: dict[str, int] = {}
    for trials, compared in open_:
        more = []
        for value, cell in compared:
            name = (value.workload, value.metric)
            same = {
                other.result.id
                for _, others in open_
                for v, other in others
                if other.disks == cell.disks and (v.workload, v.metric) == name
            }
            kind = cell.kinds.get(name)
            freedom = max(kind.spread.freedom - len(same) * (trials - 1), 0) if kind else 0
            more.append((freedom, len(same)))
        freedom, count = min(more, default=(0, 1))
        if look := look_for(trials, count, freedom):
            for _, cell in compared:
                found[cell.result.id] = max(look, found.get(cell.result.id, 0))
    return found


def _varies(value: Value, cell: JudgedCell) -> bool:
    return bool(cell.seeds) and value.workload in cell.drawn


def _undecided(result: ClaimResult) -> bool:
    """Return whether only its comparisons leave it undecided, and no doubt about its cells."""
    return _all([part.holds for part in result.parts]) is None


def _with_kinds(cells: Sequence[JudgedCell]) -> list[JudgedCell]:
    groups: dict[tuple[str, bool, str, str], list[tuple[float, ...]]] = {}
    for cell in cells:
        if cell.result.outcome is Outcome.DONE:
            for one in cell.result.measurements:
                drawn = one.workload in cell.drawn
                if drawn and min(one.values) > 0 and not cell.result.doubts(one.workload):
                    key = (cell.disks, bool(cell.seeds), one.workload, one.metric)
                    groups.setdefault(key, []).append(tuple(map(log, one.values)))
    found = {key: Kind(spread=pooled(logs), cells=len(logs)) for key, logs in groups.items()}
    return [
        replace(
            cell,
            kinds={
                (workload, metric): kind
                for (disks, sealed, workload, metric), kind in found.items()
                if (disks, sealed) == (cell.disks, bool(cell.seeds))
            },
        )
        for cell in cells
    ]


def _as_predicted(cell: JudgedCell) -> JudgedCell:
    """Return the cell with theory's predictions as its measurements."""
    found = tuple(
        CellMeasurement(
            workload=p.workload, metric=p.metric, unit="", values=(p.value,), median=p.value
        )
        for p in cell.result.predictions
    )
    update = {"outcome": Outcome.DONE, "measurements": found, "checks": (), "counters": ()}
    return replace(
        cell, result=cell.result.model_copy(update=update), seeds=(FIRST_SEED,), drawn=frozenset()
    )


FIRST_SEED: Final = 1
"""Seed of a value without randomness: a prediction."""


def _predicted(claim: Claim, cells: Sequence[JudgedCell]) -> float | None:
    """Return the claim's value by theory; ``None``: theory does not cover all of it."""
    try:
        return _hold(claim, cells, {}).measured
    except _MissingError:
        return None


def _judge(claim: Claim, cells: Sequence[JudgedCell], units: Units) -> ClaimResult:
    published = _text_of(claim, claim.published, units)
    try:
        found = _hold(claim, cells, units)
        _one_sided(claim, cells, found.parts)
    except _MissingError as missing:
        return ClaimResult(
            id=claim.id,
            says=claim.says,
            verdict=missing.verdict,
            published=claim.published,
            expected=in_words(claim, units),
            reason=str(missing),
            shown_published=published,
        )
    holds, reason = _all([part.holds for part in found.parts]), found.said
    verdict = _VERDICTS[holds]
    if unshown := _unshown_bitmap(claim, cells):
        verdict = Verdict.INCONCLUSIVE
        reason += f"; {unshown}"
    elif holds is None:
        reason += f"; {_why_open(claim, found.parts, cells, units)}"
    elif not holds and (share := _guest_share(claim, found.measured, cells)):
        verdict = Verdict.INCONCLUSIVE
        reason += f"; the guest itself takes up to {share:.0%} of these disks' time for a request"
    elif not holds and found.margin and all(_equal(part, found.margin) for part in found.parts):
        reason += f"; no difference: less than {100 * found.margin:.3g} %"
    return ClaimResult(
        id=claim.id,
        says=claim.says,
        verdict=verdict,
        measured=found.measured,
        published=claim.published,
        expected=in_words(claim, units, found.measured),
        shown=found.shown,
        shown_published=published,
        reason=reason,
        parts=found.parts,
        values=tuple(_compared_value(*one, units) for one in _compared(claim, cells)),
    )


def _text_of(claim: Claim, number: float | None, units: Units) -> str:
    """Return a value of a claim, or ratio of values, as text; empty: there is none."""
    if number is None:
        return ""
    if isinstance(claim.expect, Ratio):
        return f"{format_times(number)} times"
    return format_value(number, _unit_of(claim.values[0], units))


def _compared_value(value: Value, cell: JudgedCell, units: Units) -> ComparedValue:
    return ComparedValue(
        workload=value.workload,
        metric=value.metric,
        disk=value.disk,
        cell=cell.result.id,
        measured=_measured(value, cell).middle,
        unit=_unit_of(value, units),
    )


_VERDICTS = {True: Verdict.HOLDS, False: Verdict.REFUTED, None: Verdict.INCONCLUSIVE}


def _equal(part: Part, margin: float) -> bool:
    """Return whether a ratio lies wholly inside the margin around 1."""
    both = {"at_least": 1 / (1 + margin), "at_most": 1 + margin}
    return part.model_copy(update=both).holds is True


def _why_open(
    claim: Claim, parts: Sequence[Part], cells: Sequence[JudgedCell], units: Units
) -> str:
    """Return why a claim is not decided, and what would decide it."""
    part = next(part for part in parts if part.holds is None)
    trials = f"{part.trials} trial{'' if part.trials == 1 else 's'}"
    if part.basis is Basis.NOISE:
        return "too close to tell: runs on this host vary by more"
    if part.basis is Basis.COUNTED:
        return f"the {trials} counted differently"
    kinds = [
        kind.cells
        for value, cell in _compared(claim, cells)
        if (kind := cell.kinds.get((value.workload, value.metric)))
    ]
    look = look_for(part.trials, min(kinds, default=1))
    if part.low is None or part.high is None:
        needed = f"{look} trials are needed"
        if part.basis is Basis.SEEDS:
            return f"seeds change the value, and {trials} ran: {needed}, as by --trials auto"
        return f"the noise of such values on this host is not known: {needed}, or --clock virtual"
    more = f"the next look is after {look} trials" if look else "no more trials are looked at"
    if not part.decidable:
        more = "no further trials can decide it, so many are on both sides"
    used = look_after(part.trials)
    bounds = [b for b in (part.at_least, part.at_most) if _is_limit(b)]
    low, high, *_ = apart([part.low, part.high, *bounds], lambda v, n: f"{v:.{4 + n}g}")
    if isinstance(claim.expect, Bound):
        unit = _unit_of(claim.expect.value, units)
        low, high, *_ = format_values([part.low, part.high, *bounds], unit)
    return f"too close to tell: after {used} trials it is between {low} and {high}; {more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Result of the comparisons of a claim."""

    parts: tuple[Part, ...]
    measured: float
    """The value to show."""
    said: str
    shown: str
    """``measured`` as text."""
    margin: float = 0.0
    """Margin of a direction; 0: the claim is about no direction."""


def _hold(claim: Claim, cells: Sequence[JudgedCell], units: Units) -> _Found:
    """Compare; return the parts with the value to show and the measured values in words."""
    match claim.expect:
        case Bound() as bound:
            value = _value(bound.value, cells)
            part = value.part(*limits(bound))
            near = bound.near if bound.within else None
            off = f", {_percent(part.measured, near, bound.within)} off" if near else ""
            shown, *_ = _bound_texts(bound, units, part.measured)
            said = f"{shown}{_off(value.part(-inf, inf))} was measured{off}"
            return _Found(parts=(part,), measured=part.measured, said=said, shown=shown)
        case Ratio() as wanted:
            of, to = _value(wanted.of, cells), _value(wanted.to, cells)
            margin = _margin(claim, cells) if 1 in (wanted.at_least, wanted.at_most) else 0.0
            low = wanted.at_least if wanted.at_least is not None else -inf
            high = wanted.at_most if wanted.at_most is not None else inf
            part = _quotient(
                of,
                to,
                low * (1 + margin) if low == 1 else low,
                high / (1 + margin) if high == 1 else high,
            )
            shown = format_times(part.measured, _more(wanted, part.measured))
            one, other = _show([wanted.of, wanted.to], [of, to], units, differ=False)
            said = f"{one} is {shown}{_off(part)} times {other}"
            return _Found(
                parts=(part,),
                measured=part.measured,
                said=said,
                shown=f"{shown} times",
                margin=margin,
            )
        case Order() as order:
            values = [_value(v, cells) for v in order.values]
            margin = 0.0 if order.margin else _margin(claim, cells)
            least = 1 + (order.margin or margin)
            parts = tuple(_quotient(a, b, least, inf) for a, b in pairwise(values))
            said = _list(order.values, values, units)
            measured = values[0].middle
            shown = _text_of(claim, measured, units)
            return _Found(parts=parts, measured=measured, said=said, shown=shown, margin=margin)
        case Same() as same:
            values = [_value(v, cells) for v in same.values]
            parts = tuple(_alike(values, same.within))
            differ = not all(part.holds for part in parts)
            said = _list(same.values, values, units, differ=differ)
            measured = median(v.middle for v in values)
            shown = _text_of(claim, measured, units)
            return _Found(parts=parts, measured=measured, said=said, shown=shown)
        case Monotonic() as monotonic:
            values = _along(monotonic, cells)
            signed = values if monotonic.direction == "rising" else values[::-1]
            slack = monotonic.tolerance or 1 - 1 / (1 + _margin(claim, cells))
            parts = tuple(_quotient(b, a, 1 - slack, inf) for a, b in pairwise(signed))
            said = _list([monotonic.value] * len(values), values, units)
            measured = values[-1].middle
            shown = _text_of(claim, measured, units)
            return _Found(parts=parts, measured=measured, said=said, shown=shown)
        case _:
            assert_never(claim.expect)


def _alike(values: Sequence[Estimate], within: float) -> list[Part]:
    """Compare each value with the middle one; two values with each other."""
    if len(values) == 2:
        return [
            _quotient(
                values[0], values[1], (1 - within) / (1 + within), (1 + within) / (1 - within)
            )
        ]
    middle = sorted(values, key=lambda v: v.middle)[(len(values) - 1) // 2]
    return [_quotient(value, middle, 1 - within, 1 + within) for value in values]


def _margin(claim: Claim, cells: Sequence[JudgedCell]) -> float:
    """Return the widest margin, or step of values, of the cells that a claim compares."""
    compared = _compared(claim, cells)
    return max(
        max(
            cell.margins.get(value.workload, MARGIN),
            cell.steps.get((value.workload, value.metric), 0.0),
        )
        for value, cell in compared
    )


def _guest_share(claim: Claim, value: float, cells: Sequence[JudgedCell]) -> float:
    """Return the guest overhead as a fraction of a modelled disk's time, if it explains a missed
    bound.

    Only for runs of earlier versions, which calibrated such disks.
    """
    if not isinstance(claim.expect, Bound):
        return 0.0
    picked = _cells(claim.expect.value, cells)
    share = max((c.guest_share for cell in picked for c in cell.result.checks), default=0.0)
    low, high = limits(claim.expect)
    too_low = value < low <= value * (1 + share)  # for a rate
    too_high = value > high >= value / (1 + share)  # for a time
    return share if too_low or too_high else 0.0


LEAST_TOLERANCE = 0.02
"""Smallest tolerance of a claim: a throttle is not more exact."""


def _tolerance(claim: Claim) -> float:
    """Return the fraction by which a value must be able to change, so that the claim is tested."""
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
    """Return the cells that a claim compares with each other, in its order."""
    if isinstance(claim.expect, Monotonic):
        value = claim.expect.value
        return [(value, cell) for cell in _placed(_cells(value, cells), claim.expect.along)]
    return [(value, _cells(value, cells)[0]) for value in claim.values]


def _unshown_bitmap(claim: Claim, cells: Sequence[JudgedCell]) -> str:
    """Return why cells with different bitmaps can show no difference: they hardly write them.

    Then neither a claim that they are equal nor a claim that they differ is tested, even with
    narrow intervals.
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
    """Return whether all hold: ``False`` if one does not, else ``None`` if one is undecided."""
    return False if False in parts else None if None in parts else True


def _quotient(first: Estimate, second: Estimate, at_least: float, at_most: float) -> Part:
    try:
        return quotient(first, second, at_least, at_most)
    except ValueError:
        raise _MissingError(
            Verdict.INCONCLUSIVE, "no ratio can be computed: one of the values is 0"
        ) from None


def limits(bound: Bound) -> tuple[float, float]:
    """Return the lowest and the highest value that a bound allows."""
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


def _value(value: Value, cells: Sequence[JudgedCell]) -> Estimate:
    picked = _cells(value, cells)
    if len(picked) > 1:
        ids = ", ".join(c.result.id for c in picked)
        raise _MissingError(Verdict.NOT_TESTED, f"the claim picks more than one cell: {ids}")
    return _measured(value, picked[0])


_DOUBTS = {
    UNCONTENDED: "was contended",
    CALIBRATED: "has disks that failed their calibration",
    VIRTUAL_DRIVES: "has modelled drives in real time",
    GUEST_CPU: "was busy itself",
    STEADY_STATE: "did not become steady",
    AT_REST: "did not begin at rest",
}
"""Text of each check in ``DOUBTS``; a failed one makes the verdict inconclusive."""


def _one_sided(claim: Claim, cells: Sequence[JudgedCell], parts: Sequence[Part]) -> None:
    """Raise ``_MissingError`` if the guest's busy CPU limited a value, and the verdict needs more
    than its safe side: with a faster CPU a rate can only be higher, and a time only shorter.

    Counts do not depend on the CPU.
    """
    higher: set[float] = set()  # measured would be higher with a faster CPU, or lower
    doubt: Check | None = None
    for place, (value, cell) in enumerate(_compared(claim, cells)):
        found = [c for c in cell.result.doubts(value.workload) if c.name == GUEST_CPU]
        if not found or (value.workload, value.metric) in cell.counted:
            continue
        doubt, id_ = found[0], cell.result.id
        sign = _GAIN.get(_unit(value, cell), 0)
        higher.add(sign if place == 0 else -sign)
    if doubt is None:
        return
    if isinstance(claim.expect, Bound | Ratio) and len(higher) == 1 and 0 not in higher:
        part, up = parts[0], higher == {1}
        far, near = (part.at_most, part.at_least) if up else (part.at_least, part.at_most)
        beyond = _is_limit(far) and (part.measured > far) == up
        safe = {
            True: not _is_limit(far),
            False: beyond,
            None: not (_is_limit(far) and _is_limit(near)),
        }
        if safe[part.holds]:
            return
    raise _doubted(id_, doubt)


_GAIN: Final = {"B/s": 1, "1/s": 1, "s": -1}
"""Whether a faster CPU makes a value of this unit higher (1) or lower (-1)."""


def _is_limit(bound: float | None) -> TypeGuard[float]:
    return bound is not None and isfinite(bound)


def _unit(value: Value, cell: JudgedCell) -> str:
    named = (value.workload, value.metric)
    units = [m.unit for m in cell.result.measurements if (m.workload, m.metric) == named]
    return units[0] if units else ""


def _doubted(id_: str, check: Check) -> _MissingError:
    whose = f"'{check.workload}' in the cell" if check.workload else "the cell"
    return _MissingError(
        Verdict.INCONCLUSIVE, f"{whose} {id_} {_DOUBTS[check.name]}: {check.detail}"
    )


def _measured(value: Value, cell: JudgedCell) -> Estimate:
    result = cell.result
    if result.pending:
        raise _MissingError(Verdict.NOT_TESTED, result.reason)
    if result.outcome is not Outcome.DONE:
        first = result.reason.splitlines()[0] if result.reason else "no reason was kept"
        raise _MissingError(
            Verdict.INCONCLUSIVE, f"the cell {result.id} is {result.outcome.value}: {first}"
        )
    for check in result.doubts(value.workload):
        if check.name != GUEST_CPU:  # _one_sided
            raise _doubted(result.id, check)
    counted = _counted(value, result)
    if counted is not None:
        return counted
    for measurement in (*result.measurements, *result.shapes):
        same = (measurement.workload, measurement.metric) == (value.workload, value.metric)
        if same and value.disk is None:
            return _estimate(measurement, cell)
    for few in result.unsupported:
        if (few.workload, few.metric) == (value.workload, value.metric):
            raise _MissingError(
                Verdict.INCONCLUSIVE,
                f"'{few.workload}' made {few.requests:,} requests in a trial of the cell"
                f" {result.id}, and {few.metric} needs {few.needed:,}: make it longer",
            )
    for check in result.checks:
        absurd = check.name == NUMBERS and check.workload == value.workload
        if absurd and check.detail.startswith(f"{value.metric} of "):
            raise _MissingError(Verdict.INCONCLUSIVE, f"in the cell {result.id} {check.detail}")
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


NEGLIGIBLE: Final = 0.001
"""Largest relative difference between seeds of a workload in which nothing is drawn. Which pages of
memory are free changes such values too: by at most 0.0002 (raid5-layouts, six seeds)."""


def _estimate(found: CellMeasurement, cell: JudgedCell) -> Estimate:
    """Return a measurement with its seeds or its noise."""
    name, values = (found.workload, found.metric), found.values
    equal = max(values) - min(values) <= NEGLIGIBLE * max(map(abs, values))
    if name in cell.counted:
        return Estimate(values=values, basis=Basis.COUNTED)
    if cell.seeds and equal and found.workload not in cell.drawn:
        return Estimate(values=values, basis=Basis.FIXED)
    kind = cell.kinds.get(name)
    if cell.seeds:
        return Estimate(values=values, basis=Basis.SEEDS, seeds=cell.seeds, kind=kind)
    if noise := cell.noise.get(found.metric):
        return Estimate(values=values, basis=Basis.NOISE, noise=noise)
    return Estimate(values=values, basis=Basis.TRIALS, kind=kind)


def _counted(value: Value, result: CellResult) -> Estimate | None:
    own = [c for c in result.counters if c.workload == value.workload]
    if value.metric == WRITES and any(
        c.with_flushes for c in own if value.disk in (None, c.serial)
    ):
        raise _MissingError(
            Verdict.INCONCLUSIVE,
            f"in the cell {result.id} the kernel counted flushes among the writes of"
            f" '{value.workload}', and nothing counted them apart: run it again",
        )
    counts = counts_of(result, value.workload, value.metric, value.disk)
    return Estimate(values=counts, basis=Basis.COUNTED) if counts else None


def _along(monotonic: Monotonic, cells: Sequence[JudgedCell]) -> list[Estimate]:
    picked = _cells(monotonic.value, cells)
    along = monotonic.along
    places = [c.fields.get(along) for c in picked]
    if None in places or len(picked) < 2:
        raise _MissingError(Verdict.NOT_TESTED, f"this run has no two cells along {along}")
    if twice := [place for place in places if places.count(place) > 1]:
        why = f"the claim picks more than one cell at {along}: {twice[0]}"
        raise _MissingError(Verdict.NOT_TESTED, why)
    return [_measured(monotonic.value, c) for c in _placed(picked, along)]


def _placed(cells: Sequence[JudgedCell], along: str) -> list[JudgedCell]:
    """Return cells in the order of an axis of numbers; other axes keep their order."""
    places = [c.fields.get(along) for c in cells]
    numbers = [float(place) for place in places if isinstance(place, int | float)]
    if len(numbers) < len(places):
        return list(cells)
    return [cell for _, cell in sorted(zip(numbers, cells, strict=True), key=lambda at: at[0])]


def _show(
    values: Sequence[Value], found: Sequence[Estimate], units: Units, *, differ: bool = True
) -> list[str]:
    """Return the values with their errors, with as many digits as ``differ``."""
    kinds = [_unit_of(value, units) for value in values]
    middles = [one.middle for one in found]
    if differ and len(set(kinds)) == 1:
        texts = format_values(middles, kinds[0])
    else:
        texts = [format_value(n, unit) for n, unit in zip(middles, kinds, strict=True)]
    return [f"{t}{_off(one.part(-inf, inf))}" for t, one in zip(texts, found, strict=True)]


def _bound_texts(bound: Bound, units: Units, *measured: float) -> list[str]:
    """Return measured values and a bound's numbers, with as many digits as differ."""
    numbers = [n for n in (bound.near, bound.at_least, bound.at_most) if n is not None]
    unit = _unit_of(bound.value, units)
    if bound.near is not None and bound.within:  # the difference in percent decides
        return [format_value(number, unit) for number in (*measured, *numbers)]
    return format_values([*measured, *numbers], unit)


def _more(ratio: Ratio, measured: float) -> int:
    """Return how many digits more than usual show on which side of its bounds a ratio is."""
    bounds = [b for b in (ratio.at_least, ratio.at_most) if b is not None]

    def shows(more: int) -> bool:
        said = float(format_times(measured, more).replace(",", ""))
        rounded = [float(_bound_text(bound, more)) for bound in bounds]
        return all(
            (said < r) == (measured < b) and (said > r) == (measured > b)
            for r, b in zip(rounded, bounds, strict=True)
        )

    return next((more for more in range(15) if shows(more)), 0)


def _bound_text(bound: float, more: int) -> str:
    return f"{bound:.{3 + more}g}"


def _off(part: Part) -> str:
    """Return the relative error of a value as text; empty: unknown."""
    if part.low is None or part.high is None or not part.measured:
        return ""
    off = max(part.high - part.measured, part.measured - part.low)
    return f" ±{off / abs(part.measured):.1%}" if off else ""


def _list(
    values: Sequence[Value], figures: Sequence[Estimate], units: Units, *, differ: bool = True
) -> str:
    said = _show(values, figures, units, differ=differ)
    return f"each {said[0]}" if len(set(said)) == 1 < len(said) else ", ".join(said)


def _percent(value: float, near: float, within: float) -> str:
    """Return a difference, with as many digits as tell it from the allowed one."""
    off = (value - near) / near
    digits = next((n for n in range(1, 12) if abs(round(off, n + 2)) != within), 1)
    if abs(off) == within:
        digits = 1
    return f"{round(off, digits + 2) + 0.0:+.{digits}%}"  # without -0.0%


def in_words(claim: Claim, units: Units, measured: float | None = None) -> str:
    """Return the expectation as a sentence; its numbers differ from what was measured as text
    too."""
    match claim.expect:
        case Bound() as bound:
            beside = () if measured is None else (measured,)
            texts = _bound_texts(bound, units, *beside)[len(beside) :]
            if bound.near is not None:
                near = texts[0]
                return f"{near} ±{100 * bound.within:.3g}%" if bound.within else f"exactly {near}"
            parts = [f"at least {texts[0]}"] if bound.at_least is not None else []
            parts += [f"at most {texts[-1]}"] if bound.at_most is not None else []
            return " and ".join(parts)
        case Ratio() as wanted:
            more = 0 if measured is None else _more(wanted, measured)
            bounds = (("at least", wanted.at_least), ("at most", wanted.at_most))
            parts = [f"{words} {_bound_text(b, more)}" for words, b in bounds if b is not None]
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
