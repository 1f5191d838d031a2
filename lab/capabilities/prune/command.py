"""``lab prune``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.app import IMAGES, app
from lab.cli.options import Json, console, print_json

if TYPE_CHECKING:
    from lab.capabilities.prune.model import Item


@app.command(rich_help_panel=IMAGES)
def prune(
    keep: Annotated[
        str,
        typer.Option("--keep", metavar="SIZE", help="Disk space that may stay in use, as 20GB."),
    ],
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Print what would be removed. This is the default.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it.")] = False,
    with_results: Annotated[
        bool, typer.Option("--results", help="Remove runs too, after everything else.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Free disk space: snapshots, kernels, boot files for virtual time, old builds of images.

    What was not used for longest goes first. All of it but runs is made again when it is needed.
    Whatever a guest, a run or another process uses stays, and the newest build of each image.

    Examples:
        lab prune --keep 20GB
        lab prune --keep 20GB --yes
        lab prune --keep 5GB --results --plan
    """
    from lab.capabilities.prune import run as pruning
    from lab.capabilities.prune.page import item_line, prune_page
    from lab.core.errors import InputError
    from lab.core.units import parse_size

    def say(item: Item) -> None:
        console().print(item_line(item), soft_wrap=True)

    try:
        most = parse_size(keep)
    except ValueError as error:
        raise InputError(f"--keep: {error}") from None
    if plan_only and yes:
        raise InputError("--plan and --yes: give one of them")
    found = pruning.plan(most, with_runs=with_results)
    if yes:
        found = pruning.carry_out(found, lambda item: None if as_json else say(item))
    if as_json:
        print_json(found.model_dump(mode="json", by_alias=True))
        return
    console().print(prune_page(found))
    if not yes and any(item.remove for item in found.items):
        results = " --results" if with_results else ""
        sys.stdout.write(f"Nothing is removed yet: lab prune --keep {keep}{results} --yes\n")
