"""A compiled matrix file: jobs, each a scenario compiled for one image and kernel."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from lab.capabilities.matrix.logic.entries import Exclude, Matrix, ScenarioEntry
from lab.compile.guest.suite_steps import named_by
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.core.errors import InputError
from lab.core.yaml import Document, Override, override, read_file, validate
from lab.model.documented import document
from lab.model.scenario.document import Cell, Trials
from lab.model.scenario.guest import Clock, Guest
from lab.plugins import catalog

MAX_JOBS: Final = 2_000
MAX_POINTS: Final = 20 * MAX_JOBS
"""Most combinations of scenarios, images and kernels, with those that are excluded."""
_FILES: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixJob:
    """One scenario on one image with one kernel; its cells form one run."""

    id: str
    scenario: str
    image: str
    kernel: str | None
    overrides: tuple[Override, ...]
    seconds: float | None
    """Expected duration from the matrix file; ``None``: not given."""
    compiled: Compiled | None
    broken: str = ""
    """Why it cannot be compiled; empty: it can. Other jobs are not affected."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The job's cells; none if it is broken."""
        return self.compiled.cells if self.compiled else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledMatrix:
    """A matrix and its jobs, in the order of its scenarios and images."""

    name: str
    path: Path
    matrix: Matrix
    document: Document
    jobs: tuple[MatrixJob, ...]


def compile_matrix(path: Path, *, clock: str | None = None) -> CompiledMatrix:
    """Read, validate and expand a matrix file; ``InputError`` names file, line and key.

    An invalid scenario breaks only its own jobs. ``clock`` sets every guest's ``guest.clock``.
    """
    document = read_file(path)
    if "scenarios" not in document.data and {"question", "workloads"} & document.data.keys():
        raise InputError(
            f"{document.source}: this is a scenario, and a matrix lists `scenarios` and `images`",
            hint=f"run it with: lab run scenario {path}",
        )
    matrix = validate(Matrix, document)
    if clock is not None and clock not in tuple(Clock):
        raise InputError(f"--clock {clock}: expected {' or '.join(Clock)}")
    total = len(matrix.scenarios) * len(matrix.images) * len(matrix.kernels) + len(matrix.include)
    if total > MAX_POINTS:
        message = f"makes {total} jobs before `exclude`; {MAX_POINTS} are the most"
        raise document.wrong(("scenarios",), message)
    every = _jobs(path, matrix, {"guest.clock": clock} if clock else {})
    jobs = _distinct(tuple(islice(every, MAX_JOBS + 1)))
    if not jobs:
        raise document.wrong(("exclude",), "every job is excluded")
    if len(jobs) > MAX_JOBS:
        message = f"makes more than {MAX_JOBS} jobs, which are the most: shorten a list"
        raise document.wrong(("scenarios",), message)
    _check_expected(matrix, document, jobs)
    return CompiledMatrix(name=path.stem, path=path, matrix=matrix, document=document, jobs=jobs)


def _jobs(path: Path, matrix: Matrix, over: Mapping[str, Any]) -> Iterator[MatrixJob]:
    """Yield the jobs; ``over`` replaces values that the file sets."""
    scenarios = _Scenarios(path.parent)
    points = [
        (s, i.image, k.kernel, {**matrix.set, **s.set, **i.set, **k.set, **over})
        for s in matrix.scenarios
        for i in matrix.images
        for k in matrix.kernels
    ]
    for entry, image, kernel, sets in points:
        if not any(_excluded(e, entry.name, image, kernel) for e in matrix.exclude):
            yield scenarios.job(entry, image, kernel, sets)
    named = {entry.name: entry for entry in matrix.scenarios}
    for one in matrix.include:
        entry = named.get(one.scenario, ScenarioEntry(name=one.scenario))
        sets = {**matrix.set, **entry.set, **one.set, **over}
        yield scenarios.job(entry, one.image, one.kernel, sets)


def _excluded(entry: Exclude, scenario: str, image: str, kernel: str | None) -> bool:
    point = {"scenario": scenario, "image": image, "kernel": kernel}
    given = entry.model_fields_set & point.keys()
    return all(getattr(entry, key) == point[key] for key in given)


class _Scenarios:
    """Compiles each scenario once for all images."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, Compiled | InputError] = {}

    def job(
        self, entry: ScenarioEntry, image: str, kernel: str | None, sets: Mapping[str, Any]
    ) -> MatrixJob:
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
        return MatrixJob(
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
        self, path: Path, trials: Trials | None, overrides: tuple[Override, ...]
    ) -> Compiled:
        """As ``compile_scenario``; scenarios that differ only in guests are compiled once."""
        guests = tuple(one for one in overrides if _changes_guest_alone(one))
        others = tuple(one for one in overrides if not _changes_guest_alone(one))
        key = json.dumps([str(path), str(trials), [one.text for one in others]])
        if key not in self._known:
            try:
                self._known[key] = compile_scenario(path, overrides=others, trials=trials)
            except InputError as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, InputError):
            raise found
        if any(axis.startswith("guest.") for axis in found.axes):
            return compile_scenario(path, overrides=overrides, trials=trials)
        try:
            return in_other_guests(found, guests)
        except ValidationError:  # reported elsewhere, with file and line
            return compile_scenario(path, overrides=overrides, trials=trials)


def _changes_guest_alone(one: Override) -> bool:
    """Return whether an override affects only guests. A disk's bus depends on the clock."""
    return one.path[0] == "guest" and one.path[1:] != ("clock",)


def in_other_guests(compiled: Compiled, overrides: tuple[Override, ...]) -> Compiled:
    """Return the same cells with other guests, as if compiled with these ``--set``.

    A cell's other fields do not depend on its guest.
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
    """Return an override as ``--set`` makes it, with its text."""
    text = value if isinstance(value, str) else json.dumps(value)
    return Override(text=f"{name}={text}", path=tuple(name.split(".")), value=value)


def _distinct(jobs: tuple[MatrixJob, ...]) -> tuple[MatrixJob, ...]:
    """Return jobs with distinct names: a repeated name gets a number."""
    seen: dict[str, int] = {}
    found = []
    for job in jobs:
        seen[job.id] = seen.get(job.id, 0) + 1
        number = seen[job.id]
        found.append(dataclasses.replace(job, id=f"{job.id}--{number}") if number > 1 else job)
    return tuple(found)


def _check_expected(matrix: Matrix, document: Document, jobs: tuple[MatrixJob, ...]) -> None:
    """Check that the scenarios have every claim of ``expected``; skipped if a job is broken."""
    if any(job.compiled is None for job in jobs):
        return
    known: dict[str, set[str]] = {}
    for job in jobs:
        ids = {c.id for c in job.compiled.scenario.claims} if job.compiled else set()
        known.setdefault(job.scenario, set()).update(ids)
    for number, entry in enumerate(matrix.expected):
        if entry.scenario is not None and entry.scenario not in known:
            raise document.wrong(
                ("expected", number, "scenario"),
                f"'{entry.scenario}' is no scenario of this matrix: it has {', '.join(known)}",
            )
        names = known if entry.scenario is None else {entry.scenario: known[entry.scenario]}
        for claim in entry.claims:
            if not any(claim in ids for ids in names.values()) and not _tested(claim, names, jobs):
                raise document.wrong(
                    ("expected", number, "claims"),
                    f"no scenario of this matrix has the claim '{claim}'; `lab scenario show NAME`"
                    " lists a scenario's claims",
                )


def _tested(claim: str, scenarios: Iterable[str], jobs: tuple[MatrixJob, ...]) -> bool:
    """Return whether one of these scenarios has a test suite that may have this claim."""
    return any(
        named_by(job.compiled.scenario.workloads, claim)
        for job in jobs
        if job.compiled is not None and job.scenario in scenarios
    )


def matrix_schema() -> dict[str, Any]:
    """Return the schema of a matrix file."""
    document()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Matrix.model_json_schema(mode="validation"),
    }
