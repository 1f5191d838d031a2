"""The result of `lab reproduce`: a stored run's sealed cells, run again and compared."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.result.document import Digest


class CellState(StrEnum):
    """What became of a stored cell."""

    IDENTICAL = "identical"
    DIFFERENT = "different"
    SKIPPED = "skipped"


class FirstDifference(Model):
    """Where two runs of a cell differ first."""

    step: int | None = None
    """Number of the step in the procedure, from 1; ``None``: no step has this output."""
    label: str
    """What the step does, or where the difference is."""
    seed: int | None = None
    """Of the trial."""
    file: str = ""
    """Raw output in the cell's directory; empty: the difference is not in raw output."""
    byte: int | None = None
    """Offset of the first byte that differs."""
    stored: str
    """What the stored run has there."""
    here: str


class ReproducedCell(Model):
    """One cell."""

    id: str
    state: CellState
    reason: str = ""
    """Why it was skipped."""
    stored: Digest | None = None
    here: Digest | None = None
    difference: FirstDifference | None = None


class OtherInput(Model):
    """An input that is not the stored run's."""

    what: str
    """``image``, ``kernel``, ``qemu``, ``driver`` and so on."""
    stored: str
    here: str
    advice: str
    """What to do."""


class Reproduction(Model):
    """A stored run, run again."""

    schema_: Literal["lab.reproduction/1"] = Field(default="lab.reproduction/1", alias="schema")
    run: str
    """Id of the stored run."""
    identical: bool
    """Every cell that was compared is the same, byte for byte."""
    cells: tuple[ReproducedCell, ...]
    inputs: tuple[OtherInput, ...] = ()
    """What this host has other than the stored run's."""
    kept: str | None = None
    """Id of the run with the differing results; ``None``: they were identical."""
