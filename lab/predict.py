"""What theory expects of a cell's workloads."""

from __future__ import annotations

from lab import catalog, theory
from lab.model.measurement import Prediction
from lab.model.scenario import Cell


def predictions(cell: Cell) -> tuple[Prediction, ...]:
    """Every metric that theory can say something about."""
    return tuple(theory.predict(cell, streams(cell)))


def streams(cell: Cell) -> dict[str, theory.Stream]:
    """The workloads that theory knows as one stream, by name."""
    found: dict[str, theory.Stream] = {}
    for workload in cell.workloads:
        tool = catalog.workload(workload.tool)
        stream = tool.stream(tool.parameters.model_validate(workload.parameters))
        if stream is not None:
            found[workload.name] = theory.Stream(
                direction=theory.Direction(stream.direction),
                block=stream.block,
                total=stream.total,
                offset=stream.offset,
            )
    return found


def silences(cell: Cell) -> dict[str, str]:
    """Why theory says nothing of a workload, where it says nothing."""
    known = streams(cell)
    said = {p.workload for p in predictions(cell)}
    found = {}
    for workload in cell.workloads:
        if workload.name in said:
            continue
        stream = known.get(workload.name)
        reason = theory.why_not(cell, stream) if stream else None
        found[workload.name] = reason or f"theory has no rule for what {workload.tool} does here"
    return found
