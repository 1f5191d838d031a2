"""``lab matrix`` and ``lab run matrix``."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import completion
from lab.cli.app import matrix, run
from lab.cli.commands.running import Cold, Jobs, Out, Verbose, hands_of, how_of, where_of
from lab.cli.options import AcceptExpired, Cluster, Json, Tls, console, home, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.cluster.client import Door
    from lab.compile.scenario.document import Compiled
    from lab.matrix.file import CompiledMatrix
    from lab.matrix.run import Follower
    from lab.model.matrix.record import NightPart, NightResult
    from lab.run.options import RunOptions


MatrixName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A matrix' name, or the path of a .yaml file.",
        autocompletion=completion.matrix_names,
        show_default=False,
    ),
]


@matrix.command("list")
def list_(as_json: Json = False) -> None:
    """List the matrices of scenarios there are.

    Example: lab matrix list
    """
    from lab.core.errors import InputError
    from lab.matrix.file import compile_matrix
    from lab.plugins import catalog
    from lab.report.content.plain_table import plain_table

    rows, broken = [], []
    for name, path in catalog.matrices().items():
        try:
            found = compile_matrix(path)
        except InputError as error:
            broken.append(str(error))
            continue
        cells = sum(len(part.cells) for part in found.parts)
        rows.append(
            {
                "name": name,
                "title": found.matrix.title,
                "parts": len(found.parts),
                "cells": cells,
                "file": str(path),
            }
        )
    if as_json:
        print_json({"matrices": rows, "broken": broken})
        return
    table = plain_table("matrix", "title", "parts", "cells")
    for row in rows:
        table.add_row(str(row["name"]), str(row["title"]), str(row["parts"]), str(row["cells"]))
    console().print(table)
    for sentence in broken:
        sys.stderr.write(f"lab: {sentence}\n")


@matrix.command()
def check(name: MatrixName, as_json: Json = False) -> None:
    """Check a matrix, every cell of every scenario in it, and whether the images can do them.

    Example: lab matrix check nightly
    """
    from lab.core.errors import EXIT_INPUT, InputError
    from lab.run.preparation.fitting import Known, check_images
    from lab.run.preparation.suites import check_suites

    compiled = _compiled(name)
    facts: Known = {}
    wrong = []
    for part in compiled.parts:
        reason = part.broken
        try:
            if part.compiled:
                check_images(part.compiled, facts)
                check_suites(part.compiled)
        except InputError as error:
            reason = str(error)
        if reason:
            wrong.append({"part": part.id, "error": reason})
    cells = sum(len(part.cells) for part in compiled.parts)
    if as_json:
        print_json({"parts": len(compiled.parts), "cells": cells, "wrong": wrong})
    else:
        for one in wrong:
            sys.stderr.write(f"lab: {one['part']}: {one['error']}\n")
        good = len(compiled.parts) - len(wrong)
        typer.echo(f"{compiled.name}: {good} of {len(compiled.parts)} parts good, {cells} cells")
    if wrong:
        raise typer.Exit(EXIT_INPUT)


@run.command("matrix")
def run_matrix(
    context: typer.Context,
    name: MatrixName,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say what would be run, and what it takes.")
    ] = False,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard", metavar="K/N", help="Only the K-th of N shares.", show_default=False
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="The most informative parts that fit into 45min, 2h …",
            show_default=False,
        ),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(
            "--junit",
            metavar="FILE",
            help="Write JUnit's XML, a suite for each part, and again after each part.",
            show_default=False,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="DIR",
            help="Write pages of the runs, trends and a badge.",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
    jobs: Jobs = "auto",
    cold: Cold = False,
    accept_expired: AcceptExpired = False,
    cluster: Cluster = None,
    tls: Tls = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="RUN", help="Go on with one that stopped.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a matrix of scenarios on images and kernels, one after the other, whatever breaks.

    Exit status: 1 where a claim was refuted that was not expected to be, or a cell failed; else 3
    where a part could not be run.

    Examples: lab run matrix nightly --plan · lab run matrix nightly --junit junit.xml --report site
    · lab run matrix nightly --budget 30min · lab run matrix nightly --shard 1/3
    · lab run matrix nightly --resume last · lab run matrix nightly --cluster local
    """
    from lab.cli.display.again import kept_of_matrix, told
    from lab.core.errors import InputError
    from lab.matrix import run as running
    from lab.matrix.plan import host_of, plan_of
    from lab.report.content.night import plan_page
    from lab.results.junit import check_file
    from lab.results.report import check_directory
    from lab.store import matrix_runs as nights

    how = how_of(jobs, accept_expired, keep=False, workloads=True, cold=cold)
    where = where_of(cluster, tls)
    compiled = _compiled(name)
    if junit is not None:
        check_file(junit)
    if report is not None:
        check_directory(report)
    if where is not None and not plan:
        _reach(where, how)
    if resume is not None:
        if shard or budget or plan:
            raise InputError("--resume goes on as the run was begun: leave out the other options")
        directory = nights.find(resume)
        night = running.again(compiled, directory)
    else:
        seconds = _seconds(budget) if budget else None
        night = plan_of(
            *(compiled, host_of(how.jobs)),
            shard=shard,
            budget=seconds,
            accept_expired=how.accept_expired,
        )
        if plan:
            if as_json:
                print_json(night.model_dump(mode="json", by_alias=True))
            else:
                console().print(plan_page(night))
            return
        directory = running.begin(compiled, night)
        night = nights.load(directory)
    console(stderr=True).print(plan_page(night))
    ways = running.Ways(
        how=how,
        out=out.absolute() if out else None,
        follow=lambda part, one: _follow(part, one, how, where, verbose=verbose),
        ended=lambda part: _ended(part, junit, directory),
    )
    _write_junit(junit, directory)
    with told(lambda e: "" if isinstance(e, InputError) else kept_of_matrix(context, directory)):
        running.run_night(compiled, directory, night, ways)
    found = running.night_result(directory)
    written = None
    try:
        if report is not None:
            _write_site(report.absolute(), found)
            written = report
    finally:  # what became of the night is told, whatever became of its pages
        _tell(found, directory, written, as_json=as_json)
    raise typer.Exit(running.exit_status(found))


def _compiled(name: str) -> CompiledMatrix:
    from lab.matrix.file import compile_matrix
    from lab.plugins import catalog

    return compile_matrix(catalog.matrix_path(name))


def _seconds(budget: str) -> float:
    from lab.core.errors import InputError
    from lab.core.units import parse_seconds

    try:
        return parse_seconds(budget)
    except ValueError as error:
        raise InputError(f"--budget: {error}, or 2h") from None


def _reach(where: Door, how: RunOptions) -> None:
    """What a cluster cannot do is told before the night, and not by each part of it."""
    from lab.cluster.run import joined

    def unheard(*_: object) -> None:
        pass

    with joined(where, how, unheard, unheard):
        pass


@contextmanager
def _follow(
    part: NightPart, compiled: Compiled, how: RunOptions, where: Door | None, *, verbose: bool
) -> Iterator[Follower]:
    from lab.cli.display.progress import Progress
    from lab.core.units import format_seconds
    from lab.matrix.run import Follower

    cells = f"{part.cells} cell{'s' if part.cells != 1 else ''}"
    sys.stderr.write(f"{part.id}: {cells}, about {format_seconds(part.seconds)}\n")
    with (
        Progress(compiled, how=how, verbose=verbose) as progress,
        hands_of(where, how, progress) as hands,
    ):
        yield Follower(hands=hands, progress=progress.image, ready=progress.ready)


def _ended(part: NightPart, junit: Path | None, directory: Path) -> None:
    from lab.core.units import format_seconds

    took = f" after {format_seconds(part.took)}" if part.took is not None else ""
    reason = f": {part.reason}" if part.reason else ""
    sys.stderr.write(f"{part.id}: {part.state.value}{took}{reason}\n")
    _write_junit(junit, directory)


def _write_junit(junit: Path | None, directory: Path) -> None:
    from lab.host.system import files
    from lab.matrix.junit import night_junit
    from lab.matrix.run import night_result

    if junit is not None:
        files.write(junit, night_junit(night_result(directory, trends=False)))


def _write_site(out: Path, found: NightResult) -> None:
    from lab.cli.options import own_name
    from lab.core.errors import InputError
    from lab.matrix.run import runs_of
    from lab.results.report import write_site
    from lab.store import runs as store

    def say(text: str) -> None:
        sys.stderr.write(f"lab: {text}\n")

    try:
        write_site(runs_of(found.night, list(store.every())), out, own_name(), say, night=found)
    except InputError as error:  # nothing was run: that is told, and is not what the matrix is for
        say(str(error))


def _tell(found: NightResult, directory: Path, report: Path | None, *, as_json: bool) -> None:
    from lab.report.content.night import night_page

    if as_json:
        print_json(found.model_dump(mode="json", by_alias=True))
        return
    out = console()
    out.print(night_page(found))
    if report is not None:
        out.print(f"The report is in {home(report)}.", soft_wrap=True)
    out.print(f"Its runs are listed in {home(directory)}/night.json.", soft_wrap=True)
