"""``lab image``: list, build, import, remove, prune."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lab.cli.app import image
from lab.cli.options import AcceptExpired, ImageName, Json, console, home, print_json


@image.command("list")
def list_(as_json: Json = False) -> None:
    """List the images that are here, and those that could be built.

    Example: lab image list
    """
    from lab.app.images import inventory
    from lab.report.text import image_table

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
        bool, typer.Option("--refresh", help="Build again, for newer packages.")
    ] = False,
    accept_expired: AcceptExpired = False,
) -> None:
    """Build an image from Debian's own packages, without root.

    Examples: lab image build debian-12 · lab image build my-own.yaml
    """
    from lab.app.images import build_named
    from lab.cli.progress import Spinner

    with Spinner("building the image") as spinner:
        made = build_named(
            name, refresh=refresh, accept_expired=accept_expired, progress=spinner.show
        )
    typer.echo(f"{made.name} is in {home(made.directory)}")


@image.command("import")
def import_(
    source: Annotated[str, typer.Argument(metavar="FILE-or-URL", help="A qcow2 or raw disk.")],
    checksum: Annotated[
        str,
        typer.Option("--checksum", metavar="ALGORITHM:HEX", help="sha512:… or sha256:…, needed."),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="What to call it; the file's name, if not given.")
    ] = None,
) -> None:
    """Bring a cloud image that someone else made; it needs cloud-init and mdadm inside.

    Example: lab image import disk.qcow2 --name my-cloud --checksum sha512:9f86d0…
    """
    from lab.app.images import import_named
    from lab.cli.progress import Spinner

    with Spinner("importing the image") as spinner:
        made = import_named(source, name=name, checksum=checksum, progress=spinner.show)
    typer.echo(f"{made.name} is in {home(made.directory)}")
    typer.echo(f"  use it with: --set guest.image={made.name}")


@image.command()
def remove(name: ImageName) -> None:
    """Remove an image, or one build of it by its digest.

    Example: lab image remove debian-12
    """
    from lab.app.images import remove_named
    from lab.units import format_size

    gone, size = remove_named(name)
    typer.echo(f"Removed {', '.join(gone)}: about {format_size(size // 2**20 * 2**20)} freed.")


@image.command()
def prune(as_json: Json = False) -> None:
    """Remove all but the newest build of each image, and what dead builders left.

    Example: lab image prune
    """
    from lab.app.images import prune_all
    from lab.units import format_size

    gone, size = prune_all()
    if as_json:
        print_json({"removed": gone, "bytes": size})
    elif gone:
        about = format_size(size // 2**20 * 2**20)
        typer.echo(f"Removed {', '.join(gone)}: about {about} freed.")
    else:
        typer.echo("There is nothing to remove.")
