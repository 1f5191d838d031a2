"""A matrix of scenarios: what is run every night, on which images and kernels.

Its product is scenarios × images × kernels. Each point of it is a *part*: all cells of one scenario
on one image with one kernel, since claims compare cells of a scenario.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from lab.model.base import Model, Seconds
from lab.model.guest import Guest
from lab.model.image import NAME
from lab.versions import parse_range

SYSTEM = ("guest.image", "guest.kernel")
"""Fields that the matrix itself sets."""


def _dotted(values: dict[str, Any]) -> dict[str, Any]:
    for name in values:
        if name in SYSTEM:
            raise ValueError(f"'{name}' is for `images` and `kernels` to say")
        if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
            raise ValueError(f"'{name}' is no dotted name, such as array.chunk")
    return values


def _range(text: str) -> str:
    parse_range(text)
    return text


Sets = Annotated[dict[str, Any], AfterValidator(_dotted)]
"""Overrides by dotted name, as ``--set`` has them."""
Range = Annotated[str, AfterValidator(_range)]
"""Bounds of a version, ``>=6.12 <6.18``; as exact as they are written."""


class ScenarioEntry(Model):
    """A scenario of the matrix."""

    name: str = Field(min_length=1)
    """A scenario's name, or a path that ends in ``.yaml``, from the matrix' own file."""
    set: Sets = {}
    trials: int | None = Field(default=None, ge=1, le=1000)
    seconds: Seconds | None = None
    """What it took on one image, where theory cannot know; used until it was run here."""


class ImageEntry(Model):
    """An image of the matrix."""

    image: str = Field(pattern=NAME)
    set: Sets = {}


class KernelEntry(Model):
    """A kernel of the matrix; ``null`` is the image's own."""

    kernel: str | None = None
    set: Sets = {}

    @field_validator("kernel")
    @classmethod
    def _as_guests_have_it(cls, kernel: str | None) -> str | None:
        try:
            return Guest(kernel=kernel).kernel
        except ValidationError as error:
            reason = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
            raise ValueError(reason) from None


class Include(Model):
    """One more part, beside the product."""

    scenario: str
    image: str = Field(pattern=NAME)
    kernel: str | None = None
    set: Sets = {}


class Exclude(Model):
    """Parts that are not run; those that agree in every key that is given."""

    scenario: str | None = None
    image: str | None = None
    kernel: str | None = None
    reason: str = Field(min_length=1)

    @model_validator(mode="after")
    def _something(self) -> Exclude:
        if not {"scenario", "image", "kernel"} & self.model_fields_set:
            raise ValueError("an exclude names a scenario, an image or a kernel")
        return self


class Expected(Model):
    """Claims that are known to be refuted, where, why, and until when that is an excuse."""

    claims: tuple[str, ...] = Field(min_length=1)
    """Their ids."""
    scenario: str | None = None
    """Only of this scenario."""
    image: str | None = None
    """Only on this image."""
    kernel: Range | None = None
    """Only with these kernels; ``None``: any."""
    mdadm: Range | None = None
    """Only with these versions of mdadm; ``None``: any."""
    reason: str = Field(min_length=1)
    until: date
    """The last day on which it excuses."""
    strict: bool = False
    """A claim that holds in spite of it fails the matrix."""


def _entries(key: str, schema: Any) -> BeforeValidator:
    """Names, or mappings with a name and a ``set``."""

    def whole(value: object) -> object:
        if not isinstance(value, list | tuple):
            return value
        return [v if isinstance(v, dict | Model) else {key: v} for v in value]

    some = Annotated[tuple[schema, ...], Field(min_length=1)]
    return BeforeValidator(whole, json_schema_input_type=some)


class Matrix(Model):
    """One file ``matrices/NAME.yaml``."""

    title: str = Field(min_length=1)
    notes: str = ""
    scenarios: Annotated[tuple[ScenarioEntry, ...], _entries("name", str | ScenarioEntry)] = Field(
        min_length=1
    )
    images: Annotated[tuple[ImageEntry, ...], _entries("image", str | ImageEntry)] = Field(
        min_length=1
    )
    kernels: Annotated[tuple[KernelEntry, ...], _entries("kernel", str | KernelEntry | None)] = (
        Field(default=(KernelEntry(),), min_length=1)
    )
    set: Sets = {}
    """Overrides in every part."""
    include: tuple[Include, ...] = ()
    exclude: tuple[Exclude, ...] = ()
    expected: tuple[Expected, ...] = ()

    @model_validator(mode="after")
    def _excludes_name_what_is_there(self) -> Matrix:
        known: dict[str, list[str | None]] = {
            "scenario": [s.name for s in self.scenarios],
            "image": [i.image for i in self.images],
            "kernel": [k.kernel for k in self.kernels],
        }
        for entry in self.exclude:
            for key in known.keys() & entry.model_fields_set:
                value = getattr(entry, key)
                if value not in known[key]:
                    there = ", ".join(str(v) for v in dict.fromkeys(known[key]))
                    raise ValueError(f"exclude names the {key} '{value}', and there are {there}")
        return self
