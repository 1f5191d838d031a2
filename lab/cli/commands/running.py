"""``lab up`` and ``lab run``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.cli import capabilities, completion
from lab.cli.app import run, up
from lab.cli.commands.results import print_result
from lab.cli.commands.scenarios import print_plan
from lab.cli.options import (
    AcceptExpired,
    Clock,
    Cluster,
    Fresh,
    Json,
    Profile,
    ScenarioName,
    Seed,
    Sets,
    Tls,
    Trials,
    Unsealed,
    all_sets,
    compile_named,
    own_name,
    print_json,
)

if TYPE_CHECKING:
    from lab.cli.display.progress import Progress
    from lab.run.execute import Done, Executor
    from lab.run.options import RunOptions
    from lab.run.preparation.platforms import Platform
    from lab.store.runs import RunStore

Door = Any
"""A cluster's address, as the capability `cluster` reads it."""
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="Create the run directory in DIR.", show_default=False
    ),
]
Jobs = Annotated[
    str,
    typer.Option(
        "--jobs",
        "-j",
        metavar="auto|N",
        help="Maximum number of guests. auto: as many as memory allows; a workload starts once"
        " enough CPU is free.",
    ),
]
Cold = Annotated[
    bool,
    typer.Option("--cold", help="Boot every guest. Do not use snapshots."),
]
Erase = Annotated[
    list[str] | None,
    typer.Option(
        "--erase",
        metavar="SERIAL",
        help="Allow writing to the real disk with this serial: all its data is lost. Without it, a "
        "real disk is read-only. Repeatable.",
        show_default=False,
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Continue this run: run the cells that are missing.",
        autocompletion=completion.run_names,
        show_default=False,
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Exit with 1 also if a claim is inconclusive or was not tested."),
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print one line per event.")]


@up.command("scenario")
def up_scenario(
    context: typer.Context,
    name: ScenarioName,
    sets: Sets = None,
    profile: Profile = None,
    trials: Trials = None,
    seed: Seed = None,
    clock: Clock = None,
    out: Out = None,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Boot the guest and build the array, but run no cell.")
    ] = False,
    jobs: Jobs = "auto",
    cold: Cold = False,
    erase: Erase = None,
    resume: Resume = None,
    accept_expired: AcceptExpired = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run all cells, print the result, and leave one guest up with its array.

    The guest is that of the scenario's own fields, without its matrix.

    Examples:
        lab up scenario raid5-parity-last
        lab up scenario raid5-parity-last --no-run
    """
    from lab.core.errors import InputError

    if resume and no_run:
        raise InputError("--resume and --no-run exclude each other: leave one out")
    how = how_of(*(jobs, accept_expired), keep=True, workloads=not no_run, cold=cold, erase=erase)
    _go(
        *(context, name, all_sets(sets, profile, clock, seed, trials), trials, out, how, None),
        resume=resume,
        as_json=as_json,
        verbose=verbose,
    )


@run.command("scenario")
def run_scenario(
    context: typer.Context,
    name: ScenarioName,
    sets: Sets = None,
    profile: Profile = None,
    trials: Trials = None,
    seed: Seed = None,
    clock: Clock = None,
    out: Out = None,
    jobs: Jobs = "auto",
    cold: Cold = False,
    erase: Erase = None,
    accept_expired: AcceptExpired = False,
    cluster: Cluster = None,
    tls: Tls = None,
    unsealed: Unsealed = False,
    fresh: Fresh = False,
    resume: Resume = None,
    junit: Annotated[
        Path | None,
        typer.Option(
            "--junit",
            metavar="FILE",
            help="Write a JUnit XML report, even if the run fails: one test case per claim.",
            show_default=False,
        ),
    ] = None,
    strict: Strict = False,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Print every command as a shell script, and run nothing."),
    ] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run all cells, print the result, and remove all guests.

    Examples:
        lab run scenario raid5-parity-last --json
        lab run scenario raid5-parity-last --set 'matrix={}' --set array.layout=left-asymmetric
        lab run scenario raid5-parity-last --resume last
        lab run scenario degraded --strict --junit junit.xml
        lab run scenario raid5-parity-last --plan
        lab run scenario raid5-parity-last --cluster 127.0.0.1:8786
    """
    from dataclasses import replace

    from lab.core.errors import InputError

    settings = all_sets(sets, profile, clock, seed, trials)
    if plan:
        print_plan(name, settings, trials, as_json)
        return
    how = how_of(
        *(jobs, accept_expired),
        keep=False,
        workloads=True,
        cold=cold,
        erase=erase,
        fresh=fresh,
    )
    if unsealed and cluster is not None:
        raise InputError("--unsealed works on this host only: leave out --unsealed or --cluster")
    how = replace(how, unsealed=unsealed)
    where = where_of(cluster, tls)
    _go(
        *(context, name, settings, trials, out, how, where),
        resume=resume,
        as_json=as_json,
        verbose=verbose,
        junit=junit,
        strict=strict,
    )


def how_of(
    jobs: str,
    accept_expired: bool,
    *,
    keep: bool,
    workloads: bool,
    cold: bool,
    erase: list[str] | None = None,
    fresh: bool = False,
) -> RunOptions:
    """Return the options of a run; ``InputError``: ``jobs`` is not a number."""
    from lab.core.errors import InputError
    from lab.core.units import whole_number
    from lab.host.images.recipes import expired_accepted
    from lab.run.options import RunOptions

    number = None
    if jobs != "auto":
        number = whole_number(jobs)
        if number is None or number > 256:
            raise InputError(f"--jobs {jobs[:40]}: expected auto or a number from 1 to 256")
    return RunOptions(
        keep=keep,
        workloads=workloads,
        jobs=number,
        cold=cold,
        accept_expired=expired_accepted() or accept_expired,
        erase=tuple(erase or ()),
        fresh=fresh,
    )


def where_of(cluster: str | None, tls: Path | None) -> Door | None:
    """Return the connection data of the cluster that runs the cells; ``None``: this host."""
    from lab.core.errors import InputError

    if cluster is None:
        if tls is not None:
            raise InputError("--tls needs --cluster ADDRESS")
        return None
    if "cluster" not in capabilities.names():
        raise InputError("--cluster: this lab has no lab/capabilities/cluster")
    return capabilities.part("cluster", "local").door_of(cluster, tls)


@contextmanager
def hands_of(where: Door | None, how: RunOptions, progress: Progress) -> Iterator[Executor]:
    """Yield the executor: this host's, or a cluster's."""
    from lab.run.execute import LocalExecutor

    if where is None:
        yield LocalExecutor(options=how, watch=progress.watch, say=progress.note)
        return
    joined = capabilities.part("cluster", "run").joined
    with joined(where, how, progress.watch, progress.note) as found:
        yield found


def reach(where: Door, how: RunOptions) -> None:
    """Raise an error at once, before the first cell, if the cluster cannot be used."""

    def unheard(*_: object) -> None:
        pass

    with capabilities.part("cluster", "run").joined(where, how, unheard, unheard):
        pass


def _go(
    context: typer.Context,
    name: str,
    sets: list[str] | None,
    trials: str | None,
    out: Path | None,
    how: RunOptions,
    where: Door | None,
    *,
    resume: str | None,
    as_json: bool,
    verbose: bool,
    junit: Path | None = None,
    strict: bool = False,
) -> None:
    from lab.cli.display.again import kept_of_run, told
    from lab.cli.display.progress import Progress
    from lab.core.errors import InputError
    from lab.results.junit import written
    from lab.run import execute
    from lab.run.resume import stored

    compiled = compile_named(name, sets, trials)
    store = stored(resume, compiled, sets or []) if resume else None
    begun_runs: list[RunStore] = []

    def kept(error: BaseException) -> str:
        # Bad input is reported before the run begins, so there are no finished cells to mention.
        earlier = [store] if store and not isinstance(error, InputError) else []
        stopped = isinstance(error, KeyboardInterrupt) and store is None
        found = begun_runs or earlier
        return "".join(kept_of_run(context, one, discard=stopped) for one in found)

    with (
        told(kept),
        written(junit, compiled, strict=strict) as begun,
        Progress(compiled, how=how, verbose=verbose) as progress,
        hands_of(where, how, progress) as hands,
    ):

        def ready(run: RunStore, place: Platform) -> None:
            begun_runs.append(run)
            begun(run)
            progress.ready(run, place)

        done = execute.run_scenario(
            compiled,
            texts=[*(sets or []), *([f"trials={trials}"] if trials else [])],
            out=out.absolute() if out else None,
            options=how,
            executor=hands,
            resume=store,
            progress=progress.image,
            ready=ready,
        )
    if as_json:
        print_json(done.result.model_dump(mode="json", by_alias=True))
    elif how.workloads:
        print_result(done.store, done.result, scenario=name)
    if done.kept and not as_json:
        say_kept(done.kept)
    raise typer.Exit(exit_status(done, strict=strict))


def exit_status(done: Done, *, strict: bool = False) -> int:
    """Return 1 if a claim was refuted or a cell did not finish, else 0; ``strict``: 0 needs claims
    that all hold."""
    from lab.core.errors import EXIT_DONE, EXIT_REFUTED
    from lab.model.result.document import Outcome
    from lab.model.scenario.claim import Verdict

    fails = set(Verdict) - {Verdict.HOLDS} if strict else {Verdict.REFUTED}
    refuted = any(c.verdict in fails for c in done.result.claims)
    failed = any(c.outcome is not Outcome.DONE for c in done.result.cells)
    return EXIT_REFUTED if refuted or failed else EXIT_DONE


def say_kept(guest: str) -> None:
    """Print how to use a guest that stays up."""
    from lab.host.guest import registry as guests

    record = guests.find(guest)
    lab = own_name()
    lines = {
        f"{lab} ssh {guest}": "to open a shell",
        f"{lab} ssh {guest} -- cat /proc/mdstat": "to run one command",
        f"{lab} cp FILE {guest}:/srv/": "to copy a file into it; from it the other way round",
        f"{lab} down {guest}": "to remove it",
    }
    width = max(len(command) for command in lines)
    disks = not record.target or record.target.startswith("/dev/disk/")
    what = "its bare disks" if disks else f"its array on {record.target}"
    typer.echo(f"The guest {guest} is up with {what}. It has no network to the outside.")
    if record.unsealed:
        typer.echo("Its clock is virtual: the guest is suspended while nobody is logged in.")
    for command, what in lines.items():
        typer.echo(f"  {command:<{width}}    {what}")
