"""A matrix file: scenarios, images and kernels whose combinations are run.

Each combination is a *job*: all cells of one scenario on one image with one kernel, since claims
compare cells of a scenario.
"""

from __future__ import annotations

import re
from datetime import date
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from lab.core.base import Model, Says, Seconds, wrong_key
from lab.core.units import as_yaml
from lab.core.versions import parse_range
from lab.model.image.manifest import IMAGE, NAME
from lab.model.result.regression import SYSTEM
from lab.model.scenario.document import Trials
from lab.model.scenario.guest import KERNEL, kernel_name


def _dotted(values: dict[str, Any]) -> dict[str, Any]:
    for name in values:
        if name in SYSTEM:
            raise wrong_key(f"remove '{name}': use `images` and `kernels`", name)
        if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
            raise wrong_key(f"'{name}' is not a dotted name, such as array.chunk", name)
    return values


def _day(value: object) -> date:
    """Parse a date in ISO 8601. A number is refused: it would mean seconds since 1970."""
    try:
        return value if isinstance(value, date) else date.fromisoformat(str(value))
    except ValueError:
        raise ValueError(f"{as_yaml(value)} is not a date such as 2026-12-31") from None


def _range(text: str) -> str:
    parse_range(text)
    return text


Sets = Annotated[dict[str, Any], AfterValidator(_dotted)]
"""Overrides by dotted name, as for ``--set``."""
Range = Annotated[str, AfterValidator(_range), Says("bounds of a version, such as '>=6.12 <6.18'")]
"""Bounds of a version, ``>=6.12 <6.18``, with the precision given."""


class ScenarioEntry(Model):
    """A scenario of the matrix."""

    name: str = Field(min_length=1)
    """A scenario's name, or a path that ends in ``.yaml``, relative to the matrix file."""
    set: Sets = {}
    trials: Trials | None = None
    """Instead of the scenario's own: a number, or ``auto``."""
    seconds: Seconds | None = None
    """Expected duration on one image, if theory cannot predict it; used until there is a run
    here."""


class ImageEntry(Model):
    """An image of the matrix."""

    image: Annotated[str, IMAGE] = Field(pattern=NAME)
    set: Sets = {}


class KernelEntry(Model):
    """A kernel of the matrix; ``null``: the image's own."""

    kernel: Annotated[str | None, KERNEL] = None
    set: Sets = {}

    @field_validator("kernel")
    @classmethod
    def _as_guests_have_it(cls, kernel: str | None) -> str | None:
        return kernel_name(kernel)


class Include(Model):
    """An additional job."""

    scenario: str
    image: Annotated[str, IMAGE] = Field(pattern=NAME)
    kernel: Annotated[str | None, KERNEL] = None
    set: Sets = {}


class Exclude(Model):
    """Jobs to leave out: those that match every given key."""

    scenario: str | None = None
    image: str | None = None
    kernel: str | None = None
    reason: str = Field(min_length=1)

    @model_validator(mode="after")
    def _something(self) -> Exclude:
        if not {"scenario", "image", "kernel"} & self.model_fields_set:
            raise ValueError(
                "it matches nothing: give scenario, image or kernel, as in image: debian-12"
            )
        return self


class Expected(Model):
    """Known failures: claims that are refuted, where, why, and until when."""

    claims: tuple[str, ...] = Field(min_length=1)
    """Ids of claims."""
    scenario: str | None = None
    """Only of this scenario."""
    image: str | None = None
    """Only on this image."""
    kernel: Range | None = None
    """Only with these kernels; ``None``: any."""
    mdadm: Range | None = None
    """Only with these versions of mdadm; ``None``: any."""
    reason: str = Field(min_length=1)
    until: Annotated[date, BeforeValidator(_day, json_schema_input_type=date)]
    """The last day on which the failure is accepted."""
    strict: bool = False
    """The matrix run fails if the claim holds."""


def _entries(key: str, schema: Any) -> BeforeValidator:
    """Return a validator of names, or of mappings with a name and ``set``."""

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
    scenarios: Annotated[
        tuple[ScenarioEntry, ...],
        _entries("name", str | ScenarioEntry),
        Says("a list of names, as in [raid5-layouts], or of mappings with the key name"),
    ] = Field(min_length=1)
    images: Annotated[
        tuple[ImageEntry, ...],
        _entries("image", str | ImageEntry),
        Says("a list of names, as in [debian-12], or of mappings with the key image"),
    ] = Field(min_length=1)
    kernels: Annotated[
        tuple[KernelEntry, ...],
        _entries("kernel", str | KernelEntry | None),
        Says(
            "a list of kernels, as in [null, linux-image-amd64], or of mappings with the key kernel"
        ),
    ] = Field(default=(KernelEntry(),), min_length=1)
    set: Sets = {}
    """Overrides in every job."""
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
        for number, entry in enumerate(self.exclude):
            for key in known.keys() & entry.model_fields_set:
                value = getattr(entry, key)
                if value not in known[key]:
                    words = [as_yaml(v) for v in dict.fromkeys(known[key])]
                    near = get_close_matches(as_yaml(value), words, n=1)
                    guess = (
                        f"did you mean '{near[0]}'?" if near else f"known are {', '.join(words)}"
                    )
                    said = f"the matrix has no {key} '{as_yaml(value)}': {guess}"
                    raise wrong_key(said, "exclude", number, key)
        return self
