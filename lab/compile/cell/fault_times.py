"""Fault timing: the order of a cell's faults, and the workloads that they affect."""

from __future__ import annotations

from lab.model.scenario.document import Cell, Workload
from lab.model.scenario.fault import Fault
from lab.plugins import catalog


def in_order(cell: Cell) -> list[Fault]:
    """Return a cell's faults in order: by workload; before, during (by seconds), after."""
    order = {w.name: n for n, w in enumerate(cell.workloads)}
    sides = {"before": 0, "during": 1, "after": 2}
    return sorted(
        cell.faults, key=lambda f: (order.get(f.workload, len(order)), sides[f.moment], f.at)
    )


def before(cell: Cell, workload: Workload) -> list[Fault]:
    """Return a cell's faults that happen before a workload begins, in order."""
    names = [w.name for w in cell.workloads]
    number = names.index(workload.name)
    return [
        fault
        for fault in in_order(cell)
        if names.index(fault.workload) < number
        or (fault.workload == workload.name and fault.moment == "before")
    ]


def cut_short(cell: Cell) -> set[str]:
    """Return workloads that a fault ends early; they have no results."""
    return {f.during for f in cell.faults if f.during and catalog.fault_kind(f.fault).cuts}


def begun(cell: Cell, fault: Fault) -> tuple[Workload, ...]:
    """Return the workloads that have started when a fault happens."""
    names = [w.name for w in cell.workloads]
    last = names.index(fault.workload) + (fault.moment != "before")
    return cell.workloads[:last]


def undisturbed(cell: Cell) -> tuple[Workload, ...]:
    """Return the workloads that end before the first fault; theory has no rules for faults."""
    order = in_order(cell)
    if not order:
        return cell.workloads
    names = [w.name for w in cell.workloads]
    return cell.workloads[: names.index(order[0].workload) + (order[0].moment == "after")]
