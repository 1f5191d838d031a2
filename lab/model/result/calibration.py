"""Measurements of a bare disk, compared with what its model promises."""

from __future__ import annotations

from typing import Any, Final

from lab.core.base import Model
from lab.model.scenario.document import Disk

CALIBRATED: Final = "calibrated"
"""Name of the check that a cell's bare disks matched their models."""


GUEST_LIMIT: Final = 0.25
"""Largest guest overhead as a fraction of the modelled disk's time for a request.

Above it, the value describes the guest rather than the disk. With a quarter, and the overhead known
to a tenth, the disk's part is still known to some 3 %.
"""


class GuestTimes(Model):
    """Guest overhead: seconds that guest, QEMU and server add to each request, however fast the
    disk is.

    Measured on a disk whose model takes no time, by the probes that the fields are named after; for
    hard disks ``random_read_1`` and ``flush`` on one that lets the guest idle in between.
    """

    random_read_1: float
    """A random read of 4 KiB, one in flight."""
    random_read_16: float
    """Per random read of 4 KiB, with sixteen in flight."""
    sequential_1: float
    """A read of 1 MiB, one in flight."""
    sequential: float
    """Per read of 1 MiB, with two in flight."""
    flush: float
    """A write of 4 KiB and the flush after it."""


class CalibrationPoint(Model):
    """One measurement of a bare disk."""

    name: str
    metric: str
    unit: str
    measured: float
    expected: float
    """The model's value, with guest overhead for modelled disks."""
    model: float | None = None
    """The model's value without guest overhead; ``None``: no drive is modelled."""
    guest: float | None = None
    """Guest overhead of the same request in seconds; ``None``: no drive is modelled."""
    tolerance: float
    """Relative error that is allowed."""

    @property
    def words(self) -> str:
        """Its name in words."""
        return self.name.replace("_", " ")

    @property
    def error(self) -> float:
        """Relative error of the measured value."""
        return self.measured / self.expected - 1 if self.expected else 0.0

    @property
    def guest_share(self) -> float:
        """Guest overhead as a fraction of the model's time for a request, without the part
        concurrent with the drive's work."""
        return self.model / self.expected - 1 if self.model and self.expected else 0.0

    @property
    def drowned(self) -> bool:
        """Whether the guest is too slow to measure this of the disk."""
        return self.guest_share > GUEST_LIMIT

    @property
    def passed(self) -> bool:
        """Whether it is within the tolerance, and measures the disk rather than the guest."""
        return abs(self.error) <= self.tolerance and not self.drowned


class Calibration(Model):
    """One disk configuration, measured bare in a guest."""

    disk: dict[str, Any]
    """The disk as in a scenario, without count and serial."""
    points: tuple[CalibrationPoint, ...] = ()
    guest: GuestTimes | None = None
    """The guest overhead; ``None``: no drive is modelled, or measuring failed."""
    problem: str = ""
    """Why it could not be measured; empty: it was."""
    measured_at: str = ""
    """ISO 8601, UTC."""
    host: str = ""
    """Host that measured it; empty: the run's own."""

    @property
    def passed(self) -> bool:
        """Measured, and every point within its tolerance."""
        return not self.problem and all(p.passed for p in self.points)

    @property
    def guest_share(self) -> float:
        """The largest guest overhead of any probe, as a fraction."""
        return max((p.guest_share for p in self.points), default=0.0)

    @property
    def detail(self) -> str:
        """In words: the error of each point, or of those that failed; or why it was not
        measured."""
        if self.problem:
            return f"the bare disk could not be measured: {self.problem}"
        if not self.points:
            return "the guest overhead, on a disk that takes no time"
        points = [p for p in self.points if not p.passed] or self.points
        found = (f"{p.words} {p.error:+.1%} ({p.tolerance:.0%} allowed)" for p in points)
        said = ["bare disk against its model: " + ", ".join(found)]
        own = [
            f"{p.guest_share:+.1%} of {p.words} ({p.guest * 1000:.2f} ms)"
            for p in points
            if p.guest is not None
        ]
        if own:
            said.append("the guest overhead is " + ", ".join(own))
        if any(p.drowned for p in self.points):
            said.append(
                f"more than {GUEST_LIMIT:.0%}: this guest is too slow to measure such a disk; use "
                "KVM, or fewer concurrent guests"
            )
        return "; ".join(said)


def kind_of(disk: Disk) -> dict[str, Any]:
    """A disk as in a scenario, without count and serial."""
    return disk.model_dump(mode="json", exclude={"count", "serial"}, exclude_none=True)
