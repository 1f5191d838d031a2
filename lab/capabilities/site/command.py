"""``lab site``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lab.cli.app import RESULTS, app
from lab.cli.options import Json, home, own_name, print_json


@app.command(rich_help_panel=RESULTS)
def site(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Directory of the site; it is created.  [default: ~/.local/share/lab/site]",
            show_default=False,
        ),
    ] = None,
    add: Annotated[
        list[Path] | None,
        typer.Option(
            "--add",
            metavar="FILE",
            help="Add this run too: a bundle, or what 'lab results show RUN --json' printed, here"
            " or elsewhere. Repeatable.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a static site of all runs, to explore, compare and share.

    index.html has every value: filter, compare any two runs, kernels or clocks, follow a value
    over time, copy the command that runs a cell again. Next to it are each run's report, each
    cell's commands and raw output, and badge.svg. The site needs no server and no network. A report
    that is there, of the same results and this version of the lab, is not drawn again.

    A bundle is read as hostile input, and has a report. A result has none: it is only explored.

    Examples:
        lab site site
        lab site site --add theirs.lab.zip --add others.json
    """
    from lab.capabilities.site.run import write_site
    from lab.host.system import paths
    from lab.store import runs as store

    def say(sentence: str) -> None:
        sys.stderr.write(f"lab: {sentence}\n")

    out = (directory or paths.site()).absolute()
    written = write_site(list(store.every()), out, own_name(), say, added=add or ())
    if as_json:
        print_json({"page": str(written)})
    else:
        sys.stdout.write(f"Written to {home(written)}\n")
