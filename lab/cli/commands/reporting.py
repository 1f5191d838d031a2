"""``lab report`` and ``lab site``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lab.cli.app import RESULTS, app
from lab.cli.options import Json, RunName, home, own_name, print_json


@app.command(rich_help_panel=RESULTS)
def report(
    name: RunName = "last",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="File or directory of the page.",
            show_default=False,
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            "--pictures",
            metavar="DIR",
            help="Also write each chart to DIR, as SVG and PNG.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a run as one HTML file, charts included.

    The page needs no network and no JavaScript. To write it, no QEMU and no libvirt are needed.

    Examples:
        lab report
        lab report raid5-parity-last --out /tmp/page.html
        lab report last --pictures charts
    """
    from lab.cli.commands.results import tell_damage
    from lab.results.report import write_charts, write_report
    from lab.store import runs as store

    drawn: tuple[Path, ...] = ()
    run = store.find(name)
    written = write_report(run, out.absolute() if out else None, own_name())
    if pictures:
        drawn = write_charts(run, pictures.absolute())
    tell_damage(run)
    if as_json:
        print_json({"page": str(written), "pictures": [str(path) for path in drawn]})
        return
    sys.stdout.write(f"Written to {home(written)}\n")
    if pictures:
        sys.stdout.write(f"{len(drawn)} charts are in {home(pictures)}\n")


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
    from lab.host.system import paths
    from lab.results.report import write_site
    from lab.store import runs as store

    def say(sentence: str) -> None:
        sys.stderr.write(f"lab: {sentence}\n")

    out = (directory or paths.site()).absolute()
    written = write_site(list(store.every()), out, own_name(), say, added=add or ())
    if as_json:
        print_json({"page": str(written)})
    else:
        sys.stdout.write(f"Written to {home(written)}\n")
