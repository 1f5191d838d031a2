"""``lab report`` and ``lab site``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lab.cli.app import FIRST, app
from lab.cli.options import Json, RunName, home, own_name, print_json


@app.command(rich_help_panel=FIRST)
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
