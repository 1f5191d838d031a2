"""The data of the site of all runs: ``lab.site/1``, which its page holds as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.result.document import Result
from lab.model.result.history import ChangePoint


class SiteMetric(Model):
    """How a metric's values are shown."""

    words: str
    unit: str
    better: str
    """``higher`` or ``lower``."""
    counted: bool = False
    """A count: one trial is exact."""


class SiteCell(Model):
    """What a cell's values lead to."""

    label: str
    """Its axes in words."""
    command: str = ""
    """Runs this cell again."""
    report: str = ""
    """URL of the cell in its run's report."""
    output: str = ""
    """URL of its commands and raw output."""
    fixed: bool = False
    """Virtual time, and nothing in it is drawn by a seed: one trial is exact."""


class SiteRun(Model):
    """A run: its result without what only its report shows, and links."""

    result: Result
    title: str = ""
    report: str = ""
    """URL of its report; empty: the result was added from a file."""
    scenario: str = ""
    """URL of its scenario file."""
    cells: dict[str, SiteCell] = {}
    """By id."""


class SiteChange(ChangePoint):
    """A change point, with its metric."""

    metric: str


class Site(Model):
    """All runs, newest first."""

    schema_: Literal["lab.site/1"] = Field(default="lab.site/1", alias="schema")
    runs: tuple[SiteRun, ...]
    metrics: dict[str, SiteMetric]
    """By name: every metric that a workload of this version can have."""
    changes: tuple[SiteChange, ...] = ()
    """Oldest first. The change points of one metric of one scenario are right together with the
    level of `History`."""
