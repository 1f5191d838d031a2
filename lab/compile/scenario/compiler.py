"""Compiles a scenario's file to its cells, and checks every cell before any boot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from lab.compile.cell.stroke import short_stroke
from lab.compile.guest.real_disks import Known, nobody, with_real
from lab.compile.guest.suite_steps import with_directories
from lab.compile.guest.virtual_time import on_the_labs_bus
from lab.compile.scenario.checks import Checks, refuse_faults
from lab.compile.scenario.claims import check_claims, with_defaults
from lab.compile.scenario.expand import NOWHERE, Point, axes_of, expand
from lab.compile.scenario.extends import inherited, with_profile
from lab.compile.scenario.fields import look_up
from lab.compile.scenario.identity import identities
from lab.compile.scenario.measured_disk import with_profiles
from lab.compile.scenario.short_claims import with_long_claims
from lab.compile.scenario.sizes import names_sizes, with_sizes
from lab.compile.scenario.texts import with_texts
from lab.core.base import Model
from lab.core.errors import InputError
from lab.core.yaml import (
    Document,
    Override,
    Path_,
    dotted,
    first_wrong,
    override,
    read_file,
    validate,
)
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
from lab.plugins.fio_options.names import OTHER_NAMES

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
    """Identities of the cells of the file as it stands, or of its profile, without ``--set``."""
    axes: Mapping[str, tuple[AxisValue, ...]]
    """Axes of the cells, with their values as written."""
    points: Mapping[tuple[AxisValue, ...], Point]
    """Values and lines in the file for each cell, by the values of the cell's axes."""
    whole: Document
    """The file with what it extends, without profile and ``--set``."""
    warnings: tuple[str, ...] = ()
    """Settings that no longer have a meaning: line, key and what to do."""

    def point_of(self, cell: Cell) -> Point:
        """Return a cell's values and lines in the file."""
        return self.points.get(tuple(cell.axes.values()), NOWHERE)

    def with_seeds(self, seeds: Iterable[int]) -> Compiled:
        """Return it with a cell for each of these seeds, as ``trials: auto`` adds them; no rule
        adds more."""
        return replace(
            self,
            scenario=self.scenario.model_copy(update={"trials": 1}),
            cells=tuple(
                cell.model_copy(update={"seed": seed})
                for seed in sorted(set(seeds))
                for cell in self.cells
            ),
        )

    @property
    def portable(self) -> dict[str, Any]:
        """Data of a document that makes the same cells without overrides and other files."""
        other = ("matrix", "cases", "profile", "profiles", "claims")
        data = {key: value for key, value in self.document.data.items() if key not in other}
        points = self.points.values() if self.axes else ()
        return {**data, "cases": [dict(point.values) for point in points]}


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
    # Short claims first: --set may take away an axis that they use by its place.
    whole = with_long_claims(inherited(original, path, _with_files)).with_disks(_whole_throttle)
    found = _compiled(path, whole, overrides, trials, known)
    sets = [one for one in overrides if one.path != ("profile",)]
    if not sets:
        return found
    profile = [one for one in overrides if one.path == ("profile",)]
    published = _compiled(path, whole, profile, None, known)
    scenario = with_defaults(found.scenario, (*published.cells, *found.cells))
    return replace(found, scenario=scenario, published=published.published)


def _with_files(document: Document, beside: Path) -> Document:
    """Return the document without relative paths."""
    return with_directories(with_texts(with_profiles(document, beside), beside), beside)


def _compiled(
    path: Path, whole: Document, overrides: Sequence[Override], trials: Trials | None, known: Known
) -> Compiled:
    document = with_real(with_profiles(with_profile(whole, overrides), path.parent), known)
    document = with_directories(with_texts(document, path.parent), path.parent)
    scenario = validate(Scenario, document)
    if trials is not None:
        scenario = scenario.model_copy(update={"trials": trials})
    points = expand(scenario, document, whole)
    axes = axes_of(points)
    made = _Cells(path.stem, scenario, document, axes)
    cells: dict[tuple[AxisValue, ...], Cell] = {}
    kept: dict[tuple[AxisValue, ...], Point] = {}
    partial = set()
    for point in points:
        cell, whole_point = made.at(point)
        values = tuple(cell.axes.values())
        if not whole_point:
            partial.add(values)
        if values not in cells:
            cells[values], kept[values] = cell, point
        elif values not in partial:
            said = ", ".join(f"{k}: {v}" for k, v in cell.axes.items())
            at = next(iter(point.places.values()))[:-1]
            raise document.wrong(at, f"makes the same cell twice, with {said}")
    if isinstance(scenario.trials, AutoTrials) and any(
        cell.guest.clock is Clock.REAL for cell in cells.values()
    ):
        raise document.wrong(
            ("trials",),
            "auto needs virtual time, where each trial has a seed: set guest.clock to virtual, or"
            " give a number",
        )
    if not overrides:  # one may take away what a claim names: it is not tested
        scenario = with_defaults(scenario, tuple(cells.values()))
        check_claims(scenario, document, tuple(cells.values()), axes)
    base = made.at(NOWHERE)[0].model_copy(update={"axes": {}})
    made_cells = tuple(cells.values()) if axes else (base,)
    return Compiled(
        name=path.stem,
        path=path,
        scenario=scenario,
        document=document,
        cells=made_cells,
        base=base,
        published=frozenset(identities(cells.values())),
        axes=axes,
        points=kept,
        whole=whole,
        warnings=(*_needless(document, points), *_short_strokes(document, made_cells, kept)),
    )


def _short_strokes(
    document: Document, cells: Iterable[Cell], points: Mapping[tuple[AxisValue, ...], Point]
) -> Iterator[str]:
    """Yield a sentence for each value of ``component_size`` that shortens the seeks of drives."""
    found: dict[tuple[str, str], None] = {}
    for cell in cells:
        note = short_stroke(cell)
        if note is not None:
            point = points.get(tuple(cell.axes.values()), NOWHERE)
            path = point.places.get("array.component_size", ("array", "component_size"))
            found[document.place(path), note] = None
    yield from (f"{place}: {note}" for place, note in found)


def _needless(document: Document, points: Iterable[Point]) -> Iterator[str]:
    """Yield each time scale of a drive; values other than 1 or null were refused."""
    disks = document.data.get("disks") or {}
    many = isinstance(disks, list)
    found: dict[Path_, None] = {}
    for number, disk in enumerate(disks if many else [disks]):
        for model in SERVED:
            if "slower" in (disk.get(model) or {}):
                found[("disks", *([number] if many else []), model, "slower")] = None
    for axis, at in (item for point in points for item in point.places.items()):
        words = axis.split(".")
        if words[0] == "disks" and words[-1] == "slower" and words[-2] in SERVED:
            found[at] = None
    for path in found:
        message = "a drive has its own speed: remove this key"
        yield f"{document.place(path)}: {dotted(path)}: {message}"


def _whole_throttle(disk: Any) -> Any:
    if not isinstance(disk, dict) or "throttle" not in disk:
        return disk
    return {**disk, "throttle": as_throttle(disk["throttle"])}


class _Cells:
    """The cells of a scenario; a section without axes is validated once and shared."""

    def __init__(
        self, name: str, scenario: Scenario, document: Document, axes: Iterable[str]
    ) -> None:
        self._name, self._scenario, self._document = name, scenario, document
        self._checks = Checks(document, axes)
        self._known: dict[tuple[Any, ...], Any] = {}
        """Validated sections by name and axis values, and what was derived from sections, by
        their ids. The sections are kept, so the ids stay unique."""
        self._axes = tuple(axes)

    def at(self, point: Point) -> tuple[Cell, bool]:
        """Return the cell at a point, and whether it uses all values of the point."""
        for axis in point.values:
            if axis.split(".", 1)[0] not in SECTIONS:
                message = f"an axis begins with one of {', '.join(SECTIONS)}"
                raise self._document.wrong(point.places[axis], message)
        raw = {section: self._section(section, point) for section in SECTIONS}
        parts = {name: value for name, value in raw.items() if name != "workloads"}
        parts["array"], idle = self._without_idle(parts["array"], parts["disks"])
        self._checks.refuse(parts, point)
        parts["workloads"] = self._workloads(raw["workloads"], parts, point)
        self._checks.refuse(parts, point)
        axes = {axis: self._read(axis, parts, point) for axis in self._axes}
        parts["disks"] = self._on_their_bus(parts["guest"], parts["disks"])
        cell = Cell.model_construct(
            scenario=self._name,
            axes=axes,
            trials=1 if isinstance(self._scenario.trials, AutoTrials) else self._scenario.trials,
            seed=self._scenario.seed,
            timeout=self._scenario.timeout,
            **parts,
        )
        refuse_faults(cell, self._document, point)
        return cell, idle.isdisjoint(point.values)

    def _section(self, section: str, point: Point) -> Any:
        """Return a validated section with its axis values."""
        own = {a: v for a, v in point.values.items() if a.split(".", 1)[0] == section}
        key = (section, *own.items())
        if key not in self._known:
            self._known[key] = _section(section, self._scenario, self._document, own, point)
        return self._known[key]

    def _without_idle(
        self, array: Array | None, disks: tuple[Disk, ...]
    ) -> tuple[Array | None, frozenset[str]]:
        """Return the array without its unused fields, and their names."""
        key = ("idle", id(array), id(disks))
        if key not in self._known:
            names: frozenset[str] = frozenset()
            while more := self._checks.idle(array, disks) - names:
                names |= more
                array = array and array.without(name.partition(".")[2] for name in more)
            self._known[key] = array, names
        found: tuple[Array | None, frozenset[str]] = self._known[key]
        return found

    def _workloads(
        self, raw: tuple[Workload, ...], parts: Mapping[str, Any], point: Point
    ) -> tuple[Workload, ...]:
        """Return the validated workloads with the array's sizes filled in."""
        array, disks = parts["array"], parts["disks"]
        named = any(map(names_sizes, raw))
        key = ("workloads of", id(raw), *((id(array), id(disks)) if named else ()))
        if key not in self._known:
            own = with_sizes(raw, array, disks, self._document, point) if named else raw
            self._known[key] = tuple(
                _check_workload(w, i, self._document, point) for i, w in enumerate(own)
            )
        found: tuple[Workload, ...] = self._known[key]
        return found

    def _read(self, axis: str, parts: Mapping[str, Any], point: Point) -> AxisValue:
        """Return the value of an axis after validation."""
        key = ("axis", axis, id(parts[axis.split(".", 1)[0]]))
        if key not in self._known:
            self._known[key] = _value_at(dict(parts), axis, self._document, point)
        found: AxisValue = self._known[key]
        return found

    def _on_their_bus(self, guest: Guest, disks: tuple[Disk, ...]) -> tuple[Disk, ...]:
        """Return the disks with their bus; cells with the same disks share them."""
        key = ("bus", guest.clock, id(disks))
        if key not in self._known:
            self._known[key] = on_the_labs_bus(guest, disks)
        found: tuple[Disk, ...] = self._known[key]
        return found


def _section(
    section: str,
    scenario: Scenario,
    document: Document,
    own: Mapping[str, AxisValue],
    point: Point,
) -> Any:
    """Return a validated section with its axis values; errors name the axis."""
    value = getattr(scenario, section)
    if own:
        chosen = [
            Override(
                text=dotted(at := point.places[axis]),
                path=tuple(axis.split(".")),
                value=given,
                line=document.place(at),
            )
            for axis, given in own.items()
        ]
        changed = override(document, chosen).data.get(section)
        if section == "disks" and not isinstance(changed, list):
            changed = [changed]
        try:
            value = _ADAPTERS[section].validate_python(changed)
        except ValidationError as error:
            at_ = replace(document, data={section: changed})

            def moved(path: Path_) -> Path_:
                name = ".".join(str(part) for part in path if not isinstance(part, int))
                return point.places.get(name, path)

            raise first_wrong(error, _KINDS[section], at_, below=(section,), moved=moved) from None
    if section == "faults":
        value = tuple(_check_fault(f, i, document, point) for i, f in enumerate(value))
    return value


def _check_workload(workload: Workload, index: int, document: Document, point: Point) -> Workload:
    """Return the workload with validated parameters, sizes as numbers, and defaults."""
    missing = catalog.missing_plugin("workloads", workload.tool)
    if missing:
        raise document.wrong(("workloads", index, "tool"), missing)
    model = catalog.workload(workload.tool).parameters
    return _with_parameters(workload, model, ("workloads", index), document, point)


def _check_fault(fault: Fault, index: int, document: Document, point: Point) -> Fault:
    """Return the fault with validated parameters."""
    missing = catalog.missing_plugin("faults", fault.fault)
    if missing:
        raise document.wrong(("faults", index, "fault"), missing)
    model = catalog.fault_kind(fault.fault).parameters
    return _with_parameters(fault, model, ("faults", index), document, point)


_Named = TypeVar("_Named", Workload, Fault)


def _with_parameters(
    named: _Named,
    model: type[Model],
    at: tuple[str, int],
    document: Document,
    point: Point,
) -> _Named:
    """Check the plug-in's parameters, which are written next to its name, with the plug-in's
    model."""
    section, index = at
    try:
        parameters = model.model_validate(named.parameters)
    except ValidationError as error:
        written = replace(document, data={section: [{}] * index + [named.parameters]})

        def moved(path: Path_) -> Path_:
            axis = f"{section}.{named.name}." + ".".join(str(p) for p in path[2:])
            return point.places.get(axis, path)

        raise first_wrong(error, model, written, below=at, moved=moved) from None
    dumped = parameters.model_dump(mode="json", by_alias=True)
    return named.model_copy(update={"parameters": dumped})


def _value_at(parts: dict[str, Any], axis: str, document: Document, point: Point) -> AxisValue:
    """Return the validated value of an axis: sizes as bytes, others as words."""
    value = look_up(parts, axis)
    last = axis.rpartition(".")[2]
    at = point.places.get(axis, tuple(axis.split(".")))
    if value is None and axis.startswith("workloads.") and last in OTHER_NAMES:
        name = f"{axis.removesuffix(last)}{OTHER_NAMES[last]}"
        raise document.wrong(at, f"an axis has the option's first name: write {name}")
    if isinstance(value, tuple) and all(isinstance(one, str | int) for one in value):
        # Words of a command, or numbers of members, of which an axis gives one.
        value = value[0] if len(value) == 1 else " ".join(str(one) for one in value)
    if value is not None and not isinstance(value, str | int | float | bool):
        keys = ", ".join(f"{axis}.{key}" for key in list(dict(value))[:3]) if value else axis
        raise document.wrong(
            at, f"an axis names one field, not a group of them: write {keys} or so"
        )
    return value
