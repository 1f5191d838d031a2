"""Explanations of each cell's speed: theory's sentences with a run's counters."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from lab.analysis import measure
from lab.analysis.predict import explanations
from lab.compile.scenario.compiler import Compiled
from lab.compile.scenario.identity import cell_id
from lab.model.result.document import CellResult, MemberCounters, Result
from lab.model.result.explanation import CellExplanation, Explanation, MemberBytes
from lab.model.scenario.guest import Guest
from lab.results.documents import kernel_of, result_of, understood
from lab.store.runs import RunStore


def explanation_of(
    compiled: Compiled, kernel_of: Callable[[Guest], str | None]
) -> tuple[CellExplanation, ...]:
    """Explain every cell of a scenario, from theory alone. ``kernel_of``: a guest's kernel, if
    known."""
    return tuple(
        CellExplanation(
            id=cell_id(cell),
            axes=cell.axes,
            workloads=explanations(cell, kernel=kernel_of(cell.guest)),
        )
        for cell in compiled.cells
    )


@understood
def explanation_of_run(
    run: RunStore, judge: Callable[[RunStore], Result] = result_of
) -> tuple[CellExplanation, ...]:
    """Explain every cell of a run, with measured values and the members' counters."""
    results = {cell.id: cell for cell in judge(run).cells}
    found = []
    loaded = run.load_run()
    for stored, *_ in loaded.points:
        result = results[stored.id]
        raw = run.raw(run.cell_directory(stored.id))
        busy, kernel = measure.busy_shares(stored.cell, raw), kernel_of(loaded, stored.cell, raw)
        explained = tuple(beside(e, result) for e in explanations(stored.cell, busy, kernel))
        found.append(CellExplanation(id=stored.id, axes=stored.cell.axes, workloads=explained))
    return tuple(found)


def beside(explanation: Explanation, result: CellResult) -> Explanation:
    """Add the cell's values, and the counters of all disks, to theory's sentences."""
    measured = {
        m.metric: m.median for m in result.measurements if m.workload == explanation.workload
    }
    mine = [c for c in result.counters if c.workload == explanation.workload]
    known = {member.serial: member for member in explanation.members}
    others = {c.serial: MemberBytes(serial=c.serial) for c in mine if c.serial not in known}
    members = tuple(
        _counted(member, [c for c in mine if c.serial == member.serial])
        for member in (known | others).values()
    )
    return explanation.model_copy(update={"measured": measured, "members": members})


def _counted(member: MemberBytes, counters: list[MemberCounters]) -> MemberBytes:
    if not counters:
        return member
    return member.model_copy(
        update={
            "counted_read_bytes": round(median(c.read_bytes for c in counters)),
            "counted_written_bytes": round(median(c.written_bytes for c in counters)),
        }
    )
