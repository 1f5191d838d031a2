"""``lab exec``: a guest without a scenario's file."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typing_extensions import override

from lab.cli import capabilities, completion
from lab.cli.app import FIRST, GUESTS, Command, app, up
from lab.cli.commands import scenarios
from lab.cli.options import (
    Clock,
    GuestName,
    Json,
    Profile,
    Seed,
    Sets,
    all_sets,
    own_name,
    print_json,
)

Disks = Annotated[
    int | None,
    typer.Option(
        "--disks", metavar="N", min=0, max=64, help="Number of disks.", show_default=False
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        "--size", metavar="SIZE", help="Size of each disk, as in 4TB.", show_default=False
    ),
]
Speed = Annotated[
    str | None,
    typer.Option(
        "--speed", metavar="RATE", help="Limit of each disk, as in 10MB/s.", show_default=False
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="A disk model or one of its presets, such as hdd_7200.",
        show_default=False,
    ),
]
Level = Annotated[
    str | None,
    typer.Option(
        "--level", metavar="LEVEL", help="Build an md array on the disks.", show_default=False
    ),
]
Image = Annotated[
    str | None,
    typer.Option(
        "--image",
        metavar="NAME",
        help="The guest's image.",
        autocompletion=completion.image_names,
        show_default=False,
    ),
]
Kernel = Annotated[
    str | None,
    typer.Option("--kernel", metavar="VERSION", help="The guest's kernel.", show_default=False),
]
Cpus = Annotated[
    int | None,
    typer.Option(
        "--cpus", metavar="N", min=1, max=256, help="The guest's CPUs.", show_default=False
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="SIZE", help="The guest's memory, as in 2GiB.", show_default=False
    ),
]


class _ScenarioFirst(Command):
    """A command whose options may follow a scenario, and which leaves a script's words alone."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from lab.capabilities.session.exec_machine import is_scenario

        if len(args) > 1 and args[1].startswith("-") and is_scenario(args[0]):
            args = ["--scenario", *args]
        return super().parse_args(ctx, args)


@app.command(
    "exec",
    rich_help_panel=FIRST,
    cls=_ScenarioFirst,
    context_settings={"allow_interspersed_args": False},
)
def exec_(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCENARIO] SCRIPT [ARG…] | [SCENARIO] -- COMMAND…",
            help="A scenario whose guest, disks and array are used. A script of this host, with its"
            " arguments. Or, after --, a command of the guest.",
            show_default=False,
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            "--scenario",
            metavar="NAME",
            hidden=True,
            autocompletion=completion.scenario_names,
        ),
    ] = None,
    disks: Disks = None,
    size: Size = None,
    speed: Speed = None,
    model: Model = None,
    level: Level = None,
    image: Image = None,
    kernel: Kernel = None,
    cpus: Cpus = None,
    memory: Memory = None,
    clock: Clock = None,
    seed: Seed = None,
    sets: Sets = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Copy the files that it leaves in its working directory to DIR.",
            show_default=False,
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option("--trials", metavar="N", min=1, max=1000, help="Run it N times.")
    ] = 1,
    limit: Annotated[
        str, typer.Option("--limit", metavar="TIME", help="End it after this time.")
    ] = "15min",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the guest up.")] = False,
    as_json: Json = False,
) -> None:
    """Run a command or a script as root in a fresh guest, and remove it.

    The exit status is the command's. $TARGET is the array, or all disks; each disk is
    /dev/lab/disk1 and so on. The guest has no network to the outside.

    Examples:
        lab exec --disks 5 --speed 10MB/s -- lsblk
        lab exec --disks 4 --level 5 -- mdadm --detail /dev/md/bench
        lab exec --disks 3 --clock virtual --trials 3 --out out ./mine.sh --fast
    """
    from lab.capabilities.session import exec_machine
    from lab.capabilities.session.model import Job, Machine
    from lab.capabilities.session.run import Session
    from lab.cli.display.progress import Spinner
    from lab.core.errors import InputError
    from lab.core.units import parse_seconds
    from lab.core.yaml import parse_override

    given = exec_machine.words_of(words or [], dashed=dashed(words or []))
    if scenario is not None:
        given = replace(given, scenario=scenario)
    if keep and trials > 1:
        raise InputError("--keep and --trials exclude each other: leave one out")
    try:
        seconds = parse_seconds(limit)
    except ValueError as error:
        raise InputError(f"--limit: {error}") from None
    compiled = exec_machine.machine_of(
        Machine(
            disks=disks,
            size=size,
            speed=speed,
            model=model,
            level=level,
            image=image,
            kernel=kernel,
            cpus=cpus,
            memory=memory,
            clock=clock,
            seed=seed,
        ),
        [parse_override(text) for text in all_sets(sets)],
        given.scenario,
        what="exec",
    )
    job = Job(
        argv=given.argv,
        script=exec_machine.script_text(given.script) if given.script else "",
        limit=seconds,
        out=out,
        trials=trials,
        keep=keep,
    )
    ended = []
    with ExitStack() as stack:
        title = str(given.script or given.argv[0])
        spinner = stack.enter_context(Spinner(title))
        session = Session(
            compiled=compiled,
            job=job,
            streams=not as_json,
            say=_say,
            progress=spinner.show,
            begins=stack.close,
        )
        for one in session.run():
            stack.close()
            if not as_json:
                exec_machine.print_trial(one, several=trials > 1)
            ended.append(one)
    if as_json:
        print_json(exec_machine.document(ended, job, compiled.base.guest.clock.value))
    elif ended[-1].guest:
        guest = ended[-1].guest
        sys.stderr.write(f"lab: the guest {guest} is up: {own_name()} ssh {guest}\n")
    raise typer.Exit(exec_machine.status_of(ended))


@up.command("machine")
def up_machine(
    disks: Disks = None,
    size: Size = None,
    speed: Speed = None,
    model: Model = None,
    level: Level = None,
    image: Image = None,
    kernel: Kernel = None,
    cpus: Cpus = None,
    memory: Memory = None,
    clock: Clock = None,
    seed: Seed = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Start a guest with disks, without a scenario's file. The word `machine` may be left out.

    Examples:
        lab up machine --disks 6 --size 4TB --model hdd_7200 --clock virtual
        lab up machine --disks 4 --level 5
    """
    from lab.capabilities.session import exec_machine
    from lab.capabilities.session.model import Machine
    from lab.capabilities.session.run import facts_of, started
    from lab.cli.commands.running import say_kept
    from lab.cli.display.progress import Spinner
    from lab.core.yaml import parse_override

    compiled = exec_machine.machine_of(
        Machine(
            disks=disks,
            size=size,
            speed=speed,
            model=model,
            level=level,
            image=image,
            kernel=kernel,
            cpus=cpus,
            memory=memory,
            clock=clock,
            seed=seed,
        ),
        [parse_override(text) for text in all_sets(sets)],
        None,
        what="up",
    )
    with Spinner("a guest") as spinner:
        record = started(compiled, _say, spinner.show)
    facts = facts_of(record, compiled)
    if as_json:
        print_json(facts)
        return
    for disk in facts["disks"]:
        typer.echo(f"{disk['name']}  {format_disk(disk['size'])}")
    say_kept(record.id)


def format_disk(size: int) -> str:
    """Return a disk's size."""
    from lab.core.units import format_size

    for factor, unit in ((10**12, "TB"), (10**9, "GB")):
        if size % (factor // 10) == 0 and size >= factor:
            return f"{size / factor:g} {unit}"
    return format_size(size)


@app.command(rich_help_panel=FIRST)
def check(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME…",
            help="Scenarios and matrices: names, or paths of .yaml files.",
            autocompletion=completion.scenario_names,
        ),
    ],
    sets: Sets = None,
    profile: Profile = None,
    clock: Clock = None,
    as_json: Json = False,
) -> None:
    """Check scenarios, or a matrix. Nothing is booted.

    Examples:
        lab check my-own.yaml
        lab check my-own.yaml --set array.level=6 --clock virtual
        lab check nightly
    """
    from lab.core.errors import InputError
    from lab.plugins import catalog

    is_matrix = "matrix" in capabilities.names() and catalog.is_matrix(names[0])
    if len(names) == 1 and is_matrix:
        if sets or profile or clock:
            raise InputError(
                f"'{names[0]}' is a matrix, and --set, --profile and --clock change scenarios:"
                " leave them out, or name a scenario"
            )
        capabilities.part("matrix", "command").check(names[0], as_json)
    else:
        scenarios.check(names, sets, profile, clock, as_json)


@app.command(rich_help_panel=GUESTS)
def cp(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE… TARGET",
            help="Files or directories, and where they go. A path in a guest is GUEST:PATH, or"
            " :PATH if one guest is up.",
        ),
    ],
) -> None:
    """Copy files into a guest, or out of it, as root.

    Examples:
        lab cp mine.sh :/srv/
        lab cp g1a2b3c:/var/log/syslog .
    """
    from lab.run.guests import copy

    raise typer.Exit(copy(words, user="root"))


@app.command("ssh-config", rich_help_panel=GUESTS)
def ssh_config(guest: GuestName = None) -> None:
    """Print a guest's part of a configuration of OpenSSH, for rsync, Ansible or an editor.

    Examples:
        lab ssh-config > guest.config
    """
    from lab.run.guests import ssh_config

    typer.echo(ssh_config(guest), nl=False)


def _say(text: str) -> None:
    sys.stderr.write(f"lab: {text}\n")


def dashed(words: list[str]) -> bool:
    """Return whether ``--``, which the parser drops, is before these words."""
    return "--" in sys.argv and sys.argv[sys.argv.index("--") + 1 :] == words
