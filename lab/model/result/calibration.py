"""Measurements of a bare disk, compared with its model's predictions."""

from __future__ import annotations

from typing import Any, Final

from lab.core.base import Model
from lab.model.scenario.document import Disk

CALIBRATED: Final = "calibrated"
"""Name of the check that a cell's bare disks matched their models."""
VIRTUAL_DRIVES: Final = "virtual_drives"
"""Name of the check that a cell's modelled drives were timed in virtual time."""
GUEST_LIMIT: Final = 0.25
"""Largest guest overhead as a fraction of a modelled disk's time for a request, in calibrations of
earlier versions. Above it, the value describes the guest rather than the disk."""


class CalibrationPoint(Model):
    """One measurement of a bare disk."""

    name: str
    metric: str
    unit: str
    measured: float
    expected: float
    """The predicted value."""
    model: float | None = None
    """In runs of earlier versions, of a modelled drive: the value without guest overhead."""
    guest: float | None = None
    """In runs of earlier versions, of a modelled drive: guest overhead in seconds."""
    tolerance: float
    """Allowed relative error."""

    @property
    def words(self) -> str:
        """The probe's name in words."""
        return self.name.replace("_", " ")

    @property
    def error(self) -> float:
        """Relative error of the measured value."""
        return self.measured / self.expected - 1 if self.expected else 0.0

    @property
    def guest_share(self) -> float:
        """Guest overhead as a fraction of the model's time for a request; 0 if it has none."""
        return self.model / self.expected - 1 if self.model and self.expected else 0.0

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance, and the guest overhead within
        `GUEST_LIMIT`."""
        return abs(self.error) <= self.tolerance and self.guest_share <= GUEST_LIMIT


class Calibration(Model):
    """One disk configuration, measured bare in a guest."""

    disk: dict[str, Any]
    """The disk as in a scenario, without count and serial."""
    points: tuple[CalibrationPoint, ...] = ()
    guest: dict[str, float] | None = None
    """In runs of earlier versions: seconds of guest overhead by kind of request."""
    problem: str = ""
    """Why it could not be measured; empty: no problem."""
    measured_at: str = ""
    """ISO 8601, UTC."""
    host: str = ""
    """Host that measured it; empty: the run's own."""

    @property
    def passed(self) -> bool:
        """Whether it was measured, with every point within its tolerance."""
        return not self.problem and all(p.passed for p in self.points)

    @property
    def guest_share(self) -> float:
        """The largest guest overhead of any probe, as a fraction."""
        return max((p.guest_share for p in self.points), default=0.0)

    @property
    def detail(self) -> str:
        """The errors of all points or of the failed ones in words, or why it was not measured."""
        if self.problem:
            return f"the bare disk could not be measured: {self.problem}"
        points = [p for p in self.points if not p.passed] or self.points
        found = (f"{p.words} {p.error:+.1%} ({p.tolerance:.0%} allowed)" for p in points)
        said = "bare disk against its model: " + ", ".join(found)
        if self.guest_share:
            said += f"; the guest overhead is up to {self.guest_share:.1%} of a request"
        return said


def kind_of(disk: Disk) -> dict[str, Any]:
    """Return a disk as in a scenario, without count and serial."""
    return disk.model_dump(mode="json", exclude={"count", "serial"}, exclude_none=True)
