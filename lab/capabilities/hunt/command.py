"""``lab hunt`` and ``lab debug``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import completion
from lab.cli.app import BUGS, app
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
    from lab.capabilities.hunt.model import Hunt
    from lab.capabilities.hunt.run import Hunting
    from lab.compile.scenario.compiler import Compiled

LARGEST = 1_000_000


def _finding_kinds(incomplete: str) -> list[str]:
    from lab.capabilities.hunt.model import FindingKind

    return [kind.value for kind in FindingKind if kind.value.startswith(incomplete)]


@app.command(rich_help_panel=BUGS)
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
            autocompletion=_finding_kinds,
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
    from lab.capabilities.hunt.model import FindingKind
    from lab.capabilities.hunt.run import SETS, Hunting, HuntOptions, quiet
    from lab.cli.display.progress import Progress
    from lab.core.errors import EXIT_DONE, EXIT_REFUTED, EXIT_STOPPED, EXIT_TROUBLE, InputError
    from lab.run.execute import LocalExecutor

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


@app.command(rich_help_panel=BUGS)
def debug(
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Time of the guest's clock, as in the kernel's messages: 12.3s.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run: its id or the beginning of it, its directory, 'last' or a scenario.",
            autocompletion=completion.run_names,
        ),
    ] = "last",
    cell: Annotated[
        str | None,
        typer.Option(
            "--cell",
            metavar="ID",
            help="The cell, by its id. Required if the run has several.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            min=1,
            max=LARGEST,
            help="The trial with this seed. Without it, the cell's first one.",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[
        Path | None,
        typer.Option(
            "--requests",
            metavar="FILE",
            help="Write each request to a disk: issued, received, completed.",
            show_default=False,
        ),
    ] = None,
    core: Annotated[
        Path | None,
        typer.Option(
            "--core",
            metavar="FILE",
            help="Write the guest's memory as an ELF file, for gdb and crash.",
            show_default=False,
        ),
    ] = None,
    gdb: Annotated[
        bool,
        typer.Option("--gdb", help="Keep the stopped guest, and print the command for gdb."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a stored sealed cell again up to a time of its guest's clock, and stop it there.

    Prints the last messages of the kernel before the stop. A cell that was disturbed is the same
    up to the stop. In another one the log of requests takes instructions, about 0.1
    microseconds for each request, so its times differ by so much.

    Only the guest's first boot is stopped: the clock begins anew after a power cut.

    Examples:
        lab debug faults --at 12.3s
        lab debug last --cell base-0123abcd --at 4.056656s --requests requests.txt --core core
        lab debug last --at 4.05s --gdb
    """
    from lab.capabilities.hunt import debug as debugging
    from lab.capabilities.reproduce import run as reproducing
    from lab.core.errors import EXIT_DONE, InputError
    from lab.core.units import parse_seconds
    from lab.run.options import RunOptions
    from lab.store import runs as store

    try:
        nanoseconds = round(parse_seconds(at) * 1e9)
    except ValueError as error:
        raise InputError(f"--at {at}: {error}") from error
    source = reproducing.source_of(store.find(name))
    known = {stored.id: stored.cell for stored in source.about.cells}
    if cell is None and len(known) > 1:
        raise InputError(f"'{source.id}' has several cells: name one with --cell: {_some(known)}")
    chosen = cell if cell is not None else next(iter(known), "")
    if chosen not in known:
        raise InputError(f"--cell: '{chosen}' is no cell of '{source.id}': it has {_some(known)}")
    one = known[chosen]
    stored = source.cells.get(chosen)
    finished = {chosen} & set(source.cells)
    note = _note if not as_json else lambda _text: None
    executor = reproducing.executor_of(source, RunOptions(), lambda _guest, _event: None, note)
    found = debugging.debug(
        source.id,
        one,
        seed if seed is not None else one.seed,
        debugging.stored_log(one, dict(stored.raw)) if stored else "",
        executor.place(one.guest, lambda text, _part: note(text)),
        debugging.Wanted(
            nanoseconds=nanoseconds,
            log=requests.absolute() if requests else None,
            core=core.absolute() if core else None,
            gdb=_gdb if gdb else None,
        ),
        cold=bool(finished) and reproducing.booted(source, finished),
        say=note,
    )
    if as_json:
        print_json(found.model_dump(mode="json", by_alias=True))
        raise typer.Exit(EXIT_DONE)
    lines = found.kernel.rstrip().splitlines()[-15:]
    if found.same is not None:
        words = {True: "the same as", False: "NOT the same as"}[found.same]
        lines.append(f"The kernel's messages so far are {words} in the stored run.")
    forgotten = f", and {found.forgotten} earlier ones were not kept" if found.forgotten else ""
    if found.log:
        lines.append(f"{found.events} events of requests are in {found.log}{forgotten}")
    if found.core:
        lines.append(f"The guest's memory is in {found.core}")
    lines.append(f"stopped at {found.seconds:.9f} s")
    sys.stdout.write("\n".join(lines) + "\n")


def _some(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - 8} more" if len(known) > 8 else ""
    return ", ".join(known[:8]) + more


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _gdb(socket: Path) -> None:
    sys.stderr.write(
        "The guest stays stopped until gdb's `kill`, or Ctrl-C here. Addresses are not random; the"
        " kernel's symbols are in Debian's package linux-image-VERSION-dbg:\n"
        f"  gdb -ex 'target remote {socket}' vmlinux\n"
    )
