"""A matrix for a terminal: its plan, or its results on one screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from lab.capabilities.matrix.model import (
    ClaimEnding,
    Ending,
    Flip,
    JobRecord,
    JobResult,
    JobState,
    MatrixResult,
    MatrixRun,
)
from lab.core.units import MIB, format_seconds, format_size
from lab.report.content.overview import Overview
from lab.report.content.plain_table import plain_table
from lab.report.content.regressions import regression_sentence
from lab.report.content.tables import Line, Table, columns

MARKS: Final = {
    Ending.PASSED: "✓",
    Ending.FAILED: "✗",
    Ending.EXPECTED: "x",
    Ending.UNEXPECTED: "!",
    Ending.UNDECIDED: "?",
}
LEGEND: Final = "✓ hold  ✗ refuted  x refuted as expected  ! hold unexpectedly  ? undecided"
LINES: Final = 12
"""Most failures and remarks on one screen."""


def plan_page(record: MatrixRun) -> RenderableType:
    """Return the jobs in their order with their times, and those that are left out."""
    table = plain_table("job", "cells", "time", "by", "why now")
    waiting = [job for job in record.jobs if job.state is JobState.WAITING]
    for job in waiting:
        seconds = format_seconds(job.seconds)
        table.add_row(job.id, str(job.cells), seconds, job.basis.partition(":")[0], job.why)
    jobs: list[RenderableType] = [Text(record.title, style="bold"), Padding(table, (1, 0))]
    jobs.append(Text(totals(record)))
    jobs += _others(record.jobs, JobState.LEFT_OUT, "Left out")
    jobs += _others(record.jobs, JobState.BROKEN, "Cannot be run")
    jobs += [Text(f"Note: {note}.", style="yellow") for note in record.notes]
    return Group(*jobs)


def totals(record: MatrixRun) -> str:
    """Return cells, time, memory and space of the waiting jobs, in a sentence."""
    waiting = [job for job in record.jobs if job.state is JobState.WAITING]
    time = format_seconds(sum(job.seconds for job in waiting))
    memory = _rounded(max((job.memory for job in waiting), default=0))
    space = _rounded(max((job.space for job in waiting), default=0))
    cells = sum(job.cells for job in waiting)
    shard = f", shard {record.shard}" if record.shard else ""
    budget = f" of a budget of {format_seconds(record.budget)}" if record.budget else ""
    return (
        f"{_counted(len(waiting), 'job')}{shard}, {_counted(cells, 'cell')}: about {time}{budget};"
        f" at most {memory} of memory for guests and {space} of space for disks at a time."
    )


def _rounded(size: int) -> str:
    return format_size(-(-size // MIB) * MIB)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _others(jobs: Sequence[JobRecord], state: JobState, what: str) -> Iterator[RenderableType]:
    for job in jobs:
        if job.state is state:
            reason = job.reason.partition("\n")[0]
            yield Text(f"{what}: {job.id}: {reason}", style="yellow")


def matrix_page(found: MatrixResult) -> RenderableType:
    """Return the page of ``lab run matrix``: scenarios by images, failures, regressions."""
    lines = [Text(line, style=style) for line, style in remarkable(found)]
    shown: list[RenderableType] = [*lines[:LINES]]
    if len(lines) > LINES:
        shown.append(Text(f"… and {len(lines) - LINES} more: --json has all of them"))
    return Group(
        Text(found.run.title, style="bold"),
        Outcomes(found.jobs),
        Text(LEGEND, style="dim"),
        *shown,
        Text(sentence(found)),
    )


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Results of all jobs: scenarios by images, or a line per job if that is too wide."""

    jobs: Sequence[JobResult]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the form that fits."""
        systems = list(dict.fromkeys(system_of(p.job) for p in self.jobs))
        table = plain_table("scenario", *systems)
        for name in dict.fromkeys(p.job.scenario for p in self.jobs):
            mine = [p for p in self.jobs if p.job.scenario == name]
            row = [
                " · ".join(summary(p) for p in mine if system_of(p.job) == system)
                for system in systems
            ]
            table.add_row(name, *row)
        if table.width > options.max_width:
            table = plain_table("scenario", "image", "outcome")
            for job in self.jobs:
                table.add_row(job.job.scenario, system_of(job.job), summary(job))
        yield table


def system_of(job: JobRecord) -> str:
    """Return image and kernel, for a column's heading."""
    return job.image + (f" + {job.kernel}" if job.kernel else "")


def summary(found: JobResult) -> str:
    """Return a job's state and verdicts in a few characters."""
    if found.job.state is not JobState.DONE:
        return found.job.state.value
    counts = Counter(claim.ending for claim in found.claims)
    said = [f"{mark}{counts[ending]}" for ending, mark in MARKS.items() if counts[ending]]
    if found.failed_cells:
        said.append(f"{_counted(len(found.failed_cells), 'cell')} failed")
    return " ".join(said) or "no claims"


def remarkable(found: MatrixResult) -> Iterator[tuple[str, str]]:
    """Yield sentences with their styles, worst first."""
    for job in found.jobs:
        name = job.job.id
        for claim in job.claims:
            if claim.fails:
                yield f"{name}: {claim.id} {_what(claim)}", "red"
        for cell in job.failed_cells:
            yield f"{name}: {cell}", "red"
    for job in found.jobs:
        if job.job.state is JobState.BROKEN:
            yield f"{job.job.id}: broken: {job.job.reason.partition(chr(10))[0]}", "red"
    for flip in found.run.bisections:
        yield flip_sentence(flip), "bold"
    for one in found.regressions:
        if one.new:
            yield regression_sentence(one), "bold"
    for job in found.jobs:
        for claim in job.claims:
            if claim.ending is Ending.UNEXPECTED and not claim.fails:
                yield f"{job.job.id}: {claim.id} {_what(claim)}", "yellow"
        if job.job.state is JobState.LEFT_OUT:
            yield f"{job.job.id}: left out: {job.job.reason}", "yellow"
    for remark in found.remarks:
        yield remark, "yellow"


def _what(claim: ClaimEnding) -> str:
    if claim.ending is Ending.UNEXPECTED:
        return f"unexpectedly holds ({claim.remark})"
    return f"is refuted: {'; '.join(filter(None, (claim.reason, claim.remark)))}"


def flip_sentence(flip: Flip) -> str:
    """Return a claim that became refuted, and what its bisection found."""
    found = flip.result or "its bisection is not finished"
    return f"{flip.job}: {flip.claim} held with {flip.good} and is refuted with {flip.bad}: {found}"


def sentence(found: MatrixResult) -> str:
    """Return the whole matrix run in a sentence."""
    counts = Counter(claim.ending for job in found.jobs for claim in job.claims)
    states = Counter(job.job.state for job in found.jobs)
    said = ", ".join(f"{n} {ending.value}" for ending in Ending if (n := counts[ending]))
    rest = "".join(
        f", {n} {state.value}"
        for state in JobState
        if state is not JobState.DONE and (n := states[state])
    )
    took = format_seconds(sum(job.job.took or 0 for job in found.jobs))
    done = f"{states[JobState.DONE]} of {_counted(len(found.jobs), 'job')} done{rest}"
    return f"{done}, in {took}. Claims: {said or 'none'}."


def overview_of(found: MatrixResult) -> Overview:
    """Return what a site shows of a matrix run; known failures are neither good nor bad."""
    endings = [claim.ending for job in found.jobs for claim in job.claims]
    broken = sum(p.job.state is JobState.BROKEN or bool(p.failed_cells) for p in found.jobs)
    fails = sum(claim.fails for job in found.jobs for claim in job.claims)
    held = endings.count(Ending.PASSED) + endings.count(Ending.UNEXPECTED)
    counts = [f"{held} hold"]
    counts += [f"{fails} failed"] if fails else []
    counts += [f"{broken} broken"] if broken else []
    undecided = endings.count(Ending.UNDECIDED)
    counts += [f"{undecided} open"] if undecided else []
    if not endings and not broken:
        words, mood = "nothing was run", "empty"
    else:
        words = ", ".join(counts)
        mood = "bad" if fails or broken else "doubtful" if undecided else "good"
    return Overview(
        title=found.run.title,
        table=_jobs_table(found),
        sentences=tuple(map(flip_sentence, found.run.bisections)),
        regressions=found.regressions,
        label=found.run.matrix,
        words=words,
        mood=mood,
    )


def _jobs_table(matrix: MatrixResult) -> Table:
    """Return the jobs of a matrix run, with their results."""
    lines = [
        Line(
            values=(
                found.job.scenario,
                system_of(found.job),
                f"Linux {found.kernel}, mdadm {found.mdadm}" if found.kernel else "",
                summary(found),
                found.job.reason.partition("\n")[0],
            ),
            style="" if not any(c.fails for c in found.claims) else "doubted",
        )
        for found in matrix.jobs
    ]
    heads = columns(["scenario", "image", "measured under", "claims", "reason"], [])
    return Table(columns=heads, rows=tuple(lines), caption=LEGEND)
