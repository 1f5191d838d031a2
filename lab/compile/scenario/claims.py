"""Checks of claims: each of their values must select one cell of the scenario."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final

from lab.compile.cell.fault_times import cut_short
from lab.compile.cell.metrics import (
    COUNTS,
    SHAPES,
    has_shape,
    metrics_of,
    own_metrics,
    plugin_of,
    similar,
)
from lab.compile.scenario.fields import field_names, fields_of, is_field, values_of
from lab.compile.scenario.short_claims import Bare
from lab.core.errors import InputError
from lab.core.units import format_size, is_digits, parse_size
from lab.core.yaml import Document, Path_
from lab.model.scenario.claim import Bound, Claim, Expectation, Monotonic, Ratio, Value, same_field
from lab.model.scenario.document import AxisValue, Cell, Scenario, Workload
from lab.model.scenario.fault import Fault

DEFAULT: Final = "default"
"""Word in tables for a field without a value; ``where`` accepts it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forms:
    """How a claim may write values of a unit."""

    words: str
    pattern: re.Pattern[str]
    usual: str
    """Examples."""
    example: str = ""
    """A unit to write after a number."""

    @property
    def required(self) -> bool:
        """Whether a short form must name the unit."""
        return bool(self.example)


_NUMBER: Final = r"-?\d+(\.\d+)?\s*"
_BYTES: Final = r"([kMGT]|[KMGT]i)?B"
UNITS: Final[Mapping[str, _Forms]] = {
    "B/s": _Forms(
        words="a rate of bytes",
        pattern=re.compile(rf"{_NUMBER}{_BYTES}(\s*/\s*s)?"),
        usual="10.7MB/s",
        example="MB/s",
    ),
    "B": _Forms(
        words="a size",
        pattern=re.compile(rf"{_NUMBER}{_BYTES}"),
        usual="64KiB",
        example="MiB",
    ),
    "s": _Forms(
        words="a time", pattern=re.compile(rf"{_NUMBER}(ms|s|min|h)"), usual="5ms", example="s"
    ),
    "1/s": _Forms(
        words="a number per second", pattern=re.compile(rf"{_NUMBER}(/\s*s)?"), usual="120/s"
    ),
    "1": _Forms(words="a number", pattern=re.compile(rf"{_NUMBER}%?"), usual="8"),
}
"""By unit of a metric; others are those of a number."""


def with_defaults(scenario: Scenario, cells: Sequence[Cell]) -> Scenario:
    """Return the scenario with ``null`` for each ``default`` in a ``where``, except for fields that
    have the value ``default`` in a cell."""
    names = {k for c in scenario.claims for v in c.values for k in v.where if v.where[k] == DEFAULT}
    if not names:
        return scenario
    found = [values_of(cell, names) for cell in cells]
    empty = {name for name in names if all(fields[name] != DEFAULT for fields in found)}

    def changed(value: Value) -> Value:
        where = {k: None if v == DEFAULT and k in empty else v for k, v in value.where.items()}
        return value.model_copy(update={"where": where})

    def resolved(expect: Expectation) -> Expectation:
        update: dict[str, Any] = {}
        for name in expect.model_fields_set & {"value", "of", "to", "values"}:
            part = getattr(expect, name)
            update[name] = tuple(map(changed, part)) if name == "values" else changed(part)
        return expect.model_copy(update=update)

    claims = (c.model_copy(update={"expect": resolved(c.expect)}) for c in scenario.claims)
    return scenario.model_copy(update={"claims": tuple(claims)})


def check_claims(
    scenario: Scenario,
    document: Document,
    cells: Sequence[Cell],
    axes: Mapping[str, Sequence[AxisValue]],
) -> None:
    """Raise ``InputError`` for the first claim that no run of these cells could test: it uses an
    unknown name, or its ``where`` selects no cell or several."""
    if not scenario.claims:
        return
    check = _Check(scenario, document, cells, axes)
    for index, claim in enumerate(scenario.claims):
        for path, value in _places(claim):
            check.value(("claims", index, "expect", *path), value, claim)


def _places(claim: Claim) -> Iterator[tuple[Path_, Value]]:
    """Yield each value of a claim, and its path in ``expect``."""
    match claim.expect:
        case Bound() | Monotonic():
            yield ("value",), claim.expect.value
        case Ratio():
            yield from ((("of",), claim.expect.of), (("to",), claim.expect.to))
        case _:
            yield from ((("values", n), value) for n, value in enumerate(claim.expect.values))


class _Check:
    def __init__(
        self,
        scenario: Scenario,
        document: Document,
        cells: Sequence[Cell],
        axes: Mapping[str, Sequence[AxisValue]],
    ) -> None:
        self._scenario, self._document, self._cells = scenario, document, cells
        self._axes = axes
        self._fields = [
            {name: _scalar(value) for name, value in fields_of(cell, scenario.claims).items()}
            for cell in cells
        ]

    @cached_property
    def _known(self) -> list[str]:
        names = [name for name in field_names(self._scenario) if not name.endswith(".*")]
        return [*self._axes, *(name for name in names if name not in self._axes)]

    def value(self, at: Path_, value: Value, claim: Claim) -> None:
        """Raise the error in one value of a claim; ``at`` is its path."""
        for key in value.where:
            if key not in self._axes and not is_field(key, self._scenario):
                guess = _guess(key, self._known) or f"the axes are {_listed(self._axes)}"
                raise self._wrong((*at, "where", key), f"there is no field '{key}': {guess}")
        picked = self._picked(at, value)
        if isinstance(claim.expect, Monotonic):
            self._along((*at[:-1], "along"), claim.expect.along, picked)
        elif len(picked) > 1:
            raise self._several(at, picked)
        for number in picked:
            self._names(at, value, self._cells[number])
        if isinstance(claim.expect, Bound):
            self._units(at[:-1], value, self._cells[picked[0]])

    def _units(self, at: Path_, value: Value, cell: Cell) -> None:
        """Check that the numbers of a bound have the metric's unit. In a short form a number other
        than 0 names it; in the long form it may be a plain number."""
        metric = metrics_of(cell)[value.workload, value.metric]
        given: Any = self._document.data
        for key in at:
            given = given[key]
        forms = UNITS.get(metric.unit, UNITS["1"])
        for key in ("near", "at_least", "at_most"):
            written = given.get(key) if isinstance(given, dict) else None
            place = (*at, key)
            if isinstance(written, Bare) and written and forms.required:
                raise self._wrong(
                    place,
                    f"{written:g} has no unit, and {value.metric} is {forms.words}: write"
                    f" {written:g}{forms.example}",
                )
            if isinstance(written, str) and not forms.pattern.fullmatch(written.strip()):
                raise self._wrong(
                    place,
                    f"{written!r} is not {forms.words}, and {value.metric} is: write {forms.usual}",
                )

    def _picked(self, at: Path_, value: Value) -> list[int]:
        """Return the numbers of the cells that ``where`` selects."""
        fitting: dict[str, set[AxisValue]] = {}
        for key, wanted in value.where.items():
            there = list(dict.fromkeys(fields[key] for fields in self._fields))
            fitting[key] = {one for one in there if same_field(one, wanted)}
            if not fitting[key]:
                texts = [_like(wanted, self._text(key, one)) for one in there]
                guess = _guess(str(wanted), texts) or f"cells have {_listed(texts)}"
                message = f"no cell has {self._text(key, wanted)}: {guess}"
                raise self._wrong((*at, "where", key), message)

        def fits(fields: dict[str, AxisValue], *, but: str = "") -> bool:
            return all(fields[key] in fitting[key] for key in fitting if key != but)

        picked = [n for n, fields in enumerate(self._fields) if fits(fields)]
        if not picked:
            hints = []
            for key in fitting:
                beside = dict.fromkeys(f[key] for f in self._fields if fits(f, but=key))
                if beside:
                    others = self._said({k: v for k, v in value.where.items() if k != key})
                    texts = [self._text(key, one) for one in beside]
                    hints.append(f"with {others} there is {key}: {_listed(texts)}")
            said = self._said(value.where)
            message = f"no cell has {said} together; {'; '.join(hints)}".rstrip("; ")
            raise self._wrong((*at, "where"), message)
        return picked

    def _several(self, at: Path_, picked: Sequence[int]) -> InputError:
        differ = []
        for axis in self._axes:
            there = dict.fromkeys(self._cells[n].axes[axis] for n in picked)
            if len(there) > 1:
                differ.append(f"{axis} ({_listed([self._text(axis, one) for one in there])})")
        return self._wrong(
            (*at, "where"),
            f"picks {len(picked)} cells and must pick one: they differ in {', '.join(differ)}; add"
            f" {differ[0].partition(' ')[0]} to where",
        )

    def _along(self, at: Path_, along: str, picked: Sequence[int]) -> None:
        """Check that a monotonic claim has two or more cells, each with its own value on the
        axis."""
        if along not in self._axes:
            others = f"the axes are {_listed(self._axes)}" if self._axes else "add it to matrix"
            guess = _guess(along, list(self._axes)) or others
            raise self._wrong(at, f"there is no axis '{along}': {guess}")
        places = [self._cells[n].axes[along] for n in picked]
        if len(places) < 2:
            message = f"the claim needs two cells along {along}, and its where picks one"
        elif None in places:
            message = f"the cell with {along}: {DEFAULT} has no place on a scale: leave it out"
        elif twice := [place for place in places if places.count(place) > 1]:
            text = self._text(along, twice[0])
            message = f"the claim picks more than one cell at {along}: {text}; add to its where"
        else:
            return
        raise self._wrong(at, message)

    def _names(self, at: Path_, value: Value, cell: Cell) -> None:
        """Check workload or fault, metric and disk of a value, in a cell that it selects."""
        named: tuple[Workload | Fault, ...] = (*cell.workloads, *cell.faults)
        names = {one.name: one for one in named}
        if value.workload not in names:
            guess = _guess(value.workload, list(names)) or f"there is {_listed(names) or 'none'}"
            raise self._wrong(
                (*at, "workload"), f"there is no workload '{value.workload}': {guess}"
            )
        tool, own = plugin_of(names[value.workload]), own_metrics(names[value.workload])
        counted = list(COUNTS)
        if value.disk is not None and value.metric not in counted:
            raise self._wrong(
                (*at, "metric"),
                f"a single disk has no '{value.metric}': it has {', '.join(counted)}",
            )
        serials = [serial for serial, _ in cell.each_disk]
        if value.disk is not None and value.disk not in serials:
            guess = _guess(value.disk, serials) or f"there is {_listed(serials)}"
            raise self._wrong((*at, "disk"), f"there is no disk '{value.disk}': {guess}")
        every = [*own, *counted, *(SHAPES if has_shape(cell) else ())]
        if value.metric not in every:
            near = similar(value.metric, every)
            guess = f"did you mean '{near}'?" if near else ""
            given = f"it gives {_nearest(value.metric, dict.fromkeys(every))}"
            raise self._wrong(
                (*at, "metric"), f"{tool} gives no '{value.metric}': {guess or given}"
            )
        if value.workload in cut_short(cell):
            raise self._wrong(
                (*at, "workload"),
                f"'{value.workload}' has no values, since a fault ends it: name the fault instead",
            )

    def _wrong(self, path: Path_, message: str) -> InputError:
        return self._document.wrong(path, message)

    def _said(self, where: dict[str, AxisValue]) -> str:
        return ", ".join(f"{key}: {self._text(key, value)}" for key, value in where.items())

    def _text(self, name: str, value: AxisValue) -> str:
        """Return a value as the scenario writes it on its axis; ``default``: none."""
        if value is None:
            return DEFAULT
        written = (one for one in self._axes.get(name, ()) if same_field(value, one))
        return str(next(written, value))


def _scalar(value: Any) -> AxisValue:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _like(wanted: AxisValue, text: str) -> str:
    """Return bytes as a size, if the claim gives a size."""
    if not (isinstance(wanted, str) and is_digits(text)):
        return text
    try:
        parse_size(wanted)
    except ValueError:
        return text
    return format_size(int(text))


SHOWN: Final = 12
"""Most names in a message."""


def _nearest(word: str, names: Collection[str]) -> str:
    """Return names, those first that share most of their words with this one."""
    own = set(word.split("_"))
    order = sorted(names, key=lambda name: -len(own & set(name.split("_"))))
    more = len(order) - SHOWN
    return ", ".join(order[:SHOWN]) + (f" and {more} more (docs/reference)" if more > 0 else "")


def _guess(word: str, known: Sequence[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"did you mean '{near[0]}'?" if near else ""


def _listed(words: Any) -> str:
    found = list(words)
    return ", ".join([*found[:12], "…"] if len(found) > 12 else found)
