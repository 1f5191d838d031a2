"""``lab clean``, and its older spelling ``lab prune``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.app import IMAGES, app
from lab.cli.options import Json, console, print_json

if TYPE_CHECKING:
    from lab.capabilities.prune.model import Item

Plan = Annotated[bool, typer.Option("--plan", help="Print what would be removed. Remove nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="With --keep: remove it.")]
Results = Annotated[
    bool, typer.Option("--results", help="With --keep: remove runs too, after everything else.")
]


@app.command(rich_help_panel=IMAGES)
def clean(
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            metavar="SIZE",
            help="Free disk space until at most this is in use, such as 20GB. Prints the plan;"
            " --yes carries it out.",
            show_default=False,
        ),
    ] = None,
    old_builds: Annotated[
        bool,
        typer.Option("--old-builds", help="Remove all but the newest build of each image too."),
    ] = False,
    plan_only: Plan = False,
    yes: Yes = False,
    with_results: Results = False,
    as_json: Json = False,
) -> None:
    """Remove leftovers of killed runs, and free disk space.

    Leftovers are guests, incomplete images and temporary files. With --keep also what is made again
    when it is needed goes: snapshots, kernels, boot files for virtual time, old builds of images.
    What was not used for longest goes first. Whatever a guest, a run or another process uses stays,
    and the newest build of each image.

    Examples:
        lab clean
        lab clean --plan
        lab clean --keep 20GB
        lab clean --keep 5GB --results --yes
    """
    from lab.core.errors import InputError
    from lab.core.units import format_size
    from lab.run.guests import collect
    from lab.run.preparation.images import prune_all

    if keep is not None:
        if old_builds:
            raise InputError("--old-builds and --keep: give one of them")
        _free(keep, plan_only=plan_only, yes=yes, with_results=with_results, as_json=as_json)
        return
    if yes or with_results:
        raise InputError(f"{'--yes' if yes else '--results'}: it needs --keep")
    if old_builds and plan_only:
        raise InputError("--plan: it does not know --old-builds; `lab image list` has all builds")
    removed = collect(dry_run=plan_only)
    gone, size = prune_all() if old_builds else ([], 0)
    if as_json:
        print_json({"removed": [*removed, *gone], "plan": plan_only, "bytes": size})
        return
    what = "Would be removed" if plan_only else "Removed"
    said = f"{what}: {', '.join([*removed, *gone])}"
    if gone:
        said += f"; about {format_size(size // 2**20 * 2**20)} of images freed"
    typer.echo(said if removed or gone else "There is nothing to remove.")


@app.command(hidden=True)
def prune(
    keep: Annotated[str, typer.Option("--keep", metavar="SIZE", help="As of `lab clean`.")],
    plan_only: Plan = False,
    yes: Yes = False,
    with_results: Results = False,
    as_json: Json = False,
) -> None:
    """The older spelling of `lab clean --keep`.

    Examples:
        lab prune --keep 20GB
    """
    _free(keep, plan_only=plan_only, yes=yes, with_results=with_results, as_json=as_json)


def _free(keep: str, *, plan_only: bool, yes: bool, with_results: bool, as_json: bool) -> None:
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
        sys.stdout.write(f"Nothing is removed yet: lab clean --keep {keep}{results} --yes\n")
