"""Finds and checks the run to resume."""

from __future__ import annotations

from collections.abc import Sequence

from lab.compile.scenario.compiler import Compiled
from lab.compile.scenario.identity import cell_id
from lab.core.errors import InputError
from lab.store import runs as store
from lab.store.runs import RunStore


def require_same(run: RunStore, compiled: Compiled) -> None:
    """``InputError``: the run is of another scenario. The file names may differ."""
    own = run.directory / "scenario.yaml"
    known = run.load_run().scenario
    if known != compiled.name and compiled.path.resolve() != own.resolve():
        raise InputError(f"the run '{run.id}' is of the scenario '{known}', not '{compiled.name}'")


def stored(name: str, compiled: Compiled, texts: Sequence[str]) -> RunStore:
    """Return the run to resume; ``InputError``: its scenario or its cells differ."""
    found = store.find(name, compiled.name)
    run = found.load_run()
    require_same(found, compiled)
    mine = {cell_id(c) for c in compiled.cells}
    # Earlier versions made other ids; further seeds are those of `trials: auto`.
    theirs = {cell_id(first.cell) for first, *_ in run.points}
    if mine != theirs:
        given = " ".join(f"--set {t}" for t in run.overrides) or "without --set"
        now = " ".join(f"--set {t}" for t in texts) or "without --set"
        raise InputError(
            f"the run '{found.id}' has other cells: it was begun {given}, and this is {now}",
            hint="give the same --set and --trials, or begin a new run; the file may have changed",
        )
    return found
