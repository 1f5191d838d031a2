"""A file system on an array, as in a scenario."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, field_validator, model_validator

from lab.core.base import Says, wrong_key
from lab.core.stable import Stable, named


def _as_words(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


Words = Annotated[
    tuple[str, ...],
    BeforeValidator(_as_words, json_schema_input_type=str | tuple[str, ...]),
    Says("words such as '-m 0', or a list of them"),
]
"""Words of a command: a list, or one text, which can be a value of an axis."""


class Filesystem(Stable):
    """A file system on the array."""

    ALWAYS: ClassVar[frozenset[str]] = named("type options mount_options lazy_init")

    type: Literal["ext3", "ext4", "xfs", "zfs"]
    """``zfs``: a dataset of the pool that ``array.kind: zfs`` makes."""
    options: Words = ()
    """Passed to ``mkfs`` or ``zfs create`` as they are."""
    mount_options: Words = ()
    lazy_init: bool = False
    """ext3, ext4: the kernel zeroes inode tables later, while workloads run, and nothing zeroes the
    journal (``lazy_itable_init``, ``lazy_journal_init`` in ``mke2fs(8)``). Otherwise mke2fs zeroes
    the journal and ext3's tables; ext4's stay as they are (``noinit_itable``, ``ext4(5)``)."""

    @field_validator("options")
    @classmethod
    def _not_lazy(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            if not option or not option.isprintable():
                raise ValueError(f"{option!r} is not a command-line word: write each option apart")
            if "lazy_itable_init" in option or "lazy_journal_init" in option:
                raise ValueError(f"{option!r}: set filesystem.lazy_init instead")
        if options and options[-1] == "-E":
            raise ValueError("-E needs a value, as in [-E, nodiscard]")
        return options

    @field_validator("mount_options")
    @classmethod
    def _not_init(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            if "init_itable" in option:
                raise ValueError(f"{option!r}: set filesystem.lazy_init instead")
        return options

    @model_validator(mode="after")
    def _initialised(self) -> Filesystem:
        if self.lazy_init and self.type not in ("ext3", "ext4"):
            said = f"{self.type} has no lazy initialisation: remove lazy_init"
            raise wrong_key(said, "lazy_init")
        return self
