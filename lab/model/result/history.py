"""A metric over all runs."""

from __future__ import annotations

from pydantic import Field

from lab.core.base import Model
from lab.model.result.comparison import Change
from lab.model.result.noise import NoiseFloor
from lab.model.scenario.document import AxisValue


class Point(Model):
    """One value of one run, from its result document."""

    run: str
    scenario: str
    started: str
    """ISO 8601, UTC."""
    cell: str
    axes: dict[str, AxisValue]
    workload: str
    metric: str
    unit: str
    median: float
    low: float | None = None
    high: float | None = None
    values: tuple[float, ...]
    disks: str = ""
    """Disk configuration, as in a noise floor; empty: unknown."""
    noise: tuple[NoiseFloor, ...] = Field(default=(), exclude=True)
    """The run's noise floors of its host."""
    contended: bool = False
    """Whether its workload was contended: no change from or to it is computed."""
    change: float | None = None
    """Relative to the previous run with the cell that was not contended; ``None``: there is none,
    or this one was contended."""
    verdict: Change | None = None
    """Whether the change is more than noise; ``None``: unknown."""


class History(Model):
    """A metric's values of all runs, oldest first, and what could not be read."""

    metric: str
    level: float
    """Confidence in all reported changes together."""
    points: tuple[Point, ...]
    broken: tuple[str, ...] = ()
    """A sentence for each unreadable file."""
