"""Differences between two runs, and whether each is more than noise."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.result.document import Run
from lab.model.result.reproduction import OtherInput, ReproducedCell
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import AxisValue


class Change(StrEnum):
    """Comparison of two values."""

    CHANGED = "changed"
    """More than noise."""
    SAME = "same"
    """The change, with noise, is smaller than the smallest one that matters."""
    UNCLEAR = "unclear"
    """Noise could hide a difference that matters."""


class Difference(Model):
    """One fact that differs: of the environment, or of a cell."""

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
    change: float | None
    """Median of the second run divided by that of the first, minus 1; ``None``: the first is 0."""
    low: float | None
    high: float | None
    """``low`` and ``high`` bound the change, with noise; ``None``: not known, or the first is 0."""
    verdict: Change


class CellChange(Model):
    """A cell of both runs: the same one, or the one with the same axes."""

    first: str
    second: str
    axes: dict[str, AxisValue]
    differs: tuple[Difference, ...] = ()
    """Differences in other fields, from ``--set`` or another scenario."""
    doubts: tuple[str, ...] = ()
    """Reasons why its values are unreliable, missing, or from two hosts: a sentence each."""
    figures: tuple[FigureChange, ...] = ()
    """Changes of workloads that were not contended in either run; ``doubts`` names the others."""
    fidelity: float | None = None
    """Median over the timed values of the smaller divided by the larger; 1: equal. ``None`` unless
    one run has real disks and the other modelled ones."""


class VerdictChange(Model):
    """A claim with different verdicts."""

    id: str
    first: Verdict
    second: Verdict


class Agreement(Model):
    """Cells of two runs in virtual time, byte for byte: equal inputs must give equal bytes."""

    agree: bool | None
    """``None``: no cell of both runs has virtual time and the same inputs."""
    cells: tuple[ReproducedCell, ...] = ()
    """Cells with the same id. ``stored`` is the first run's, ``here`` the second's."""
    apart: int = 0
    """Cells in virtual time of the first run that the second does not have."""
    inputs: tuple[OtherInput, ...] = ()
    """Inputs that differ between the runs."""


class TestsCompared(Model):
    """Ids of the claims that are tests of suites. ``claims`` has the tests that changed."""

    both: tuple[str, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]


class Comparison(Model):
    """Two runs compared."""

    schema_: Literal["lab.comparison/1"] = Field(default="lab.comparison/1", alias="schema")
    first: Run
    second: Run
    level: float
    """Confidence in all reported changes together."""
    least: float
    """The smallest change that matters, as a fraction."""
    environment: tuple[Difference, ...]
    cells: tuple[CellChange, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    claims: tuple[VerdictChange, ...]
    agreement: Agreement = Agreement(agree=None)
    tests: TestsCompared | None = None
    """``None``: neither run has tests of a suite."""
