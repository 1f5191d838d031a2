"""Comparison of two stored runs."""

from __future__ import annotations

from lab.analysis.compare import Side, compare
from lab.core.errors import InputError
from lab.model.result.comparison import Comparison
from lab.results.agreement import agreement_of
from lab.results.documents import understood
from lab.results.judged import result_of
from lab.store.runs import RunStore


def comparison_of(first: RunStore, second: RunStore, least: float) -> Comparison:
    """Compare two runs; ``InputError``: they have no cell in common."""
    sides = side_of(first), side_of(second)
    found = understood(lambda _run: compare(*sides, least))(first)  # whose parameters are read
    if not found.cells:
        raise InputError(
            f"'{first.id}' and '{second.id}' have no cell in common",
            hint="cells are paired by what they are, else by their axes: give runs of one scenario",
        )
    return found.model_copy(update={"agreement": agreement_of(first, second)})


@understood
def side_of(run: RunStore) -> Side:
    """Return a run for a comparison."""
    stored = run.load_run()
    return Side(
        result=result_of(run),
        cells={cell.id: cell.cell for cell in stored.cells},
        noise=stored.noise,
        calibrations=stored.calibrations,
    )
