"""Agreement of two runs in virtual time: equal inputs must give equal bytes."""

from __future__ import annotations

from lab.analysis.reproduction import first_difference, other_inputs
from lab.model.result.comparison import Agreement
from lab.model.result.document import CellClock, Outcome
from lab.model.result.reproduction import CellState, FirstDifference, ReproducedCell
from lab.model.scenario.guest import Clock
from lab.results.documents import understood
from lab.store.runs import FinishedCell, RunStore, StoredCell


def agreement_of(first: RunStore, second: RunStore) -> Agreement:
    """Compare the cells of both runs that have virtual time, byte for byte."""
    there, here = first.load_run(), second.load_run()
    known = {cell.id for cell in here.cells}
    cells = tuple(_compared(first, second, c) for c in there.cells if c.id in known)
    apart = [c for c in there.cells if c.id not in known]
    states = {cell.state for cell in cells} - {CellState.SKIPPED}
    return Agreement(
        agree=states == {CellState.IDENTICAL} if states else None,
        cells=cells,
        apart=sum(not not_sealed(c, first.load_cell(c.id)) for c in apart),
        inputs=tuple(other_inputs(there.environment, here.environment)),
    )


def not_sealed(stored: StoredCell, finished: FinishedCell | None) -> str:
    """Return why a cell has no bytes that must repeat; empty: it has."""
    if finished is None:
        return "it did not finish"
    if stored.cell.guest.clock is Clock.REAL:
        return "it ran in real time: its values depend on the host"
    if finished.outcome.digest is None or finished.outcome.clock is not CellClock.SEALED:
        return "it was not sealed: it has no digest"
    if finished.outcome.outcome is Outcome.LOST:
        return "its guest was lost"
    return ""


def difference_of(
    cell: str, first: RunStore, before: FinishedCell, after: FinishedCell
) -> FirstDifference | None:
    """Return the first difference between two results of a cell; ``first`` has its procedure."""
    procedure = first.load_procedure(first.cell_directory(cell))
    return first_difference(procedure, (before.outcome, before.raw), (after.outcome, after.raw))


def _compared(first: RunStore, second: RunStore, stored: StoredCell) -> ReproducedCell:
    return understood(_difference)(first, second, stored)


def _difference(first: RunStore, second: RunStore, stored: StoredCell) -> ReproducedCell:
    before, after = first.load_cell(stored.id), second.load_cell(stored.id)
    why = not_sealed(stored, before) or not_sealed(stored, after)
    found = ReproducedCell(id=stored.id, state=CellState.SKIPPED, reason=why)
    if why:
        return found
    assert before is not None
    assert after is not None
    mine, theirs = before.outcome.digest, after.outcome.digest
    assert mine is not None
    assert theirs is not None
    digests = found.model_copy(update={"stored": mine, "here": theirs})
    if mine.inputs != theirs.inputs:
        return digests.model_copy(update={"reason": "its inputs differ"})
    difference = difference_of(stored.id, first, before, after)
    state = CellState.DIFFERENT if difference else CellState.IDENTICAL
    return digests.model_copy(update={"state": state, "difference": difference})
