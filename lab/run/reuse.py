"""Takes results of sealed cells from earlier runs on this host, instead of running them again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lab.compile.cell.procedure import cell_procedure
from lab.compile.scenario.identity import cell_id
from lab.host.guest.virtual.sealed import inputs_of_cell
from lab.host.images import kits
from lab.host.system import paths
from lab.model.execution.job import SealedKit
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Clock, Guest, System
from lab.run.options import RunOptions
from lab.run.preparation.platforms import Platform
from lab.run.task import need_of
from lab.run.worker_pool import Say
from lab.store import reuse
from lab.store.runs import RunStore


def inputs_of(
    cells: Iterable[Cell],
    platforms: Mapping[System, Platform],
    options: RunOptions,
) -> dict[str, str]:
    """Return the digest of each sealed cell's inputs, by cell id."""
    known: dict[Guest, SealedKit] = {}
    found = {}
    for cell in cells:
        if cell.guest.clock is Clock.REAL or options.unseals(cell):
            continue
        if cell.guest not in known:
            image = platforms[cell.guest.system].image
            known[cell.guest] = kits.prepare(cell.guest, image)
        procedure = cell_procedure(cell, str(paths.guests() / "guest"))
        found[cell_id(cell)] = inputs_of_cell(
            known[cell.guest], procedure, need_of(cell).space, cold=options.cold
        )
    return found


def take(store: RunStore, cells: Sequence[Cell], inputs: Mapping[str, str], say: Say) -> set[str]:
    """Copy stored results of cells with these inputs into a run; return the cells' ids."""
    by_run: dict[str, set[str]] = {}
    for cell in cells:
        name = cell_id(cell)
        if name not in inputs:
            continue
        known = reuse.find(inputs[name])
        if known is None:
            if (entry := reuse.entry_of(inputs[name])) is not None:
                say(f"{name} runs again: its results in '{entry.directory}' are gone or changed")
            continue
        store.take_finished(name, cell, known.store, known.cell)
        reuse.add(store, name)
        by_run.setdefault(known.run, set()).add(name)
    for run, names in by_run.items():
        cells_ = "1 cell" if len(names) == 1 else f"{len(names)} cells"
        say(
            f"results of {cells_} are taken from {run}, which had the same inputs (--fresh runs "
            "them again)"
        )
    return {name for names in by_run.values() for name in names}
