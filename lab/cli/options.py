"""Options that several commands share, and how each prints."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.cli import completion

if TYPE_CHECKING:
    from rich.console import Console

    from lab.compile.scenario.document import Compiled


ScenarioName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A scenario's name, or the path of a .yaml file.",
        autocompletion=completion.scenario_names,
        show_default=False,
    ),
]
ImageName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="An image's name.",
        autocompletion=completion.image_names,
        show_default=False,
    ),
]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run's id or directory, a scenario's name for its last run, or 'last'.",
        autocompletion=completion.run_names,
    ),
]
GuestName = Annotated[
    str | None,
    typer.Argument(
        metavar="[GUEST]",
        help="A guest's id or its scenario's name; needed where there are several.",
        autocompletion=completion.guest_names,
        show_default=False,
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override a field by its dotted name (repeatable): --set array.chunk=256KiB,"
        " --set workloads.write.bs=2MiB, --set 'matrix={}'.",
        autocompletion=completion.set_keys,
        show_default=False,
    ),
]
Clock = Annotated[
    str | None,
    typer.Option(
        "--clock",
        metavar="real|virtual",
        help="What guests' clocks count: the host's time, or with virtual their own instructions,"
        " so that results do not depend on the host's load; as --set guest.clock=…",
        show_default=False,
    ),
]
Unsealed = Annotated[
    bool,
    typer.Option(
        "--unsealed",
        help="Keep network and SSH in guests with virtual time, as lab up does. Nothing else of a"
        " run needs it.",
    ),
]
Trials = Annotated[
    int | None,
    typer.Option("--trials", min=1, max=1000, help="Repeat each workload.", show_default=False),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Hand the cells to a cluster: HOST:PORT, or 'local' for the one on this machine.",
        show_default=False,
    ),
]
Tls = Annotated[
    Path | None,
    typer.Option(
        "--tls",
        metavar="DIR",
        help="The cluster's certificates: a directory of mode 0700 with ca.pem, cert.pem, key.pem.",
        show_default="the local cluster's, or ~/.local/share/lab/tls",
    ),
]
AcceptExpired = Annotated[
    bool,
    typer.Option(
        "--accept-expired",
        help="Build images also from an old copy of the archive, whose Release files have expired;"
        " LAB_ACCEPT_EXPIRED=1 does the same.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON document on standard output.", show_default=False)
]


def with_clock(sets: list[str] | None, clock: str | None) -> list[str]:
    """The overrides with that of ``--clock``."""
    return [*(sets or []), *([f"guest.clock={clock}"] if clock else [])]


def compile_named(name: str, sets: list[str] | None, trials: int | None = None) -> Compiled:
    """The scenario of that name, with its overrides."""
    from lab.compile.scenario.document import compile_scenario
    from lab.core.yaml import parse_override
    from lab.host.real_disks.refusals import known
    from lab.plugins import catalog

    overrides = [parse_override(text) for text in sets or []]
    path = catalog.scenario_path(name)
    return compile_scenario(path, overrides=overrides, trials=trials, known=known)


def share_option(name: str, text: str) -> float:
    """A share between 0 and 1, written ``5%`` or ``0.05``; ``InputError`` names the option."""
    from lab.core.errors import InputError

    number = text.strip()
    try:
        share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise InputError(f"{name}: '{text}' is no share between 0% and 100%, such as 5% or 0.05")
    return share


def console(*, stderr: bool = False) -> Console:
    """A console; 80 columns wide where nobody says how wide it is."""
    from lab.cli.consoles import ShownConsole

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 80
    # Titles and reasons are other people's words: their brackets are no markup.
    return ShownConsole(
        file=getattr(stream, "inner", stream),
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_json(data: Any) -> None:
    """One document; sizes as numbers, text as UTF-8, and ``null`` for what is no number."""
    sys.stdout.write(json.dumps(_with_nulls(data), indent=1, ensure_ascii=False) + "\n")


def _with_nulls(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _with_nulls(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_with_nulls(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def home(path: Path | str) -> str:
    """A path as people write it."""
    text = str(path)
    base = str(Path.home())
    return "~" + text[len(base) :] if text.startswith(base + "/") else text


def own_name() -> str:
    """What to type for this program here: ``lab``, or its path where no shell would find it."""
    mine = Path(sys.argv[0])
    found = shutil.which("lab")
    if mine.name != "lab" or (found and Path(found).resolve() == mine.resolve()):
        return "lab"
    relative = os.path.relpath(mine)
    return str(mine) if relative.startswith("..") else relative
