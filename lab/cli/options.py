"""Options that several commands share, and output of commands."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.cli import capabilities, completion

if TYPE_CHECKING:
    from rich.console import Console

    from lab.compile.scenario.compiler import Compiled


ScenarioName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A scenario's name, or the path of its .yaml file.",
        autocompletion=completion.scenario_names,
        show_default=False,
    ),
]
ImageName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="An image, by name.",
        autocompletion=completion.image_names,
        show_default=False,
    ),
]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run: its id or the beginning of it, its directory, 'last', 'last~1' for the run"
        " before, or a scenario's name for its last run.",
        autocompletion=completion.run_names,
    ),
]
RunOrBundle = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run, named as in 'lab results show', or a bundle: the path of a RUN.lab.zip.",
        autocompletion=completion.run_names,
    ),
]
GuestName = Annotated[
    str | None,
    typer.Argument(
        metavar="[GUEST]",
        help="A guest's id, or its scenario's name. Required if several guests are up.",
        autocompletion=completion.guest_names,
        show_default=False,
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override a field of the scenario by its dotted name, such as array.chunk=256KiB,"
        " workloads.write.bs=2MiB or matrix={} for one cell. An axis of the matrix gets this one"
        " value. Repeatable.",
        autocompletion=completion.set_keys,
        show_default=False,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Use a profile of the scenario, such as its published sizes. --set is applied after"
        " it. Same as --set profile=NAME.",
        autocompletion=completion.profile_names,
        show_default=False,
    ),
]
Clock = Annotated[
    str | None,
    typer.Option(
        "--clock",
        metavar="real|virtual",
        help="The guest's clock. real: host time. virtual: executed instructions, so results do "
        "not depend on host load. Same as --set guest.clock=...",
        show_default=False,
    ),
]
Unsealed = Annotated[
    bool,
    typer.Option(
        "--unsealed",
        help="Give guests in virtual time network and SSH, as 'lab up' does. To inspect a guest"
        " while it runs.",
    ),
]


def _trials(text: str) -> str:
    from lab.core.units import whole_number

    if text != "auto" and not 1 <= (whole_number(text) or 0) <= 1000:
        raise typer.BadParameter(f"'{text[:40]}' is not a number from 1 to 1000, or auto")
    return text


Trials = Annotated[
    str | None,
    typer.Option(
        "--trials",
        metavar="N|auto",
        callback=lambda text: _trials(text) if text else None,
        autocompletion=lambda: ["auto"],
        help="Run each workload N times. 'auto': in virtual time, run new seeds until the claims"
        " are decided.",
        show_default=False,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        min=1,
        max=1_000_000,
        help="Run one trial with this seed; with --trials M, seeds N to N+M-1. The seed decides"
        " angles of modelled disks, places that workloads draw, and in virtual time addresses of"
        " processes. In real time all trials have the same seed.",
        show_default=False,
    ),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Run all cells. Without it, results of a cell in virtual time are taken from an"
        " earlier run on this host with the same inputs.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        hidden="cluster" not in capabilities.names(),
        metavar="ADDRESS",
        help="Run the cells on a cluster: HOST:PORT of its scheduler, or 'local' for a cluster"
        " started by 'lab cluster local'.",
        show_default=False,
    ),
]
Tls = Annotated[
    Path | None,
    typer.Option(
        "--tls",
        hidden="cluster" not in capabilities.names(),
        metavar="DIR",
        help="Directory of the cluster's certificates (ca.pem, cert.pem, key.pem), mode 0700.",
        show_default="the local cluster's, or ~/.local/share/lab/tls",
    ),
]
AcceptExpired = Annotated[
    bool,
    typer.Option(
        "--accept-expired",
        help="Build images from a package archive even if its Release file has expired. Same as "
        "LAB_ACCEPT_EXPIRED=1.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.", show_default=False)]


def all_sets(
    sets: list[str] | None,
    profile: str | None = None,
    clock: str | None = None,
    seed: int | None = None,
    trials: str | None = None,
) -> list[str]:
    """Return the overrides with those of ``--profile``, ``--clock`` and ``--seed``.

    A seed implies one trial.
    """
    given = sets or []
    one = seed is not None and trials is None
    one = one and not any(text.startswith("trials=") for text in given)
    return [
        *([f"profile={profile}"] if profile else []),
        *given,
        *([f"guest.clock={clock}"] if clock else []),
        *([f"seed={seed}"] if seed is not None else []),
        *(["trials=1"] if one else []),
    ]


def compile_named(name: str, sets: list[str] | None, trials: str | None = None) -> Compiled:
    """Compile a scenario with its overrides."""
    from lab.compile.scenario.compiler import compile_scenario
    from lab.core.yaml import parse_override
    from lab.host.real_disks.refusals import known
    from lab.model.scenario.document import AutoTrials
    from lab.plugins import catalog

    overrides = [parse_override(text) for text in sets or []]
    path = catalog.scenario_path(name)
    number = AutoTrials() if trials == "auto" else int(trials) if trials else None
    compiled = compile_scenario(path, overrides=overrides, trials=number, known=known)
    warn(compiled)
    return compiled


def warn(*compiled: Compiled) -> None:
    """Print the scenarios' warnings on standard error, each once."""
    for sentence in dict.fromkeys(text for one in compiled for text in one.warnings):
        sys.stderr.write(f"lab: {sentence}\n")


def share_option(name: str, text: str) -> float:
    """Parse a share, written ``5%`` or ``0.05``; ``InputError`` names the option."""
    from lab.core.errors import InputError

    number = text.strip()
    try:
        share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise InputError(
            f"{name}: '{text}' is not a share between 0% and 100%: expected a value such as 5% or "
            "0.05"
        )
    return share


def console(*, stderr: bool = False) -> Console:
    """Return a console with the width of ``COLUMNS`` or its terminal; prose in a pipe: 80
    columns."""
    from lab.cli.consoles import ShownConsole
    from lab.core.units import whole_number

    stream = sys.stderr if stderr else sys.stdout
    given = os.environ.get("COLUMNS", "")
    columns = whole_number(given)
    columns = columns if columns is not None and columns < 10_000 else None
    piped = not stream.isatty()
    # Titles and reasons come from other people, so brackets in them are no markup.
    found = ShownConsole(
        file=getattr(stream, "inner", stream),
        width=columns or (80 if piped else None),
        highlight=False,
        markup=False,
        emoji=False,
    )
    found.piped, found.limit = piped, columns
    return found


def print_json(data: Any) -> None:
    """Print one document; infinite and undefined numbers become ``null``."""
    sys.stdout.write(json.dumps(_with_nulls(data), indent=1, ensure_ascii=False) + "\n")


def _with_nulls(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _with_nulls(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_with_nulls(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def home(path: Path | str) -> str:
    """Return the path with ``~`` for the home directory."""
    text = str(path)
    base = str(Path.home())
    return "~" + text[len(base) :] if text.startswith(base + "/") else text


def own_name() -> str:
    """Return the command for this program: ``lab``, or its path if ``lab`` is not on PATH."""
    mine = Path(sys.argv[0])
    found = shutil.which("lab")
    if mine.name != "lab" or (found and Path(found).resolve() == mine.resolve()):
        return "lab"
    relative = os.path.relpath(mine)
    return str(mine) if relative.startswith("..") else relative
