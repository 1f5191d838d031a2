"""A value that a new version of Linux or mdadm made worse."""

from __future__ import annotations

from lab.core.base import Model
from lab.model.result.comparison import Change
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import AxisValue

SYSTEM = ("guest.image", "guest.kernel")
"""Fields of a cell that name what is compared, and not what is measured."""


class Regression(Model):
    """A value that a new version made worse, by more than noise."""

    scenario: str
    claim: str
    axes: dict[str, AxisValue]
    workload: str
    metric: str
    unit: str = ""
    """Empty in records of earlier versions."""
    disk: str = ""
    """Serial of the disk whose counter it is; empty: of the whole cell."""
    good: str
    """The last good system: Linux and mdadm."""
    bad: str
    """The first bad system."""
    named: str
    """The difference between the two: ``Linux 6.12.120``, ``mdadm 4.5-1``, or both."""
    between: tuple[str, ...] = ()
    """Versions between them for which noise hides the answer."""
    also: tuple[str, ...] = ()
    """Other differences: QEMU, libvirt, the lab, the accelerator."""
    before: float
    after: float
    change: float | None
    """As a fraction; ``None``: from 0."""
    verdicts: tuple[Verdict, Verdict]
    verdict: Change = Change.CHANGED
    seen: str
    """When the first bad version was first measured, ISO 8601."""
    new: bool = True
    """Not seen in an earlier matrix run."""
