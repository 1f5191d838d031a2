"""``lab results``: list, show."""

from __future__ import annotations

import sys

from lab.cli.app import results
from lab.cli.options import Json, RunName, console, home, print_json


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
    from lab.report.text import result_page

    run = store.find(name)
    result = result_of(run)
    if as_json:
        print_json(result.model_dump(mode="json", by_alias=True))
        return
    stored = run.load_run()
    out = console()
    title, question = stored.title, stored.question
    out.print(result_page(result, title=title, question=question, claims=stored.claims))
    out.print(f"Kept in {home(run.directory)}", style="dim", soft_wrap=True)
