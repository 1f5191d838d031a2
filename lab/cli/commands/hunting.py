"""``lab hunt``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import completion
from lab.cli.app import RUN, app
from lab.cli.commands.running import Jobs, Out, Verbose, how_of
from lab.cli.options import (
    Json,
    Profile,
    ScenarioName,
    Sets,
    all_sets,
    compile_named,
    home,
    own_name,
    print_json,
)

if TYPE_CHECKING:
    from lab.compile.scenario.document import Compiled
    from lab.model.result.hunt import Hunt
    from lab.run.hunt import Hunting

LARGEST = 1_000_000


@app.command(rich_help_panel=RUN)
def hunt(
    name: ScenarioName,
    sets: Sets = None,
    profile: Profile = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, max=LARGEST, help="Number of seeds.")
    ] = 200,
    first: Annotated[
        int,
        typer.Option("--from", metavar="SEED", min=1, max=LARGEST, help="First seed."),
    ] = 1,
    until: Annotated[
        list[str] | None,
        typer.Option(
            "--until",
            metavar="KIND",
            help="Stop only for this kind of finding: check, lost, mismatch, hang, kernel or"
            " failed. Repeatable. Without it, any finding stops the hunt.",
            autocompletion=completion.finding_kinds,
            show_default=False,
        ),
    ] = None,
    shrink: Annotated[
        int,
        typer.Option(
            "--shrink",
            metavar="GUESTS",
            min=0,
            max=10_000,
            help="Run at most this many guests to make the scenario smaller; 0: keep it.",
        ),
    ] = 60,
    out: Out = None,
    jobs: Jobs = "auto",
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a scenario in virtual time with seed after seed, until one goes wrong.

    Each seed disturbs the guests in its own way: it delays requests to disks, preempts threads, and
    takes the CPU away from them. The same seed does the same each time. The hunt stops at the
    first seed with a failed check or command, a lost block, a mismatch, a hang or a warning
    of the kernel, and prints the commands that repeat it. Then it makes the scenario smaller while
    a seed still fails, and writes it to a file.

    After Ctrl-C, what was found is printed. --from continues. Seeds that ran before on this host
    are taken from their runs.

    Exit status: 0 if nothing was found, 1 if something was.

    Examples:
        lab hunt faults --seeds 50
        lab hunt bitmap-resync --set 'matrix={}' --until lost --until mismatch
        lab hunt bitmap-resync --from 51 --seeds 50 --shrink 0
    """
    from lab.cli.display.progress import Progress
    from lab.core.errors import EXIT_DONE, EXIT_REFUTED, EXIT_STOPPED, EXIT_TROUBLE, InputError
    from lab.model.result.hunt import FindingKind
    from lab.run.execute import LocalExecutor
    from lab.run.hunt import SETS, Hunting, HuntOptions, quiet

    kinds = [kind.value for kind in FindingKind]
    if wrong := next((kind for kind in until or () if kind not in kinds), None):
        raise InputError(f"--until {wrong}: expected one of {', '.join(kinds)}")
    if first + seeds - 1 > LARGEST:
        raise InputError(f"--from {first} --seeds {seeds}: the largest seed is {LARGEST}")
    given = all_sets(sets, profile)
    texts = [*given, *SETS]
    compiled = compile_named(name, texts)
    _require(compiled)
    how = how_of(jobs, False, keep=False, workloads=True, cold=False)
    options = HuntOptions(
        seeds=seeds,
        first=first,
        kinds=frozenset(map(FindingKind, until or kinds)),
        shrink=shrink,
    )
    interrupted = False
    with Progress(compiled, how=how, verbose=verbose) as progress:
        hunting = Hunting(compiled=compiled, options=options, say=progress.note)
        try:
            hunting.run(
                LocalExecutor(options=how, watch=progress.watch, say=progress.note),
                texts=texts,
                run_options=how,
                out=out.absolute() if out else None,
                progress=progress.image,
                ready=progress.ready,
            )
            if hunting.found is not None and shrink:
                silent = LocalExecutor(
                    options=quiet(how), watch=lambda _guest, _event: None, say=lambda _text: None
                )
                hunting.shrink(silent, quiet(how))
        except KeyboardInterrupt:
            if hunting.store is None:
                raise
            interrupted = True
    found = _with_commands(hunting, name, given, seeds)
    if as_json:
        print_json(found.model_dump(mode="json", by_alias=True))
    else:
        _print(found)
    if interrupted:
        raise typer.Exit(EXIT_STOPPED)
    if found.found is not None:
        raise typer.Exit(EXIT_REFUTED)
    raise typer.Exit(EXIT_TROUBLE if found.lost else EXIT_DONE)


def _require(compiled: Compiled) -> None:
    """``InputError``: the scenario's cells cannot be sealed, or there is nothing to hunt in."""
    from lab.compile.guest.virtual_time import needs_network
    from lab.core.errors import InputError

    if not compiled.scenario.workloads and not compiled.scenario.faults:
        raise InputError(
            f"'{compiled.name}' has no workload and no fault: there is nothing to hunt"
        )
    if any(map(needs_network, compiled.cells)):
        raise InputError(
            f"'{compiled.name}' has a suite of tests, whose guests have a network: a hunt needs"
            " sealed guests"
        )


def _with_commands(hunting: Hunting, name: str, sets: list[str], seeds: int) -> Hunt:
    """Return the hunt's result with the commands that repeat it or continue."""
    import shlex

    found, lab = hunting.result(), own_name()
    given = [word for text in sets for word in ("--set", text)]
    again: list[str] = []
    if found.found is not None:
        again.append(shlex.join([lab, "reproduce", found.directory, "--cell", found.found.cell]))
    if found.smaller is not None:
        again.append(shlex.join([lab, "run", "scenario", found.smaller.file, "--fresh"]))
    rest = [lab, "hunt", name, *given, "--from", str(found.last + 1), "--seeds", str(seeds)]
    return found.model_copy(update={"again": tuple(again), "more": shlex.join(rest)})


def _print(found: Hunt) -> None:
    from pathlib import Path

    lines = []
    if found.found is None:
        tried = found.last - found.first + 1
        which = f"seeds {found.first} to {found.last}" if tried > 0 else "no seed"
        lines.append(f"{which} ran: nothing found")
    else:
        lines.append(f"seed {found.found.seed}, cell {found.found.cell}:")
        lines += [f"  {one.kind.value}: {one.says}" for one in found.found.findings]
    if found.lost:
        lines.append(f"lost by the host, and not judged: seeds {', '.join(map(str, found.lost))}")
    if found.smaller is not None:
        one = found.smaller
        lines.append(f"A smaller scenario fails with seed {one.seed}: {home(Path(one.file))}")
        lines += [f"  {step}" for step in one.removed] or ["  nothing could be left out"]
    if found.again:
        lines.append("Repeat it with:")
        lines += [f"  {command}" for command in found.again]
    lines += ["Continue with:", f"  {found.more}", f"The run is in {home(Path(found.directory))}"]
    sys.stdout.write("\n".join(lines) + "\n")
