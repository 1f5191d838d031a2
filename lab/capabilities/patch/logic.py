"""Compares a scenario's runs without and with a patch series: a verdict for each check. Pure.

A sealed cell's values do not depend on the host, so a value counts as changed if its medians differ
by more than the margin, and all trials of one side are above all of the other. Other code boots
with other pages of memory free, which changes some values by a sixth; seeds of further trials
decide which are free (``stir`` in ``compile/guest/program.py``). Of trials that come from one
distribution, six and six are apart with a probability of 1 in 462: it is 2 / C(12, 6) [Wilcoxon
1945, "Individual comparisons by ranking methods", Biometrics Bulletin 1:80]. In real time a value
must differ by more than noise too, as in ``lab results compare``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from lab.analysis.compare import CERTAIN, Side, each, figure_change, pairs_of
from lab.analysis.counted import figures_of
from lab.analysis.noise import disks_of, share_of
from lab.capabilities.matrix.logic.entries import Expected
from lab.capabilities.matrix.logic.known_failures import entries_for
from lab.capabilities.matrix.model import JobRecord
from lab.capabilities.patch.model import Effect, PatchRow
from lab.compile.cell.metrics import COUNTS, metrics_of
from lab.core.units import as_yaml
from lab.model.result.comparison import Change
from lab.model.result.document import (
    CellClock,
    CellMeasurement,
    CellResult,
    ClaimResult,
    Outcome,
    contended,
)
from lab.model.result.measurement import Metric, MetricKind
from lab.model.scenario.claim import Verdict

MARGIN: Final = 0.05
"""Default margin. Other code at other places moves a value a little; how far was not measured."""
FEW: Final = 2
"""Difference of a count that does not matter, per disk: md's timer for a clean array
(``safe_mode_delay``) may write the superblocks once more, two requests on each disk."""
SHORT: Final = 0.05
"""Shortest time, in seconds, of a workload whose rates are compared: fio counts milliseconds. Times
of faults must differ by more, since they come from the kernel's log and from waiting."""
CROSSED: Final = 0.01
"""Largest relative difference of a value at which a changed verdict only crosses a limit."""
DIFFERENT: Final = (Effect.WORSE, Effect.BROKEN, Effect.BETTER)
"""Verdicts of a test that runs again."""
_SHORTER: Final = "a shorter resync may leave out blocks that need it"
DOUBTED: Final = {
    "disk_flushes": "fewer flushes may lose data in a power cut",
    "read_bytes": _SHORTER,
    "sync_seconds": _SHORTER,
}
"""Metrics that are never better for being less, and why."""
_TAILS: Final = "clat_"
"""Percentiles and maxima of few requests change with each instruction: they are not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """One scenario's runs; a side is ``None`` if its job did not run."""

    job: JobRecord
    """The job on the image that the user chose."""
    image: str
    """The patched image."""
    base: Side | None
    patched: Side | None
    overrides: tuple[str, ...] = ()
    """Values of ``--set`` of both, without the image."""
    path: str = ""
    """The scenario's file, if it is none of those that have a name."""


def rows(
    sides: Sides, *, margin: float, expected: Sequence[Expected] = (), today: date
) -> tuple[PatchRow, ...]:
    """Return a row for each cell, each changed value, and each claim with a verdict on a side."""
    if sides.base is None or sides.patched is None:
        return ()
    base, patched = sides.base, sides.patched
    pairs = pairs_of(base.result, patched.result)
    level = each(CERTAIN, sum(len(a.measurements) for a, _ in pairs))
    found = [row for pair in pairs for row in _cell(sides, base, patched, pair, margin, level)]
    there = {claim.id: claim for claim in patched.result.claims}
    for claim in base.result.claims:
        other = there.get(claim.id)
        if other is None:
            continue
        row = _claim(sides, claim, other)
        if row.verdict in (Effect.WORSE, Effect.BROKEN):
            known = entries_for(sides.job, patched.result, claim.id, expected)
            valid = [entry for entry in known if today <= entry.until]
            if valid:
                reason = f"a known failure: {valid[0].reason}"
                row = row.model_copy(update={"verdict": Effect.INCONCLUSIVE, "reason": reason})
        found.append(row)
    return tuple(found)


def confirmed(row: PatchRow, again: PatchRow | None) -> PatchRow:
    """Return the row of a test; inconclusive if the test did not differ so when it ran again."""
    bad = (Effect.WORSE, Effect.BROKEN)
    if row.verdict not in DIFFERENT or again is None or again.verdict is row.verdict:
        return row
    if row.verdict in bad and again.verdict in bad:
        return row
    reason = f"when it ran again: {again.base}, and with the series {again.patched}"
    return row.model_copy(update={"verdict": Effect.INCONCLUSIVE, "reason": reason})


def differing(sides: Sides, *, margin: float) -> frozenset[str]:
    """Return the ids of sealed cells, on both sides, in which a value or a claim's verdict differs.

    A cell that is broken on a side is not among them.
    """
    if sides.base is None or sides.patched is None:
        return frozenset()
    base, patched = sides.base, sides.patched
    pairs = [
        (a, b)
        for a, b in pairs_of(base.result, patched.result)
        if a.outcome is b.outcome is Outcome.DONE and a.clock is b.clock is CellClock.SEALED
    ]
    there = {claim.id: claim for claim in patched.result.claims}
    compared = {
        value.cell
        for claim in base.result.claims
        if (other := there.get(claim.id)) and _verdicts(claim, other)[0] is not Effect.SAME
        for value in (*claim.values, *other.values)
    }
    return frozenset(
        name
        for a, b in pairs
        if {a.id, b.id} & compared
        or any(
            row.verdict is not Effect.SAME
            for row in _cell(sides, base, patched, (a, b), margin, CERTAIN)
        )
        for name in (a.id, b.id)
    )


def _cell(
    sides: Sides,
    base: Side,
    patched: Side,
    pair: tuple[CellResult, CellResult],
    margin: float,
    level: float,
) -> Iterator[PatchRow]:
    """Yield a row for the cell, and one for each value that changed."""
    a, b = pair
    name = cell_name(b)
    command = command_of(sides, b)

    def row(check: str, texts: tuple[str, str], effect: Effect, **more: str) -> PatchRow:
        return PatchRow(
            scenario=sides.job.scenario,
            check=f"{name}{check}",
            base=texts[0],
            patched=texts[1],
            verdict=effect,
            command="" if effect is Effect.SAME else command,
            **more,
        )

    done = (a.outcome is Outcome.DONE, b.outcome is Outcome.DONE)
    if not all(done):
        effect = {
            (True, False): Effect.BROKEN,
            (False, True): Effect.BETTER,
            (False, False): Effect.SAME if _why(a) == _why(b) else Effect.INCONCLUSIVE,
        }[done]
        yield row("", (_ended(a), _ended(b)), effect, reason=_why(b) or _why(a))
        return
    if a.digest and b.digest and a.digest.results == b.digest.results:
        yield row("", ("done", "done"), Effect.SAME, difference="identical")
        return
    changed, largest, where = [], 0.0, ""
    known = metrics_of(patched.cells[b.id])
    there = {(m.workload, m.metric): m for m in figures_of(b)}
    brief = _brief(a) | _brief(b)
    for one in figures_of(a):
        other = there.get((one.workload, one.metric))
        if other is None or _TAILS in one.metric:
            continue
        if _too_short(one, other, brief):
            continue
        if contended(a.checks, one.workload) or contended(b.checks, one.workload):
            continue
        found, effect = _value(
            one, other, known.get((one.workload, one.metric)), (base, patched, a, b), margin, level
        )
        if effect is not Effect.SAME:
            reason = ""
            if effect is Effect.BETTER and one.metric in DOUBTED:
                effect, reason = Effect.INCONCLUSIVE, DOUBTED[one.metric]
            about, texts = f": {one.workload}: {one.metric}", (_number(one), _number(other))
            share = _share(found)
            if (least := min(len(one.values), len(other.values))) > 1:
                share += f" in {least} trials"
            changed.append(row(about, texts, effect, difference=share, reason=reason))
        elif found is not None and abs(found) > largest:
            largest, where = abs(found), f"{one.workload}: {one.metric}"
    most = f"at most {largest:.2%} ({where})" if where else "every value equal"
    yield row("", ("done", "done"), Effect.SAME, difference=most)
    yield from changed


def _value(
    first: CellMeasurement,
    second: CellMeasurement,
    metric: Metric | None,
    where: tuple[Side, Side, CellResult, CellResult],
    margin: float,
    level: float,
) -> tuple[float | None, Effect]:
    """Return the relative difference (``None``: of a zero), and what it means."""
    base, patched, a, b = where
    better, kind = (metric.better, metric.kind) if metric else ("higher", MetricKind.TIMED)
    change = second.median / first.median - 1 if first.median else None
    if first.median == second.median:
        return 0.0, Effect.SAME
    worse = (second.median < first.median) is (better == "higher")
    effect = Effect.WORSE if worse else Effect.BETTER
    disks = len({c.serial for c in a.counters})
    few = FEW * disks if first.unit != "B" and first.metric in COUNTS else 0
    apart = min(second.values) > max(first.values) or max(second.values) < min(first.values)
    if kind is MetricKind.COUNTED or (a.clock, b.clock) == (CellClock.SEALED, CellClock.SEALED):
        small = change is not None and abs(change) <= margin
        if small or not apart or abs(second.median - first.median) <= few:
            return change, Effect.SAME
        return change, effect
    noise = [
        share_of(side.noise, disks_of(side.cells[cell.id]), first.metric, level)
        for side, cell in ((base, a), (patched, b))
    ]
    found = figure_change(first, second, noise=(noise[0], noise[1]), level=level, least=margin)
    if found is None or abs(found.change or 0.0) <= margin or found.verdict is Change.SAME:
        return change, Effect.SAME
    return change, effect if found.verdict is Change.CHANGED else Effect.INCONCLUSIVE


def _brief(cell: CellResult) -> set[str]:
    """Return the workloads and faults that took less than `SHORT`."""
    return {m.workload for m in cell.measurements if m.metric == "seconds" and m.median < SHORT}


def _too_short(first: CellMeasurement, second: CellMeasurement, brief: set[str]) -> bool:
    """Return whether two values are too close to the tool's resolution to be compared."""
    if first.unit == "s" and first.metric.endswith("seconds"):
        return abs(second.median - first.median) < SHORT
    return first.unit in ("B/s", "1/s") and first.workload in brief


def _claim(sides: Sides, first: ClaimResult, second: ClaimResult) -> PatchRow:
    effect, reason = _verdicts(first, second)
    change = _moved(first, second)
    return PatchRow(
        scenario=sides.job.scenario,
        check=first.id,
        base=first.verdict.value,
        patched=second.verdict.value,
        difference=_share(change) if change else "",
        verdict=effect,
        reason=reason,
        command="" if effect is Effect.SAME else command_of(sides),
    )


def _verdicts(first: ClaimResult, second: ClaimResult) -> tuple[Effect, str]:
    """Return what two verdicts on a claim mean for the series, and why."""
    before, after = first.verdict, second.verdict
    if before is after:
        return Effect.SAME, ""
    if {before, after} == {Verdict.HOLDS, Verdict.REFUTED}:
        change = _moved(first, second)
        if change is not None and abs(change) <= CROSSED:
            return Effect.INCONCLUSIVE, "the value only crosses the claim's limit"
        worse = after is Verdict.REFUTED
        return (Effect.WORSE if worse else Effect.BETTER), second.reason
    test = (second.expected or "").startswith("passed")
    if test and (before, after) == (Verdict.HOLDS, Verdict.INCONCLUSIVE):
        return Effect.BROKEN, second.reason  # the test began, and did not end
    return Effect.INCONCLUSIVE, second.reason or first.reason


def _moved(first: ClaimResult, second: ClaimResult) -> float | None:
    if first.measured is None or second.measured is None:
        return None
    if first.measured == second.measured:
        return 0.0
    return second.measured / first.measured - 1 if first.measured else None


def cell_name(cell: CellResult) -> str:
    """Return a cell's axes in words; its id if it has none."""
    axes = [
        f"{name.rpartition('.')[2]} {as_yaml(value)}"
        for name, value in cell.axes.items()
        if not name.startswith("guest.")
    ]
    return ", ".join(axes) or cell.id


def command_of(sides: Sides, cell: CellResult | None = None) -> str:
    """Return the command that runs a cell, or the whole scenario, on the patched side again."""
    sets = [f"guest.image={sides.image}", *sides.overrides]
    if cell is not None:
        sets = [text for text in sets if not text.startswith("matrix=")]
        sets += [f"{name}={as_yaml(value)}" for name, value in cell.axes.items()]
    words = ["lab", "run", "scenario", sides.path or sides.job.scenario]
    return shlex.join([*words, *(word for text in sets for word in ("--set", text))])


def _why(cell: CellResult) -> str:
    return cell.reason.partition("\n")[0]


def _ended(cell: CellResult) -> str:
    return cell.outcome.value


def _share(change: float | None) -> str:
    return "from 0" if change is None else f"{change:+.1%}"


def _number(one: CellMeasurement) -> str:
    return f"{one.median:.6g} {one.unit}" if one.unit != "1" else f"{one.median:.6g}"
