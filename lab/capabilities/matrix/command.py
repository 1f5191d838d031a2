"""``lab matrix`` and ``lab run matrix``."""

from __future__ import annotations

import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import capabilities, completion
from lab.cli.app import LOOK, group, run, schema
from lab.cli.commands.running import (
    Cold,
    Door,
    Jobs,
    Out,
    Strict,
    Verbose,
    hands_of,
    how_of,
    reach,
    where_of,
)
from lab.cli.display.again import LEFT_OUT, NOTHING, command, counted
from lab.cli.options import (
    AcceptExpired,
    Clock,
    Cluster,
    Fresh,
    Json,
    Tls,
    console,
    home,
    print_json,
    warn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.capabilities.matrix.file import CompiledMatrix
    from lab.capabilities.matrix.model import JobRecord, MatrixResult, MatrixRun
    from lab.capabilities.matrix.run import Options
    from lab.compile.scenario.compiler import Compiled
    from lab.run.execute import Follower
    from lab.run.options import RunOptions


matrix = group("matrix", LOOK, "Inspect matrices of scenarios, images and kernels.")

MatrixName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A matrix's name, or the path of its .yaml file.",
        autocompletion=completion.matrix_names,
        show_default=False,
    ),
]


@matrix.command("list")
def list_(as_json: Json = False) -> None:
    """List the matrices.

    Examples:
        lab matrix list
    """
    from lab.capabilities.matrix.file import compile_matrix
    from lab.core.errors import InputError
    from lab.plugins import catalog
    from lab.report.content.plain_table import plain_table

    rows, broken = [], []
    for name, path in catalog.matrices().items():
        try:
            found = compile_matrix(path)
        except InputError as error:
            broken.append(str(error))
            continue
        cells = sum(len(job.cells) for job in found.jobs)
        rows.append(
            {
                "name": name,
                "title": found.matrix.title,
                "parts": len(found.jobs),
                "cells": cells,
                "file": str(path),
            }
        )
    if as_json:
        print_json({"matrices": rows, "broken": broken})
        return
    table = plain_table("matrix", "title", "jobs", "cells")
    for row in rows:
        table.add_row(str(row["name"]), str(row["title"]), str(row["parts"]), str(row["cells"]))
    console().print(table)
    for sentence in broken:
        sys.stderr.write(f"lab: {sentence}\n")


@matrix.command()
def check(name: MatrixName, as_json: Json = False) -> None:
    """Check every cell of a matrix, and whether its images support them.

    Examples:
        lab matrix check nightly
    """
    from lab.core.errors import EXIT_INPUT, InputError
    from lab.run.preparation.fitting import Known, check_images
    from lab.run.preparation.suites import check_suites

    compiled = _compiled(name)
    facts: Known = {}
    wrong = []
    for job in compiled.jobs:
        reason = job.broken
        try:
            if job.compiled:
                check_images(job.compiled, facts)
                check_suites(job.compiled)
        except InputError as error:
            reason = str(error)
        if reason:
            wrong.append({"part": job.id, "error": reason})
    cells = sum(len(job.cells) for job in compiled.jobs)
    if as_json:
        print_json({"parts": len(compiled.jobs), "cells": cells, "wrong": wrong})
    else:
        for one in wrong:
            sys.stderr.write(f"lab: {one['part']}: {one['error']}\n")
        good = len(compiled.jobs) - len(wrong)
        typer.echo(f"{compiled.name}: {good} of {len(compiled.jobs)} jobs good, {cells} cells")
    if wrong:
        raise typer.Exit(EXIT_INPUT)


@run.command("matrix")
def run_matrix(
    context: typer.Context,
    name: MatrixName,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="Print the jobs, their time, memory and disk space. Run nothing."
        ),
    ] = False,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="K/N",
            help="Run the K-th of N shards of the jobs, each for another machine.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="Run the most informative jobs that fit into this time, such as 45min or 2h.",
            show_default=False,
        ),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(
            "--junit",
            metavar="FILE",
            help="Write a JUnit XML report: one suite per job. Updated after each job.",
            show_default=False,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            hidden="site" not in capabilities.names(),
            metavar="DIR",
            help="Write an HTML site: a page per run, one to explore all values, and a badge.",
            show_default=False,
        ),
    ] = None,
    bisect: Annotated[
        bool,
        typer.Option(
            "--bisect",
            hidden="bisect" not in capabilities.names(),
            help="Bisect each claim that held in the run before and is refuted now, over the"
            " versions of Linux or mdadm between both runs. Keeps the packages of this run.",
        ),
    ] = False,
    clock: Clock = None,
    out: Out = None,
    jobs: Jobs = "auto",
    cold: Cold = False,
    accept_expired: AcceptExpired = False,
    fresh: Fresh = False,
    strict: Strict = False,
    cluster: Cluster = None,
    tls: Tls = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Continue this matrix run: an id or the beginning of it, 'last', 'last~1', or a"
            " matrix's name.",
            autocompletion=completion.matrix_run_names,
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a matrix of scenarios, images and kernels, one job after the other.

    A job that fails does not stop the others.

    Exit status: 1 if a claim was refuted that is no known failure, or a cell failed. Otherwise 3
    if a job could not run. With --strict also 1 if a claim is not decided.

    Examples:
        lab run matrix nightly --plan
        lab run matrix nightly --junit junit.xml --report site
        lab run matrix nightly --budget 30min
        lab run matrix nightly --bisect
        lab run matrix nightly --shard 1/3
        lab run matrix nightly --clock virtual
        lab run matrix nightly --resume last
        lab run matrix nightly --cluster local
    """
    from lab.capabilities.matrix import run as running
    from lab.capabilities.matrix.jobs import host_of, plan_of
    from lab.capabilities.matrix.record import MATRIX_RUNS
    from lab.core.errors import InputError
    from lab.results.junit import check_file
    from lab.results.report import check_directory

    how = how_of(jobs, accept_expired, keep=False, workloads=True, cold=cold, fresh=fresh)
    where = where_of(cluster, tls)
    if resume is not None and (shard or budget or clock or plan):
        raise InputError(
            "--resume keeps the options that the run began with: leave out --shard, --budget,"
            " --clock and --plan"
        )
    directory = MATRIX_RUNS.find(resume) if resume is not None else None
    record = MATRIX_RUNS.load(directory) if directory is not None else None
    compiled = _compiled(name, record.clock if record is not None else clock)
    if junit is not None:
        check_file(junit)
    for option, capability in ((report, "site"), (bisect, "bisect")):
        if option and capability not in capabilities.names():
            raise InputError(f"this lab has no lab/capabilities/{capability}, which that needs")
    if report is not None:
        check_directory(report)
    if where is not None and not plan:
        reach(where, how)
    if directory is not None:
        record = running.resume(compiled, directory)
    else:
        record = plan_of(
            *(compiled, host_of(how.jobs)),
            shard=shard,
            budget=_seconds(budget) if budget else None,
            clock=clock,
            accept_expired=how.accept_expired,
        )
        if plan:
            _print_plan(record, as_json=as_json)
            return
        directory = running.begin(compiled, record)
        record = MATRIX_RUNS.load(directory)
    options = running.Options(
        how=how,
        out=out.absolute() if out else None,
        follow=lambda job, one: follow(job, one, how, where, verbose=verbose),
        ended=lambda job: job_ended(job, junit, directory),
    )
    _write_junit(junit, directory)
    found = _run(context, compiled, directory, record, options)
    if bisect:
        found = _bisect(context, compiled, directory, how, verbose=verbose)
    written = None
    try:
        if report is not None:
            write_pages(report.absolute(), found)
            written = report
    finally:  # print the outcome even if the reports could not be written
        _tell(found, directory, written, as_json=as_json)
    raise typer.Exit(running.exit_status(found, strict=strict))


def _print_plan(record: MatrixRun, *, as_json: bool) -> None:
    from lab.capabilities.matrix.page import plan_page

    if as_json:
        print_json(record.model_dump(mode="json", by_alias=True))
    else:
        console().print(plan_page(record))


def _run(
    context: typer.Context,
    compiled: CompiledMatrix,
    directory: Path,
    record: MatrixRun,
    options: Options,
) -> MatrixResult:
    """Run the waiting jobs; after an interrupt print the finished ones and how to resume."""
    from lab.capabilities.matrix import run as running
    from lab.capabilities.matrix.page import plan_page
    from lab.cli.display.again import told
    from lab.core.errors import InputError

    console(stderr=True).print(plan_page(record))

    def kept(error: BaseException) -> str:
        if isinstance(error, InputError):
            return ""
        stopped = isinstance(error, KeyboardInterrupt) and not context.params.get("resume")
        return kept_of_matrix(context, directory, discard=stopped)

    with told(kept):
        running.run_jobs(compiled, directory, record, options)
    return running.matrix_result(directory)


def _bisect(
    context: typer.Context,
    compiled: CompiledMatrix,
    directory: Path,
    how: RunOptions,
    *,
    verbose: bool,
) -> MatrixResult:
    """Bisect what became refuted, and keep the packages of this run for the next one."""
    from lab.capabilities.matrix import run as running
    from lab.cli.display.again import told

    after = capabilities.part("bisect", "after_matrix").after
    with told(lambda _: kept_of_matrix(context, directory)):
        problems = after(compiled, directory, how, verbose=verbose)
    for problem in problems:
        sys.stderr.write(f"lab: {problem}\n")
    return running.matrix_result(directory)


def _compiled(name: str, clock: str | None = None) -> CompiledMatrix:
    from lab.capabilities.matrix.file import compile_matrix
    from lab.plugins import catalog

    found = compile_matrix(catalog.matrix_path(name), clock=clock)
    warn(*(job.compiled for job in found.jobs if job.compiled is not None))
    return found


def _seconds(budget: str) -> float:
    from lab.core.errors import InputError
    from lab.core.units import parse_seconds

    try:
        return parse_seconds(budget)
    except ValueError as error:
        raise InputError(f"--budget: {error}, or 2h") from None


@contextmanager
def follow(
    job: JobRecord, compiled: Compiled, how: RunOptions, where: Door | None, *, verbose: bool
) -> Iterator[Follower]:
    """Print the job, and show its progress while it runs."""
    from lab.cli.display.progress import Progress
    from lab.core.units import format_seconds
    from lab.run.execute import Follower

    cells = f"{job.cells} cell{'s' if job.cells != 1 else ''}"
    sys.stderr.write(f"{job.id}: {cells}, about {format_seconds(job.seconds)}\n")
    with (
        Progress(compiled, how=how, verbose=verbose) as progress,
        hands_of(where, how, progress) as hands,
    ):
        yield Follower(hands=hands, progress=progress.image, ready=progress.ready)


def job_ended(job: JobRecord, junit: Path | None, directory: Path) -> None:
    """Print how the job ended, and update the JUnit file."""
    from lab.core.units import format_seconds

    took = f" after {format_seconds(job.took)}" if job.took is not None else ""
    reason = f": {job.reason}" if job.reason else ""
    sys.stderr.write(f"{job.id}: {job.state.value}{took}{reason}\n")
    _write_junit(junit, directory)


def _write_junit(junit: Path | None, directory: Path) -> None:
    from lab.capabilities.matrix.junit import matrix_junit
    from lab.capabilities.matrix.run import matrix_result
    from lab.host.system import files

    if junit is not None:
        files.write(junit, matrix_junit(matrix_result(directory, trends=False)))


def write_pages(out: Path, found: MatrixResult) -> None:
    """Write a page for each run, and an index."""
    from lab.capabilities.matrix.page import overview_of
    from lab.capabilities.matrix.run import runs_of
    from lab.cli.options import own_name
    from lab.core.errors import InputError
    from lab.store import runs as store

    def say(text: str) -> None:
        sys.stderr.write(f"lab: {text}\n")

    try:
        write_site = capabilities.part("site", "run").write_site
        runs = runs_of(found.run, list(store.every()))
        write_site(runs, out, own_name(), say, overview=overview_of(found))
    except InputError as error:  # no job has run, so there is no report to write
        say(str(error))


def _tell(found: MatrixResult, directory: Path, report: Path | None, *, as_json: bool) -> None:
    from lab.capabilities.matrix.page import matrix_page

    if as_json:
        print_json(found.model_dump(mode="json", by_alias=True))
        return
    out = console()
    out.print(matrix_page(found))
    if report is not None:
        out.print(f"The report is in {home(report)}.", soft_wrap=True)
    out.print(f"Its runs are listed in {home(directory)}/night.json.", soft_wrap=True)


def kept_of_matrix(context: typer.Context, directory: Path, *, discard: bool = False) -> str:
    """Return the numbers of finished jobs and of the current job's cells, and how to resume.

    ``discard``: remove the runs and the record if no cell was finished.
    """
    from lab.capabilities.matrix.model import JobState
    from lab.capabilities.matrix.record import MATRIX_RUNS
    from lab.store.runs import RunStore

    record = MATRIX_RUNS.load(directory)
    done = sum(job.state is JobState.DONE for job in record.jobs)
    ended = 0
    for job in record.jobs:
        if job.run and job.state is not JobState.DONE:
            run = RunStore(Path(job.run))
            ended += sum(run.has_cell(cell.id) for cell in run.load_run().cells)
    if not done and not ended:
        runs = [RunStore(Path(job.run)) for job in record.jobs if job.run]
        if not discard or any(run.has_lost_attempts() for run in runs):
            return f"no cell was finished; what is known of the attempts is in {home(directory)}"
        for run in runs:
            if run.is_run:
                run.discard()
        RunStore(directory).discard()
        return NOTHING
    more = f", with {counted(ended, 'cell')} finished of others" if ended else ""
    return (
        f"{done} of {counted(len(record.jobs), 'job')} done{more}, kept in {home(directory)}."
        f" Resume with:\n  {command(context, shlex.quote(record.id), LEFT_OUT)}"
    )


@schema.command("matrix")
def print_schema() -> None:
    """Print the JSON Schema of a matrix of scenarios.

    Examples:
        lab schema matrix > matrix.schema.json
    """
    from lab.capabilities.matrix.file import matrix_schema

    print_json(matrix_schema())
