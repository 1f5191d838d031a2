"""``lab disk``: real disks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lab.cli.app import disk
from lab.cli.options import Json, console, home, print_json


@disk.command("list")
def list_(as_json: Json = False) -> None:
    """List real disks by the names that stay with them, and why each may not be passed through.

    Example: lab disk list
    """
    from lab.report.terminal.disks import disk_table
    from lab.run.preparation.real import inventory

    rows = inventory()
    if as_json:
        print_json({"disks": rows})
    elif rows:
        console().print(disk_table(rows))
    else:
        typer.echo("No disk has a name in /dev/disk/by-id: udev makes them.")


@disk.command()
def calibrate(
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="A disk, by any of its names.")],
    name: Annotated[
        str | None,
        typer.Option("--name", help="The profile's name; the device's, if none is given."),
    ] = None,
    jumps: Annotated[
        int, typer.Option("--jumps", min=20, max=10_000, help="Reads over each distance.")
    ] = 100,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Decides which places are read.")] = 1,
    as_json: Json = False,
) -> None:
    """Measure a real disk by reading it, and keep a profile that disk models can take.

    Nothing is written to the disk, which may be in use. It takes a minute or two.

    Example: lab disk calibrate /dev/disk/by-id/ata-WDC_WD10EZEX_1234
    """
    from lab.cli.display.progress import Spinner
    from lab.report.terminal.disks import profile_page
    from lab.run.preparation import profiles

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
