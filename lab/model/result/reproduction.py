"""The result of `lab reproduce`: a stored run's sealed cells, run again and compared."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.result.document import Digest


class CellState(StrEnum):
    """Result for one stored cell."""

    IDENTICAL = "identical"
    DIFFERENT = "different"
    OTHER_INPUTS = "other inputs"
    """The bytes differ, and so do the inputs: nothing follows about the stored run."""
    SKIPPED = "skipped"


class FirstDifference(Model):
    """The first difference between two runs of a cell."""

    step: int | None = None
    """Number of the step in the procedure, from 1; ``None``: no step has this output."""
    label: str
    """What the step does, or where the difference is."""
    seed: int | None = None
    """Seed of the trial."""
    file: str = ""
    """Raw output in the cell's directory; empty: the difference is not in raw output."""
    byte: int | None = None
    """Offset of the first byte that differs."""
    stored: str
    """The stored run's value there."""
    here: str


class ReproducedCell(Model):
    """A stored cell with its result."""

    id: str
    state: CellState
    reason: str = ""
    """Why it was skipped, or which inputs differ."""
    stored: Digest | None = None
    here: Digest | None = None
    difference: FirstDifference | None = None


class OtherInput(Model):
    """An input that differs from the stored run's."""

    what: str
    """Name of the input: ``image``, ``kernel``, ``qemu``, ``driver`` and so on."""
    stored: str
    here: str
    advice: str
    """How to get the stored run's input."""


class Reproduction(Model):
    """Comparison of a stored run with its repetition."""

    schema_: Literal["lab.reproduction/1"] = Field(default="lab.reproduction/1", alias="schema")
    run: str
    """Id of the stored run."""
    identical: bool
    """Every compared cell has the same bytes."""
    cells: tuple[ReproducedCell, ...]
    inputs: tuple[OtherInput, ...] = ()
    """Inputs of this host that differ from the stored run's."""
    kept: str | None = None
    """Id of the run with the differing results; ``None``: they were identical."""
