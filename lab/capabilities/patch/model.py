"""A patch series compared with the code it changes: checks on both, and a verdict for each."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from lab.core.base import Model


class Effect(StrEnum):
    """What a series does to one check."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    BROKEN = "broken"
    """With the series it does not finish: a cell failed, a guest was lost, a test hung."""
    INCONCLUSIVE = "inconclusive"


class PatchRow(Model):
    """One check on both sides."""

    scenario: str
    check: str
    """Cell and value, or claim, in words."""
    base: str
    patched: str
    difference: str = ""
    verdict: Effect
    reason: str = ""
    command: str = ""
    """Repeats it on the patched side; for the base replace the image."""


class SeriesPatch(Model):
    """One patch of the series."""

    title: str
    paths: tuple[str, ...]
    sha256: str
    """Of the patch without its mail."""


class PatchSide(Model):
    """One of the two images, and its runs by scenario."""

    image: str
    digest: str
    runs: dict[str, str] = {}


class PatchResult(Model):
    """What ``lab patch --json`` prints."""

    schema_: Literal["lab.patch/1"] = Field(default="lab.patch/1", alias="schema")
    series: str
    """As given."""
    patches: tuple[SeriesPatch, ...]
    against: Literal["md", "mdadm"]
    image: str
    kernel: str | None = None
    mdadm: str | None = None
    started: str
    """ISO 8601, UTC."""
    margin: float
    """Largest relative difference that counts as none."""
    base: PatchSide
    patched: PatchSide
    directory: str | None = None
    """The matrix run with all runs; ``None``: nothing was run."""
    rows: tuple[PatchRow, ...] = ()
    untested: tuple[str, ...] = ()
    """Scenarios that this host could not run, with the reason."""
    remarks: tuple[str, ...] = ()

    def count(self, effect: Effect) -> int:
        """Return the number of checks with this verdict."""
        return sum(row.verdict is effect for row in self.rows)

    @property
    def bad(self) -> bool:
        """Whether a check is worse or broken."""
        return any(row.verdict in (Effect.WORSE, Effect.BROKEN) for row in self.rows)
