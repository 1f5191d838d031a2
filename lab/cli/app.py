"""The commands and their groups."""

from __future__ import annotations

from typing import Annotated

import typer

from lab import __version__

_HELP = """A virtual test lab for Linux software RAID.

A scenario says which guest to boot, with how many disks of what speed, which mdadm array to build
and what to run on it. The lab does that on QEMU, and answers: measured, beside what was published
and what theory predicts.
"""
_EPILOG = """Start with: lab doctor · lab scenario list · lab up scenario raid5-parity-last

Exit status: 0 done; 1 a claim was refuted or a cell failed; 2 bad input; 3 the host or the lab
could not do it; 130 stopped by Ctrl-C."""

app = typer.Typer(
    name="lab",
    help=_HELP,
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lab {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where in the lab an error came from.")
    ] = False,
) -> None:
    """Options of every command."""
    del version, debug


def _group(name: str, text: str) -> typer.Typer:
    group = typer.Typer(no_args_is_help=True, help=text, rich_markup_mode=None)
    app.add_typer(group, name=name)
    return group


image = _group("image", "Guest images: built from Debian's own packages, or brought.")
scenario = _group("scenario", "Look at scenarios without booting anything.")
matrix = _group("matrix", "Matrices of scenarios, images and kernels.")
up = _group("up", "Run a scenario and leave its guest up, to play in.")
run = _group("run", "Run a scenario, or a matrix of them, and take every guest down.")
results = _group("results", "What came out of earlier runs.")
disk = _group("disk", "Real disks: which may be passed through, and what they do.")
cluster = _group("cluster", "Hand a run's cells to other machines, with dask.distributed.")
schema = _group("schema", "JSON Schema, for editors and for other programs.")
