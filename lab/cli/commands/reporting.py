"""``lab report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lab.cli.app import app
from lab.cli.options import Json, RunName, home, own_name, print_json


@app.command()
def report(
    name: RunName = "last",
    all_: Annotated[
        bool,
        typer.Option(
            "--all", help="A page for each run there is, and an index with trends over them."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="Write the page to this file, or below this directory. With --all: the directory.",
            show_default=False,
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            "--pictures",
            metavar="DIR",
            help="Write each picture to DIR too, as SVG and as PNG.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a page of a run that can be sent around: one HTML file, pictures and all.

    It needs no network, no JavaScript, and neither QEMU nor libvirt on the machine that makes it.

    Examples: lab report · lab report raid5-parity-last --out /tmp/page.html ·
    lab report last --pictures pictures · lab report --all --out site
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
            raise InputError("--pictures draws those of one run: leave out --all")
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
        sys.stdout.write(f"{len(drawn)} files of pictures are in {home(pictures)}\n")
