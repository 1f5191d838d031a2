"""``lab reproduce``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import completion
from lab.cli.app import BUGS, app
from lab.cli.commands.running import Jobs, Verbose, how_of
from lab.cli.options import Json, home, own_name, print_json

if TYPE_CHECKING:
    from lab.capabilities.reproduce.run import Source
    from lab.model.result.reproduction import Reproduction


@app.command(rich_help_panel=BUGS)
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run: its id or the beginning of it, its directory, 'last' or a scenario's name;"
            " or a bundle, RUN.lab.zip ('lab results export --format bundle').",
            autocompletion=completion.run_names,
        ),
    ] = "last",
    cell: Annotated[
        str | None,
        typer.Option("--cell", metavar="ID", help="Only this cell, by its id.", show_default=False),
    ] = None,
    jobs: Jobs = "auto",
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a stored run's cells in virtual time again, and compare them byte for byte.

    Prints "identical", or the first difference of each cell: step, file and byte. If an input
    differs, such as the image, it is named: then the cell cannot be compared. Cells that were
    not sealed are skipped. If all are identical, later runs take this run's results. Otherwise
    the new run is kept.

    Guests boot if they booted in the run, and otherwise start from a snapshot.

    Exit status: 4 if a cell differs.

    Examples:
        lab reproduce
        lab reproduce raid5-parity-last --json
        lab reproduce RUN.lab.zip
    """
    from lab.capabilities.reproduce import run as reproducing
    from lab.core.errors import EXIT_DIFFERENT, EXIT_DONE
    from lab.store import bundles

    with bundles.opened(name) as run:
        source = reproducing.source_of(run, is_here=not bundles.is_bundle(name))
        found = _again(source, cell, jobs, verbose=verbose)
    if as_json:
        print_json(found.model_dump(mode="json", by_alias=True))
    else:
        _print(found)
    raise typer.Exit(EXIT_DONE if found.identical else EXIT_DIFFERENT)


def _again(source: Source, cell: str | None, jobs: str, *, verbose: bool) -> Reproduction:
    from dataclasses import replace

    from lab.capabilities.reproduce import run as reproducing
    from lab.cli.display.progress import Progress
    from lab.core.errors import InputError

    known = [stored.id for stored in source.about.cells]
    if cell is not None and cell not in known:
        raise InputError(f"--cell: '{cell}' is no cell of '{source.id}': it has {', '.join(known)}")
    left_out = reproducing.skipped(source, cell)
    wanted = set(known) - set(left_out)
    if not wanted:
        reasons = "; ".join(f"{one}: {why}" for one, why in left_out.items())
        raise InputError(
            f"'{source.id}' has no cell that can be reproduced: {reasons}",
            hint=f"`{own_name()} run scenario NAME --clock virtual` makes such cells",
        )
    how = replace(
        how_of(jobs, False, keep=False, workloads=True, cold=reproducing.booted(source, wanted)),
        fresh=True,
        remember=False,
    )
    with reproducing.workplace(source) as place:
        path = place / f"{source.about.scenario}.yaml"
        compiled = reproducing.compiled_of(source, path, wanted)
        with Progress(compiled, how=how, verbose=verbose) as progress:
            return reproducing.reproduce(
                source,
                compiled,
                place,
                options=how,
                executor=reproducing.executor_of(source, how, progress.watch, progress.note),
                progress=progress.image,
                ready=progress.ready,
                left_out=left_out,
            )


def _print(found: Reproduction) -> None:
    from lab.host.system import paths
    from lab.model.result.reproduction import CellState
    from lab.report.terminal.cell_lines import cell_lines

    lines = [line for cell in found.cells for line in cell_lines(cell, here="here")]
    same = sum(cell.state is CellState.IDENTICAL for cell in found.cells)
    other = sum(cell.state is CellState.DIFFERENT for cell in found.cells)
    apart = sum(cell.state is CellState.OTHER_INPUTS for cell in found.cells)
    skipped = len(found.cells) - same - other - apart
    if found.identical:
        lines.append(f"identical: {same} of {len(found.cells)} cells, {skipped} skipped")
    if other:
        lines.append(f"different: {other} of {len(found.cells)} cells, {skipped} skipped")
    if apart:
        names = ", ".join(one.what for one in found.inputs)
        lines.append(
            f"not comparable: {apart} of {len(found.cells)} cells ran with different inputs here"
            f" ({names}). This says nothing about the run."
        )
    for one_input in found.inputs:
        lines.append(
            f"{one_input.what}: the run had {one_input.stored}, here is {one_input.here}:"
            f" {one_input.advice}"
        )
    if found.kept is not None:
        lines.append(f"The new run is kept in {home(paths.runs() / found.kept)}")
    sys.stdout.write("\n".join(lines) + "\n")
