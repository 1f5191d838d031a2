"""A metric over all runs."""

from __future__ import annotations

from pydantic import Field

from lab.core.base import Model
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
    """Whether its workload was contended: it is shown, and no change point uses it."""
    branch: str | None = None
    """``LAB_BRANCH`` of the run, or the branch that the CI named."""


class ChangePoint(Model):
    """The first run after a value changed."""

    scenario: str
    cell: str
    workload: str
    branch: str | None = None
    run: str
    """The first run with the new value."""
    previous: str
    """The last run with the old one."""
    before: float
    """Median since the change point before, or the first run."""
    after: float
    """Median until the next change point, or the last run."""
    change: float
    """``after / before - 1``."""
    chance: float
    """Probability of such a change point, or a clearer one, in a series without a change."""
    runs: tuple[int, int]
    """Number of runs before and after it."""


class BranchDifference(Model):
    """A value of a branch, and that of the branch it is compared with."""

    scenario: str
    cell: str
    axes: dict[str, AxisValue]
    workload: str
    branch: str
    against: str
    before: float
    """Median of the other branch since its last change point."""
    after: float
    """Median of the branch."""
    change: float
    """``after / before - 1``."""
    chance: float
    """Probability of such a difference, or a clearer one, if there is none."""
    differs: bool
    """At the level of the history; otherwise no difference is shown, which is no proof of none."""
    runs: tuple[int, int]
    """Number of runs of the other branch and of the branch."""


class History(Model):
    """A metric's values of all runs, oldest first, where they changed, and what could not be
    read."""

    metric: str
    level: float
    """Confidence in all reported changes together."""
    points: tuple[Point, ...]
    changes: tuple[ChangePoint, ...] = ()
    """Oldest first."""
    differences: tuple[BranchDifference, ...] = ()
    """With ``--branch``."""
    too_short: int = 0
    """Number of series in which no change point can be found: noise unknown, too few runs."""
    fewest: int = 0
    """Fewest runs of a series whose noise is unknown."""
    broken: tuple[str, ...] = ()
    """A sentence for each unreadable file."""
