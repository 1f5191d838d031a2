"""From a scenario's file to its cells, every one of them checked before anything is booted."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from lab import catalog
from lab.compile.faults import fault_problems
from lab.decode import Document, Override, first_wrong, override, read_file, validate
from lab.errors import InputError
from lab.model.base import Model
from lab.model.fault import Fault
from lab.model.plugin import Problem
from lab.model.scenario import Array, AxisValue, Cell, Disk, Filesystem, Guest, Scenario, Workload
from lab.moments import metrics_of
from lab.units import same_value

MAX_CELLS: Final = 20_000
SECTIONS: Final = ("guest", "disks", "array", "filesystem", "workloads", "faults")
_ADAPTERS: Final[dict[str, TypeAdapter[Any]]] = {
    "guest": TypeAdapter(Guest),
    "disks": TypeAdapter(tuple[Disk, ...]),
    "array": TypeAdapter(Array | None),
    "filesystem": TypeAdapter(Filesystem | None),
    "workloads": TypeAdapter(tuple[Workload, ...]),
    "faults": TypeAdapter(tuple[Fault, ...]),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A scenario, its cells, and the identities that its claims speak of."""

    name: str
    path: Path
    scenario: Scenario
    document: Document
    cells: tuple[Cell, ...]
    base: Cell
    """The cell of the file's own fields, without the matrix."""
    published: frozenset[str]
    """Identities of the cells of the file as it stands, without any ``--set``."""


def cell_id(cell: Cell) -> str:
    """A readable slug and 8 hex digits of everything that can change a number."""
    words = [re.sub(r"[^A-Za-z0-9]+", "-", str(v)).strip("-") for v in cell.axes.values()]
    slug = "-".join(w for w in words if w)[:60].strip("-") or "base"
    without = {"timeout", "axes"} | (set() if cell.faults else {"faults"})
    return f"{slug}-{_digest(cell.model_dump(mode='json', exclude=without))}"


def identity(cell: Cell) -> str:
    """What a claim speaks of: disks, array, file system, workloads and faults, in any guest.

    A cell that ``--set`` made different has another identity, and no published figure.
    """
    spoken = {"disks", "array", "filesystem", "workloads"} | ({"faults"} if cell.faults else set())
    return _digest(cell.model_dump(mode="json", include=spoken))


def _digest(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def compile_scenario(
    path: Path, *, overrides: Sequence[Override] = (), trials: int | None = None
) -> Compiled:
    """Read, override, validate, and expand; ``InputError`` names file, line and key."""
    original = read_file(path)
    cells, scenario, document = _expand(path.stem, original, overrides, trials)
    published = cells
    if overrides:
        published, _, _ = _expand(path.stem, original, (), None)
    base = _cell(path.stem, scenario, document, {}, {})
    if not scenario.matrix.axes:
        cells = (base,)
    return Compiled(
        name=path.stem,
        path=path,
        scenario=scenario,
        document=document,
        cells=cells,
        base=base,
        published=frozenset(identity(c) for c in published),
    )


def _expand(
    name: str, original: Document, overrides: Sequence[Override], trials: int | None
) -> tuple[tuple[Cell, ...], Scenario, Document]:
    document = collapse(override(original, overrides), overrides)
    scenario = validate(Scenario, document)
    if trials is not None:
        scenario = scenario.model_copy(update={"trials": trials})
    if not overrides:  # a --set may take away what a claim speaks of: it is not tested then
        _check_claims(scenario, document)
    cells = tuple(expand(name, scenario, document))
    if not cells:
        raise document.wrong(("matrix",), "every cell is excluded")
    seen: set[tuple[AxisValue, ...]] = set()
    for cell in cells:
        point = tuple(cell.axes.values())
        if point in seen:
            axes = ", ".join(f"{k}: {v}" for k, v in cell.axes.items())
            raise document.wrong(("matrix",), f"makes the same cell twice, with {axes}")
        seen.add(point)
    return cells, scenario, document


def collapse(document: Document, overrides: Sequence[Override]) -> Document:
    """Take the axes that a ``--set`` fixes out of the matrix, and out of its excludes."""
    matrix = document.data.get("matrix")
    if not isinstance(matrix, dict):
        return document
    fixed = {".".join(o.path): o.value for o in overrides}
    kept = {k: v for k, v in matrix.items() if k not in fixed}
    excludes = matrix.get("exclude")
    if isinstance(excludes, list):
        left = []
        for entry in excludes:
            if not isinstance(entry, dict):
                left.append(entry)
            elif all(same_value(entry[k], fixed[k]) for k in entry if k in fixed):
                rest = {k: v for k, v in entry.items() if k not in fixed}
                left.extend([rest] if rest else [])
        kept["exclude"] = left
    data = {**document.data, "matrix": kept}
    return Document(
        source=document.source, data=data, lines=document.lines, overrides=document.overrides
    )


def expand(name: str, scenario: Scenario, document: Document) -> Iterator[Cell]:
    """Every cell of the matrix, in the order of its axes, the last one changing fastest."""
    axes = scenario.matrix.axes
    total = 1
    for values in axes.values():
        total *= len(values)
    if total > MAX_CELLS:
        raise document.wrong(
            ("matrix",), f"makes {total} cells; {MAX_CELLS} are the most, so shorten an axis"
        )
    sections: dict[tuple[Any, ...], Any] = {}
    for values in product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        if any(all(point[k] == v for k, v in e.items()) for e in scenario.matrix.exclude):
            continue
        yield _cell(name, scenario, document, point, sections)


def _cell(
    name: str,
    scenario: Scenario,
    document: Document,
    point: dict[str, AxisValue],
    sections: dict[tuple[Any, ...], Any],
) -> Cell:
    """One cell; a section that no axis touches is validated once and shared."""
    parts: dict[str, Any] = {}
    for section in SECTIONS:
        own = {k: v for k, v in point.items() if k.split(".", 1)[0] == section}
        key = (section, *own.items())
        if key not in sections:
            sections[key] = _section(section, scenario, document, own)
        parts[section] = sections[key]
    for axis in point:
        if axis.split(".", 1)[0] not in SECTIONS:
            raise document.wrong(
                ("matrix", axis), f"an axis begins with one of {', '.join(SECTIONS)}"
            )
    seen = ("problems", id(parts["disks"]), id(parts["array"]), id(parts["workloads"]))
    if seen not in sections:
        _refuse_problems(parts, document, point)
        sections[seen] = True
    written = {axis: _value_at(parts, axis, document) for axis in point}
    cell = Cell.model_construct(
        scenario=name,
        axes=written,
        trials=scenario.trials,
        timeout=scenario.timeout,
        **parts,
    )
    for index, problem in fault_problems(cell):
        axis = f"faults.{cell.faults[index].name}.{problem.key}"
        if axis in point:
            raise document.wrong(("matrix", axis), f"{point[axis]!r}: {problem.message}")
        at: tuple[str | int, ...] = ("faults", index, *problem.key.split("."))
        raise document.wrong(at, f"{problem.message}{_where(point)}")
    return cell


def _section(
    section: str, scenario: Scenario, document: Document, own: dict[str, AxisValue]
) -> Any:
    """One section with its axis values put in, validated; errors name the axis that did it."""
    value = getattr(scenario, section)
    if own:
        chosen = [
            Override(text=f"{k}={v}", path=tuple(k.split(".")), value=v) for k, v in own.items()
        ]
        try:
            changed = override(document, chosen).data.get(section)
        except InputError as error:
            axis = next(iter(own))
            raise document.wrong(("matrix", axis), error.message.partition(": ")[2]) from None
        if section == "disks" and not isinstance(changed, list):
            changed = [changed]
        try:
            value = _ADAPTERS[section].validate_python(changed)
        except ValidationError as error:
            at = Document(
                source=document.source,
                data={section: changed},
                lines=document.lines,
                overrides=document.overrides,
            )
            raise first_wrong(
                error, at, below=(section,), moved=lambda path: _moved(path, own)
            ) from None
    if section == "workloads":
        value = tuple(_check_workload(w, i, document, own) for i, w in enumerate(value))
    if section == "faults":
        value = tuple(_check_fault(f, i, document, own) for i, f in enumerate(value))
    return value


def _moved(path: tuple[str | int, ...], own: dict[str, AxisValue]) -> tuple[str | int, ...]:
    """Where a wrong value came from: the axis, if it is one."""
    name = ".".join(str(p) for p in path if not isinstance(p, int))
    return ("matrix", name) if name in own else path


def _check_workload(
    workload: Workload, index: int, document: Document, own: dict[str, AxisValue]
) -> Workload:
    """The workload with its tool's parameters validated, sizes as numbers, defaults filled in."""
    missing = catalog.missing_plugin("workloads", workload.tool)
    if missing:
        raise document.wrong(("workloads", index, "tool"), missing)
    model = catalog.workload(workload.tool).parameters
    return _with_parameters(workload, model, ("workloads", index), document, own)


def _check_fault(fault: Fault, index: int, document: Document, own: dict[str, AxisValue]) -> Fault:
    """The fault with its kind's parameters validated."""
    missing = catalog.missing_plugin("faults", fault.fault)
    if missing:
        raise document.wrong(("faults", index, "fault"), missing)
    model = catalog.fault_kind(fault.fault).parameters
    return _with_parameters(fault, model, ("faults", index), document, own)


_Named = TypeVar("_Named", Workload, Fault)


def _with_parameters(
    named: _Named,
    model: type[Model],
    at: tuple[str, int],
    document: Document,
    own: dict[str, AxisValue],
) -> _Named:
    """The plug-in's own parameters, which stand beside the name, checked by the plug-in's model."""
    section, index = at
    try:
        parameters = model.model_validate(named.parameters)
    except ValidationError as error:
        written = Document(
            source=document.source,
            data={section: [{}] * index + [named.parameters]},
            lines=document.lines,
            overrides=document.overrides,
        )

        def moved(path: tuple[str | int, ...]) -> tuple[str | int, ...]:
            axis = f"{section}.{named.name}." + ".".join(str(p) for p in path[2:])
            return ("matrix", axis) if axis in own else path

        raise first_wrong(error, written, below=at, moved=moved) from None
    dumped = parameters.model_dump(mode="json", by_alias=True)
    return named.model_copy(update={"parameters": dumped})


def _refuse_problems(
    parts: dict[str, Any], document: Document, point: dict[str, AxisValue]
) -> None:
    """Raise the first thing that no QEMU, mdadm or kernel would take."""
    disks: tuple[Disk, ...] = parts["disks"]
    array: Array | None = parts["array"]
    for index, disk in enumerate(disks):
        for problem in _disk_problems(disk):
            raise _wrong(problem, document, point, ("disks", index))
    singles = [d for d in disks for _ in range(d.count)]
    if array is not None:
        missing = catalog.missing_plugin("arrays", array.kind)
        if missing:
            raise _wrong(Problem(key="array.kind", message=missing), document, point)
        for problem in catalog.array_kind(array.kind).problems(array, singles):
            raise _wrong(problem, document, point)
    if len(singles) > 64:
        message = f"the disks add up to {len(singles)}; a guest holds 64"
        raise _wrong(Problem(key="disks.count", message=message), document, point)
    serials = [d.serial.replace("{index}", str(i)) for i, d in enumerate(singles, 1)]
    for serial in serials:
        if serials.count(serial) > 1:
            message = f"two disks would have the serial '{serial}': put {{index}} into it"
            raise _wrong(Problem(key="disks.serial", message=message), document, point)
    if parts["workloads"] and array is None and len(singles) != 1:
        message = f"the bare-disk workloads are aimed at one disk, and there are {len(singles)}"
        raise _wrong(Problem(key="disks.count", message=message), document, point)


def _disk_problems(disk: Disk) -> Iterator[Problem]:
    missing = catalog.missing_plugin("disks", disk.model)
    if missing:
        yield Problem(key="model", message=missing)
        return
    yield from catalog.disk_model(disk.model).problems(disk)


def _wrong(
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


def _value_at(parts: dict[str, Any], axis: str, document: Document) -> AxisValue:
    """The validated value that an axis gave: sizes as numbers of bytes, choices as words."""
    value = look_up(parts, axis)
    if value is not None and not isinstance(value, str | int | float | bool):
        raise document.wrong(("matrix", axis), "an axis names one value, not a group of them")
    return value


def look_up(parts: dict[str, Any], dotted: str) -> Any:
    """A validated field by its dotted name; ``None`` where there is none."""
    node: Any = parts
    for name in dotted.split("."):
        if isinstance(node, dict):
            node = node.get(name)
        elif isinstance(node, tuple):
            if node and isinstance(node[0], Workload | Fault):
                node = next((w for w in node if w.name == name), None)
            elif name.isdigit():
                node = node[int(name)] if int(name) < len(node) else None
            else:  # one kind of disk, written as a mapping
                node = getattr(node[0], name, None) if len(node) == 1 else None
        elif isinstance(node, Workload | Fault):
            node = node.parameters.get(name, getattr(node, name, None))
        else:
            node = getattr(node, name, None)
        if node is None:
            return None
    return getattr(node, "value", node)


def _check_claims(scenario: Scenario, document: Document) -> None:
    """Claims name workloads, or faults, and metrics that exist."""
    named: tuple[Workload | Fault, ...] = (*scenario.workloads, *scenario.faults)
    names = {one.name: metrics_of(one) for one in named}
    for index, claim in enumerate(scenario.claims):
        for value in claim.values:
            path = ("claims", index, "expect")
            if value.workload not in names:
                known = ", ".join(names) or "there are none"
                raise document.wrong(path, f"there is no workload '{value.workload}' ({known})")
            tool, metrics = names[value.workload]
            if metrics and value.metric not in metrics:
                raise document.wrong(
                    path, f"{tool} gives no '{value.metric}' (it gives {', '.join(metrics)})"
                )
