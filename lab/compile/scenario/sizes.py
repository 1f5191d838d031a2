"""``{stripe}`` and the like in workload parameters: sizes of the cell's own array."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lab.compile.scenario.expand import Point
from lab.core.yaml import Document, Path_
from lab.model.plugin import SIZES
from lab.model.scenario.document import Array, Disk, Workload
from lab.plugins import catalog

_NAMED: Final = re.compile(rf"\{{({'|'.join(SIZES)})\}}")
_BRACED: Final = frozenset((*SIZES, "target"))


def names_sizes(workload: Workload) -> bool:
    """Return whether a parameter names a size, with quotes or without."""
    return any(_names(value) for value in workload.parameters.values())


def _names(value: Any) -> bool:
    if isinstance(value, str):
        return _NAMED.search(value) is not None
    if isinstance(value, Mapping):
        return _unquoted(value) is not None or any(map(_names, value.values()))
    return isinstance(value, list | tuple) and any(map(_names, value))


def _unquoted(value: Mapping[str, Any]) -> str | None:
    """Return the name in ``{stripe}`` without quotes, which YAML reads as a mapping."""
    name = next(iter(value), None)
    return name if len(value) == 1 and name in _BRACED and value[name] is None else None


def with_sizes(
    workloads: Sequence[Workload],
    array: Array | None,
    disks: Sequence[Disk],
    document: Document,
    point: Point,
) -> tuple[Workload, ...]:
    """Return the workloads with each named size as a number; ``InputError``: unknown size."""
    singles = [disk for disk in disks for _ in range(disk.count)]
    sizes = catalog.array_kind(array.kind).sizes(array, singles) if array else {}

    def filled(value: Any, at: Path_) -> Any:
        if isinstance(value, str):
            names = _NAMED.findall(value)
            for name in names:
                if name not in sizes:
                    raise document.wrong(at, _missing(name, array, sizes))
            if names and _NAMED.fullmatch(value):
                return sizes[names[0]]
            return _NAMED.sub(lambda found: str(sizes[found[1]]), value)
        if isinstance(value, Mapping):
            if (name := _unquoted(value)) is not None:
                raise document.wrong(at, f"put it in quotes: '{{{name}}}'")
            return {key: filled(below, (*at, key)) for key, below in value.items()}
        if isinstance(value, list | tuple):
            return [filled(below, (*at, n)) for n, below in enumerate(value)]
        return value

    def of(index: int, workload: Workload) -> Workload:
        parameters = {
            key: filled(
                value,
                point.places.get(f"workloads.{workload.name}.{key}", ("workloads", index, key)),
            )
            for key, value in workload.parameters.items()
        }
        return workload.model_copy(update={"parameters": parameters})

    return tuple(of(index, workload) for index, workload in enumerate(workloads))


def _missing(name: str, array: Array | None, sizes: Mapping[str, int]) -> str:
    if array is None:
        return f"{{{name}}} is a size of the array, and there is none: write a number"
    kind = "" if array.kind == "md" else f" of kind {array.kind}"
    known = ", ".join(f"{{{one}}}" for one in sizes)
    layout = f" with layout {array.layout}" if array.layout else ""
    return (
        f"an array{kind} of level {array.level}{layout} has no {{{name}}}: it has {known}; write"
        " one of them, or a number"
    )
