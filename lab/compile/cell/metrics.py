"""What a cell's workloads, faults and disks measure."""

from __future__ import annotations

from collections.abc import Mapping

from lab.model.result.measurement import COUNTERS, Metric
from lab.model.scenario.document import Cell, Workload
from lab.model.scenario.fault import Fault
from lab.plugins import catalog
from lab.plugins.faults._shared import COMMON

Metrics = Mapping[tuple[str, str], Metric]
"""Metrics by name of a workload or fault, and of the metric."""


def metrics_of(cell: Cell) -> Metrics:
    """Return each metric that the cell can have, in the order of the scenario.

    The disks' counters of a workload or fault are its metrics too. A missing plug-in has no others.
    """
    every: tuple[Workload | Fault, ...] = (*cell.workloads, *cell.faults)
    return {
        (named.name, name): metric
        for named in every
        for name, metric in {**own_metrics(named), **COUNTS}.items()
    }


COUNTS: Mapping[str, Metric] = {metric.name: metric for metric in COUNTERS}
"""The disks' counters by name."""


def own_metrics(named: Workload | Fault) -> dict[str, Metric]:
    """Return the metrics of a workload or fault by name, without its disks' counters; none if its
    plug-in does not exist."""
    if isinstance(named, Workload):
        missing = catalog.missing_plugin("workloads", named.tool)
        found = () if missing else catalog.workload(named.tool).metrics
    else:
        missing = catalog.missing_plugin("faults", named.fault)
        found = () if missing else (*COMMON, *catalog.fault_kind(named.fault).metrics)
    return {metric.name: metric for metric in found}


def plugin_of(named: Workload | Fault) -> str:
    """Return the plug-in of a workload or fault."""
    return named.tool if isinstance(named, Workload) else named.fault
