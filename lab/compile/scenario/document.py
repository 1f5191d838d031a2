"""Compiles a scenario's file to its cells, and checks every cell before any boot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from lab.compile.guest.real import Known, nobody, with_real
from lab.compile.guest.suites import with_directories
from lab.compile.guest.virtual_time import on_the_labs_bus
from lab.compile.scenario.checks import Checks, refuse_faults
from lab.compile.scenario.claims import check_claims, with_defaults
from lab.compile.scenario.fields import look_up
from lab.compile.scenario.identity import identities
from lab.compile.scenario.profile import with_profiles
from lab.compile.scenario.short_claims import with_long_claims
from lab.core.base import Model
from lab.core.errors import InputError
from lab.core.units import same_value
from lab.core.yaml import Document, Override, dotted, first_wrong, override, read_file, validate
from lab.model.scenario.document import (
    SERVED,
    Array,
    AutoTrials,
    AxisValue,
    Cell,
    Disk,
    Scenario,
    Trials,
    Workload,
    as_throttle,
)
from lab.model.scenario.fault import Fault
from lab.model.scenario.filesystem import Filesystem
from lab.model.scenario.guest import Clock, Guest
from lab.plugins import catalog
from lab.plugins.fio_options.options import OTHER_NAMES

MAX_CELLS: Final = 20_000
SECTIONS: Final = ("guest", "disks", "array", "filesystem", "workloads", "faults")
_KINDS: Final[dict[str, Any]] = {
    "guest": Guest,
    "disks": tuple[Disk, ...],
    "array": Array | None,
    "filesystem": Filesystem | None,
    "workloads": tuple[Workload, ...],
    "faults": tuple[Fault, ...],
}
_ADAPTERS: Final[dict[str, TypeAdapter[Any]]] = {k: TypeAdapter(v) for k, v in _KINDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A scenario, its cells, and the identities that its claims use."""

    name: str
    path: Path
    scenario: Scenario
    document: Document
    cells: tuple[Cell, ...]
    base: Cell
    """The cell with the file's own fields, without the matrix."""
    published: frozenset[str]
    """Identities of the cells without any ``--set``."""
    warnings: tuple[str, ...] = ()
    """Settings that no longer have a meaning: line, key and what to do."""


def compile_scenario(
    path: Path,
    *,
    overrides: Sequence[Override] = (),
    trials: Trials | None = None,
    known: Known = nobody,
) -> Compiled:
    """Read, override, validate, and expand a file; ``InputError`` names file, line and key.

    ``known`` returns facts about the real disks that the scenario names.
    """
    return compile_document(path, read_file(path), overrides=overrides, trials=trials, known=known)


def compile_document(
    path: Path,
    original: Document,
    *,
    overrides: Sequence[Override] = (),
    trials: Trials | None = None,
    known: Known = nobody,
) -> Compiled:
    """Compile a document that was read or made; ``path`` is its source."""
    if "scenarios" in original.data:
        raise InputError(
            f"{original.place(('scenarios',))}: scenarios: this is a matrix of scenarios, and no"
            " scenario",
            hint=f"run it with: lab run matrix {path}",
        )
    original = with_long_claims(original)  # before --set takes an axis away
    cells, scenario, document = _expand(path, original, overrides, trials, known)
    published = cells
    if overrides:
        published, _, _ = _expand(path, original, (), None, known)
        scenario = with_defaults(scenario, (*published, *cells))
    base = _Cells(path.stem, scenario, document).at({})
    if not scenario.matrix.axes:
        cells = (base,)
    return Compiled(
        name=path.stem,
        path=path,
        scenario=scenario,
        document=document,
        cells=cells,
        base=base,
        published=frozenset(identities(published)),
        warnings=tuple(_needless(document)),
    )


def _needless(document: Document) -> Iterator[str]:
    """Yield each time scale of a drive; values other than 1 or null were refused."""
    disks = document.data.get("disks") or {}
    many = isinstance(disks, list)
    for number, disk in enumerate(disks if many else [disks]):
        for model in SERVED:
            if "slower" in (disk.get(model) or {}):
                path = ("disks", *([number] if many else []), model, "slower")
                yield _removable(document, path)
    for axis in document.data.get("matrix") or {}:
        words = axis.split(".")
        if words[0] == "disks" and words[-1] == "slower" and words[-2] in SERVED:
            yield _removable(document, ("matrix", axis))


def _removable(document: Document, path: tuple[str | int, ...]) -> str:
    return f"{document.place(path)}: {dotted(path)}: a drive has its own speed: remove this key"


def _expand(
    path: Path,
    original: Document,
    overrides: Sequence[Override],
    trials: Trials | None,
    known: Known,
) -> tuple[tuple[Cell, ...], Scenario, Document]:
    written = original.with_disks(_whole_throttle)  # so that --set and axes find its fields
    document = with_profiles(collapse(override(written, overrides), overrides), path.parent)
    document = with_directories(with_real(document, known), path.parent)
    scenario = validate(Scenario, document)
    if trials is not None:
        scenario = scenario.model_copy(update={"trials": trials})
    cells = tuple(expand(path.stem, scenario, document))
    if not cells:
        raise document.wrong(("matrix",), "every cell is excluded")
    seen: set[tuple[AxisValue, ...]] = set()
    for cell in cells:
        point = tuple(cell.axes.values())
        if point in seen:
            axes = ", ".join(f"{k}: {v}" for k, v in cell.axes.items())
            raise document.wrong(("matrix",), f"makes the same cell twice, with {axes}")
        seen.add(point)
    if isinstance(scenario.trials, AutoTrials) and any(
        cell.guest.clock is Clock.REAL for cell in cells
    ):
        raise document.wrong(
            ("trials",),
            "auto needs virtual time, where each trial has a seed: set guest.clock to virtual, or"
            " give a number",
        )
    if not overrides:  # with --set a claim may lose its cell: it is then not tested
        scenario = with_defaults(scenario, cells)
        check_claims(scenario, document, cells)
    return cells, scenario, document


def _whole_throttle(disk: Any) -> Any:
    if not isinstance(disk, dict) or "throttle" not in disk:
        return disk
    return {**disk, "throttle": as_throttle(disk["throttle"])}


def collapse(document: Document, overrides: Sequence[Override]) -> Document:
    """Remove the axes that a ``--set`` fixes from the matrix and from its excludes."""
    matrix = document.data.get("matrix")
    if not isinstance(matrix, dict):
        return document
    fixed = {_by_name(o.path, document): o.value for o in overrides}
    set_ = {axis: fixed[name] for axis in matrix if (name := _axis_name(axis, document)) in fixed}
    kept = {k: v for k, v in matrix.items() if k not in set_}
    excludes = matrix.get("exclude")
    if isinstance(excludes, list):
        left = []
        for entry in excludes:
            if not isinstance(entry, dict):
                left.append(entry)
            elif all(same_value(entry[k], set_[k]) for k in entry if k in set_):
                rest = {k: v for k, v in entry.items() if k not in set_}
                left.extend([rest] if rest else [])
        kept["exclude"] = left
    data = {**document.data, "matrix": kept}
    return Document(
        source=document.source, data=data, lines=document.lines, overrides=document.overrides
    )


def _axis_name(axis: object, document: Document) -> str:
    return _by_name(tuple(str(axis).split(".")), document)


def _by_name(path: tuple[str, ...], document: Document) -> str:
    """Return a dotted name that selects a workload by its name instead of its number."""
    items = document.data.get(path[0])
    if len(path) > 1 and isinstance(items, list) and path[1].isdigit():
        item = items[int(path[1])] if int(path[1]) < len(items) else None
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            path = (path[0], item["name"], *path[2:])
    return ".".join(path)


def expand(name: str, scenario: Scenario, document: Document) -> Iterator[Cell]:
    """Yield every cell of the matrix, in the order of its axes, the last one changing fastest."""
    axes = scenario.matrix.axes
    total = 1
    for values in axes.values():
        total *= len(values)
    if total > MAX_CELLS:
        raise document.wrong(
            ("matrix",), f"makes {total} cells; {MAX_CELLS} are the most, so shorten an axis"
        )
    cells = _Cells(name, scenario, document)
    for values in product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        if any(all(point[k] == v for k, v in e.items()) for e in scenario.matrix.exclude):
            continue
        yield cells.at(point)


class _Cells:
    """The cells of a scenario; a section without axes is validated once and shared."""

    def __init__(self, name: str, scenario: Scenario, document: Document) -> None:
        self._name, self._scenario, self._document = name, scenario, document
        self._checks = Checks(scenario, document)
        self._known: dict[tuple[Any, ...], tuple[Any, dict[str, AxisValue]]] = {}
        """Validated section, and parsed axis values, by its name and the values of its axes."""
        axes = scenario.matrix.axes
        self._axes = {s: [a for a in axes if a.split(".", 1)[0] == s] for s in SECTIONS}

    def at(self, point: dict[str, AxisValue]) -> Cell:
        """Return the cell with these axis values; without any, the cell of the file's own
        fields."""
        parts: dict[str, Any] = {}
        written: dict[str, AxisValue] = dict.fromkeys(point, 0)
        for section, axes in self._axes.items():
            key = (section, *(point[a] for a in axes if a in point))
            if key not in self._known:
                own = {a: point[a] for a in axes if a in point}
                value = _section(section, self._scenario, self._document, own)
                read = {a: _value_at({section: value}, a, self._document) for a in own}
                self._known[key] = value, read
            parts[section], read = self._known[key]
            written.update(read)
        for axis in point:
            if axis.split(".", 1)[0] not in SECTIONS:
                raise self._document.wrong(
                    ("matrix", axis), f"an axis begins with one of {', '.join(SECTIONS)}"
                )
        self._checks.refuse(parts, point)
        parts["disks"] = self._on_their_bus(parts["guest"], parts["disks"])
        cell = Cell.model_construct(
            scenario=self._name,
            axes=written,
            trials=1 if isinstance(self._scenario.trials, AutoTrials) else self._scenario.trials,
            seed=self._scenario.seed,
            timeout=self._scenario.timeout,
            **parts,
        )
        refuse_faults(cell, self._document, point)
        return cell

    def _on_their_bus(self, guest: Guest, disks: tuple[Disk, ...]) -> tuple[Disk, ...]:
        """Return the disks with their bus; cells with the same disks share them."""
        key = ("bus", guest.clock, id(disks))
        if key not in self._known:
            self._known[key] = on_the_labs_bus(guest, disks), {}
        found: tuple[Disk, ...] = self._known[key][0]
        return found


def _section(
    section: str, scenario: Scenario, document: Document, own: dict[str, AxisValue]
) -> Any:
    """Return a validated section with its axis values; errors name the axis."""
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
                error, _KINDS[section], at, below=(section,), moved=lambda path: _moved(path, own)
            ) from None
    if section == "workloads":
        value = tuple(_check_workload(w, i, document, own) for i, w in enumerate(value))
    if section == "faults":
        value = tuple(_check_fault(f, i, document, own) for i, f in enumerate(value))
    return value


def _moved(path: tuple[str | int, ...], own: dict[str, AxisValue]) -> tuple[str | int, ...]:
    """Return the path of a wrong value's source: the axis, if it is one."""
    name = ".".join(str(p) for p in path if not isinstance(p, int))
    return ("matrix", name) if name in own else path


def _check_workload(
    workload: Workload, index: int, document: Document, own: dict[str, AxisValue]
) -> Workload:
    """Return the workload with validated parameters, sizes as numbers, and defaults."""
    missing = catalog.missing_plugin("workloads", workload.tool)
    if missing:
        raise document.wrong(("workloads", index, "tool"), missing)
    model = catalog.workload(workload.tool).parameters
    return _with_parameters(workload, model, ("workloads", index), document, own)


def _check_fault(fault: Fault, index: int, document: Document, own: dict[str, AxisValue]) -> Fault:
    """Return the fault with validated parameters."""
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
    """Check the plug-in's parameters, which are written next to its name, with the plug-in's
    model."""
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

        raise first_wrong(error, model, written, below=at, moved=moved) from None
    dumped = parameters.model_dump(mode="json", by_alias=True)
    return named.model_copy(update={"parameters": dumped})


def _value_at(parts: dict[str, Any], axis: str, document: Document) -> AxisValue:
    """Return the validated value that an axis gave: sizes as bytes, others as words."""
    value = look_up(parts, axis)
    last = axis.rpartition(".")[2]
    if value is None and axis.startswith("workloads.") and last in OTHER_NAMES:
        name = f"{axis.removesuffix(last)}{OTHER_NAMES[last]}"
        raise document.wrong(("matrix", axis), f"an axis has the option's first name: write {name}")
    if isinstance(value, tuple) and all(isinstance(word, str) for word in value):
        value = " ".join(value)  # words of a command
    if value is not None and not isinstance(value, str | int | float | bool):
        keys = ", ".join(f"{axis}.{key}" for key in list(dict(value))[:3]) if value else axis
        raise document.wrong(
            ("matrix", axis), f"an axis names one field, not a group of them: write {keys} or so"
        )
    return value
