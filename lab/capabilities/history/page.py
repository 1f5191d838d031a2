"""Differences between runs, for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from lab.analysis.noise import ENOUGH
from lab.core.statistics import Spread, reach
from lab.core.units import format_value, format_values
from lab.model.result.comparison import (
    Agreement,
    CellChange,
    Change,
    Comparison,
    Difference,
    FigureChange,
    TestsCompared,
)
from lab.model.result.history import BranchDifference, ChangePoint, History, Point
from lab.model.result.noise import NoiseFloor
from lab.model.result.reproduction import CellState
from lab.model.scenario.claim import Verdict
from lab.report.content.figures import SHOWN, axis_value
from lab.report.content.plain_table import plain_table
from lab.report.terminal.cell_lines import cell_lines

STYLES: Mapping[Change, str] = {
    Change.CHANGED: "bold",
    Change.SAME: "dim",
    Change.UNCLEAR: "yellow",
}


def comparison_page(found: Comparison) -> RenderableType:
    """Return the page of ``lab results compare``: environment, cells, claims."""
    title = f"{found.first.id} → {found.second.id}"
    parts: list[RenderableType] = [Text(title, style="bold")]
    parts.append(_differences("The environment", found.environment))
    table = plain_table("cell", "workload", "first", "second", "change", "")
    notes: list[str] = []
    for cell in found.cells:
        rows = _rows(cell, least=found.least)
        for row in rows:
            table.add_row(_name(cell), *row)
        notes += [f"{_name(cell)}: {doubt}" for doubt in cell.doubts]
    parts += [table] * bool(table.rows)
    parts += [
        Text(f"{_name(c)}: the models repeat {c.fidelity:.1%} of what the real disks do.")
        for c in found.cells
        if c.fidelity is not None
    ]
    parts += [_differences(_name(c), c.differs) for c in found.cells if c.differs]
    parts += [Text(note, style="yellow") for note in notes]
    for which, only in (("first", found.only_first), ("second", found.only_second)):
        if only:
            parts.append(Text(f"Only in the {which} run: {', '.join(only)}"))
    tests = set(found.tests.both) if found.tests else set()
    for claim in found.claims:
        verdicts = (claim.first, claim.second)
        words = [_ENDED[v] if claim.id in tests else v.value.replace("_", " ") for v in verdicts]
        parts.append(Text(f"{claim.id}: {' → '.join(words)}", style="bold"))
    if found.tests:
        parts += _tests(found.tests, sum(claim.id in tests for claim in found.claims))
    if any(cell.figures for cell in found.cells) or not found.tests:
        parts.append(Text(_summary(found)))
    parts += [Text(line) for line in _agreement(found.agreement)]
    return Group(*parts)


_ENDED: Mapping[Verdict, str] = {
    Verdict.HOLDS: "passed",
    Verdict.REFUTED: "failed",
    Verdict.INCONCLUSIVE: "unfinished",
    Verdict.NOT_TESTED: "not run",
}
"""Results of a suite's tests."""


def _tests(found: TestsCompared, changed: int) -> Iterator[RenderableType]:
    """Yield the tests in one run alone, and the number of those that changed."""
    for which, only in (("first", found.only_first), ("second", found.only_second)):
        if only:
            yield Text(f"Tests only in the {which} run: {', '.join(only)}")
    count = len(found.both)
    yield Text(f"Of {count} tests in both runs {changed or 'none'} changed.")


def _agreement(found: Agreement) -> list[str]:
    """Return lines about the cells in virtual time; none: no cell has it."""
    if not found.apart and all(
        cell.state is CellState.SKIPPED and cell.stored is None for cell in found.cells
    ):
        return []
    lines = [
        line
        for cell in found.cells
        if cell.state is not CellState.IDENTICAL
        for line in cell_lines(cell, stored="first", here="second")
    ]
    if found.apart:
        cells = f"{found.apart} cell{'s' if found.apart > 1 else ''}"
        lines.append(f"{cells} of the first run: the second run has others, by parameters or seed")
    lines += [f"{o.what}: the first run had {o.stored}, the second {o.here}" for o in found.inputs]
    states = [cell.state for cell in found.cells]
    same, other = states.count(CellState.IDENTICAL), states.count(CellState.DIFFERENT)
    said = {
        True: f"The runs agree: {same} cells in virtual time have equal inputs and equal bytes.",
        False: f"The runs disagree: {other} of {same + other} cells in virtual time have equal"
        " inputs and different bytes.",
        None: "No cell in virtual time has equal inputs in both runs, so none has to be equal.",
    }
    return ["", *lines, said[found.agree]]


def _name(cell: CellChange) -> str:
    return ", ".join(axis_value(k, v) for k, v in cell.axes.items()) or "base"


def _differences(what: str, found: Sequence[Difference]) -> RenderableType:
    if not found:
        return Text(f"{what} is the same.")
    lines = (f"{d.name}: {_said(d.first)} → {_said(d.second)}" for d in found)
    return Group(Text(f"{what} differs:"), Padding(Text("\n".join(lines)), (0, 2)))


def _said(value: Any) -> str:
    return "–" if value is None else str(value)


def _rows(cell: CellChange, least: float) -> list[tuple[str | Text, ...]]:
    """Return a row for the main metric of each workload, and for each other metric that changed."""
    found: list[tuple[str | Text, ...]] = []
    spoken: set[str] = set()
    for one in sorted(cell.figures, key=_rank):
        main = one.workload not in spoken and one.metric in SHOWN
        if not main and (one.verdict is not Change.CHANGED or one.metric in SHOWN):
            continue
        spoken.add(one.workload)
        found.append(
            (
                one.workload if main else f"{one.workload}, {one.metric}",
                *format_values([one.first, one.second], one.unit),
                _change(one),
                Text(_words(one, least), style=STYLES[one.verdict]),
            )
        )
    return found


def _change(one: FigureChange) -> str:
    if one.change is None:
        return "from 0"
    if one.low is None or one.high is None:
        return f"{one.change:+.1%} ± unknown"
    off = max(one.high - one.change, one.change - one.low)
    return f"{one.change:+.1%} ±{off:.1%}"


def _rank(one: FigureChange) -> int:
    return SHOWN.index(one.metric) if one.metric in SHOWN else len(SHOWN)


def _words(one: FigureChange, least: float) -> str:
    match one.verdict:
        case Change.CHANGED:
            return "more" if one.second > one.first else "less"
        case Change.SAME:
            return "same"
        case Change.UNCLEAR:
            return f"may hide {least:.0%}"


def _summary(found: Comparison) -> str:
    verdicts = [f.verdict for c in found.cells for f in c.figures]
    counts = {v: verdicts.count(v) for v in Change}
    return (
        f"\nOf {len(verdicts)} values {counts[Change.CHANGED]} changed by more than noise, "
        f"{counts[Change.SAME]} are the same within {found.least:.0%}, "
        f"{counts[Change.UNCLEAR]} could hide a change of {found.least:.0%}. "
        f"Confidence {found.level:.0%} for all changes together."
    )


def history_page(found: History) -> RenderableType:
    """Return the page of ``lab results history``: a table per scenario, the oldest run first."""
    parts: list[RenderableType] = []
    changes = {(c.run, c.cell, c.workload): c for c in found.changes}
    for scenario in dict.fromkeys(point.scenario for point in found.points):
        points = [point for point in found.points if point.scenario == scenario]
        table = plain_table("began", "cell", "workload", "measured", "change", "")
        for number, point in enumerate(points):
            began = point.started.removesuffix("+00:00").replace("T", " ")
            repeated = number > 0 and points[number - 1].run == point.run
            change = changes.get((point.run, point.cell, point.workload))
            table.add_row("" if repeated else began, *_point(point, change))
        parts += [Text(f"{scenario}: {found.metric}", style="bold"), table]
    unit = next((point.unit for point in found.points), "")
    parts += [_difference(unit, one) for one in found.differences]
    parts.append(Text(_conclusion(found), style="dim"))
    return Group(*parts)


def _point(point: Point, change: ChangePoint | None) -> tuple[str | Text, ...]:
    name = ", ".join(axis_value(k, v) for k, v in point.axes.items()) or "base"
    name = f"{name} ({point.branch})" if point.branch else name
    shown = format_value(point.median, point.unit)
    remark = Text("contended", style=STYLES[Change.UNCLEAR]) if point.contended else Text()
    if change is None:
        return name, point.workload, shown, "", remark
    remark = Text("change point", style=STYLES[Change.CHANGED])
    return name, point.workload, shown, f"{change.change:+.1%}", remark


def _difference(unit: str, one: BranchDifference) -> Text:
    name = ", ".join(axis_value(k, v) for k, v in one.axes.items()) or "base"
    before, after = format_values([one.before, one.after], unit)
    values = f"{before} → {after}, {one.change:+.1%}"
    runs = f"of {one.runs[0]} and {one.runs[1]} runs"
    said = "differs" if one.differs else "no difference shown"
    style = STYLES[Change.CHANGED] if one.differs else STYLES[Change.SAME]
    branches = f"{one.against} → {one.branch}"
    return Text(f"{branches}: {name}, {one.workload}: {values}, {runs}: {said}", style=style)


def _conclusion(found: History) -> str:
    certain = f"Confidence: {found.level:.0%} for all change points and differences together."
    if not found.too_short:
        return certain
    several = f"{found.too_short} series have" if found.too_short > 1 else "1 series has"
    return (
        f"{certain} {several} too few runs for a change point: {found.fewest} are needed while the"
        " noise is not known. Repeat runs on this host (lab results noise), or use virtual time."
    )


def noise_page(floors: Sequence[NoiseFloor], runs: int) -> RenderableType:
    """Return the page of ``lab results noise``: error of one value, and of the difference of
    two."""
    table = plain_table("disks", "metric", "one run ±", "two runs ±", "of")
    for floor in floors:
        spread = Spread(deviation=floor.deviation, freedom=floor.freedom)
        off = reach(spread)
        of = f"{floor.freedom} repetitions in {floor.runs} runs"
        table.add_row(floor.disks, floor.metric, f"{off:.2%}", f"{off * 2**0.5:.2%}", of)
    text = Text(f"{runs} {'run was' if runs == 1 else 'runs were'} made on this host as it is.")
    text.append(
        f" A row counts from {ENOUGH} repetitions on; before that nothing is known of such values."
        " More repetitions: run a scenario again, with nothing changed in between."
    )
    return Group(table, text) if floors else text
