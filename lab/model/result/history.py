"""A metric over all runs."""

from __future__ import annotations

from pydantic import Field

from lab.core.base import Model
from lab.model.result.comparison import Change
from lab.model.result.noise import NoiseFloor
from lab.model.scenario.document import AxisValue


class Point(Model):
    """One figure of one run, as its result document has it."""

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
    """The kind of disk, as a noise floor names it; empty where nobody knows."""
    noise: tuple[NoiseFloor, ...] = Field(default=(), exclude=True)
    """What the run knew of its host."""
    contended: bool = False
    """Whether its workload was contended: no change from it or to it is computed."""
    change: float | None = None
    """Against the run before it that has the cell and was not contended, as a share; ``None``:
    there is none, or this one was contended."""
    verdict: Change | None = None
    """Whether that is more than noise; ``None`` where nobody can say."""


class History(Model):
    """Every run's figure of one metric, the oldest first, and what could not be read."""

    metric: str
    level: float
    """Confidence in all that is called changed, taken together."""
    points: tuple[Point, ...]
    broken: tuple[str, ...] = ()
    """A sentence for each file that is cut off or not the lab's."""
