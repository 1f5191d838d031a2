"""Compares two runs cell by cell, and separates changes from noise. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from lab.analysis.counted import figures_of
from lab.analysis.measure import counted, steps
from lab.analysis.noise import disks_of, share_of
from lab.compile.guest.suite_steps import suite_of
from lab.core.statistics import Interval, median_interval, ratio
from lab.model.result.calibration import (
    CALIBRATED,
    VIRTUAL_DRIVES,
    Calibration,
    CalibrationPoint,
    kind_of,
)
from lab.model.result.comparison import (
    CellChange,
    Change,
    Comparison,
    Difference,
    FigureChange,
    TestsCompared,
    VerdictChange,
)
from lab.model.result.document import (
    CellClock,
    CellMeasurement,
    CellResult,
    Outcome,
    Result,
    contended,
)
from lab.model.result.measurement import AT_REST, STEADY_STATE, UNCONTENDED
from lab.model.result.noise import NoiseFloor
from lab.model.scenario.document import Cell, Disk

CERTAIN: Final = 0.99
"""Confidence in all changes that one comparison reports, together."""

LEAST: Final = 0.05
"""Default of the smallest change that matters, as a fraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs."""

    result: Result
    cells: Mapping[str, Cell]
    noise: Sequence[NoiseFloor]
    calibrations: Sequence[Calibration] = ()


def compare(first: Side, second: Side, least: float = LEAST) -> Comparison:
    """Return the differences between two runs; ``least`` is the smallest change that matters.

    Cells are paired by id; if the ids differ, by axes. Cells that have not run yet in a running run
    are left out, with the claims about them.
    """
    every = pairs_of(first.result, second.result)
    pairs = [pair for pair in every if not any(cell.pending for cell in pair)]
    paired = {a.id for a, _ in every}, {b.id for _, b in every}
    level = each(CERTAIN, sum(len(_workloads(a, b) - _contended(a, b)) for a, b in pairs))
    return Comparison(
        first=first.result.run,
        second=second.result.run,
        level=CERTAIN,
        least=least,
        environment=tuple(differences(_facts(first.result), _facts(second.result))),
        cells=tuple(_cell(first, second, pair, level, least) for pair in pairs),
        only_first=tuple(
            c.id for c in first.result.cells if c.id not in paired[0] and not c.pending
        ),
        only_second=tuple(
            c.id for c in second.result.cells if c.id not in paired[1] and not c.pending
        ),
        claims=tuple(_claims(first.result, second.result)),
        tests=_tests(first, second),
    )


def _suites(cell: Cell) -> set[str]:
    """Return workloads that are suites: their tests are compared, not the numbers of tests."""
    return {workload.name for workload in cell.workloads if suite_of(workload) is not None}


def _tests(first: Side, second: Side) -> TestsCompared | None:
    """Return which tests of suites are in both runs, and in one alone; ``None``: there are none."""
    ids = []
    for side in (first, second):
        names = tuple(f"{n}." for n in sorted({n for c in side.cells.values() for n in _suites(c)}))
        ids.append([c.id for c in side.result.claims if names and c.id.startswith(names)])
    before, after = ids
    if not before and not after:
        return None
    return TestsCompared(
        both=tuple(one for one in before if one in after),
        only_first=tuple(one for one in before if one not in after),
        only_second=tuple(one for one in after if one not in before),
    )


def each(level: float, count: int) -> float:
    """Return the level of each of ``count`` statements that together hold at ``level``
    (Bonferroni).

    Dunn 1961, "Multiple comparisons among means", Journal of the American Statistical Association
    56:52. The values of one workload depend on each other, and count once.
    """
    return 1 - (1 - level) / max(count, 1)


def _workloads(first: CellResult, second: CellResult) -> set[str]:
    return {m.workload for m in first.measurements} & {m.workload for m in second.measurements}


def _contended(*cells: CellResult) -> set[str]:
    """Return workloads that were contended in one of these cells: their values show no change."""
    return {m.workload for c in cells for m in c.measurements if contended(c.checks, m.workload)}


def pairs_of(first: Result, second: Result) -> list[tuple[CellResult, CellResult]]:
    """Return the cells that two runs have in common: by id, else by axes."""
    here = {cell.id: cell for cell in second.cells}
    same = [(cell, here[cell.id]) for cell in first.cells if cell.id in here]
    taken = {a.id for a, _ in same}
    by_axes = {_axes(c): c for c in second.cells if c.id not in taken}
    alike = {
        a.id: (a, by_axes[_axes(a)])
        for a in first.cells
        if a.id not in taken and _axes(a) in by_axes
    }
    found = {a.id: (a, b) for a, b in same} | alike
    return [found[cell.id] for cell in first.cells if cell.id in found]


def _axes(cell: CellResult) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in cell.axes.items()))


def _cell(
    first: Side,
    second: Side,
    pair: tuple[CellResult, CellResult],
    level: float,
    least: float,
) -> CellChange:
    a, b = pair
    cell_a, cell_b = first.cells[a.id], second.cells[b.id]
    there = {(m.workload, m.metric): m for m in figures_of(b)}
    counts = counted(cell_a)
    figures, left_out = [], _contended(a, b) | _suites(cell_a)
    for one in figures_of(a):
        other = there.get((one.workload, one.metric))
        if other is None or one.workload in left_out:
            continue
        if (one.workload, one.metric) in counts:
            figures.append(count_change(one, other, least))
            continue
        noise = [
            share_of(side.noise, disks_of(cell), one.metric, level)
            for side, cell in ((first, cell_a), (second, cell_b))
        ]
        found = figure_change(
            one,
            other,
            noise=(noise[0], noise[1]),
            level=level,
            least=least,
            step=steps(cell_a).get((one.workload, one.metric), 0.0),
        )
        figures += [found] if found else []
    timed = [f for f in figures if f.unit in TIMED]
    return CellChange(
        fidelity=_fidelity(timed) if _real(cell_a) is not _real(cell_b) else None,
        first=a.id,
        second=b.id,
        axes=a.axes,
        differs=tuple(differences(_flat(cell_a), _flat(cell_b))) if a.id != b.id else (),
        doubts=(
            *_doubts("first", a),
            *_doubts("second", b),
            *_unsupported("first", a, b),
            *_unsupported("second", b, a),
            *_apart(first, second, pair),
        ),
        figures=tuple(figures),
    )


def _real(cell: Cell) -> bool:
    return any(disk.device for disk in cell.disks)


def _fidelity(figures: Sequence[FigureChange]) -> float | None:
    shares = [min(f.first, f.second) / max(f.first, f.second) for f in figures]
    return median(shares) if shares else None


TIMED: Final = ("B/s", "1/s", "s")
"""Units of values that depend on a clock."""


def figure_change(
    first: CellMeasurement,
    second: CellMeasurement,
    *,
    noise: tuple[float, float],
    level: float = CERTAIN,
    least: float = LEAST,
    step: float = 0.0,
) -> FigureChange | None:
    """Return how a value changed; ``None`` if one of both is 0, so that there is no ratio.

    ``noise``: relative error of each run's value at that level; 0: unknown. If it is unknown, a
    time or a rate with one measurement never counts as changed. ``step``: relative distance of
    values that the tool can report; a smaller change does not count.
    """
    if min(*first.values, *second.values) <= 0:
        return None
    before = median_interval(first.values, level).widened(noise[0])
    after = median_interval(second.values, level).widened(noise[1])
    quotient = ratio(after, before)
    verdict = _verdict(quotient, least, step)
    pairs = zip((first, second), noise, strict=True)
    unknown = first.unit in TIMED and any(len(m.values) == 1 and not share for m, share in pairs)
    if unknown and verdict is Change.CHANGED:
        verdict = Change.UNCLEAR
    return FigureChange(
        workload=first.workload,
        metric=first.metric,
        unit=first.unit,
        first=before.middle,
        second=after.middle,
        change=quotient.middle - 1,
        low=None if unknown else quotient.low - 1,
        high=None if unknown else quotient.high - 1,
        verdict=verdict,
    )


def count_change(
    first: CellMeasurement, second: CellMeasurement, least: float = 0.0
) -> FigureChange:
    """Return how a count changed: one trial is exact, several are a range.

    ``least``: relative difference below which it is the same.
    """
    low, high = (min(second.values), max(first.values)), (max(second.values), min(first.values))
    apart = low[0] > low[1] or high[0] < high[1]
    bounds = (_share(*low), _share(*high))
    same = all(share is not None and abs(share) <= least for share in bounds)
    return FigureChange(
        workload=first.workload,
        metric=first.metric,
        unit=first.unit,
        first=first.median,
        second=second.median,
        change=_share(second.median, first.median),
        low=bounds[0],
        high=bounds[1],
        verdict=Change.SAME if same else Change.CHANGED if apart else Change.UNCLEAR,
    )


def _share(after: float, before: float) -> float | None:
    if after == before:
        return 0.0
    return after / before - 1 if before else None


def _verdict(quotient: Interval, least: float, step: float) -> Change:
    if quotient.low > 1 + step or quotient.high < 1 / (1 + step):
        return Change.CHANGED
    return Change.SAME if quotient.within(1 - least, 1 + least) else Change.UNCLEAR


def _doubts(which: str, cell: CellResult) -> Iterator[str]:
    if cell.outcome is not Outcome.DONE:
        why = cell.reason.partition("\n")[0] or "no reason was kept"
        yield f"in the {which} run it is {cell.outcome.value}: {why}"
    for check in cell.checks:
        if check.name == UNCONTENDED and not check.passed:
            what = f"'{check.workload}'" if check.workload else "it"
            yield f"{what} was contended in the {which} run and is left out: {check.detail}"
        if check.name == CALIBRATED and not check.passed:
            yield f"in the {which} run it is not {check.name}: {check.detail}"
        if check.name == VIRTUAL_DRIVES and not check.passed:
            yield f"in the {which} run it has modelled drives in real time: {check.detail}"
        if check.name == STEADY_STATE and not check.passed:
            yield f"'{check.workload}' is not steady in the {which} run: {check.detail}"
        if check.name == AT_REST and not check.passed:
            yield f"in the {which} run {check.detail}"


def _unsupported(which: str, cell: CellResult, other: CellResult) -> Iterator[str]:
    """Yield percentiles that only the other run has requests for."""
    there = {(m.workload, m.metric) for m in other.measurements}
    for one in cell.unsupported:
        if (one.workload, one.metric) in there:
            yield (
                f"'{one.workload}' made {one.requests:,} requests in the {which} run, and"
                f" {one.metric} needs {one.needed:,}: it is not compared"
            )


def _apart(first: Side, second: Side, pair: tuple[CellResult, CellResult]) -> Iterator[str]:
    """Return why values of two hosts are not comparable: one has not calibrated the bare disks, or
    the calibrations differ by more than their tolerance. Sealed cells' disks do not depend on the
    host."""
    a, b = pair
    if a.clock is CellClock.SEALED and b.clock is CellClock.SEALED:
        return
    if a.host == b.host or not (a.host and b.host):
        return
    where = f"it ran on {a.host} and then on {b.host}"
    for disk in first.cells[a.id].disks:
        found = {
            a.host: _calibration(first, disk, a.host),
            b.host: _calibration(second, disk, b.host),
        }
        missing = [host for host, known in found.items() if known is None]
        if missing:
            yield (
                f"{where}, and on {' and '.join(missing)} its disks were not calibrated: calibrate "
                "first, by running it there again"
            )
            return
        for point, other in _points(found[a.host], found[b.host]):
            off = other.measured / point.measured - 1
            if abs(off) > max(point.tolerance, other.tolerance):
                yield f"{where}, whose bare disks differ: {point.name} by {off:+.1%}"


def _calibration(side: Side, disk: Disk, host: str) -> Calibration | None:
    """Return the bare disk's calibration on the host of the cell; ``None``: there is none."""
    for found in side.calibrations:
        if found.disk == kind_of(disk) and found.host in ("", host) and not found.problem:
            return found
    return None


def _points(
    first: Calibration | None, second: Calibration | None
) -> Iterator[tuple[CalibrationPoint, CalibrationPoint]]:
    """Yield the points that both calibrations have."""
    there = {(p.name, p.metric): p for p in second.points} if second else {}
    for point in first.points if first else ():
        other = there.get((point.name, point.metric))
        if other is not None and point.measured:
            yield point, other


def _facts(result: Result) -> dict[str, Any]:
    """Return facts of a run's environment, without its calibrations and noise."""
    own = {k: v for k, v in result.environment.items() if k not in ("calibrations", "noise")}
    return dict(_leaves("", own))


def _flat(cell: Cell) -> dict[str, Any]:
    return dict(_leaves("", cell.model_dump(mode="json", exclude={"axes"})))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every value by its dotted name; items of a list by their name or number."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}" if name else key, inner)
    elif isinstance(value, list | tuple) and any(isinstance(v, dict) for v in value):
        for number, inner in enumerate(value):
            own = inner.get("name", number) if isinstance(inner, dict) else number
            yield from _leaves(f"{name}.{own}" if len(value) > 1 else name, inner)
    else:
        yield name, value


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield names whose values differ; ``None`` stands for a missing value."""
    for name in dict.fromkeys((*first, *second)):
        if first.get(name) != second.get(name):
            yield Difference(name=name, first=first.get(name), second=second.get(name))


def _claims(first: Result, second: Result) -> Iterator[VerdictChange]:
    there = {claim.id: claim.verdict for claim in second.claims if not claim.pending}
    for claim in first.claims:
        if claim.pending:
            continue
        if claim.id in there and there[claim.id] is not claim.verdict:
            yield VerdictChange(id=claim.id, first=claim.verdict, second=there[claim.id])
