"""Proposals of smaller scenarios, for ``lab hunt``. Pure.

A proposal is a document's data with one thing less. It may be invalid: the caller compiles it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lab.compile.scenario.compiler import Compiled
from lab.core.errors import InputError
from lab.core.units import parse_seconds, parse_size
from lab.core.yaml import Override, override
from lab.model.scenario.document import Cell

COUNTS: Final = ("count", "number_ios", "loops", "numjobs", "iodepth", "seeks", "files")
SIZES: Final = ("size", "io_size", "filesize")
TIMES: Final = ("runtime", "at", "seconds")
"""Parameters of workloads and faults that are halved."""
LEAST_SIZE: Final = 1 << 20
LEAST_TIME: Final = 0.1
_PLACES: Final = ("before", "after", "during")
"""Keys by which a fault names a workload."""

Proposal = tuple[str, dict[str, Any]]
"""What is less, and the document's data."""


def only(compiled: Compiled, cell: Cell, seed: int) -> dict[str, Any]:
    """Return the data of a scenario that has this cell alone, with this seed.

    It has no claims, since they may name other cells.
    """
    values = compiled.point_of(cell).values
    chosen = [
        Override(text=axis, path=tuple(axis.split(".")), value=value)
        for axis, value in values.items()
    ]
    data = override(compiled.document, chosen).data
    other = ("matrix", "cases", "profile", "profiles", "claims", "extends", "set")
    found = {key: copy.deepcopy(value) for key, value in data.items() if key not in other}
    return {**found, "trials": 1, "seed": seed}


def proposals(data: Mapping[str, Any]) -> Iterator[Proposal]:
    """Yield the data with one thing less, the largest steps first."""
    yield from _without(data, "faults")
    yield from _without_workloads(data)
    if data.get("filesystem") is not None:
        yield "no filesystem", _changed(data, ("filesystem",), None)
    yield from _fewer_disks(data)
    for section in ("workloads", "faults"):
        for number, part in enumerate(data.get(section) or ()):
            for key in (*COUNTS, *SIZES, *TIMES):
                if (less := _half(key, part.get(key))) is not None:
                    what = f"{section}.{part.get('name', number)}.{key}: {less}"
                    yield what, _changed(data, (section, number, key), less)
    yield from _smaller_disks(data)


def _without(data: Mapping[str, Any], section: str) -> Iterator[Proposal]:
    for number, part in enumerate(data.get(section) or ()):
        left = [p for n, p in enumerate(data[section]) if n != number]
        yield f"no {part.get('name', number)}", _changed(data, (section,), left)


def _without_workloads(data: Mapping[str, Any]) -> Iterator[Proposal]:
    for what, less in _without(data, "workloads"):
        names = {workload.get("name") for workload in less["workloads"]}
        faults = [
            fault
            for fault in less.get("faults") or ()
            if all(fault[key] in names for key in _PLACES if key in fault)
        ]
        yield what, {**less, "faults": faults}


def _fewer_disks(data: Mapping[str, Any]) -> Iterator[Proposal]:
    for at, disk in _disks(data):
        count = disk.get("count", 1)
        if isinstance(count, int) and count > 1:
            less = _changed(data, (*at, "count"), count - 1)
            array = less.get("array")
            if isinstance(array, dict) and isinstance(members := array.get("members"), int):
                less = _changed(less, ("array", "members"), members - 1)
            yield f"disks.count: {count - 1}", less


def _smaller_disks(data: Mapping[str, Any]) -> Iterator[Proposal]:
    array = data.get("array")
    if isinstance(array, dict) and (less := _half("size", array.get("component_size"))) is not None:
        what = f"array.component_size: {less}"
        yield what, _changed(data, ("array", "component_size"), less)
    for at, disk in _disks(data):
        if (less := _half("size", disk.get("size"))) is not None:
            yield f"disks.size: {less}", _changed(data, (*at, "size"), less)


def _disks(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Mapping[str, Any]]]:
    disks = data.get("disks") or {}
    if isinstance(disks, dict):
        yield ("disks",), disks
    else:
        yield from ((("disks", number), disk) for number, disk in enumerate(disks))


def _half(key: str, value: Any) -> Any:
    """Return half of a value, in the same unit; ``None``: it is as small as it gets."""
    if value is None or isinstance(value, bool):
        return None
    try:
        if key in COUNTS:
            return value // 2 if isinstance(value, int) and value > 1 else None
        if key in TIMES:
            seconds = parse_seconds(str(value)) / 2
            return f"{seconds:g}s" if seconds >= LEAST_TIME else None
        size = parse_size(value) // 2 // LEAST_SIZE * LEAST_SIZE
        return f"{size // LEAST_SIZE}MiB" if size else None
    except (InputError, ValueError, TypeError):
        return None


def _changed(data: Mapping[str, Any], path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """Return a copy with another value at a path."""
    found: Any = copy.deepcopy(dict(data))
    node = found
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    whole: dict[str, Any] = found
    return whole
