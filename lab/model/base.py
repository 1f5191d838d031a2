"""What every model shares: frozen, strict about unknown keys, sizes as people write them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from lab.units import parse_rate, parse_seconds, parse_size


class Model(BaseModel):
    """A frozen record; a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


Size = Annotated[int, BeforeValidator(parse_size)]
"""Bytes; written ``5MiB``, ``250MB`` or ``4096``."""

Rate = Annotated[int, BeforeValidator(parse_rate)]
"""Bytes or operations per second; written ``5MiB``, ``5MiB/s`` or ``100``."""

Seconds = Annotated[float, BeforeValidator(parse_seconds)]
"""Seconds; written ``90``, ``90s``, ``5min`` or ``200ms``."""
