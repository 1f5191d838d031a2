"""What a person reads in a terminal: readable at 80 columns and without colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import prod
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lab.judge import in_words, matches
from lab.model.claim import Bound, Verdict
from lab.model.result import CellResult, ClaimResult, Outcome, Result
from lab.model.scenario import SERVED
from lab.units import format_rate, format_seconds, format_size

if TYPE_CHECKING:
    from lab.compile.scenario import Compiled
    from lab.model.claim import Claim

STYLES = {
    Verdict.HOLDS: "green",
    Verdict.REFUTED: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NOT_TESTED: "dim",
}

NUMBERS = (
    *("measured", "predicted", "published", "cells", "claims", "port"),
    *("holds", "refuted", "other"),
)
"""Columns that stand to the right."""


SHOWN = ("throughput", "iops", "seconds")
"""Metrics that the page has room for; all are in the JSON."""

SMALL = 128 * 1024
"""Bytes of a request below which operations per second are shown, not bytes."""


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in headings:
        right = heading in NUMBERS
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    return table


def axis_value(name: str, value: object) -> str:
    """An axis value as people write it; sizes with their unit."""
    sizes = ("chunk", "size", "bs", "offset", "bytes_per_second")
    if isinstance(value, int) and not isinstance(value, bool) and name.endswith(sizes):
        return format_size(value)
    return "default" if value is None else str(value)


def figure(metric: str, value: float) -> str:
    """A measured or predicted figure in the unit people expect."""
    if metric == "throughput":
        return format_rate(value)
    if metric == "seconds":
        return format_seconds(value)
    if metric.endswith("iops"):
        return f"{value:.4g}/s"
    if "latency" in metric or "clat_" in metric:
        return f"{value * 1000:.3g} ms"
    return f"{value:.4g}"


def result_page(
    result: Result,
    *,
    title: str,
    question: str,
    measured: bool = True,
    claims: Sequence[Claim] = (),
) -> RenderableType:
    """One screen: the question, the cells, the verdicts."""
    parts: list[RenderableType] = [Text(title, style="bold")]
    if question:
        parts.append(Padding(Text(question.strip()), (0, 2)))
    parts.append(_cells(result, measured=measured, claims=claims))
    unfinished = [c for c in result.cells if c.outcome is not Outcome.DONE]
    if measured:
        parts += [_unfinished(cell) for cell in unfinished]
        parts += [_claim(claim) for claim in result.claims]
        parts.append(_summary(result))
    return Group(*parts)


def _cells(result: Result, *, measured: bool, claims: Sequence[Claim]) -> Table:
    axes = list(result.cells[0].axes) if result.cells else []
    short = [name.rpartition(".")[2] for name in axes]
    names = [s if short.count(s) == 1 else a for s, a in zip(short, axes, strict=True)]
    headings = [*names, "workload"]
    headings += ["measured", "predicted", "published"] if measured else ["predicted"]
    table = _table(*headings)
    for cell in result.cells:
        rows = _rows(cell, measured=measured)
        for number, (workload, metric, found, expected) in enumerate(rows):
            own = [axis_value(a, cell.axes[a]) if number == 0 else "" for a in axes]
            figures = [found, expected] if measured else [expected]
            if measured:
                figures.append(_published(cell, workload, metric, claims))
            table.add_row(*own, workload, *figures)
    return table


def _rows(cell: CellResult, *, measured: bool) -> list[tuple[str, str, str, str]]:
    """Workload, metric, measured and predicted; seconds only where there is nothing better."""
    expected = {(p.workload, p.metric): p.value for p in cell.predictions}
    found = {(m.workload, m.metric): m.median for m in cell.measurements}
    if not found and measured:
        return [("–", "", cell.outcome.value, "")]
    rows = []
    for key in found or expected:
        workload, metric = key
        better = any(w == workload and m != "seconds" for w, m in (found or expected))
        if (metric == "seconds" and better) or metric not in SHOWN:
            continue
        if metric in SHOWN[:2] and metric != _spoken(found or expected, workload):
            continue
        here = figure(metric, found[key]) if key in found else ""
        there = figure(metric, expected[key]) if key in expected else ""
        rows.append((workload, metric, here, there))
    return rows or [("–", "", "", "theory cannot say")]


def _spoken(figures: Mapping[tuple[str, str], float], workload: str) -> str:
    """Whether people speak of a workload's operations or of its bytes: of small ones, the first."""
    operations = figures.get((workload, "iops"), 0.0)
    small = figures.get((workload, "throughput"), 0.0) < SMALL * operations
    return "iops" if small else "throughput"


def _published(cell: CellResult, workload: str, metric: str, claims: Sequence[Claim]) -> str:
    for claim in claims:
        expect = claim.expect
        if claim.published is None or not isinstance(expect, Bound):
            continue
        value = expect.value
        same = (value.workload, value.metric) == (workload, metric)
        if same and matches(value.where, cell.axes):
            return figure(metric, claim.published)
    return ""


def _unfinished(cell: CellResult) -> RenderableType:
    return Padding(
        Text(f"{cell.id}: {cell.outcome.value}: {cell.reason}", style="yellow"), (0, 0, 1, 0)
    )


def _claim(claim: ClaimResult) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=6, max_width=8, overflow="fold")
    grid.add_column(width=12)
    grid.add_column(overflow="fold")
    words = claim.verdict.value.replace("_", " ")
    says = Text(claim.says.strip())
    tested = claim.verdict is not Verdict.NOT_TESTED
    reason = claim.reason + (f"; expected {claim.expected}" if claim.expected and tested else "")
    says.append(f"\n{reason}", style="dim")
    grid.add_row(claim.id, Text(words, style=STYLES[claim.verdict]), says)
    return grid


def _counted(number: int, verdict: Verdict) -> str:
    words = verdict.value.replace("_", " ")
    return f"{number} {'hold' if verdict is Verdict.HOLDS and number > 1 else words}"


def _summary(result: Result) -> RenderableType:
    counts = {v: sum(c.verdict is v for c in result.claims) for v in Verdict}
    said = ", ".join(_counted(n, v) for v, n in counts.items() if n)
    done = sum(c.outcome is Outcome.DONE for c in result.cells)
    accelerator = result.environment.get("accelerator", "?")
    guest = result.environment.get("guest", {})
    mdadm = guest.get("mdadm", "").removeprefix("mdadm - v").partition(" ")[0] or "?"
    where = f"{str(accelerator).upper()}, Linux {guest.get('kernel', '?')}, mdadm {mdadm}"
    text = Text(f"\nClaims: {said or 'none'}. Cells: {done} of {len(result.cells)} done.\n")
    text.append(f"Measured under {where}.", style="dim")
    return text


def scenario_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """``lab scenario list``."""
    table = _table("scenario", "question", "cells", "claims")
    for row in rows:
        table.add_row(row["name"], row["title"], str(row["cells"]), str(row["claims"]))
    return table


def scenario_page(compiled: Compiled, file: str) -> RenderableType:
    """``lab scenario show``."""
    scenario = compiled.scenario
    base = compiled.base
    parts: list[RenderableType] = [
        Text(scenario.title, style="bold"),
        Padding(Text(scenario.question.strip()), (0, 2)),
    ]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    grid.add_row("file", file)
    if scenario.source:
        source = ", ".join(str(v) for v in scenario.source.model_dump().values() if v)
        grid.add_row("source", source)
    guest = base.guest
    memory = format_size(guest.memory)
    grid.add_row("guest", f"{guest.image}, {guest.cpus} CPU, {memory}")
    for disk in base.disks:
        limits = disk.throttle.model_dump(exclude_none=True)
        if disk.model in SERVED:
            limits = {"preset": disk.preset or "the model's own"}
            limits |= getattr(disk, disk.model).model_dump(exclude_none=True)
        said = ", ".join(f"{k} {axis_value(k, v)}" for k, v in limits.items()) or "no limit"
        size = format_size(disk.size)
        grid.add_row("disks", f"{disk.count} × {size} {disk.format.value}, {disk.model}: {said}")
    if base.array:
        fields = base.array.model_dump(mode="json", exclude_defaults=True)
        fields.setdefault("level", base.array.level)
        grid.add_row("array", ", ".join(f"{k} {axis_value(k, v)}" for k, v in fields.items()))
    for workload in base.workloads:
        words = " ".join(
            f"{k}={axis_value(k, v)}" for k, v in workload.parameters.items() if v is not None
        )
        grid.add_row("workload", f"{workload.name}: {workload.tool} {words}")
    for fault in base.faults:
        words = " ".join(f"{k}={v}" for k, v in fault.parameters.items() if v is not None)
        when = f"{fault.at:g} s into" if fault.during else fault.moment
        grid.add_row("fault", f"{fault.name}: {when} {fault.workload}: {fault.fault} {words}")
    for name, values in scenario.matrix.axes.items():
        grid.add_row("axis", f"{name}: {', '.join(axis_value(name, v) for v in values)}")
    product = prod(len(values) for values in scenario.matrix.axes.values())
    excluded = f" of {product}; the others are excluded" if len(compiled.cells) < product else ""
    grid.add_row("cells", f"{len(compiled.cells)}{excluded}")
    if scenario.notes:
        grid.add_row("notes", scenario.notes.strip())
    parts.append(Padding(grid, (1, 0)))
    for claim in scenario.claims:
        row = Table.grid(padding=(0, 2))
        row.add_column(min_width=6, max_width=8, overflow="fold")
        row.add_column(overflow="fold")
        says = Text(claim.says.strip())
        says.append(f"\nholds if {in_words(claim)}", style="dim")
        row.add_row(claim.id, says)
        parts.append(row)
    return Group(*parts)


def guest_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """``lab ps``."""
    table = _table("guest", "state", "scenario", "array", "port", "since")
    for row in rows:
        since = datetime.fromisoformat(row["created"]).astimezone().strftime("%d %b %H:%M")
        port = str(row["port"] or "–")  # QEMU has not said it yet
        table.add_row(row["id"], row["state"], row["scenario"], row["array"] or "–", port, since)
    return table


def image_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """``lab image list``."""
    table = _table("image", "state", "kernel", "mdadm", "digest")
    for row in rows:
        digest = str(row["digest"])[:12] if row["digest"] else ""
        table.add_row(
            row["name"], row["state"], row.get("kernel") or "", row.get("mdadm") or "", digest
        )
    return table


def run_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """``lab results list``."""
    table = _table("run", "cells", "holds", "refuted", "other", "state")
    for row in rows:
        table.add_row(
            row["id"],
            str(row["cells"]),
            str(row["holds"]),
            str(row["refuted"]),
            str(row["other"]),
            row["state"],
        )
    return table


def doctor_table(findings: Sequence[Any]) -> Table:
    """``lab doctor``."""
    table = Table.grid(padding=(0, 2))
    table.add_column(width=7)
    table.add_column(width=11)
    table.add_column(overflow="fold")
    for found in findings:
        mark = Text("good", style="green")
        if not found.good:
            mark = Text("MISSING", style="red") if found.needed else Text("not yet", style="yellow")
        detail = Text(found.detail)
        if found.mend:
            detail.append(f"\nmend it with: {found.mend}", style="bold")
        table.add_row(mark, found.name, detail)
    return table
