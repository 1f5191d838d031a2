"""``lab bisect``."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import completion
from lab.cli.app import BUGS, app
from lab.cli.commands.kernels import AxisOption
from lab.cli.commands.running import Cold, Jobs, Verbose, hands_of, how_of
from lab.cli.options import (
    AcceptExpired,
    Clock,
    Fresh,
    Json,
    Profile,
    Seed,
    Sets,
    Trials,
    all_sets,
    console,
    home,
    print_json,
)
from lab.model.image.axis import Axis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.capabilities.bisect.model import Bisection, Step
    from lab.capabilities.bisect.run import Options
    from lab.compile.scenario.compiler import Compiled
    from lab.host.images import Progress as Says
    from lab.model.image.package import Version
    from lab.run.execute import Follower
    from lab.run.options import RunOptions


@app.command(rich_help_panel=BUGS)
def bisect(
    claim: Annotated[
        str | None,
        typer.Argument(
            metavar="[CLAIM]", help="Id of a claim of the scenario.", show_default=False
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            "--scenario",
            metavar="NAME",
            help="The scenario with the claim: its name, or the path of its .yaml file.",
            autocompletion=completion.scenario_names,
            show_default=False,
        ),
    ] = None,
    good: Annotated[
        str | None,
        typer.Option(
            "--good",
            metavar="VERSION",
            help="The older end, as in 6.12.43-1; with --tree a commit, as in v6.12.",
            show_default=False,
        ),
    ] = None,
    bad: Annotated[
        str | None,
        typer.Option("--bad", metavar="VERSION", help="The newer end.", show_default=False),
    ] = None,
    axis: AxisOption = Axis.KERNEL,
    series: Annotated[
        str | None,
        typer.Option(
            "--series",
            metavar="SERIES",
            help="Find the patch of this series for md or mdadm, instead of a version: an mbox, a"
            " directory of *.patch, or a git range DIR:BASE..TIP (with --tree BASE..TIP).",
            show_default=False,
        ),
    ] = None,
    tree: Annotated[
        Path | None,
        typer.Option(
            "--tree",
            metavar="DIR",
            help="A git repository of Linux: find the commit between --good and --bad, instead of "
            "a version. With --series: the repository of its range.",
            show_default=False,
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Compare this value of the cells and workloads that the claim is about, such as"
            " disk_flushes, instead of the verdict.",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="Print the versions, and the expected steps and minutes. Run nothing."
        ),
    ] = False,
    sets: Sets = None,
    profile: Profile = None,
    trials: Trials = None,
    seed: Seed = None,
    clock: Clock = None,
    jobs: Jobs = "auto",
    cold: Cold = False,
    accept_expired: AcceptExpired = False,
    fresh: Fresh = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Continue this bisection: its id or the beginning of it, a claim's id, or 'last'.",
            autocompletion=completion.bisection_names,
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Find the version, patch or commit that changed a claim's verdict, or a value.

    The scenario runs once per version, both ends first. A version that cannot be installed, does
    not boot or stays undecided is skipped. Versions of one branch (6.12.x) are compared with each
    other; if the change came between two branches, both are named. Versions come from
    'lab kernel list'; those that are needed are fetched. With --series each step has the patches
    up to one of them; those that do not compile are skipped. With --tree each step builds the
    kernel of a commit, with a small configuration; commits are those along first parents, and the
    repository is not changed.

    Exit status: 0 if the change was found. 1 if both ends are equal, or an end is undecided.

    Examples:
        lab bisect S002-5 --scenario bitmap-three-writes --good 6.1.170-3 --bad 6.1.192-2 --plan
        lab bisect S002-5 --scenario bitmap-three-writes --good 4.2-5 --bad 4.6-3 --axis mdadm
        lab bisect S000-1 --scenario ./mine.yaml --good 6.12.107-1 --bad 7.2.6-1 --metric iops
        lab bisect RA-check --scenario raid10-re-add --series patches/ --set guest.image=debian-13
        lab bisect RA-check --scenario raid10-re-add --tree ~/linux --good v6.12 --bad my-branch
        lab bisect --resume last
    """
    from lab.capabilities.bisect import commits, patches
    from lab.capabilities.bisect import record as bisections
    from lab.capabilities.bisect import run as running
    from lab.capabilities.bisect.page import bisection_page, plan_page
    from lab.capabilities.bisect.question import Request, begun, estimate
    from lab.capabilities.bisect.record import BISECTIONS
    from lab.cli.display.again import told
    from lab.core.errors import InputError

    how = how_of(jobs, accept_expired, keep=False, workloads=True, cold=cold, fresh=fresh)
    asked: dict[str, str | None] = {"CLAIM": claim, "--scenario": scenario}
    ends = {"--good": good, "--bad": bad}
    asked |= ends if series is None else {"--series": series}
    if series is not None and (given := [name for name, value in ends.items() if value]):
        raise InputError(f"{given[0]}: a series is bisected from start to end: leave it out")
    if axis is Axis.MDADM and (series is not None or tree is not None):
        raise InputError(
            "--axis: it is for versions of the archives: leave it out with --series or --tree"
        )
    if resume is not None:
        if given := [name for name, value in asked.items() if value] + ["--plan"] * plan:
            raise InputError(f"--resume keeps the options it began with: leave out {given[0]}")
        directory = BISECTIONS.find(resume)
    else:
        if missing := [name for name, value in asked.items() if not value]:
            raise InputError(
                f"{missing[0]} is missing",
                hint="lab bisect CLAIM --scenario NAME --good VERSION --bad VERSION",
            )
        of, place, members = None, None, None
        if series is not None:
            axis = Axis.PATCH
            of, members = patches.read(series, tree)
        elif tree is not None:
            axis = Axis.COMMIT
            place, members = commits.read(tree, good or "", bad or "")
        else:
            _read_lists(accept_expired=accept_expired)
        record = begun(
            Request(
                claim=claim or "",
                scenario=scenario or "",
                overrides=tuple(all_sets(sets, profile, clock, seed, trials)),
                trials=trials,
                axis=axis,
                series=of,
                tree=place,
                versions=members or (),
                good=good or "",
                bad=bad or "",
                metric=metric,
            )
        )
        effort = estimate(record)
        if plan:
            if as_json:
                print_json(
                    record.model_dump(mode="json", by_alias=True)
                    | {"steps": effort.steps.steps, "most_steps": effort.steps.most}
                    | {"seconds": effort.seconds, "most_seconds": effort.most_seconds}
                )
            else:
                console().print(plan_page(record, effort.steps, effort.seconds))
            return
        directory = bisections.create(record)
        console(stderr=True).print(plan_page(record, effort.steps, effort.seconds))
    with told(lambda _: _kept(directory)):
        found = running.run(directory, options_of(how, verbose=verbose))
    if as_json:
        print_json(found.model_dump(mode="json", by_alias=True) | {"directory": str(directory)})
    else:
        console().print(bisection_page(found))
        console().print(f"It is stored in {home(directory)}.", soft_wrap=True)
    raise typer.Exit(running.exit_status(found))


def _read_lists(*, accept_expired: bool) -> None:
    """Read the archives' lists once a day."""
    from lab.cli.display.progress import Spinner
    from lab.run.preparation import versions

    with Spinner("reading the archives") as spinner:
        _, warnings = versions.current(spinner.show, refresh=False, accept_expired=accept_expired)
    for sentence in warnings:
        sys.stderr.write(f"lab: {sentence}\n")


def _kept(directory: Path) -> str:
    """Return the number of finished steps, and how to resume."""
    from lab.capabilities.bisect.record import BISECTIONS
    from lab.cli.options import own_name

    steps = BISECTIONS.load(directory).steps
    done = sum(step.side is not None for step in steps)
    return (
        f"{done} version{'s' if done != 1 else ''} measured, kept in {home(directory)}."
        f" Resume with:\n  {own_name()} bisect --resume {directory.name}"
    )


def options_of(how: RunOptions, *, verbose: bool) -> Options:
    """Return the options of a bisection that reports its progress on standard error."""
    from lab.capabilities.bisect.run import Options

    return Options(
        how=how,
        follow=lambda version, compiled: _follow(version, compiled, how, verbose=verbose),
        fetching=_fetching,
        ended=_ended,
    )


@contextmanager
def _follow(
    version: Version, compiled: Compiled, how: RunOptions, *, verbose: bool
) -> Iterator[Follower]:
    from lab.cli.display.progress import Progress
    from lab.run.execute import Follower

    sys.stderr.write(f"{version.title}:\n")
    with (
        Progress(compiled, how=how, verbose=verbose) as progress,
        hands_of(None, how, progress) as hands,
    ):
        yield Follower(hands=hands, progress=progress.image, ready=progress.ready)


@contextmanager
def _fetching(version: Version) -> Iterator[Says]:
    from lab.cli.display.progress import Spinner

    what = "preparing" if version.axis.built else "fetching"
    with Spinner(f"{what} {version.title}") as spinner:
        yield spinner.show


def _ended(record: Bisection, step: Step) -> None:
    from lab.capabilities.bisect.page import step_sentence

    sys.stderr.write(f"{step_sentence(record, step)}\n")
