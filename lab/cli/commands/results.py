"""``lab results``: list, show, compare, history, noise, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lab.cli import completion
from lab.cli.app import results
from lab.cli.options import (
    Json,
    RunName,
    console,
    home,
    own_name,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.model.result.document import Result
    from lab.store.runs import RunStore


@results.command("list")
def list_(as_json: Json = False) -> None:
    """List runs, newest first.

    Examples:
        lab results list
    """
    from lab.report.terminal.runs import recorded_note, run_table
    from lab.results.listing import every_row

    rows, broken = every_row(lambda sentence: tell([sentence]))
    if as_json:
        print_json({"runs": rows, "broken": broken})
        return
    if rows:
        console().print(run_table(rows))
        sys.stdout.write(recorded_note(rows))
    else:
        sys.stdout.write(_NO_RUN)
    tell(broken)


_NO_RUN = "There is no run yet. Start one with: lab run scenario raid5-parity-last\n"


def tell(broken: Sequence[str]) -> None:
    """Print a sentence per unreadable file to standard error."""
    for sentence in broken:
        sys.stderr.write(f"lab: {sentence}\n")


@results.command()
def show(
    name: RunName = "last",
    whole: Annotated[
        bool,
        typer.Option("--whole", help="Print every value, claim and note, not one screen of them."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the result of a run, computed again from its raw output.

    Examples:
        lab results show
        lab results show raid5-parity-last --json
    """
    from lab.results.judged import result_of
    from lab.store import runs as store

    run = store.find(name)
    result = result_of(run)
    if as_json:
        print_json(result.model_dump(mode="json", by_alias=True))
        tell_damage(run)
        return
    print_result(run, result, whole=whole)
    tell_damage(run)


BELOW: Final = 3
"""Lines of a terminal below a result: two next commands, and the prompt."""


def print_result(
    run: RunStore, result: Result, *, scenario: str | None = None, whole: bool = False
) -> None:
    """Print a run's result: one screen, or with ``whole`` everything.

    ``scenario``: the scenario's name as the user gave it, if known.
    """
    from lab.results.documents import understood

    understood(_print_result)(run, result, scenario, whole)


def _print_result(run: RunStore, result: Result, scenario: str | None, whole: bool) -> None:
    from lab.report.content.drives import unmeasured
    from lab.report.content.reliability import steps
    from lab.report.terminal.screen import abridged, next_steps, result_page
    from lab.results.documents import typed_names

    stored = run.load_run()
    out = console()
    short = not whole and not getattr(out, "piped", False)
    out.print(
        result_page(
            result,
            title=stored.title,
            question=stored.question,
            claims=stored.claims,
            notes=stored.notes,
            overrides=stored.overrides,
            drives=unmeasured(one.cell for one in stored.cells),
            whole=whole,
            height=out.height - BELOW if short else None,
        )
    )
    known, name = typed_names(run)
    called = scenario or known
    lines = steps(result, lab=own_name(), scenario=called, run=name, overrides=stored.overrides)
    if short or (not whole and abridged(result, notes=stored.notes, overrides=stored.overrides)):
        lines = ((f"{own_name()} results show {name} --whole", "all values and reasons"), *lines)
    out.print(next_steps(lines, home(run.directory), short=short), soft_wrap=True)


def tell_damage(run: RunStore) -> None:
    """Print a run's foreign or corrupt files to standard error."""
    tell(run.warnings())


@results.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.lab.zip", help="A bundle of 'lab results export'.")
    ],
    as_json: Json = False,
) -> None:
    """Store the run of a bundle with the other runs.

    A bundle is read as hostile input: anything but the files of one run is refused.

    Examples:
        lab results import raid5-parity-last-20260101-120000.lab.zip
    """
    from lab.store import bundles

    run = bundles.take_in(file)
    if as_json:
        print_json({"run": run.id, "directory": str(run.directory)})
    else:
        sys.stdout.write(f"{run.id} is in {home(run.directory)}\n")


@results.command()
def export(
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="PATH",
            help="File to create; a directory for fio and script. -: standard output, for junit,"
            " summary and openmetrics.",
        ),
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORM",
            help="csv, parquet, fio (for fio-plot), junit, summary (Markdown, as for GitHub's step"
            " summary), openmetrics, bundle (the run as one file) or script (a cell as a shell"
            " script).",
            autocompletion=completion.export_forms,
        ),
    ],
    name: RunName = "last",
    cell: Annotated[
        str | None,
        typer.Option("--cell", metavar="ID", help="Only this cell, by its id.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a run in a format of other programs.

    Examples:
        lab results export last --format csv --out last.csv
        lab results export raid5-parity-last --format junit --out junit.xml
        lab results export last --format summary --out summary.md
        lab results export last --format bundle --out last.lab.zip
        lab results export last~1 --format script --cell ID --out script
    """
    from lab.core.errors import InputError
    from lab.results.export import Form, text_of
    from lab.results.export import export as write
    from lab.store import runs as store

    if form not in {f.value for f in Form}:
        raise InputError(
            f"--format: '{form}' is not a format: expected one of"
            f" {', '.join(f.value for f in Form)}"
        )
    run = store.find(name)
    try:
        if str(out) == "-":
            sys.stdout.write(text_of(run, Form(form), cell))
            tell_damage(run)
            return
        files = write(run, Form(form), out, cell)
    except InputError:
        tell_damage(run)  # it may be the reason
        raise
    if as_json:
        print_json({"format": form, "files": [str(file) for file in files]})
    else:
        several = f"{len(files)} files" if len(files) > 1 else "1 file"
        sys.stdout.write(f"{several} written: {home(out)}\n")
    tell_damage(run)
