"""Claims: published statements, in a form that the lab can check.

Expectations are a fixed set of comparisons over metrics of cells; there is no expression language.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from string import Formatter
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from lab.core.base import Model, RateText, Says, SecondsText, wrong_key
from lab.core.units import as_yaml, parse_rate, parse_seconds, parse_share, readings


def _quantity(value: object) -> object:
    """Return numbers unchanged, ``"10.7MB/s"`` and ``"64KiB"`` as bytes, ``"5ms"`` as seconds,
    ``"7%"`` as a fraction."""
    if isinstance(value, bool):
        raise ValueError(f"{as_yaml(value)} is not {_QUANTITY}")
    if not isinstance(value, str):
        return value
    for parse in (parse_share, parse_rate, parse_seconds):
        with suppress(ValueError):
            return float(parse(value))
    raise ValueError(f"{value!r} is not {_QUANTITY}")


_QUANTITY: Final = (
    "a number, a rate such as 10.7MB/s, a size such as 64KiB, a time such as 5ms, or a share such"
    " as 7%"
)


_Percent = Annotated[str, StringConstraints(pattern=r"^\s*-?\d+(\.\d+)?\s*%\s*$")]
Quantity = Annotated[
    float,
    BeforeValidator(_quantity, json_schema_input_type=float | RateText | SecondsText | _Percent),
    Field(allow_inf_nan=False),
    Says(_QUANTITY),
]
"""A plain number in the metric's unit; rates may be written ``10.7MB/s``, sizes ``64KiB``, times
``5ms``, fractions ``7%``."""


WIDTHS: Final = {"about": 0.10, "negligible": 0.05}
"""Fractions with a name, for words of a source that have no number.

``about``: "about as fast", "similar", "the same" of two measured values. Each may be 5 % off: reads
that no bitmap can affect differ by 4.5 % between four runs of one machine (bonnie++, 72917 to 76221
KB/s, claim S002-3).

``negligible``: the largest effect of "negligible", "no effect", "not affected"; what is more is
"significant". The source of S003-2 reports 5 % as an effect.
"""


def _share(value: object) -> object:
    """Return ``"about"`` and ``"negligible"`` as their fractions, others as ``_quantity`` does."""
    if isinstance(value, str) and value.strip() in WIDTHS:
        return WIDTHS[value.strip()]
    return _quantity(value)


Share = Annotated[
    float,
    BeforeValidator(
        _share, json_schema_input_type=float | _Percent | Literal["about", "negligible"]
    ),
    Field(allow_inf_nan=False, ge=0),
    Says("a share such as 7%, or about (10 %) or negligible (5 %)"),
]
"""A fraction: ``7%``, or a word of ``WIDTHS``."""


class Verdict(StrEnum):
    """Result of a claim."""

    HOLDS = "holds"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive"
    NOT_TESTED = "not_tested"


class Value(Model):
    """One metric of one workload in one cell."""

    workload: str
    metric: str = "throughput"
    disk: str | None = None
    """Serial of the disk whose counter is used (``disk_read_bytes``); ``None``: all disks."""
    where: dict[str, str | int | float | bool | None] = {}
    """Values by dotted name that select one cell; ``default`` stands for a field without a
    value."""


class Bound(Model):
    """A value lies between two limits, or near one value."""

    kind: Literal["bound"]
    value: Value
    at_least: Quantity | None = None
    at_most: Quantity | None = None
    near: Quantity | None = None
    within: Share = 0.07
    """With ``near``: the fraction by which the value may differ."""

    @model_validator(mode="after")
    def _some_bound(self) -> Bound:
        if self.near is None and self.at_least is None and self.at_most is None:
            raise ValueError(
                "a bound needs near, at_least or at_most: give one, as in near: 10MB/s"
            )
        if self.near is not None and (self.at_least is not None or self.at_most is not None):
            raise ValueError("near cannot be combined with at_least or at_most: remove one of them")
        return self


class Ratio(Model):
    """One value divided by another lies between two limits."""

    kind: Literal["ratio"]
    of: Value
    to: Value
    at_least: Quantity | None = None
    at_most: Quantity | None = None

    @model_validator(mode="after")
    def _some_bound(self) -> Ratio:
        if self.at_least is None and self.at_most is None:
            raise ValueError("a ratio needs at_least or at_most: give one, as in at_least: 1.5")
        return self


class Order(Model):
    """Values are in this order, largest first."""

    kind: Literal["order"]
    values: tuple[Value, ...] = Field(min_length=2)
    margin: Share = 0.0
    """Fraction by which each must exceed the next."""


class Same(Model):
    """Values differ by at most a fraction of their median."""

    kind: Literal["same"]
    values: tuple[Value, ...] = Field(min_length=2)
    within: Share = 0.03


class Monotonic(Model):
    """A value rises, or falls, along an axis."""

    kind: Literal["monotonic"]
    value: Value
    along: str
    direction: Literal["rising", "falling"]
    tolerance: Share = 0.0
    """Fraction by which one step may go in the other direction."""


def matches(
    where: Mapping[str, str | int | float | bool | None],
    fields: Mapping[str, str | int | float | bool | None],
) -> bool:
    """Return whether ``where`` selects a cell with these fields."""
    return all(same_field(fields.get(name), value) for name, value in where.items())


def same_field(
    found: str | int | float | bool | None, wanted: str | int | float | bool | None
) -> bool:
    """Whether a cell's value equals the one in the file; ``512KiB`` and ``524288`` are the same
    size."""
    if found == wanted:
        return True
    if isinstance(found, int | float) and not isinstance(found, bool) and isinstance(wanted, str):
        return found in readings(wanted)
    return found is not None and wanted is not None and str(found) == str(wanted)


Expectation = Annotated[Bound | Ratio | Order | Same | Monotonic, Field(discriminator="kind")]


def _long(value: object) -> object:
    if isinstance(value, str):
        raise ValueError("expected a mapping; the short form is for scenario files")
    return value


def names_in(sentence: str) -> tuple[str, ...]:
    """Return the names in ``{braces}``, in order; ``ValueError``: a brace has no partner, or more
    than a name is in it."""
    found = []
    for _, name, form, conversion in Formatter().parse(sentence):
        if name is not None:
            if form or conversion:
                raise ValueError(f"expected a name alone in {{{name}}}, which is rounded already")
            found.append(name)
    return tuple(found)


class Claim(Model):
    """A published statement, its source, and the expectation that confirms it.

    A key claim has a sentence for each outcome. Its values stand in braces: ``{value}`` of a bound;
    ``{of}``, ``{to}`` of a ratio; ``{1}``, ``{2}`` of an order or of equal values; ``{first}``,
    ``{last}`` of a series. ``{times}`` is their quotient, ``{percent}`` their difference,
    ``{published}`` the published value, and ``{S000-1.of}`` a value of another claim.
    """

    id: Annotated[
        str, Says("an id such as S003-1: a letter, then letters, digits and '_.-', 41 at most")
    ] = Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,40}$")
    says: str = Field(min_length=1)
    quote: str | None = Field(default=None, min_length=1)
    """The source's own words, where it says this: those of ``source`` if given, else of the
    scenario's source."""
    ours: bool = False
    """The source does not say it: a control, a question of the lab, or a prediction."""
    source: str | None = None
    """Where it comes from, if not from the scenario's source."""
    published: Quantity | None = None
    """The published value, in the metric's unit."""
    why: str | None = Field(default=None, min_length=1)
    """The mechanism that decides it, and why its tolerance is as wide as it is."""
    expect: Annotated[Expectation, BeforeValidator(_long, json_schema_input_type=Expectation | str)]
    """In the long form. Scenario files may have it in one line: ``write[5] >= 2 * write[3]``."""
    if_holds: str | None = None
    """Of a key claim: the answer to the scenario's question if it holds."""
    if_refuted: str | None = None
    """Of a key claim: the answer to the scenario's question if it is refuted."""

    @model_validator(mode="after")
    def _both_sentences(self) -> Claim:
        sentences = {"if_holds": self.if_holds, "if_refuted": self.if_refuted}
        given = {key: text for key, text in sentences.items() if text is not None}
        for key in sentences if given else ():
            text = given.get(key)
            if text is None:
                raise wrong_key(f"a key claim has {key} too: write what is true then", *given)
            try:
                names = names_in(text)
            except ValueError as error:
                message = f"{error}: write a value as {{{self.names[0]}}}, and no other brace"
                raise wrong_key(message, key) from None
            known = ", ".join(f"{{{name}}}" for name in self.names)
            for name in names:
                if "." not in name and name not in self.names:
                    raise wrong_key(f"{{{name}}} is no value of this claim: known are {known}", key)
            if not names:
                raise wrong_key(f"the sentence has no measured value: write {known}", key)
        return self

    @property
    def key(self) -> bool:
        """Whether the claim answers the scenario's question."""
        return self.if_holds is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its values in a sentence."""
        published = ("published",) if self.published is not None else ()
        match self.expect:
            case Bound():
                return ("value", *published)
            case Ratio():
                return ("of", "to", "times", "percent", *published)
            case Monotonic():
                return ("first", "last", "times", "percent")
            case Order(values=values) | Same(values=values):
                places = (str(number) for number in range(1, len(values) + 1))
                return (*places, "times", "percent")

    @model_validator(mode="after")
    def _ours_is_not_published(self) -> Claim:
        for key in ("quote", "published"):
            if self.ours and getattr(self, key) is not None:
                raise wrong_key(f"a claim of your own has no {key}: remove it, or ours", key)
        return self

    @property
    def values(self) -> tuple[Value, ...]:
        """Every value that the expectation uses."""
        match self.expect:
            case Bound(value=value) | Monotonic(value=value):
                return (value,)
            case Ratio(of=of, to=to):
                return (of, to)
            case Order(values=values) | Same(values=values):
                return values
