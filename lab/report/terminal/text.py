"""Tables and pages for a terminal: readable at 80 columns and without colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import prod
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lab.analysis.judge import in_words
from lab.compile.cell.metrics import metrics_of
from lab.core.units import as_yaml, format_size
from lab.model.scenario.document import SERVED
from lab.report.content.drives import backing
from lab.report.content.figures import axis_value
from lab.report.content.plain_table import PlainTable, plain_table

if TYPE_CHECKING:
    from lab.compile.scenario.compiler import Compiled


def scenario_table(rows: Sequence[Mapping[str, Any]]) -> PlainTable:
    """Return the table of ``lab scenario list``."""
    table = plain_table("scenario", "question", "cells", "claims")
    for row in rows:
        table.add_row(row["name"], row["title"], str(row["cells"]), str(row["claims"]))
    return table


def scenario_page(compiled: Compiled, file: str) -> RenderableType:
    """Return the page of ``lab scenario show``."""
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
        if backed := backing(disk):
            said += f" ({backed})"
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
    for name, values in compiled.axes.items():
        grid.add_row("axis", f"{name}: {', '.join(axis_value(name, v) for v in values)}")
    product = prod(len(values) for values in compiled.axes.values())
    several = f" of {product} combinations" if len(compiled.cells) < product else ""
    grid.add_row("cells", f"{len(compiled.cells)}{several}")
    for name, fields in scenario.profiles.items():
        words = ", ".join(f"{k} {as_yaml(v)}" for k, v in fields.items())
        grid.add_row("profile", f"{name}: {words}")
    if scenario.notes:
        grid.add_row("notes", scenario.notes.strip())
    parts.append(Padding(grid, (1, 0)))
    units = {key: metric.unit for key, metric in metrics_of(compiled.base).items()}
    for claim in scenario.claims:
        row = Table.grid(padding=(0, 2))
        row.add_column(no_wrap=True)
        row.add_column(overflow="fold")
        says = Text(claim.says.strip())
        says.append(f"\nholds if {in_words(claim, units)}", style="dim")
        if claim.quote:
            says.append(f"\n{claim.source or 'source'}: “{claim.quote.strip()}”", style="dim")
        if claim.ours:
            says.append("\nthe source does not say this", style="dim")
        if claim.why:
            says.append(f"\n{claim.why.strip()}", style="dim")
        row.add_row(claim.id, says)
        parts.append(row)
    return Group(*parts)


def _since(text: str) -> str:
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%d %b %H:%M")
    except (ValueError, OverflowError):  # year 9999 has no time zone east of UTC
        return text


def guest_table(rows: Sequence[Mapping[str, Any]]) -> PlainTable:
    """Return the table of ``lab ps``."""
    table = plain_table("guest", "state", "scenario", "array", "port", "since")
    for row in rows:
        since = _since(row["created"])
        port = str(row["port"] or "–")  # QEMU has not reported it yet
        table.add_row(row["id"], row["state"], row["scenario"], row["array"] or "–", port, since)
    return table


def image_table(rows: Sequence[Mapping[str, Any]]) -> PlainTable:
    """Return the table of ``lab image list``."""
    table = plain_table("image", "state", "kernel", "mdadm", "digest")
    for row in rows:
        digest = str(row["digest"])[:12] if row["digest"] else ""
        table.add_row(
            row["name"], row["state"], row.get("kernel") or "", row.get("mdadm") or "", digest
        )
    return table


def version_table(rows: Sequence[Mapping[str, Any]]) -> PlainTable:
    """Return the table of ``lab kernel list``."""
    table = plain_table("version", "date", "suite", "MB", "state", "package")
    for row in rows:
        state = row["state"]
        if row["fetched"]:
            state += ", fetched" if row["in_archive"] else ", fetched, no longer in the archive"
        package = row["name"] if row["name"] != row["version"] else ""
        size = f"{row['bytes'] / 1e6:.1f}"
        suite = row["suites"][0] if row["suites"] else row["release"]
        table.add_row(row["version"], row["date"] or "", suite, size, state, package)
    return table


def doctor_table(findings: Sequence[Any]) -> PlainTable:
    """Return the table of ``lab doctor``."""
    table = PlainTable("state", "what", "detail", prose=True, heads=False)
    for found in findings:
        mark = Text("good", style="green")
        if not found.good:
            mark = Text("MISSING", style="red") if found.needed else Text("not yet", style="yellow")
        detail = Text(found.detail)
        if found.mend:
            detail.append(f"\nfix it with: {found.mend}", style="bold")
        table.add_row(mark, found.name, detail)
    return table
