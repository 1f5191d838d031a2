"""``lab results``: list, show."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from lab.cli.app import results
from lab.cli.options import Json, RunName, console, home, own_name, print_json

if TYPE_CHECKING:
    from lab.model.result import Result
    from lab.store import RunStore


@results.command("list")
def list_(as_json: Json = False) -> None:
    """List the runs there are, newest first.

    Example: lab results list
    """
    from lab import store
    from lab.app.results import summary
    from lab.errors import InputError
    from lab.report.text import run_table

    rows, broken = [], []
    for run in store.every():
        try:
            rows.append(summary(run))
        except InputError as error:
            broken.append(str(error))
    if as_json:
        print_json({"runs": rows, "broken": broken})
        return
    if rows:
        console().print(run_table(rows))
    else:
        sys.stdout.write("There is no run yet. `lab up scenario raid5-parity-last` makes one.\n")
    for sentence in broken:
        sys.stderr.write(f"lab: {sentence}\n")


@results.command()
def show(name: RunName = "last", as_json: Json = False) -> None:
    """Show what came out of a run, made again from its raw output.

    Examples: lab results show · lab results show raid5-parity-last --json
    """
    from lab import store
    from lab.app.results import result_of

    run = store.find(name)
    result = result_of(run)
    if as_json:
        print_json(result.model_dump(mode="json", by_alias=True))
        tell_damage(run)
        return
    print_result(run, result)
    tell_damage(run)


def print_result(run: RunStore, result: Result, *, scenario: str | None = None) -> None:
    """The result page of a run; ``scenario`` is what the user called it, where somebody knows."""
    from lab.app.results import typed_names
    from lab.report.answer import steps
    from lab.report.text import next_steps, result_page

    stored = run.load_run()
    out = console()
    out.print(
        result_page(
            result,
            title=stored.title,
            question=stored.question,
            claims=stored.claims,
            notes=stored.notes,
            overrides=stored.overrides,
        )
    )
    known, name = typed_names(run)
    lines = steps(result, lab=own_name(), scenario=scenario or known, run=name)
    out.print(next_steps(lines, home(run.directory)), soft_wrap=True)


def tell_damage(run: RunStore) -> None:
    """Name on standard error what is foreign or broken in a run; the rest has been shown."""
    for sentence in run.damage():
        sys.stderr.write(f"lab: {sentence}\n")
