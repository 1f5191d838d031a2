"""What a bare disk did, beside what its model promises."""

from __future__ import annotations

from typing import Any, Final

from lab.core.base import Model
from lab.model.scenario.document import Disk

CALIBRATED: Final = "calibrated"
"""Name of the check that a cell's disks, bare, did what their models promise."""


GUEST_LIMIT: Final = 0.25
"""The most by which a guest may lengthen a modelled disk's time for a request, as a share of it.

What lies above is the guest's own figure rather than the disk's: with a quarter, and the guest's
time itself known to a tenth, the disk's part is still known to some 3 %."""


class GuestTimes(Model):
    """What guest, QEMU and server take of each request, in seconds, however fast the disk is.

    Measured on a disk whose model takes no time, by the probes that the fields are named after;
    for hard disks ``random_read_1`` and ``flush`` on one that lets the guest rest in between.
    """

    random_read_1: float
    """A random read of 4 KiB that is alone on its way."""
    random_read_16: float
    """From one to the next, with sixteen of them on their way."""
    sequential_1: float
    """A read of 1 MiB that is alone on its way."""
    sequential: float
    """From one to the next, with two of them on their way."""
    flush: float
    """A write of 4 KiB and the flush after it."""


class CalibrationPoint(Model):
    """One measurement of a bare disk."""

    name: str
    metric: str
    unit: str
    measured: float
    expected: float
    """What the model promises, with the guest's own time in it where the disk is modelled."""
    model: float | None = None
    """What the model promises by itself; ``None``: no drive is modelled."""
    guest: float | None = None
    """Seconds of ``GuestTimes`` for the same request; ``None``: no drive is modelled."""
    tolerance: float
    """Share by which the measured value may be off."""

    @property
    def words(self) -> str:
        """Its name, for people."""
        return self.name.replace("_", " ")

    @property
    def error(self) -> float:
        """Share by which the measured value is off."""
        return self.measured / self.expected - 1 if self.expected else 0.0

    @property
    def guest_share(self) -> float:
        """By how much the guest lengthens the model's time for a request, as a share of it.

        Less than its own time, where that passes while the drive is at work.
        """
        return self.model / self.expected - 1 if self.model and self.expected else 0.0

    @property
    def drowned(self) -> bool:
        """Whether the guest is too slow to tell this of the disk."""
        return self.guest_share > GUEST_LIMIT

    @property
    def passed(self) -> bool:
        """Whether it is within the tolerance, and the disk's figure rather than the guest's."""
        return abs(self.error) <= self.tolerance and not self.drowned


class Calibration(Model):
    """One kind of disk, measured bare in a guest."""

    disk: dict[str, Any]
    """What it is, as in a scenario; without its number and serial."""
    points: tuple[CalibrationPoint, ...] = ()
    guest: GuestTimes | None = None
    """What the guest itself takes; ``None``: no drive is modelled, or it could not be measured."""
    problem: str = ""
    """Why it could not be measured; empty where it was."""
    measured_at: str = ""
    """ISO 8601, UTC."""
    host: str = ""
    """Where; empty: on the run's own host."""

    @property
    def passed(self) -> bool:
        """Measured, and every point within its tolerance."""
        return not self.problem and all(p.passed for p in self.points)

    @property
    def guest_share(self) -> float:
        """The most by which the guest lengthens a request of any probe, as a share."""
        return max((p.guest_share for p in self.points), default=0.0)

    @property
    def detail(self) -> str:
        """In words: how far each point is off, of a disk that fails those that do; or why none was
        measured."""
        if self.problem:
            return f"the bare disk could not be measured: {self.problem}"
        if not self.points:
            return "the guest's own time, on a disk that takes none"
        points = [p for p in self.points if not p.passed] or self.points
        found = (f"{p.words} {p.error:+.1%} ({p.tolerance:.0%} allowed)" for p in points)
        said = ["bare disk against its model: " + ", ".join(found)]
        own = [
            f"{p.guest_share:+.1%} of {p.words} ({p.guest * 1000:.2f} ms)"
            for p in points
            if p.guest is not None
        ]
        if own:
            said.append("the guest's own time is " + ", ".join(own))
        if any(p.drowned for p in self.points):
            said.append(
                f"more than {GUEST_LIMIT:.0%}: this guest is too slow for such a disk, whatever "
                "the disk does; a guest with KVM or fewer beside it may not be"
            )
        return "; ".join(said)


def kind_of(disk: Disk) -> dict[str, Any]:
    """What a disk is, as in a scenario, whatever its number and serial."""
    return disk.model_dump(mode="json", exclude={"count", "serial"}, exclude_none=True)
