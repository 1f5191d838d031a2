"""``lab disk``: real disks."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.app import HARDWARE, group
from lab.cli.options import Json, console, home, print_json

if TYPE_CHECKING:
    from lab.model.scenario.profile import Profile

disk = group("disk", HARDWARE, "List and measure real disks; fit models to them, and serve those.")


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
    from lab.cli.display.progress import Spinner

    with Spinner(f"reading {device}") as spinner:
        spinner.show("streams, jumps and random reads", None)
        kept, profile = profiles.calibrate(
            device, name=name or Path(device).name, jumps=jumps, seed=seed
        )
    _print(kept, profile, {}, as_json=as_json)


@disk.command()
def fit(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Files of fio --output-format=json, or directories of bench-fio.",
            exists=False,
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the profile. Default: the measured disk's name."),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--size", help="Size of the measured disk, such as 2TB. It matters little."),
    ] = None,
    rpm: Annotated[
        float | None,
        typer.Option(
            "--rpm",
            min=1000,
            max=30_000,
            help="Revolutions per minute, from the data sheet. Default: by the time of single"
            " reads, 7200 or more.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit a disk model to fio's results, and store a profile for scenarios.

    It needs random reads at three depths or more; writes, flushes (fsync=N at depth 1) and mixed
    loads are used too. Half of the results are fitted, the others test the model: the certificate.

    Examples:
        lab disk fit randread-1.json randread-4.json randread-16.json
        lab disk fit benchmark_data/sdb --name mydisk --rpm 7200
    """
    from lab.capabilities.disks import run as profiles
    from lab.cli.display.progress import Spinner

    whole = None if size is None else _size(size)
    with Spinner(f"fitting {', '.join(str(f) for f in files[:2])}") as spinner:
        spinner.show("values of the drive, one after the other", None)
        kept, profile, passed_over = profiles.fit(files, name=name, size=whole, rpm=rpm)
    _print(kept, profile, passed_over, as_json=as_json)


def _names(incomplete: str) -> list[str]:
    """Presets and profiles, for completion."""
    from lab.capabilities.disks.serve import names

    return [name for name in names() if name.startswith(incomplete)]


@disk.command()
def serve(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A preset, or a measured disk's profile.", autocompletion=_names
        ),
    ],
    size: Annotated[str, typer.Option("--size", help="Size of the disk.")] = "1TB",
    at: Annotated[
        Path | None,
        typer.Option(
            "--socket", help="Path of a new Unix socket. Default: in the lab's directory."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65_535,
            help="A port of 127.0.0.1 instead of a socket. All users of this host reach it.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Keep the data in this file. Default: they end with the disk."),
    ] = None,
) -> None:
    """Offer a modelled disk to any program over NBD, until Ctrl-C.

    It answers as fast as the drive would, in real time. Faults are commands: 'lab disk tell'.

    Examples:
        lab disk serve hdd_samsung_f1 --size 4TB
        lab disk serve mydisk --port 10809 --file disk.raw
    """
    from lab.capabilities.disks import serve as serving

    served = serving.prepared(name, size=_size(size), at=at, port=port, file=file)
    typer.echo(serving.examples(served))
    sys.stdout.flush()
    serving.become(served)


@disk.command()
def tell(
    control: Annotated[
        Path,
        typer.Argument(metavar="CONTROL", help="The socket that 'lab disk serve' has printed."),
    ],
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND...",
            help="stats; error read|write OFFSET LENGTH [TIMES]; misread OFFSET LENGTH;"
            " stall SECONDS; release; lose; clear.",
        ),
    ],
) -> None:
    """Send a command to a disk of 'lab disk serve': a fault, or 'stats'.

    Examples:
        lab disk tell ~/.local/state/lab/served/hdd_7200.control error read 1048576 4096 3
        lab disk tell ~/.local/state/lab/served/hdd_7200.control stats
    """
    from lab.capabilities.disks.serve import tell as send

    typer.echo(send(control, words))


def _size(text: str) -> int:
    from lab.core.errors import InputError
    from lab.core.units import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise InputError(f"--size: {error}") from error


def _print(kept: Path, profile: Profile, passed_over: dict[str, int], *, as_json: bool) -> None:
    from lab.capabilities.disks.page import profile_page
    from lab.md.theory.certificate import certificate

    if as_json:
        data = profile.model_dump(mode="json", exclude={"samples"})
        lines = [asdict(line) for line in certificate(profile.points)]
        print_json(
            {
                "file": str(kept),
                "score": profile.score,
                "certificate": lines,
                "not_used": passed_over,
                "profile": data,
            }
        )
        return
    console().print(profile_page(profile))
    for reason, jobs in passed_over.items():
        typer.echo(f"Not used: {jobs} {'job' if jobs == 1 else 'jobs'}: {reason}.")
    typer.echo(f"It is in {home(kept)}. In a scenario: disks: {{model: 'profile:{kept.stem}'}}")
