"""A file system on an array, as a scenario names it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from lab.model.base import Model


def _as_words(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


Words = Annotated[
    tuple[str, ...], BeforeValidator(_as_words, json_schema_input_type=str | tuple[str, ...])
]
"""Words of a command: a list, or one text, which an axis can hold."""


class Filesystem(Model):
    """A file system on the array."""

    type: Literal["ext3", "ext4", "xfs"]
    options: Words = ()
    """Given to ``mkfs`` as they are."""
    mount_options: Words = ()
