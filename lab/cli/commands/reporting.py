"""``lab report``."""

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
    all_: Annotated[
        bool,
        typer.Option("--all", help="Write a page for each run, and an index with trends."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="File or directory of the page. With --all: the directory of the site.",
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
        lab report --all --out site
    """
    from lab.cli.commands.results import tell_damage
    from lab.core.errors import InputError
    from lab.host.system import paths
    from lab.results.report import write_charts, write_report, write_site
    from lab.store import runs as store

    def say(sentence: str) -> None:
        sys.stderr.write(f"lab: {sentence}\n")

    drawn: tuple[Path, ...] = ()
    if all_:
        if pictures:
            raise InputError("--pictures writes the charts of one run: leave out --all")
        runs = list(store.every())
        written = write_site(runs, (out or paths.site()).absolute(), own_name(), say)
    else:
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
