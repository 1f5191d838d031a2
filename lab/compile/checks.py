"""What is wrong with a scenario beyond its fields' own types, each at the line that made it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lab import catalog
from lab.compile.faults import fault_problems
from lab.compile.real import real_problems
from lab.compile.suites import suite_problems, takes_all_disks
from lab.decode import Document, dotted
from lab.disks import group_problems
from lab.errors import InputError
from lab.model.fault import Fault
from lab.model.filesystem import Filesystem
from lab.model.measurement import COUNTERS
from lab.model.plugin import Problem
from lab.model.scenario import Array, AxisValue, Cell, Disk, Scenario, Workload
from lab.moments import metrics_of


def refuse_problems(
    parts: dict[str, Any], scenario: Scenario, document: Document, point: dict[str, AxisValue]
) -> None:
    """Raise the first thing that no QEMU, mdadm or kernel would take."""
    chosen = {*scenario.matrix.axes, *(dotted(path) for path in document.overrides)}
    disks: tuple[Disk, ...] = parts["disks"]
    array: Array | None = parts["array"]
    for index, disk in enumerate(disks):
        for problem in _disk_problems(disk):
            raise wrong_at(problem, document, point, ("disks", index))
    for index, problem in group_problems(disks):
        raise wrong_at(problem, document, point, ("disks", index))
    singles = [d for d in disks for _ in range(d.count)]
    if array is not None:
        missing = catalog.missing_plugin("arrays", array.kind)
        if missing:
            raise wrong_at(Problem(key="array.kind", message=missing), document, point)
        for problem in catalog.array_kind(array.kind).problems(array, singles):
            if problem.idle_by in chosen:
                continue
            raise wrong_at(problem, document, point)
    filesystem: Filesystem | None = parts["filesystem"]
    if filesystem is not None:
        for problem in _filesystem_problems(filesystem, array):
            raise wrong_at(problem, document, point)
    if len(singles) > 64:
        message = f"the disks add up to {len(singles)}; a guest holds 64"
        raise wrong_at(Problem(key="disks.count", message=message), document, point)
    serials = [d.serial.replace("{index}", str(i)) for i, d in enumerate(singles, 1)]
    for serial in serials:
        if serials.count(serial) > 1:
            message = f"two disks would have the serial '{serial}': put {{index}} into it"
            raise wrong_at(Problem(key="disks.serial", message=message), document, point)
    workloads: tuple[Workload, ...] = parts["workloads"]
    for problem in suite_problems(workloads, array, filesystem):
        raise wrong_at(problem, document, point)
    all_disks = takes_all_disks(workloads) and singles
    if workloads and array is None and not all_disks and len(singles) != 1:
        message = f"the bare-disk workloads are aimed at one disk, and there are {len(singles)}"
        raise wrong_at(Problem(key="disks.count", message=message), document, point)


def _filesystem_problems(filesystem: Filesystem, array: Array | None) -> Iterator[Problem]:
    """A file system that only one kind of array makes, on another."""
    for name in catalog.plugin_names("arrays"):
        own = catalog.array_kind(name).filesystem
        if own == filesystem.type and (array is None or array.kind != name):
            message = f"'{own}' is made by an array of the kind {name}: set array.kind to {name}"
            yield Problem(key="filesystem.type", message=message)
        if own == filesystem.type and filesystem.mount_options:
            message = f"'{own}' mounts itself by its properties: set them with options"
            yield Problem(key="filesystem.mount_options", message=message)


def _disk_problems(disk: Disk) -> Iterator[Problem]:
    missing = catalog.missing_plugin("disks", disk.model)
    if missing:
        yield Problem(key="model", message=missing)
        return
    yield from real_problems(disk)
    yield from catalog.disk_model(disk.model).problems(disk)


def wrong_at(
    problem: Problem,
    document: Document,
    point: dict[str, AxisValue],
    below: tuple[str | int, ...] = (),
) -> InputError:
    """The problem at the line of the axis or of the field that made it."""
    named = (*below, *problem.key.split("."))
    axis = ".".join(str(p) for p in named if not isinstance(p, int))
    if axis in point:
        return document.wrong(("matrix", axis), f"{point[axis]!r}: {problem.message}")
    if not isinstance(document.data.get("disks"), list):
        named = tuple(p for p in named if not isinstance(p, int))
    return document.wrong(named, f"{problem.message}{_where(point)}")


def _where(point: dict[str, AxisValue]) -> str:
    others = ", ".join(f"{k}: {v}" for k, v in point.items())
    return f" (in the cell with {others})" if others else ""


def refuse_faults(cell: Cell, document: Document, point: dict[str, AxisValue]) -> None:
    """Raise the first thing that is wrong with a cell's faults."""
    for index, problem in fault_problems(cell):
        axis = f"faults.{cell.faults[index].name}.{problem.key}"
        if axis in point:
            raise document.wrong(("matrix", axis), f"{point[axis]!r}: {problem.message}")
        at: tuple[str | int, ...] = ("faults", index, *problem.key.split("."))
        raise document.wrong(at, f"{problem.message}{_where(point)}")


def check_claims(scenario: Scenario, document: Document) -> None:
    """Claims name workloads, or faults, and metrics that exist."""
    named: tuple[Workload | Fault, ...] = (*scenario.workloads, *scenario.faults)
    names = {one.name: metrics_of(one) for one in named}
    counted = [m.name for m in COUNTERS]
    for index, claim in enumerate(scenario.claims):
        for value in claim.values:
            path = ("claims", index, "expect")
            if value.workload not in names:
                known = ", ".join(names) or "there are none"
                raise document.wrong(path, f"there is no workload '{value.workload}' ({known})")
            tool, own = names[value.workload]
            if not own:
                continue
            if value.disk is not None and value.metric not in counted:
                raise document.wrong(
                    path, f"a single disk has {', '.join(counted)}, and no '{value.metric}'"
                )
            metrics = [*own, *counted]
            if value.metric not in metrics:
                raise document.wrong(
                    path, f"{tool} gives no '{value.metric}' (it gives {', '.join(metrics)})"
                )
