"""From a matrix' file to its parts, each a scenario compiled for one image and kernel."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from lab.compile.guest.suites import named_by
from lab.compile.scenario.document import Compiled, compile_scenario
from lab.core.errors import InputError
from lab.core.yaml import Document, Override, override, read_file, validate
from lab.model.matrix.file import Exclude, Matrix, ScenarioEntry
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Guest
from lab.plugins import catalog

MAX_PARTS: Final = 2_000
_FILES: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One scenario on one image with one kernel; its cells are run together."""

    id: str
    scenario: str
    image: str
    kernel: str | None
    overrides: tuple[Override, ...]
    seconds: float | None
    """What the matrix says that it takes."""
    compiled: Compiled | None
    broken: str = ""
    """Why it cannot be compiled; nothing else suffers from that."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Its cells; none where it is broken."""
        return self.compiled.cells if self.compiled else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledMatrix:
    """A matrix and its parts, in the order of its scenarios and images."""

    name: str
    path: Path
    matrix: Matrix
    document: Document
    parts: tuple[Part, ...]


def compile_matrix(path: Path) -> CompiledMatrix:
    """Read, validate, expand; ``InputError`` names file, line and key.

    A scenario that is wrong breaks its own parts only.
    """
    document = read_file(path)
    if "scenarios" not in document.data and {"question", "workloads"} & document.data.keys():
        raise InputError(
            f"{document.source}: this is a scenario, and a matrix lists `scenarios` and `images`",
            hint=f"run it with: lab run scenario {path}",
        )
    matrix = validate(Matrix, document)
    parts = _distinct(tuple(_parts(path, matrix)))
    if not parts:
        raise document.wrong(("exclude",), "every part is excluded")
    if len(parts) > MAX_PARTS:
        raise document.wrong(("scenarios",), f"makes {len(parts)} parts; {MAX_PARTS} are the most")
    _check_expected(matrix, document, parts)
    return CompiledMatrix(name=path.stem, path=path, matrix=matrix, document=document, parts=parts)


def _parts(path: Path, matrix: Matrix) -> Iterator[Part]:
    shelf = _Shelf(path.parent)
    points = [
        (s, i.image, k.kernel, {**matrix.set, **s.set, **i.set, **k.set})
        for s in matrix.scenarios
        for i in matrix.images
        for k in matrix.kernels
    ]
    for entry, image, kernel, sets in points:
        if not any(_excluded(e, entry.name, image, kernel) for e in matrix.exclude):
            yield shelf.part(entry, image, kernel, sets)
    named = {entry.name: entry for entry in matrix.scenarios}
    for one in matrix.include:
        entry = named.get(one.scenario, ScenarioEntry(name=one.scenario))
        yield shelf.part(entry, one.image, one.kernel, {**matrix.set, **entry.set, **one.set})


def _excluded(entry: Exclude, scenario: str, image: str, kernel: str | None) -> bool:
    point = {"scenario": scenario, "image": image, "kernel": kernel}
    given = entry.model_fields_set & point.keys()
    return all(getattr(entry, key) == point[key] for key in given)


class _Shelf:
    """Scenarios that are compiled once for all images."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, Compiled | InputError] = {}

    def part(
        self, entry: ScenarioEntry, image: str, kernel: str | None, sets: Mapping[str, Any]
    ) -> Part:
        own = tuple(_override(name, value) for name, value in sets.items())
        booted = {"guest.image": image} | ({"guest.kernel": kernel} if kernel else {})
        system = tuple(_override(name, value) for name, value in booted.items())
        scenario = Path(entry.name).stem if entry.name.endswith(_FILES) else entry.name
        compiled, broken = None, ""
        try:
            path = self._path(entry.name)
            compiled = self._compiled(path, entry.trials, (*own, *system))
        except InputError as error:
            broken = str(error)
        system_name = "+".join([image, *([Path(kernel).name] if kernel else [])])
        return Part(
            id=f"{re.sub(r'[^A-Za-z0-9._+-]+', '-', scenario)}@{system_name}",
            scenario=scenario,
            image=image,
            kernel=kernel,
            overrides=(*own, *system),
            seconds=entry.seconds,
            compiled=compiled,
            broken=broken,
        )

    def _path(self, name: str) -> Path:
        if name.endswith(_FILES):
            return catalog.scenario_path(str(self._directory / name))
        return catalog.scenario_path(name)

    def _compiled(
        self, path: Path, trials: int | None, overrides: tuple[Override, ...]
    ) -> Compiled:
        """As ``compile_scenario`` makes it; what only guests differ in is compiled once."""
        guests = tuple(one for one in overrides if one.path[0] == "guest")
        others = tuple(one for one in overrides if one.path[0] != "guest")
        key = json.dumps([str(path), trials, [one.text for one in others]])
        if key not in self._known:
            try:
                self._known[key] = compile_scenario(path, overrides=others, trials=trials)
            except InputError as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, InputError):
            raise found
        if any(axis.startswith("guest.") for axis in found.scenario.matrix.axes):
            return compile_scenario(path, overrides=overrides, trials=trials)
        try:
            return in_other_guests(found, guests)
        except ValidationError:  # said with the place of what is wrong
            return compile_scenario(path, overrides=overrides, trials=trials)


def in_other_guests(compiled: Compiled, overrides: tuple[Override, ...]) -> Compiled:
    """The same cells in guests that are changed so, as if compiled with those ``--set``.

    No other field of a cell hangs on its guest, and what was published speaks of any.
    """
    update = {one.path[-1]: one.value for one in overrides}
    guests: dict[Guest, Guest] = {}

    def moved(guest: Guest) -> Guest:
        if guest not in guests:
            guests[guest] = Guest.model_validate({**guest.model_dump(), **update})
        return guests[guest]

    def cell(one: Cell) -> Cell:
        return one.model_copy(update={"guest": moved(one.guest)})

    scenario = compiled.scenario
    return dataclasses.replace(
        compiled,
        scenario=scenario.model_copy(update={"guest": moved(scenario.guest)}),
        document=override(compiled.document, overrides),
        cells=tuple(cell(one) for one in compiled.cells),
        base=cell(compiled.base),
    )


def _override(name: str, value: Any) -> Override:
    """As ``--set`` would have it, and written so that it can be given to it."""
    text = value if isinstance(value, str) else json.dumps(value)
    return Override(text=f"{name}={text}", path=tuple(name.split(".")), value=value)


def _distinct(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Parts with different names: of those that share one, the later ones get a number."""
    seen: dict[str, int] = {}
    found = []
    for part in parts:
        seen[part.id] = seen.get(part.id, 0) + 1
        number = seen[part.id]
        found.append(dataclasses.replace(part, id=f"{part.id}--{number}") if number > 1 else part)
    return tuple(found)


def _check_expected(matrix: Matrix, document: Document, parts: tuple[Part, ...]) -> None:
    """Every claim that an entry excuses is one of a scenario's; a broken one's are not known."""
    if any(part.compiled is None for part in parts):
        return
    known: dict[str, set[str]] = {}
    for part in parts:
        ids = {c.id for c in part.compiled.scenario.claims} if part.compiled else set()
        known.setdefault(part.scenario, set()).update(ids)
    for number, entry in enumerate(matrix.expected):
        if entry.scenario is not None and entry.scenario not in known:
            raise document.wrong(
                ("expected", number, "scenario"),
                f"'{entry.scenario}' is no scenario of this matrix: it has {', '.join(known)}",
            )
        names = known if entry.scenario is None else {entry.scenario: known[entry.scenario]}
        for claim in entry.claims:
            if not any(claim in ids for ids in names.values()) and not _tested(claim, names, parts):
                raise document.wrong(
                    ("expected", number, "claims"),
                    f"no scenario of this matrix has the claim '{claim}'; `lab scenario show NAME`"
                    " lists a scenario's claims",
                )


def _tested(claim: str, scenarios: Iterable[str], parts: tuple[Part, ...]) -> bool:
    """Whether a claim can be a suite's, of one of these scenarios: its tests are not known yet."""
    return any(
        named_by(part.compiled.scenario.workloads, claim)
        for part in parts
        if part.compiled is not None and part.scenario in scenarios
    )
