"""``lab disk``: real disks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lab.cli.app import DISKS, group
from lab.cli.options import Json, console, home, print_json

disk = group("disk", DISKS, "List and measure real disks.")


@disk.command("list")
def list_(as_json: Json = False) -> None:
    """List real disks by stable name, and why a disk cannot be passed through.

    Examples:
        lab disk list
    """
    from lab.capabilities.disks.page import disk_table
    from lab.run.preparation.real import inventory

    rows = inventory()
    if as_json:
        print_json({"disks": rows})
    elif rows:
        console().print(disk_table(rows))
    else:
        typer.echo("No disk has a name in /dev/disk/by-id. udev creates these names.")


@disk.command()
def calibrate(
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="A disk, by any name in /dev.")],
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the profile. Default: the device's name."),
    ] = None,
    jumps: Annotated[
        int, typer.Option("--jumps", min=20, max=10_000, help="Number of reads per seek distance.")
    ] = 100,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of the random positions.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Measure a real disk, and store a profile for the disk models.

    The disk is only read, and may be in use. This takes one or two minutes.

    Examples:
        lab disk calibrate /dev/disk/by-id/ata-WDC_WD10EZEX_1234
    """
    from lab.capabilities.disks import run as profiles
    from lab.capabilities.disks.page import profile_page
    from lab.cli.display.progress import Spinner

    with Spinner(f"reading {device}") as spinner:
        spinner.show("streams, jumps and random reads", None)
        kept, profile = profiles.calibrate(
            device, name=name or Path(device).name, jumps=jumps, seed=seed
        )
    if as_json:
        data = profile.model_dump(mode="json", exclude={"samples"})
        print_json({"file": str(kept), "score": profile.score, "profile": data})
        return
    console().print(profile_page(profile))
    typer.echo(f"It is in {home(kept)}. In a scenario: disks: {{model: 'profile:{kept}'}}")
