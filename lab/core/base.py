"""The base of all models: frozen, strict about unknown keys; sizes may have units."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from lab.core.units import parse_rate, parse_seconds, parse_size

AT_KEY: Final = "at_key"
"""Type of the errors from ``wrong_key``."""


@dataclass(frozen=True, slots=True)
class Says:
    """Describes a field's values in messages: ``a size such as 64KiB``."""

    text: str


def wrong_key(message: str, *keys: str | int) -> PydanticCustomError:
    """Return an error at these keys below the validated model, for its validators to raise."""
    return PydanticCustomError(AT_KEY, "{message}", {"message": message, "keys": keys})


KEPT: Final = {"kept": True}
"""Validation context for data of stored runs: rules that are newer than the run are skipped."""


class Model(BaseModel):
    """A frozen record. Unknown keys and numbers that are not finite are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, defer_build=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: object) -> object:
        """Raise an error for the first unknown key, with the most similar known key."""
        if not isinstance(value, dict):
            return value
        if value.keys() <= cls.model_fields.keys():
            return value
        known = [field.alias or name for name, field in cls.model_fields.items()]
        accepted = {*known, *cls.model_fields}
        for key in value:
            if key in accepted:
                continue
            near = get_close_matches(str(key), known, n=1)
            guess = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"
            raise wrong_key(f"unknown key '{key}': {guess}", str(key))
        return value


NAMED: Final = Says("a name such as write_1m: a small letter, then small letters, digits, _ or -")
"""Names of workloads and faults."""

# The pattern for editors; lab.core.units decides. Not all editors support lookahead in patterns.
_AMOUNT = r"^\s*\d+(\.\d+)?\s*"
_UNIT = r"([kMGT]B|[KMGT]iB|B)?"
_SizeText = Annotated[str, StringConstraints(pattern=rf"{_AMOUNT}{_UNIT}\s*$")]
RateText = Annotated[str, StringConstraints(pattern=rf"{_AMOUNT}{_UNIT}\s*(/\s*s)?\s*$")]
"""A rate with its unit, for JSON Schema."""
SecondsText = Annotated[str, StringConstraints(pattern=rf"{_AMOUNT}(ms|s|min|h)?\s*$")]
"""A time with its unit, for JSON Schema."""

Size = Annotated[
    int,
    BeforeValidator(parse_size, json_schema_input_type=int | _SizeText),
    Says("a size such as 64KiB"),
]
"""Bytes; written ``5MiB``, ``250MB`` or ``4096``."""

Rate = Annotated[
    int,
    BeforeValidator(parse_rate, json_schema_input_type=int | RateText),
    Says("a rate such as 8MiB/s or 100"),
]
"""Bytes or operations per second; written ``5MiB``, ``5MiB/s`` or ``100``."""

Seconds = Annotated[
    float,
    BeforeValidator(parse_seconds, json_schema_input_type=float | SecondsText),
    Says("a time such as 90s or 5min"),
]
"""Seconds; written ``90``, ``90s``, ``5min`` or ``200ms``."""
