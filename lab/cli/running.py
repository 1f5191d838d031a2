"""``lab up`` and ``lab run``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.app import run, up
from lab.cli.options import (
    Json,
    ScenarioName,
    Sets,
    Trials,
    compile_named,
    console,
    home,
    own_name,
    print_json,
)

if TYPE_CHECKING:
    from lab.app.execute import Done

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Keep the run below DIR.", show_default=False),
]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="A line per event, also without a terminal.")
]


@up.command("scenario")
def up_scenario(
    name: ScenarioName,
    sets: Sets = None,
    trials: Trials = None,
    out: Out = None,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Only boot the guest and build the base cell's array.")
    ] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run all cells, print the answer, and leave the base cell's guest up with its array.

    Examples: lab up scenario raid5-parity-last · lab up scenario raid5-parity-last --no-run
    """
    _go(name, sets, trials, out, keep=True, workloads=not no_run, as_json=as_json, verbose=verbose)


@run.command("scenario")
def run_scenario(
    name: ScenarioName,
    sets: Sets = None,
    trials: Trials = None,
    out: Out = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run all cells, print the answer, and take every guest down.

    Examples: lab run scenario raid5-parity-last --json ·
    lab run scenario raid5-parity-last --set 'matrix={}' --set array.layout=left-asymmetric
    """
    _go(name, sets, trials, out, keep=False, workloads=True, as_json=as_json, verbose=verbose)


def _go(
    name: str,
    sets: list[str] | None,
    trials: int | None,
    out: Path | None,
    *,
    keep: bool,
    workloads: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    from lab.app import execute
    from lab.cli.progress import Progress

    compiled = compile_named(name, sets, trials)
    with Progress(compiled, workloads=workloads, verbose=verbose) as progress:
        done = execute.run_scenario(
            compiled,
            texts=sets or [],
            out=out.absolute() if out else None,
            keep=keep,
            workloads=workloads,
            watch=progress.watch,
            progress=progress.image,
            ready=progress.ready,
        )
    if as_json:
        print_json(done.result.model_dump(mode="json", by_alias=True))
    elif workloads:
        _show(done, compiled.scenario.title, compiled.scenario.question)
    if done.kept and not as_json:
        _say_kept(done.kept)
    raise typer.Exit(exit_status(done))


def exit_status(done: Done) -> int:
    """1 where a claim was refuted or a cell did not finish."""
    from lab.errors import EXIT_DONE, EXIT_REFUTED
    from lab.model.claim import Verdict
    from lab.model.result import Outcome

    refuted = any(c.verdict is Verdict.REFUTED for c in done.result.claims)
    failed = any(c.outcome is not Outcome.DONE for c in done.result.cells)
    return EXIT_REFUTED if refuted or failed else EXIT_DONE


def _show(done: Done, title: str, question: str) -> None:
    from lab.report.text import result_page

    out = console()
    stored = done.store.load_run()
    page = result_page(done.result, title=title, question=question, claims=stored.claims)
    out.print(page)
    out.print(f"Kept in {home(done.store.directory)}", style="dim", soft_wrap=True)


def _say_kept(guest: str) -> None:
    from lab.host import guests

    record = guests.find(guest)
    lab = own_name()
    lines = {
        f"{lab} ssh {guest}": "to look around",
        f"{lab} ssh {guest} -- cat /proc/mdstat": "to run one command",
        f"{lab} down {guest}": "to end it",
    }
    width = max(len(command) for command in lines)
    typer.echo(f"The guest {guest} is up with its array on {record.target}.")
    for command, what in lines.items():
        typer.echo(f"  {command:<{width}}    {what}")
