"""``lab rescue``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.app import FIRST, app

if TYPE_CHECKING:
    from lab.capabilities.rescue.model import Report


@app.command(rich_help_panel=FIRST)
def rescue(
    disks: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DISK...", help="Disks, partitions or images (raw, qcow2). They are only read."
        ),
    ] = None,
    examine: Annotated[
        Path | None,
        typer.Option(
            "--examine", metavar="DIR", help="Outputs of 'mdadm --examine' instead of disks."
        ),
    ] = None,
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="Read the disks only; start no guest.")
    ] = False,
    backup: Annotated[
        Path | None,
        typer.Option("--backup-file", metavar="FILE", help="Backup file of a reshape."),
    ] = None,
    locked: Annotated[
        bool,
        typer.Option(
            "--passphrase", help="Read the passphrase of LUKS from the terminal; it is not stored."
        ),
    ] = False,
    known: Annotated[
        Path | None,
        typer.Option("--hashes", metavar="FILE", help="Output of sha256sum of files you know."),
    ] = None,
    copy_to: Annotated[
        Path | None,
        typer.Option("--copy-to", metavar="DIR", help="Copy the files of the best attempt here."),
    ] = None,
    sector: Annotated[
        int,
        typer.Option(
            "--sector", min=512, max=4096, help="Logical sector of the disks: 512 or 4096."
        ),
    ] = 512,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document.", show_default=False)
    ] = False,
    mail: Annotated[
        bool, typer.Option("--mail", help="Print a text for the list linux-raid.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the answer as a page.")
    ] = None,
    image: Annotated[
        str,
        typer.Option(
            "--image", metavar="NAME", help="Guest image with the kernel and mdadm of the attempts."
        ),
    ] = "rescue",
    drill: Annotated[
        str | None,
        typer.Option(
            "--drill", metavar="NAME", help="Make a broken array to learn on, in this directory."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of the drill.")
    ] = 1,
) -> None:
    """Find out what is left of an array, and try repairs on overlays.

    Disks and images are opened for reading only. What the guests write goes to overlays, which are
    removed. The answer has the commands for the real disks; the lab never runs them.

    Examples:
        lab rescue /dev/disk/by-id/ata-A /dev/disk/by-id/ata-B /dev/disk/by-id/ata-C
        lab rescue --examine outputs/
        lab rescue --drill two-lost --seed 3
        lab rescue disk-*.raw --copy-to rescued
    """
    from lab.capabilities.rescue import run
    from lab.capabilities.rescue.logic import repair as answer
    from lab.capabilities.rescue.page import page
    from lab.core.errors import InputError
    from lab.host.system import files

    if sector not in (512, 4096):
        raise InputError(f"--sector {sector}: give 512 or 4096")
    if drill is not None:
        if disks or examine:
            raise InputError("--drill makes its own disks: give no others")
        _drill(drill, seed, image)
        return
    if examine is not None:
        if disks:
            raise InputError("--examine and disks: give one of them")
        report = run.examined(examine)
    elif not disks:
        raise InputError("no disk is given", hint="lab rescue DISK...; see lab rescue --help")
    else:
        secret = typer.prompt("Passphrase of LUKS", hide_input=True, err=True) if locked else ""
        options = run.Options(
            backup=backup,
            passphrase=secret,
            hashes=run.known_hashes(known) if known else {},
            copy_to=copy_to,
            sector=sector,
            image=image,
            only=0 if diagnose else run.MOST,
        )
        report = run.rescue(disks, options, _say)
    if html is not None:
        files.write(html, page(report))
    _print(report, as_json=as_json, mail=mail, answer=answer.as_text(report))


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _drill(name: str, seed: int, image: str) -> None:
    from lab.capabilities.rescue import run

    place = Path(f"drill-{name}-{seed}")
    made = run.practice(name, seed, place, _say, image)
    given = " ".join(str(image) for image in made.images)
    lines = [
        f"{len(made.images)} images of a broken array are in {place}: {made.drill.title}.",
        f"The files that can be brought back: {place}/SHA256SUMS",
    ]
    if made.backup:
        lines.append(f"The reshape's backup file: {made.backup}")
    if made.drill.passphrase:
        lines.append(f"The passphrase of LUKS: {made.drill.passphrase}")
    more = f" --backup-file {made.backup}" if made.backup else ""
    more += " --sector 4096" if made.drill.sector == 4096 else ""
    more += " --passphrase" if made.drill.passphrase else ""
    lines.append(f"The lab's own answer: lab rescue{more} {given}")
    sys.stdout.write("\n".join(lines) + "\n")


def _print(report: Report, *, as_json: bool, mail: bool, answer: str) -> None:
    from lab.capabilities.rescue.logic.repair import as_document, as_mail

    if as_json:
        sys.stdout.write(json.dumps(as_document(report), indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(as_mail(report) if mail else answer)
