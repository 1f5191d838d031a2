"""``lab image``: list, build, export, import, remove, prune."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lab.cli.app import image
from lab.cli.options import AcceptExpired, ImageName, Json, console, home, print_json


@image.command("list")
def list_(as_json: Json = False) -> None:
    """List built images, and those that can be built.

    Examples:
        lab image list
    """
    from lab.report.terminal.text import image_table
    from lab.run.preparation.images import inventory

    rows, skipped = inventory()
    if as_json:
        print_json({"images": rows, "skipped": skipped})
        return
    console().print(image_table(rows))
    for sentence in skipped:
        sys.stderr.write(f"lab: {sentence}\n")


@image.command()
def build(
    name: ImageName,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Build again with current packages.")
    ] = False,
    accept_expired: AcceptExpired = False,
) -> None:
    """Build an image from Debian's own packages, without root.

    Examples:
        lab image build debian-12
        lab image build my-own.yaml
    """
    from lab.cli.display.progress import Spinner
    from lab.run.preparation.images import build_named

    with Spinner("building the image") as spinner:
        made = build_named(
            name, refresh=refresh, accept_expired=accept_expired, progress=spinner.show
        )
    typer.echo(f"{made.name} is in {home(made.directory)}")


@image.command()
def export(
    name: ImageName,
    file: Annotated[Path, typer.Argument(metavar="FILE.tar", help="File to create.")],
    as_json: Json = False,
) -> None:
    """Write an image to a file, for another host.

    Two builds of a recipe differ. In virtual time, two hosts get the same digest only with the
    same image.

    Examples:
        lab image export debian-12 debian-12.tar
    """
    from lab.cli.display.progress import Spinner
    from lab.run.preparation.images import export_named

    with Spinner("exporting the image") as spinner:
        checksum = f"sha256:{export_named(name, file, progress=spinner.show)}"
    if as_json:
        print_json({"file": str(file), "checksum": checksum})
        return
    typer.echo(f"{name} is in {file}")
    typer.echo(f"  on the other host: lab image import {file.name} --checksum {checksum}")


@image.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE-or-URL", help="A qcow2 or raw disk, or a .tar of 'lab image export'."
        ),
    ],
    checksum: Annotated[
        str | None,
        typer.Option(
            "--checksum",
            metavar="ALGORITHM:HEX",
            help="Expected checksum, such as sha256:9f86d0... A .tar of this host needs none.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the image. Default: the file's name.")
    ] = None,
) -> None:
    """Import an image of another host, or a cloud image.

    A cloud image must have cloud-init, an SSH server and mdadm: it is read before it is accepted.

    Examples:
        lab image import debian-12.tar
        lab image import debian-12.tar --checksum sha256:9f86d0…
        lab image import disk.qcow2 --name my-cloud --checksum sha512:9f86d0…
    """
    from lab.cli.display.progress import Spinner
    from lab.run.preparation.images import import_named, is_recipe

    with Spinner("importing the image") as spinner:
        made = import_named(source, name=name, checksum=checksum, progress=spinner.show)
    typer.echo(f"{made.name} is in {home(made.directory)}")
    if is_recipe(made.name):
        typer.echo(f"  scenarios with 'guest.image: {made.name}' use it from now on")
        typer.echo(f"  to go back to your own build: lab image remove {made.directory.name}")
    elif made.manifest.unread:
        typer.echo(f"  not checked: {made.manifest.unread}")
        typer.echo(f"  try it with: lab up --set guest.image={made.name}")
    else:
        typer.echo(f"  use it with: --set guest.image={made.name}")


@image.command()
def remove(name: ImageName) -> None:
    """Remove an image, or one build of it by its digest.

    Examples:
        lab image remove debian-12
    """
    from lab.core.units import format_size
    from lab.run.preparation.images import remove_named

    gone, size = remove_named(name)
    typer.echo(f"Removed {', '.join(gone)}: about {format_size(size // 2**20 * 2**20)} freed.")


@image.command(hidden=True)
def prune(as_json: Json = False) -> None:
    """The older spelling of `lab clean --old-builds`.

    Examples:
        lab image prune
    """
    from lab.core.units import format_size
    from lab.run.preparation.images import prune_all

    gone, size = prune_all()
    if as_json:
        print_json({"removed": gone, "bytes": size})
    elif gone:
        about = format_size(size // 2**20 * 2**20)
        typer.echo(f"Removed {', '.join(gone)}: about {about} freed.")
    else:
        typer.echo("There is nothing to remove.")
