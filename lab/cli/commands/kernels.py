"""``lab kernel``: kernels and mdadm of Debian's archives, and kernels of a git repository."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lab.cli import completion
from lab.cli.app import kernel
from lab.cli.options import AcceptExpired, Json, console, print_json
from lab.core.errors import InputError
from lab.model.image.axis import Axis


def _axis(text: str) -> Axis:
    known = (Axis.KERNEL, Axis.MDADM)
    found = [axis for axis in known if axis.value == text]
    if not found:
        raise InputError(f"--axis: '{text}' is unknown: expected {' or '.join(known)}")
    return found[0]


AxisOption = Annotated[
    Axis,
    typer.Option(
        "--axis",
        parser=_axis,
        metavar="kernel|mdadm",
        help="Versions of Linux, or of mdadm.",
    ),
]


@kernel.command("list")
def list_(
    axis: AxisOption = Axis.KERNEL,
    refresh: Annotated[
        bool,
        typer.Option("--refresh", help="Read the archives' lists now. Without it, once a day."),
    ] = False,
    accept_expired: AcceptExpired = False,
    as_json: Json = False,
) -> None:
    """List the cloud kernels of Debian's archives, and those that are fetched.

    From bullseye to sid, with updates, security and backports, as apt finds them. 'complete':
    usable. 'no headers': usable in real time only, since the archive has dropped the headers.
    'incomplete': the archive has dropped a package without which it cannot be installed.

    Examples:
        lab kernel list
        lab kernel list --axis mdadm --json
    """
    from lab.cli.display.progress import Spinner
    from lab.report.terminal.text import version_table
    from lab.run.preparation import versions

    with Spinner("reading the archives") as spinner:
        index, warnings = versions.current(
            spinner.show, refresh=refresh, accept_expired=accept_expired
        )
    rows = versions.rows(axis, index)
    if as_json:
        print_json({"read": index.read, "versions": rows, "warnings": warnings})
        return
    console().print(version_table(rows))
    for sentence in warnings:
        sys.stderr.write(f"lab: {sentence}\n")


@kernel.command()
def fetch(
    patterns: Annotated[
        list[str],
        typer.Argument(
            metavar="VERSION...",
            help="Versions, names of packages, or quoted patterns such as '6.12.*'.",
            show_default=False,
        ),
    ],
    axis: AxisOption = Axis.KERNEL,
    accept_expired: AcceptExpired = False,
    as_json: Json = False,
) -> None:
    """Fetch kernels, with their headers, or versions of mdadm, and keep them.

    The archives drop old versions; fetched ones stay. Their names are values of guest.kernel
    and guest.mdadm.

    Examples:
        lab kernel fetch 6.12.107-1
        lab kernel fetch '6.12.11*'
        lab kernel fetch --axis mdadm 4.2-5 '4.6*'
    """
    from lab.cli.display.progress import Spinner
    from lab.run.preparation import versions

    with Spinner("fetching") as spinner:
        versions.current(spinner.show, refresh=False, accept_expired=accept_expired)
        found, left_out = versions.fetch(
            axis, patterns, spinner.show, accept_expired=accept_expired
        )
    for sentence in left_out:
        sys.stderr.write(f"lab: left out: {sentence}\n")
    if as_json:
        print_json({"fetched": [one.name for one in found], "left_out": left_out})
        return
    for one in found:
        typer.echo(f"{one.title} is fetched: --set {axis.key}={one.name}")


@kernel.command()
def build(
    tree: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Git repository of Linux.", show_default=False),
    ],
    commit: Annotated[
        str, typer.Argument(metavar="[COMMIT]", help="A commit, such as v6.12 or my-branch.")
    ] = "HEAD",
    image: Annotated[
        str,
        typer.Option(
            "--image",
            metavar="NAME",
            help="Guest image whose release has the compiler: an old kernel needs an old one.",
            autocompletion=completion.image_names,
        ),
    ] = "debian-12",
    accept_expired: AcceptExpired = False,
    as_json: Json = False,
) -> None:
    """Build the kernel of a commit, for guests with either clock.

    With a small configuration (images/linux.config), in a root file system of its own, in minutes;
    a neighbouring commit takes less than one. The repository is not changed. The kernel's path is
    a value of guest.kernel.

    Examples:
        lab kernel build ~/linux
        lab kernel build ~/linux v6.6 --image debian-12
    """
    from lab.cli.display.progress import Spinner
    from lab.host.images import linux

    one = linux.commit(tree, commit)
    with Spinner(f"building the kernel of {commit}") as spinner:
        kernel = linux.built(tree, one, image, spinner.show, accept_expired=accept_expired)
    if as_json:
        print_json({"commit": one.sha, "title": one.title, "kernel": str(kernel)})
        return
    typer.echo(f"{one.sha[:12]} ({one.title}) is built:", err=True)
    typer.echo(f"--set guest.kernel={kernel}")
