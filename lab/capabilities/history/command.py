"""``lab results compare``, ``history`` and ``noise``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lab.cli import completion
from lab.cli.app import results
from lab.cli.commands.results import _NO_RUN, tell, tell_damage
from lab.cli.options import Json, RunName, RunOrBundle, console, print_json, share_option


@results.command()
def compare(
    first: RunOrBundle,
    second: RunOrBundle,
    least: Annotated[
        str,
        typer.Option("--least", metavar="SHARE", help="Smallest change of interest, as a share."),
    ] = "5%",
    as_json: Json = False,
) -> None:
    """Compare two runs cell by cell, and tell changes from noise.

    In virtual time equal inputs must give equal bytes, on every host. Cells that break this are
    printed with the first difference.

    Exit status: 4 if such a cell differs.

    Examples:
        lab results compare last~1 last
        lab results compare RUN-A RUN-B --least 2%
        lab results compare mine.lab.zip theirs.lab.zip
    """
    from lab.capabilities.history.page import comparison_page
    from lab.core.errors import EXIT_DIFFERENT
    from lab.results.compare import comparison_of
    from lab.store import bundles

    with bundles.opened(first) as one, bundles.opened(second) as other:
        found = comparison_of(one, other, share_option("--least", least))
        if as_json:
            print_json(found.model_dump(mode="json", by_alias=True))
        else:
            console().print(comparison_page(found))
        for run in (one, other):
            tell_damage(run)
    if found.agreement.agree is False:
        raise typer.Exit(EXIT_DIFFERENT)


@results.command()
def history(
    metric: Annotated[
        str,
        typer.Argument(
            metavar="METRIC", help="A metric, such as throughput, iops, seconds or clat_p99."
        ),
    ],
    scenario: Annotated[
        str | None,
        typer.Option(
            "--scenario",
            metavar="NAME",
            help="Only runs of this scenario.",
            autocompletion=completion.scenario_names,
            show_default=False,
        ),
    ] = None,
    branch: Annotated[
        str | None,
        typer.Option(
            "--branch",
            metavar="NAME",
            help="Compare the runs of this branch with those of --against.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str,
        typer.Option("--against", metavar="NAME", help="The branch that --branch is compared to."),
    ] = "main",
    as_json: Json = False,
) -> None:
    """Show a metric over all runs, oldest first, and where it changed.

    Change points are found by E-divisive, with 1 % error for all series together. A series is
    one workload of one cell on one branch (LAB_BRANCH, or that of GitHub or GitLab).

    Examples:
        lab results history throughput --scenario raid5-parity-last
        lab results history clat_p99 --scenario bitmap-random-write --json
        lab results history iops --branch faster-bitmap --against main
    """
    from lab.capabilities.history.page import history_page
    from lab.capabilities.history.run import history_of

    found = history_of(metric, scenario, branch, against)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    if found.points:
        console().print(history_page(found))
    else:
        sys.stdout.write(_NO_RUN)
    tell(found.broken)


@results.command()
def noise(name: RunName = "last", as_json: Json = False) -> None:
    """Show the noise of a host: how far repetitions of the same cells differ.

    The host is that of the given run.

    Examples:
        lab results noise
    """
    from lab.capabilities.history.page import noise_page
    from lab.results.noise_floors import noise_here
    from lab.store import runs as store

    floors, runs = noise_here(store.find(name).load_run().environment)
    if as_json:
        print_json({"runs": runs, "floors": [f.model_dump(mode="json") for f in floors]})
    else:
        console().print(noise_page(floors, runs))
