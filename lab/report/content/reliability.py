"""How complete and how reliable a run's answer is, and what to do next, in sentences."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from statistics import median

from lab.model.result.document import CellClock, Outcome, Result, RunState
from lab.model.result.measurement import BITMAP_UPDATED, SHORT_STROKE, STEADY_STATE
from lab.model.scenario.claim import Bound, Claim, Verdict
from lab.report.content.figures import axes_text, contended, rows_of


def caveats(result: Result) -> Iterator[str]:
    """Yield what is missing for a complete answer: cells not run yet, or not finished."""
    pending = sum(c.pending for c in result.cells)
    if result.run.state is RunState.RUNNING:
        ended = len(result.cells) - pending
        waiting = sum(claim.pending for claim in result.claims)
        wait = f", and {waiting} of {len(result.claims)} claims wait for others" if waiting else ""
        yield f"The run is still under way: {ended} of {len(result.cells)} cells so far{wait}."
    unfinished = sum(c.outcome is not Outcome.DONE for c in result.cells) - pending
    if unfinished:
        cells = len(result.cells)
        yield f"{unfinished} of {cells} cells did not finish: their values are unknown."


def _nearness(result: Result, claims: Sequence[Claim]) -> Iterator[tuple[str, str]]:
    """Yield the greatest difference from published values, and from theory.

    Claims with a limit are left out: a value beyond it may differ much.
    """
    limits = {c.id for c in claims if not isinstance(c.expect, Bound) or c.expect.near is None}
    beside = [
        abs(c.measured / c.published - 1)
        for c in result.claims
        if c.published and c.measured is not None and c.verdict is Verdict.HOLDS
        if c.id not in limits
    ]
    if beside:
        what = "value that holds is" if len(beside) == 1 else "values that hold are"
        yield "published", f"{what} met within {max(beside):.1%}"
    off = [
        abs(row.off)
        for cell in result.cells
        for row in rows_of(cell)
        if row.off is not None and not row.doubted
    ]
    if off:
        middle = f"{median(off):.1%} in the median and " if len(off) > 2 else ""
        values = "one value" if len(off) == 1 else f"{len(off)} values"
        yield "theory", f"off by {middle}{max(off):.1%} at most, over {values}"


def reliability(
    result: Result,
    *,
    claims: Sequence[Claim] = (),
    notes: str = "",
    overrides: Sequence[str] = (),
    drives: str = "",
) -> Iterator[tuple[str, str]]:
    """Yield headings and texts: drives that no measurement backs (``drives``), overrides,
    differences from published values and theory, notes, an expired archive, doubtful values, failed
    checks."""
    if drives:
        yield "drives", drives
    if overrides:
        yield "changed", "by --set " + ", ".join(overrides)
    yield from _nearness(result, claims)
    yield from _origins(result)
    if notes:
        yield "notes", " ".join(notes.split())
    expired = (result.environment.get("image") or {}).get("expired")
    if expired:
        yield (
            "archive",
            "the image was built with --accept-expired, from a copy of the archive whose Release"
            f" files have expired: {'; '.join(expired)}",
        )
    steady = [
        f"{axes_text(cell.axes) or cell.id}: {check.detail}"
        for cell in result.cells
        for check in cell.checks
        if check.name == STEADY_STATE and check.passed
    ]
    if steady:
        yield "steady state", "; ".join(steady)
    seeks = dict.fromkeys(
        check.detail for cell in result.cells for check in cell.checks if check.name == SHORT_STROKE
    )
    if seeks:
        yield "seeks", "; ".join(seeks)
    doubts = list(contended(result.cells))
    if doubts:
        yield "doubtful", "what is marked with ?: " + "; ".join(doubts)
    failed = [(cell, check) for cell in result.cells for check in cell.checks if not check.passed]
    silent = [f"{cell.id}: {c.detail}" for cell, c in failed if c.name == BITMAP_UPDATED]
    if silent:
        yield "bitmap", "; ".join(silent)
    wrong = [
        f"{cell.id}: {check.name}: {check.detail}"
        for cell, check in failed
        if check.name != BITMAP_UPDATED and not any(check.detail in doubt for doubt in doubts)
    ]
    if wrong:
        yield "verification", "; ".join(wrong)


def _origins(result: Result) -> Iterator[tuple[str, str]]:
    """Yield cells with results from other runs, and values that no seed changes."""
    runs: dict[str, int] = {}
    for cell in result.cells:
        if cell.reused_from is not None:
            runs[cell.reused_from] = runs.get(cell.reused_from, 0) + 1
    if runs:
        said = "; ".join(f"{n} of {len(result.cells)} cells from {run}" for run, n in runs.items())
        yield "reused", f"{said}: same inputs (--fresh measures again)"
    fixed = {
        (m.workload, len(m.values))
        for cell in result.cells
        for m in cell.measurements
        if m.no_seed_changes_it
    }
    varied = {
        m.workload
        for cell in result.cells
        for m in cell.measurements
        if len(m.values) > 1 and not m.no_seed_changes_it
    }
    names = sorted({name for name, _ in fixed} - varied)
    if names:
        yield (
            "seeds",
            f"no seed changes {', '.join(names)}: all {max(n for _, n in fixed)} trials measured"
            " the same, so there is no interval",
        )


def steps(
    result: Result,
    *,
    lab: str,
    scenario: str,
    run: str,
    overrides: Sequence[str] = (),
    reported: bool = False,
) -> tuple[tuple[str, str], ...]:
    """Return commands for next steps, each with its purpose.

    ``lab``, ``scenario`` and ``run``: what to type for them. ``overrides``: those of the run.
    """
    found = []
    again = f"{lab} run scenario {scenario}"
    again += "".join(f" --set {shlex.quote(text)}" for text in overrides)
    if any(c.outcome is Outcome.SKIPPED and not c.pending for c in result.cells):
        found.append((f"{again} --resume {run}", "the cells that are missing"))
    if any(contended([c for c in result.cells if c.clock is CellClock.REAL])):
        found.append((f"{again} --jobs 1", "again, one guest at a time"))
    if not reported:
        found.append((f"{lab} report {run}", "charts, commands and evidence in one page"))
    found.append((f"{lab} scenario explain {scenario} --run {run}", "why each is as fast as it is"))
    return tuple(found)
