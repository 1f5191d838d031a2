"""What a cell's workloads, faults and disks measure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches

from lab.compile.cell.samples import metrics_of_samples
from lab.model.result.measurement import COUNTERS, SHAPE, Metric
from lab.model.scenario.document import Cell, Workload
from lab.model.scenario.fault import Fault
from lab.plugins import catalog
from lab.plugins.faults._shared import COMMON

Metrics = Mapping[tuple[str, str], Metric]
"""Metrics by name of a workload or fault, and of the metric."""


def metrics_of(cell: Cell) -> Metrics:
    """Return each metric that the cell can have, in the order of the scenario.

    The disks' counters of a workload or fault are its metrics too, and the shape of an md array. A
    missing plug-in has no others.
    """
    every: tuple[Workload | Fault, ...] = (*cell.workloads, *cell.faults)
    shapes = SHAPES if has_shape(cell) else {}
    return {
        (named.name, name): metric
        for named in every
        for name, metric in {**own_metrics(named), **COUNTS, **shapes}.items()
    }


def has_shape(cell: Cell) -> bool:
    """Return whether the cell has an md array of whole disks."""
    return cell.array is not None and cell.array.kind == "md"


COUNTS: Mapping[str, Metric] = {metric.name: metric for metric in COUNTERS}
"""The disks' counters by name."""
SHAPES: Mapping[str, Metric] = {metric.name: metric for metric in SHAPE}
"""The metrics of an array's shape by name."""


def own_metrics(named: Workload | Fault) -> dict[str, Metric]:
    """Return the metrics of a workload or fault by name, without its disks' counters; none if its
    plug-in does not exist."""
    if isinstance(named, Workload):
        missing = catalog.missing_plugin("workloads", named.tool)
        own = () if missing else _measures(named)
        found: Sequence[Metric] = (*own, *metrics_of_samples(named))
    else:
        missing = catalog.missing_plugin("faults", named.fault)
        found = () if missing else (*COMMON, *catalog.fault_kind(named.fault).metrics)
    return {metric.name: metric for metric in found}


def _measures(workload: Workload) -> Sequence[Metric]:
    """Return the metrics of a workload's tool with its parameters."""
    return catalog.workload(workload.tool).measures(catalog.parameters_of(workload))


def similar(word: str, known: Iterable[str]) -> str:
    """Return the metric that a word is a misspelling of; empty: none.

    A name with another group, direction or percentile is another value: ``fsync_p99`` is no
    ``clat_p99``. So a word of a name may be misspelt, and not replaced by another word of names.
    """
    known = list(known)
    words = {part for name in known for part in name.split("_")}
    others = {"fsync", "fdatasync", "sync", "mean", "median", "min"}
    own = {part for part in word.split("_") if _is_own(part, words | others)}
    near = get_close_matches(word, known, n=len(known) or 1)
    fitting = (n for n in near if own <= set(n.split("_")) and n.count("_") == word.count("_"))
    return next(fitting, "")


def _is_own(part: str, words: Collection[str]) -> bool:
    """Return whether a part of a name is a word of names, or a percentile."""
    return part in words or re.fullmatch(r"p?\d+", part) is not None


def plugin_of(named: Workload | Fault) -> str:
    """Return the plug-in of a workload or fault."""
    return named.tool if isinstance(named, Workload) else named.fault
