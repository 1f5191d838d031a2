"""A matrix for a terminal: what it would do, and what came out of it on one screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from lab.core.units import MIB, format_seconds, format_size
from lab.model.matrix.record import (
    ClaimEnding,
    Ending,
    Night,
    NightPart,
    NightResult,
    PartResult,
    Regression,
    State,
)
from lab.report.content.figures import axes_text, figure
from lab.report.content.plain_table import plain_table

MARKS: Final = {
    Ending.PASSED: "✓",
    Ending.FAILED: "✗",
    Ending.EXPECTED: "x",
    Ending.UNEXPECTED: "!",
    Ending.UNDECIDED: "?",
}
LEGEND: Final = "✓ hold  ✗ refuted  x refuted as expected  ! hold unexpectedly  ? undecided"
LINES: Final = 12
"""Of failures, and of what else is worth a look, that a screen has room for."""


def plan_page(night: Night) -> RenderableType:
    """The parts in their order, what they take, and what is left out."""
    table = plain_table("part", "cells", "time", "by", "why now")
    waiting = [part for part in night.parts if part.state is State.WAITING]
    for part in waiting:
        seconds = format_seconds(part.seconds)
        table.add_row(part.id, str(part.cells), seconds, part.basis.partition(":")[0], part.why)
    parts: list[RenderableType] = [Text(night.title, style="bold"), Padding(table, (1, 0))]
    parts.append(Text(totals(night)))
    parts += _others(night.parts, State.LEFT_OUT, "Left out")
    parts += _others(night.parts, State.BROKEN, "Cannot be run")
    parts += [Text(f"Note: {note}.", style="yellow") for note in night.notes]
    return Group(*parts)


def totals(night: Night) -> str:
    """Cells, time, memory and space of what waits, in a sentence or two."""
    waiting = [part for part in night.parts if part.state is State.WAITING]
    time = format_seconds(sum(part.seconds for part in waiting))
    memory = _rounded(max((part.memory for part in waiting), default=0))
    space = _rounded(max((part.space for part in waiting), default=0))
    cells = sum(part.cells for part in waiting)
    shard = f", shard {night.shard}" if night.shard else ""
    budget = f" of a budget of {format_seconds(night.budget)}" if night.budget else ""
    return (
        f"{_counted(len(waiting), 'part')}{shard}, {_counted(cells, 'cell')}: about {time}{budget};"
        f" at most {memory} of memory for guests and {space} of space for disks at a time."
    )


def _rounded(size: int) -> str:
    return format_size(-(-size // MIB) * MIB)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _others(parts: Sequence[NightPart], state: State, what: str) -> Iterator[RenderableType]:
    for part in parts:
        if part.state is state:
            reason = part.reason.partition("\n")[0]
            yield Text(f"{what}: {part.id}: {reason}", style="yellow")


def night_page(found: NightResult) -> RenderableType:
    """``lab run matrix``: scenarios by images, then what failed, then what got worse."""
    lines = [Text(line, style=style) for line, style in remarkable(found)]
    shown: list[RenderableType] = [*lines[:LINES]]
    if len(lines) > LINES:
        shown.append(Text(f"… and {len(lines) - LINES} more: --json has all of them"))
    return Group(
        Text(found.night.title, style="bold"),
        Outcomes(found.parts),
        Text(LEGEND, style="dim"),
        *shown,
        Text(sentence(found)),
    )


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of each part: scenarios by images, or a line for each where that is too wide."""

    parts: Sequence[PartResult]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The form that fits."""
        systems = list(dict.fromkeys(system_of(p.part) for p in self.parts))
        table = plain_table("scenario", *systems)
        for name in dict.fromkeys(p.part.scenario for p in self.parts):
            mine = [p for p in self.parts if p.part.scenario == name]
            row = [
                " · ".join(summary(p) for p in mine if system_of(p.part) == system)
                for system in systems
            ]
            table.add_row(name, *row)
        if table.width > options.max_width:
            table = plain_table("scenario", "image", "outcome")
            for part in self.parts:
                table.add_row(part.part.scenario, system_of(part.part), summary(part))
        yield table


def system_of(part: NightPart) -> str:
    """Image and kernel, as a column's head."""
    return part.image + (f" + {part.kernel}" if part.kernel else "")


def summary(found: PartResult) -> str:
    """What became of a part, in a few characters."""
    if found.part.state is not State.DONE:
        return found.part.state.value
    counts = Counter(claim.ending for claim in found.claims)
    said = [f"{mark}{counts[ending]}" for ending, mark in MARKS.items() if counts[ending]]
    if found.failed_cells:
        said.append(f"{_counted(len(found.failed_cells), 'cell')} failed")
    return " ".join(said) or "no claims"


def remarkable(found: NightResult) -> Iterator[tuple[str, str]]:
    """Sentences with their styles, the worst first."""
    for part in found.parts:
        name = part.part.id
        for claim in part.claims:
            if claim.fails:
                yield f"{name}: {claim.id} {_what(claim)}", "red"
        for cell in part.failed_cells:
            yield f"{name}: {cell}", "red"
    for part in found.parts:
        if part.part.state is State.BROKEN:
            yield f"{part.part.id}: broken: {part.part.reason.partition(chr(10))[0]}", "red"
    for one in found.regressions:
        if one.new:
            yield regression_sentence(one), "bold"
    for part in found.parts:
        for claim in part.claims:
            if claim.ending is Ending.UNEXPECTED and not claim.fails:
                yield f"{part.part.id}: {claim.id} {_what(claim)}", "yellow"
        if part.part.state is State.LEFT_OUT:
            yield f"{part.part.id}: left out: {part.part.reason}", "yellow"
    for remark in found.remarks:
        yield remark, "yellow"


def _what(claim: ClaimEnding) -> str:
    if claim.ending is Ending.UNEXPECTED:
        return f"unexpectedly holds ({claim.remark})"
    return f"is refuted: {'; '.join(filter(None, (claim.reason, claim.remark)))}"


def regression_sentence(one: Regression) -> str:
    """Which version is the first bad one, and for what."""
    where = axes_text(one.axes)
    before, after = (figure(one.metric, value) for value in (one.before, one.after))
    also = f"; but {', '.join(one.also)}" if one.also else ""
    unknown = f"; of {', '.join(one.between)} noise hides it" if one.between else ""
    return (
        f"{one.scenario}{f' ({where})' if where else ''}: {one.claim}: {one.workload}"
        f" {one.metric.replace('_', ' ')} {before} → {after} ({one.change:+.1%}):"
        f" first bad: {one.named}; good before: {one.good}{unknown}{also}"
    )


def sentence(found: NightResult) -> str:
    """All of it in a sentence."""
    counts = Counter(claim.ending for part in found.parts for claim in part.claims)
    states = Counter(part.part.state for part in found.parts)
    said = ", ".join(f"{n} {ending.value}" for ending in Ending if (n := counts[ending]))
    rest = "".join(
        f", {n} {state.value}"
        for state in State
        if state is not State.DONE and (n := states[state])
    )
    took = format_seconds(sum(part.part.took or 0 for part in found.parts))
    done = f"{states[State.DONE]} of {_counted(len(found.parts), 'part')} done{rest}"
    return f"{done}, in {took}. Claims: {said or 'none'}."
