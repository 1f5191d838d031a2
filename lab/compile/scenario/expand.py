"""``matrix`` and ``cases`` to the points of the cells. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Final

from lab.core.units import is_digits, same_value
from lab.core.yaml import Document, Path_
from lab.model.scenario.document import AxisValue, Scenario

MAX_CELLS: Final = 20_000
MAX_COMPARED: Final = 10_000_000
"""Most comparisons of a combination with an entry of include or exclude; they take seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Values of one cell by dotted name, and where in the document each was written."""

    values: Mapping[str, AxisValue]
    places: Mapping[str, Path_]

    def __or__(self, other: Point) -> Point:
        """Return both; the other's values take precedence."""
        return Point(values={**self.values, **other.values}, places={**self.places, **other.places})

    def without(self, axis: str) -> Point:
        """Return the point without one of its values."""
        return Point(
            values={name: value for name, value in self.values.items() if name != axis},
            places=self.places,
        )


NOWHERE: Final = Point(values={}, places={})
"""The file's own fields."""


def expand(scenario: Scenario, document: Document, before: Document) -> list[Point]:
    """Return the points of all cells: each combination of the matrix with each case.

    A field that was overridden is no axis; ``before`` is the document without overrides.
    ``InputError``: there is no cell, or too many, or matrix and cases have the same axis.
    """
    matrix, cases = scenario.matrix, scenario.cases
    total = prod(len(values) for values in matrix.axes.values()) * max(len(cases), 1)
    if total > MAX_CELLS:
        message = f"makes {total} cells; {MAX_CELLS} are the most, so shorten an axis"
        raise document.wrong(("matrix",), message)
    entries = len(matrix.include) + len(matrix.exclude)
    if total * entries > MAX_COMPARED:
        message = f"has {total} combinations and {entries} entries of include and exclude"
        raise document.wrong(("matrix",), f"{message}: shorten them")
    points = _combinations(scenario)
    if len(points) * max(len(cases), 1) > MAX_CELLS:
        message = f"makes {len(points) * max(len(cases), 1)} cells; {MAX_CELLS} are the most"
        raise document.wrong(("matrix",), message)
    if not points:
        raise document.wrong(("matrix",), "every cell is excluded")
    if cases:
        listed = [_written(case, ("cases", number)) for number, case in enumerate(cases)]
        for case in listed:
            for axis in case.values:
                if any(axis in point.values for point in points):
                    message = "the matrix has this axis too: remove it from one of them"
                    raise document.wrong(case.places[axis], message)
        points = [point | case for point in points for case in listed]
    for path in document.overrides:
        points = _fixed(points, path, document, before)
    return points


def axes_of(points: Sequence[Point]) -> dict[str, tuple[AxisValue, ...]]:
    """Return each axis with its different values as written, in order."""
    found: dict[str, dict[AxisValue, None]] = {}
    for point in points:
        for axis, value in point.values.items():
            found.setdefault(axis, {})[value] = None
    return {axis: tuple(values) for axis, values in found.items()}


def _combinations(scenario: Scenario) -> list[Point]:
    """Return the combinations of the matrix without the cases.

    ``include`` is that of GitHub Actions ("Expanding or adding matrix configurations" in "Running
    variations of jobs in a workflow"): an entry never changes a value of an axis, may change what
    an earlier entry added, and does not extend a combination that an entry made.
    """
    axes, include = scenario.matrix.axes, scenario.matrix.include
    places: dict[str, Path_] = {axis: ("matrix", axis) for axis in axes}
    found = []
    for values in product(*axes.values()) if axes or not include else ():
        point = dict(zip(axes, values, strict=True))
        if not any(_agree(entry, point) for entry in scenario.matrix.exclude):
            found.append(Point(values=point, places=places))
    made = []
    for number, entry in enumerate(include):
        added = _written(entry, ("matrix", "include", number))
        own = {axis: value for axis, value in entry.items() if axis in axes}
        fitting = [n for n, point in enumerate(found) if _agree(own, point.values)]
        for n in fitting:
            found[n] |= added
        if not fitting:
            made.append(added)
    return found + made


def _agree(entry: Mapping[str, AxisValue], point: Mapping[str, AxisValue]) -> bool:
    return all(point[axis] == value for axis, value in entry.items())


def _written(values: Mapping[str, AxisValue], at: Path_) -> Point:
    return Point(values=values, places={axis: (*at, axis) for axis in values})


def _fixed(points: list[Point], path: Path_, document: Document, before: Document) -> list[Point]:
    """Return the points with the overridden value, without this axis; if there is none, all."""
    name = _by_name(path, document)
    for axis in axes_of(points):
        if _by_name(axis.split("."), document) != name:
            continue
        value, own = _value_at(document.data, path), _value_at(before.data, path)
        kept = [point for point in points if same_value(point.values.get(axis, own), value)]
        distinct: dict[tuple[Any, ...], Point] = {}
        for point in (p.without(axis) for p in kept or points):
            distinct.setdefault(tuple(point.values.items()), point)
        points = list(distinct.values())
    return points


def _by_name(path: Sequence[str | int], document: Document) -> str:
    """Return a dotted name that selects a workload by its name instead of its number."""
    first, *rest = map(str, path)
    items = document.data.get(first)
    if rest and isinstance(items, list) and is_digits(rest[0]):
        item = items[int(rest[0])] if int(rest[0]) < len(items) else None
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            rest[0] = item["name"]
    return ".".join((first, *rest))


def _value_at(data: Any, path: Path_) -> Any:
    for part in path:
        if isinstance(data, dict):
            data = data.get(str(part))
        else:
            data = data[part] if isinstance(data, list) and isinstance(part, int) else None
    return data
