"""Metrics and measurements: a workload's results in base units."""

from __future__ import annotations

from enum import StrEnum
from statistics import median

from lab.core.base import Model


class MetricKind(StrEnum):
    """Whether the host's speed affects a metric."""

    COUNTED = "counted"
    TIMED = "timed"


class Metric(Model):
    """A name, its unit, and which direction is better."""

    name: str
    unit: str
    better: str = "higher"
    kind: MetricKind = MetricKind.TIMED
    step: float = 0.0
    """Relative distance of neighbouring values that the tool can report; 0: any value."""


THROUGHPUT = Metric(name="throughput", unit="B/s")
SECONDS = Metric(name="seconds", unit="s", better="lower")
IOPS = Metric(name="iops", unit="1/s")
LATENCY = Metric(name="latency", unit="s", better="lower")


def _counted(name: str, unit: str = "1") -> Metric:
    return Metric(name=name, unit=unit, better="lower", kind=MetricKind.COUNTED)


DISK_READ_BYTES = _counted("disk_read_bytes", "B")
DISK_WRITTEN_BYTES = _counted("disk_written_bytes", "B")
COUNTERS = (
    _counted("disk_reads", "reads"),
    DISK_READ_BYTES,
    _counted("disk_writes", "writes"),
    DISK_WRITTEN_BYTES,
    _counted("disk_flushes", "flushes"),
    _counted("disk_discards", "discards"),
    _counted("disk_discarded_bytes", "B"),
)
"""Counters of the disks during a workload, for every tool: sums over all disks.

``disk_writes``: requests with data. ``disk_flushes``: flush commands; ``fsync`` calls that wait
together share one.
"""


SHAPE = (
    _counted("raid_disks"),
    _counted("array_bytes", "B"),
    _counted("array_component_bytes", "B"),
    _counted("array_level"),
    _counted("array_chunk_bytes", "B"),
    _counted("array_layout"),
)
"""The shape of an md array when a workload begins, and after a fault, as md prints it.

``array_component_bytes`` is what a redundant array uses of each member. ``array_level`` is -1 for
linear. ``array_layout`` is the kernel's number of the algorithm.
"""


PREDICTED = {m.name: m for m in (THROUGHPUT, SECONDS, IOPS, LATENCY, *COUNTERS)}
"""The metrics of predictions and calibrations, by name."""


class Measurement(Model):
    """One metric of one workload in one cell; a value for each trial."""

    workload: str
    metric: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value; for an even number the mean of the two middle ones."""
        return median(self.values)


class Unsupported(Model):
    """A percentile that a workload had too few requests for. It has no value."""

    workload: str
    metric: str
    requests: int
    """Of the trial with fewest."""
    needed: int
    """Fewest requests of a trial that support it."""


class Prediction(Model):
    """The predicted value of one metric."""

    workload: str
    metric: str
    value: float
    reason: str = ""
    """How theory derives it, if known."""
    doubt: float = 0.0
    """Relative uncertainty that theory's rules leave."""


class Series(Model):
    """Speed of one trial of a workload over time, or one of its samples."""

    workload: str
    trial: int
    direction: str
    """read, write or trim; of a sample its name."""
    unit: str
    seconds: tuple[float, ...]
    """Since the workload's start; the end of each value's time span."""
    values: tuple[float, ...]


class Latencies(Model):
    """How the completion latencies of a workload's requests are distributed: medians of its trials.

    ``seconds`` has the latency that ``percents`` of the requests do not exceed; the last are 100
    and the longest.
    """

    workload: str
    direction: str
    """read, write or trim."""
    percents: tuple[float, ...]
    seconds: tuple[float, ...]


class SyncSeen(Model):
    """A resync, recovery, reshape or check in a cell, from ``/proc/mdstat``."""

    action: str
    before: float | None = None
    """Fraction done when the array was made; ``None``: it was not running."""
    after: float | None = None
    """Fraction done after the last workload; ``None``: it had ended."""


UNCONTENDED = "uncontended"
"""Name of the check that every timed step of a workload had the CPU time it needed."""


GUEST_CPU = "guest_cpu"
"""Name of the check that a sealed guest's CPU was idle long enough in a workload."""
STEADY_STATE = "steady_state"
"""Name of the check that a workload's speed was steady in some of its rounds."""
SHORT_STROKE = "short_stroke"
"""Name of a check that always passes: the array uses a part of its drives, so seeks are short."""
AT_REST = "at_rest"
"""Name of the check that a workload began with empty buckets, caches and backlogs, and md idle."""
NUMBERS = "numbers"
"""Name of the check that a metric's numbers can be measured values. One that fails has no value."""
BITMAP_UPDATED = "bitmap_updated"
"""Name of the check that a cell's writes made md write the bitmap often enough to measure."""


class Check(Model):
    """A precondition that was verified, or a fact that was compared with its requested value."""

    name: str
    passed: bool
    detail: str = ""
    workload: str | None = None
    """The workload whose measurements it concerns; ``None``: the whole cell."""
    guest_share: float = 0.0
    """In runs of earlier versions: guest overhead as a fraction of a request's time on modelled
    drives."""
