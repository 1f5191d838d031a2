"""What changed between two runs, and whether it is more than noise."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.result.document import Run
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import AxisValue


class Change(StrEnum):
    """What may be said of two figures."""

    CHANGED = "changed"
    """More than noise."""
    SAME = "same"
    """Whatever the noise hides is smaller than what matters."""
    UNCLEAR = "unclear"
    """Noise could hide a change that matters."""


class Difference(Model):
    """One fact that differs: of the environment, or of what a cell is."""

    name: str
    first: Any
    second: Any


class FigureChange(Model):
    """One metric of one workload, in both runs."""

    workload: str
    metric: str
    unit: str
    first: float
    second: float
    change: float
    """Median of the second run by that of the first, less 1."""
    low: float
    high: float
    """Between which the change lies, noise counted in."""
    verdict: Change


class CellChange(Model):
    """A cell that both runs have: the same one, or the one with the same axes."""

    first: str
    second: str
    axes: dict[str, AxisValue]
    differs: tuple[Difference, ...] = ()
    """What ``--set`` or another scenario made different."""
    doubts: tuple[str, ...] = ()
    """Why its figures are not to be believed, not there, or of two hosts: a sentence each."""
    figures: tuple[FigureChange, ...] = ()
    """Of the workloads that were not contended in either run; ``doubts`` names the others."""
    fidelity: float | None = None
    """Of a cell on real disks and the same on modelled ones: the median over its timed figures of
    the smaller by the larger, so that 1 is the same; ``None``: both are of one kind."""


class VerdictChange(Model):
    """A claim that came out differently."""

    id: str
    first: Verdict
    second: Verdict


class Comparison(Model):
    """Two runs side by side."""

    schema_: Literal["lab.comparison/1"] = Field(default="lab.comparison/1", alias="schema")
    first: Run
    second: Run
    level: float
    """Confidence in all that is called changed, taken together."""
    least: float
    """The smallest change that matters, as a share."""
    environment: tuple[Difference, ...]
    cells: tuple[CellChange, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    claims: tuple[VerdictChange, ...]
