"""The page of ``lab scenario explain``: sentences, and a line per member disk."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lab.core.units import MIB, format_value
from lab.model.result.explanation import (
    Anatomy,
    CellExplanation,
    ChunkUse,
    Explanation,
    MemberBytes,
)
from lab.model.result.measurement import PREDICTED
from lab.report.content.anatomy import anatomy_words
from lab.report.content.figures import axis_value
from lab.report.content.plain_table import PlainTable, plain_table


def explanation_page(
    title: str, cells: Sequence[CellExplanation], workload: str | None = None
) -> RenderableType:
    """Return the page of all workloads of all cells, or of one workload."""
    parts: list[RenderableType] = [Text(title, style="bold")]
    drawn: set[Anatomy] = set()
    for cell in cells:
        axes = ", ".join(f"{k} {axis_value(k, v)}" for k, v in cell.axes.items())
        for explanation in cell.workloads:
            if workload is None or explanation.workload == workload:
                parts.append(_workload(axes, explanation))
                stripes = explanation.anatomy
                if stripes and stripes not in drawn:
                    drawn.add(stripes)
                    serials = [member.serial for member in explanation.members]
                    parts.append(Padding(_anatomy(stripes, serials), (1, 0, 0, 2)))
    return Group(*parts)


def _workload(axes: str, explanation: Explanation) -> RenderableType:
    small = explanation.expected.get("throughput", 0) < 128 * 1024 * explanation.expected.get(
        "iops", 0
    )
    metric = "iops" if small else "throughput"
    unit = PREDICTED[metric].unit
    head = Text("\n" + (f"{axes}: " if axes else ""))
    head.append(explanation.workload, style="bold")
    if metric in explanation.expected:
        head.append(f", expected {format_value(explanation.expected[metric], unit)}")
    if metric in explanation.measured:
        head.append(f", measured {format_value(explanation.measured[metric], unit)}")
    parts: list[RenderableType] = [head]
    for sentence in explanation.sentences:
        line = Table.grid(padding=(0, 1))
        line.add_row("•", Text(sentence))
        parts.append(Padding(line, (0, 0, 0, 2)))
    if explanation.members:
        parts.append(Padding(_members(explanation.members), (0, 0, 0, 2)))
    return Group(*parts)


def _anatomy(found: Anatomy, serials: Sequence[str]) -> RenderableType:
    """Return the stripe diagram of one write: what md reads and writes."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    slots = [f"slot {n}" for n, _ in enumerate(found.chunks[0])]
    for head in ("row", *(serials if len(serials) == len(slots) else slots)):
        table.add_column(head)
    for number, row in zip(found.rows, found.chunks, strict=True):
        table.add_row(str(number), *(_chunk(chunk) for chunk in row))
    return Group(Text(anatomy_words(found)), table)


def _chunk(chunk: ChunkUse) -> Text:
    how = "r" * chunk.read + "w" * chunk.written
    return Text(f"{chunk.name} {how}".rstrip(), style="bold" if how else "dim")


def _members(members: Sequence[MemberBytes]) -> PlainTable:
    table = plain_table("disk", "reads", "writes", "disk read", "disk wrote", "off by")
    for member in members:
        row = [_mebibytes(member.read_bytes), _mebibytes(member.written_bytes)]
        if any(m.counted_read_bytes is not None for m in members):
            row += [
                _mebibytes(member.counted_read_bytes),
                _mebibytes(member.counted_written_bytes),
                "–" if member.error is None else f"{member.error:+.1%}",
            ]
        table.add_row(member.serial, *row)
    return table


def _mebibytes(size: int | None) -> str:
    return "–" if size is None else f"{size / MIB:.2f} MiB"
