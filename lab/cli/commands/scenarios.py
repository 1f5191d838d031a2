"""``lab scenario``: list, show, check, plan, predict, explain, new."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lab.cli import completion
from lab.cli.app import scenario
from lab.cli.options import (
    Clock,
    Json,
    Profile,
    ScenarioName,
    Seed,
    Sets,
    Trials,
    all_sets,
    compile_named,
    console,
    home,
    print_json,
    warn,
)


@scenario.command("list")
def list_(as_json: Json = False) -> None:
    """List the scenarios.

    Examples:
        lab scenario list
    """
    from lab.compile.scenario.compiler import compile_scenario
    from lab.core.errors import InputError
    from lab.host.real_disks.refusals import known
    from lab.plugins import catalog
    from lab.report.terminal.text import scenario_table
    from lab.run.preparation.suites import wanting

    rows, broken = [], []
    for name, path in catalog.scenarios().items():
        try:
            compiled = compile_scenario(path, known=known)
        except InputError as error:
            broken.append(str(error))
            continue
        rows.append(
            {
                "name": name,
                "title": compiled.scenario.title,
                "cells": len(compiled.cells),
                "claims": len(compiled.scenario.claims),
                "file": str(path),
                "wanting": wanting(compiled),
            }
        )
    if as_json:
        print_json({"scenarios": rows, "broken": broken})
    else:
        console().print(scenario_table(rows))
        for sentence in broken:
            sys.stderr.write(f"lab: {sentence}\n")


@scenario.command()
def show(
    name: ScenarioName, sets: Sets = None, profile: Profile = None, as_json: Json = False
) -> None:
    """Show a scenario: question, guest, disks, array, workloads, cells, profiles and claims.

    Examples:
        lab scenario show raid5-parity-last
    """
    from lab.compile.scenario.identity import cell_id
    from lab.report.terminal.text import scenario_page

    compiled = compile_named(name, all_sets(sets, profile))
    if as_json:
        print_json(
            {
                "name": compiled.name,
                "file": str(compiled.path),
                "scenario": compiled.scenario.model_dump(mode="json"),
                "cells": [{"id": cell_id(c), "axes": c.axes} for c in compiled.cells],
            }
        )
    else:
        console().print(scenario_page(compiled, home(compiled.path)))


@scenario.command()
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME…]",
            help="Scenarios, or paths of .yaml files. Default: all scenarios.",
            autocompletion=completion.scenario_names,
        ),
    ] = None,
    sets: Sets = None,
    profile: Profile = None,
    clock: Clock = None,
    as_json: Json = False,
) -> None:
    """Check every cell of scenarios and profiles: keys, types, and the rules of md and QEMU.

    Nothing is booted. If an image is built, its kernel and mdadm must support the array.

    Examples:
        lab scenario check
        lab scenario check my-own.yaml
        lab scenario check my-own.yaml --set array.level=6 --clock virtual
    """
    from lab.compile.scenario.compiler import compile_scenario
    from lab.core.errors import EXIT_INPUT, InputError
    from lab.core.yaml import parse_override
    from lab.host.real_disks.refusals import known
    from lab.plugins import catalog
    from lab.run.preparation.fitting import Known, check_images
    from lab.run.preparation.suites import check_suites, wanting

    good: list[dict[str, Any]] = []
    wrong = []
    facts: Known = {}
    changed = [parse_override(text) for text in all_sets(sets, profile, clock)]
    for name, path in catalog.walk_scenarios(names or []):
        try:
            compiled = compile_scenario(path, overrides=changed, known=known)
            check_images(compiled, facts)
            check_suites(compiled, all_given=False)
            warn(compiled)
            for each in () if profile else compiled.scenario.profiles:
                chosen = parse_override(f"profile={each}")
                compile_scenario(path, overrides=[chosen, *changed], known=known)
        except InputError as error:
            wrong.append({"name": name, "error": str(error)})
            continue
        good.append({"name": name, "cells": len(compiled.cells), "wanting": wanting(compiled)})
    if as_json:
        print_json({"good": good, "wrong": wrong})
    else:
        for one in good:
            typer.echo(
                f"{one['name']}: good, {one['cells']} cell{'s' if one['cells'] != 1 else ''}"
            )
            for sentence in one["wanting"]:
                typer.echo(f"  {sentence}")
        for bad in wrong:
            sys.stderr.write(f"lab: {bad['error']}\n")
    if wrong:
        raise typer.Exit(EXIT_INPUT)


@scenario.command()
def plan(
    name: ScenarioName,
    sets: Sets = None,
    profile: Profile = None,
    trials: Trials = None,
    seed: Seed = None,
    clock: Clock = None,
    as_json: Json = False,
) -> None:
    """Print every command of a run as a shell script. Nothing is run.

    Examples:
        lab scenario plan raid5-parity-last | less
    """
    print_plan(name, all_sets(sets, profile, clock, seed, trials), trials, as_json)


def print_plan(name: str, sets: list[str], trials: str | None, as_json: bool) -> None:
    """Print every command of a run as a shell script, or the steps as JSON."""
    from lab.report.export.shell import as_script
    from lab.run.plan import plan_of

    planned = plan_of(compile_named(name, sets, trials))
    if as_json:
        print_json(planned.model_dump(mode="json"))
    else:
        sys.stdout.write(as_script(planned))


@scenario.command()
def predict(
    name: ScenarioName,
    sets: Sets = None,
    profile: Profile = None,
    trials: Trials = None,
    seed: Seed = None,
    clock: Clock = None,
    as_json: Json = False,
) -> None:
    """Predict each cell from theory. Nothing is run.

    Examples:
        lab scenario predict raid5-parity-last
    """
    from lab.report.content.drives import unmeasured
    from lab.report.terminal.screen import result_page
    from lab.run.plan import prediction_of

    compiled = compile_named(name, all_sets(sets, profile, clock, seed, trials), trials)
    result = prediction_of(compiled)
    if as_json:
        print_json(result.model_dump(mode="json", by_alias=True))
    else:
        out = console()
        out.print(result_page(result, title=compiled.scenario.title, question="", measured=False))
        if drives := unmeasured(compiled.cells):
            typer.echo(f"drives: {drives}")


@scenario.command()
def explain(
    name: ScenarioName,
    sets: Sets = None,
    profile: Profile = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Compare with the results and disk counters of this run: an id, a directory,"
            " 'last' or 'last~1'.",
            autocompletion=completion.run_names,
            show_default=False,
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option("--workload", metavar="NAME", help="Only this workload.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain the predicted speed of each cell, and what limits it.

    Examples:
        lab scenario explain raid5-parity-last --workload write
        lab scenario explain raid5-parity-last --run last
    """
    from lab.core.errors import InputError
    from lab.report.terminal.explanation import explanation_page
    from lab.results.explain import explanation_of
    from lab.results.judged import explanation_of_run
    from lab.run.preparation import systems
    from lab.run.resume import require_same
    from lab.store import runs as store

    changed = all_sets(sets, profile)
    compiled = compile_named(name, changed)
    if run is not None:
        if changed:
            raise InputError("--run and --set exclude each other: the run has its own --set")
        stored = store.find(run, compiled.name)
        require_same(stored, compiled)
        cells = explanation_of_run(stored)
    else:
        cells = explanation_of(compiled, systems.kernel_of)
    names = [w.workload for w in cells[0].workloads] if cells else []
    if workload is not None and workload not in names:
        raise InputError(
            f"there is no workload '{workload}' in '{compiled.name}' (there are: "
            f"{', '.join(names)})"
        )
    if as_json:
        chosen = [
            c.model_copy(
                update={
                    "workloads": tuple(w for w in c.workloads if workload in (None, w.workload))
                }
            )
            for c in cells
        ]
        print_json(
            {"scenario": compiled.name, "cells": [c.model_dump(mode="json") for c in chosen]}
        )
    else:
        console().print(explanation_page(compiled.scenario.title, cells, workload))


@scenario.command()
def new(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to create; must end in .yaml.")
    ],
) -> None:
    """Write a small scenario as a start for your own.

    Examples:
        lab scenario new my-question.yaml
    """
    from lab.run.plan import write_new

    write_new(file)
    typer.echo(f"{file} is written; try: lab scenario check {file} · lab up scenario {file}")
