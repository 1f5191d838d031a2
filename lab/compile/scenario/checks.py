"""Checks of a scenario beyond field types; each problem has the line that causes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from lab.compile.cell.faults import fault_problems
from lab.compile.guest import virtual_time as sealed
from lab.compile.guest.memory import memory_problems
from lab.compile.guest.real_disks import real_problems
from lab.compile.guest.suite_steps import needs_disks, suite_problems, takes_all_disks
from lab.compile.scenario.expand import Point
from lab.core.errors import InputError
from lab.core.units import format_size
from lab.core.yaml import Document, dotted
from lab.model.plugin import Problem, Reaching
from lab.model.scenario.document import Array, Cell, Disk, Workload
from lab.model.scenario.fault import Fault
from lab.model.scenario.filesystem import Filesystem
from lab.model.scenario.guest import Guest
from lab.plugins import catalog
from lab.plugins.disks._drives import group_problems

_Found = Iterator[tuple[tuple[str | int, ...], Problem]]


class Checks:
    """Problems of one scenario's cells that QEMU, mdadm or the kernel would report.

    Cells share sections, so each check runs once per combination of the sections that it reads.
    """

    def __init__(self, document: Document, axes: Iterable[str]) -> None:
        self._document = document
        self._chosen = {*axes, *(dotted(path) for path in document.overrides)}
        self._checked: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        """The checked sections; a reference keeps their ``id()`` unique."""

    def refuse(self, parts: Mapping[str, Any], point: Point) -> None:
        """Raise the first problem of these sections, with the line of the axis or field."""
        for check, *names in _CHECKS:
            if not all(name in parts for name in names):
                continue
            sections = [parts[name] for name in names]
            key = (check.__name__, *map(id, sections))
            if key in self._checked:
                continue
            for below, problem in check(*sections):
                if problem.kept and problem.idle_by in self._chosen:
                    continue
                raise wrong_at(problem, self._document, point, below)
            self._checked[key] = tuple(sections)

    def idle(self, array: Array | None, disks: tuple[Disk, ...]) -> frozenset[str]:
        """Fields of the array that another one, an axis or overridden, makes unused."""
        found = (problem for _, problem in _array_problems(array, disks))
        return frozenset(one.key for one in found if one.idle_by in self._chosen and not one.kept)


def _array_problems(array: Array | None, disks: tuple[Disk, ...]) -> _Found:
    if array is None:
        return
    missing = catalog.missing_plugin("arrays", array.kind)
    if missing:
        yield (), Problem(key="array.kind", message=missing)
        return
    for problem in catalog.array_kind(array.kind).problems(array, _singles(disks)):
        yield (), problem


def _singles(disks: tuple[Disk, ...]) -> list[Disk]:
    return [d for d in disks for _ in range(d.count)]


def _virtual_problems(guest: Guest, disks: tuple[Disk, ...]) -> _Found:
    for problem in sealed.guest_problems(guest):
        yield ("guest",), problem
    for index, disk in enumerate(disks):
        for problem in sealed.disk_problems(guest, disk):
            yield ("disks", index), problem


def _disks_problems(disks: tuple[Disk, ...]) -> _Found:
    for index, disk in enumerate(disks):
        for problem in _disk_problems(disk):
            yield ("disks", index), problem
    for index, problem in group_problems(disks):
        yield ("disks", index), problem


def _sum_problems(disks: tuple[Disk, ...]) -> _Found:
    singles = _singles(disks)
    if len(singles) > 64:
        message = f"there are {len(singles)} disks, and a guest has 64 at most: lower it"
        yield (), Problem(key="disks.count", message=message)
    serials = [d.serial.replace("{index}", str(i)) for i, d in enumerate(singles, 1)]
    for serial in serials:
        if serials.count(serial) > 1:
            message = f"two disks have the serial '{serial}': write {{index}} into it"
            yield (), Problem(key="disks.serial", message=message)


def _workload_problems(
    workloads: tuple[Workload, ...],
    array: Array | None,
    filesystem: Filesystem | None,
    disks: tuple[Disk, ...],
) -> _Found:
    for problem in suite_problems(workloads, array, filesystem):
        yield (), problem
    count = sum(d.count for d in disks)
    all_disks = takes_all_disks(workloads) and (count or not needs_disks(workloads))
    if workloads and array is None and not all_disks and count != 1:
        message = f"without an array, workloads need exactly one disk, and there are {count}"
        yield (), Problem(key="disks.count", message=message)


def _reach_problems(
    workloads: tuple[Workload, ...],
    array: Array | None,
    filesystem: Filesystem | None,
    disks: tuple[Disk, ...],
    faults: tuple[Fault, ...],
) -> _Found:
    """Yield a problem for each workload that needs more than the target has.

    A fault may change the array's size.
    """
    singles = _singles(disks)
    if filesystem is not None or faults or takes_all_disks(workloads) or not singles:
        return
    capacity: int | None = singles[0].size
    if array is not None:
        capacity = catalog.array_kind(array.kind).capacity(array, singles)
    for index, workload in enumerate(workloads):
        tool = catalog.workload(workload.tool)
        reached = tool.end(catalog.parameters_of(workload)) if isinstance(tool, Reaching) else None
        if capacity is not None and reached is not None and reached[1] > capacity:
            key, end = reached
            target = "disk" if array is None else "array"
            message = f"'{workload.name}' ends at byte {end}, and the {target} has {capacity}"
            yield (
                ("workloads", index),
                Problem(key=key, message=f"{message}: lower {key}, or give larger disks"),
            )


def _sector_problems(
    workloads: tuple[Workload, ...], filesystem: Filesystem | None, disks: tuple[Disk, ...]
) -> _Found:
    """Yield a problem for each workload with direct I/O that is no multiple of the largest logical
    block size, which an array has too (``block/blk-settings.c: blk_stack_limits``)."""
    logical = max((d.sectors.logical for d in disks if d.count), default=512)
    if filesystem is not None or logical == 512:
        return
    for index, workload in enumerate(workloads):
        stream = catalog.workload(workload.tool).stream(catalog.parameters_of(workload))
        if stream is not None and (stream.block % logical or stream.offset % logical):
            wrong = stream.block if stream.block % logical else stream.offset
            message = (
                f"'{workload.name}' has direct I/O of {wrong} bytes, and the disks' logical blocks "
                f"have {logical}: give a multiple of {format_size(logical)}"
            )
            yield ("workloads", index), Problem(key="bs", message=message)


def _filesystem_problems(filesystem: Filesystem | None, array: Array | None) -> _Found:
    """Yield a problem if this kind of array cannot make the file system."""
    if filesystem is None:
        return
    for name in catalog.plugin_names("arrays"):
        own = catalog.array_kind(name).filesystem
        if own == filesystem.type and (array is None or array.kind != name):
            message = f"'{own}' needs an array of kind {name}: set array.kind to {name}"
            yield (), Problem(key="filesystem.type", message=message)
        if own == filesystem.type and filesystem.mount_options:
            message = f"'{own}' has properties instead of mount options: set them with options"
            yield (), Problem(key="filesystem.mount_options", message=message)


def _memory_problems(
    guest: Guest, array: Array | None, disks: tuple[Disk, ...], workloads: tuple[Workload, ...]
) -> _Found:
    for problem in memory_problems(guest, array, disks, workloads):
        yield (), problem


def _disk_problems(disk: Disk) -> Iterator[Problem]:
    missing = catalog.missing_plugin("disks", disk.model)
    if missing:
        yield Problem(key="model", message=missing)
        return
    yield from real_problems(disk)
    yield from catalog.disk_model(disk.model).problems(disk)


_CHECKS: Final[tuple[tuple[Any, ...], ...]] = (
    (_virtual_problems, "guest", "disks"),
    (_disks_problems, "disks"),
    (_array_problems, "array", "disks"),
    (_filesystem_problems, "filesystem", "array"),
    (_sum_problems, "disks"),
    (_workload_problems, "workloads", "array", "filesystem", "disks"),
    (_reach_problems, "workloads", "array", "filesystem", "disks", "faults"),
    (_sector_problems, "workloads", "filesystem", "disks"),
    (_memory_problems, "guest", "array", "disks", "workloads"),
)
"""Checks with the sections that they read."""


def wrong_at(
    problem: Problem,
    document: Document,
    point: Point,
    below: tuple[str | int, ...] = (),
) -> InputError:
    """Return the error for a problem, with the line of the axis or field."""
    named = (*below, *problem.key.split("."))
    axis = ".".join(str(p) for p in named if not isinstance(p, int))
    if axis in point.places:
        return document.wrong(point.places[axis], f"{point.values[axis]!r}: {problem.message}")
    if named[0] == "disks" and not isinstance(document.data.get("disks"), list):
        named = tuple(p for p in named if not isinstance(p, int))
    return document.wrong(named, f"{problem.message}{_where(point)}")


def _where(point: Point) -> str:
    others = ", ".join(f"{k}: {v}" for k, v in point.values.items())
    return f" (in the cell with {others})" if others else ""


def refuse_faults(cell: Cell, document: Document, point: Point) -> None:
    """Raise the first problem of a cell's faults."""
    for index, problem in fault_problems(cell):
        axis = f"faults.{cell.faults[index].name}.{problem.key}"
        if axis in point.places:
            message = f"{point.values[axis]!r}: {problem.message}"
            raise document.wrong(point.places[axis], message)
        at: tuple[str | int, ...] = ("faults", index, *problem.key.split("."))
        raise document.wrong(at, f"{problem.message}{_where(point)}")
