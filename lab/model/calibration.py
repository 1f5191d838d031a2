"""What a bare disk did, beside what its model promises."""

from __future__ import annotations

from typing import Any

from lab.model.base import Model

CALIBRATED = "calibrated"
"""Name of the check that a cell's disks, bare, did what their models promise."""


class CalibrationPoint(Model):
    """One measurement of a bare disk."""

    name: str
    metric: str
    unit: str
    measured: float
    expected: float
    tolerance: float
    """Share by which the measured value may be off."""

    @property
    def error(self) -> float:
        """Share by which the measured value is off."""
        return self.measured / self.expected - 1 if self.expected else 0.0

    @property
    def passed(self) -> bool:
        """Whether that is within the tolerance."""
        return abs(self.error) <= self.tolerance


class Calibration(Model):
    """One kind of disk, measured bare in a guest."""

    disk: dict[str, Any]
    """What it is, as in a scenario; without its number and serial."""
    points: tuple[CalibrationPoint, ...] = ()
    problem: str = ""
    """Why it could not be measured; empty where it was."""
    measured_at: str = ""
    """ISO 8601, UTC."""

    @property
    def passed(self) -> bool:
        """Measured, and every point within its tolerance."""
        return not self.problem and all(p.passed for p in self.points)

    @property
    def detail(self) -> str:
        """In words: how far each point is off, or why none was measured."""
        if self.problem:
            return f"the bare disk could not be measured: {self.problem}"
        found = (f"{p.name} {p.error:+.1%} ({p.tolerance:.0%} allowed)" for p in self.points)
        return "bare disk against its model: " + ", ".join(found)
