"""Metrics and measurements: what a workload's raw output says, in base units."""

from __future__ import annotations

from enum import StrEnum
from statistics import median

from lab.core.base import Model


class MetricKind(StrEnum):
    """How far a number can be bent by the host."""

    COUNTED = "counted"
    TIMED = "timed"


class Metric(Model):
    """A name, its unit, and which way is better."""

    name: str
    unit: str
    better: str = "higher"
    kind: MetricKind = MetricKind.TIMED


THROUGHPUT = Metric(name="throughput", unit="B/s")
SECONDS = Metric(name="seconds", unit="s", better="lower")
IOPS = Metric(name="iops", unit="1/s")
LATENCY = Metric(name="latency", unit="s", better="lower")


def _counted(name: str, unit: str) -> Metric:
    return Metric(name=name, unit=unit, better="lower", kind=MetricKind.COUNTED)


DISK_READ_BYTES = _counted("disk_read_bytes", "B")
DISK_WRITTEN_BYTES = _counted("disk_written_bytes", "B")
COUNTERS = (
    _counted("disk_reads", "1"),
    DISK_READ_BYTES,
    _counted("disk_writes", "1"),
    DISK_WRITTEN_BYTES,
    _counted("disk_flushes", "1"),
)
"""What the disks did during a workload, whatever its tool: the kernel's counters, added up."""


class Measurement(Model):
    """One metric of one workload in one cell, a value for each trial."""

    workload: str
    metric: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value; the mean of the two middle ones where the count is even."""
        return median(self.values)


class Prediction(Model):
    """What theory expects of one metric."""

    workload: str
    metric: str
    value: float
    reason: str = ""
    """Where theory says how it came to it."""
    doubt: float = 0.0
    """Part by which the value may lie higher or lower, by what theory's rules leave open."""


class Series(Model):
    """How fast one trial of a workload was, moment by moment."""

    workload: str
    trial: int
    direction: str
    """read, write or trim."""
    unit: str
    seconds: tuple[float, ...]
    """Since the workload began; the end of each span of time that a value speaks of."""
    values: tuple[float, ...]


class SyncSeen(Model):
    """What ``/proc/mdstat`` said of a resync, recovery, reshape or check in a cell."""

    action: str
    before: float | None = None
    """Part that was done when the array was made; ``None``: it was not under way."""
    after: float | None = None
    """Part that was done after the last workload; ``None``: it was over."""


UNCONTENDED = "uncontended"
"""Name of the check that every timed step of a workload had the CPU time it needed."""


GUEST_CPU = "guest_cpu"
"""Name of the check that a sealed guest's processor was idle for long enough in a workload."""
BITMAP_UPDATED = "bitmap_updated"
"""Name of the check that a cell's writes could make md write the bitmap often enough to show."""


class Check(Model):
    """A precondition that was read back, or a fact that was held against what was asked."""

    name: str
    passed: bool
    detail: str = ""
    workload: str | None = None
    """The workload whose measurements it is about; ``None``: the whole cell."""
    guest_share: float = 0.0
    """By how much the guest's own time lengthens a request of the disks that were looked at."""
