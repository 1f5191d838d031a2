"""A profile: what reading a disk showed, model values that reproduce it, and how well."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.scenario.drive import HddParameters, SsdParameters


class ZoneRate(Model):
    """A sequential read at one position."""

    place: float = Field(ge=0, le=1)
    """Fraction of the disk."""
    rate: float = Field(gt=0)
    """Bytes per second."""


class Jumps(Model):
    """Single small reads after a seek of one distance."""

    distance: float = Field(gt=0, le=1)
    """Fraction of the disk."""
    seconds: tuple[float, ...] = Field(min_length=2)


class Samples(Model):
    """Measurements, by reads only."""

    size: int
    """Bytes of the disk."""
    rotational: bool
    zones: tuple[ZoneRate, ...] = Field(min_length=2)
    jumps: tuple[Jumps, ...] = ()
    """For a rotating disk."""
    random: tuple[float, ...] = Field(min_length=2)
    """Seconds of small random reads, one at a time."""
    random_16: float | None = None
    """Small random reads per second, sixteen in flight; ``None``: not measured."""
    large_16: float | None = None
    """Bytes per second of large random reads, sixteen in flight."""
    near: tuple[float, ...] = Field(min_length=2)
    """Seconds of small reads directly after the previous one, without a seek."""
    read_ahead: int | None = None
    """Bytes that the disk read ahead by itself; ``None``: not measured."""


class Load(Model):
    """One run of fio on a disk: random requests in a closed loop, and its results."""

    read_share: float = Field(ge=0, le=1)
    depth: int = Field(ge=1, le=1 << 20)
    """Requests of each job in flight."""
    jobs: int = Field(default=1, ge=1, le=1 << 20)
    block: int = Field(default=4096, ge=512, le=1 << 30)
    """Bytes of a request."""
    span: int | None = Field(default=None, ge=512, le=1 << 60)
    """Bytes within which positions are random; ``None``: the whole disk."""
    seconds: float = Field(default=60.0, gt=0, le=1e9)
    rate: float = Field(gt=0, le=1e9)
    """Requests per second."""
    mean: float | None = None
    """Mean seconds of the latency; the rest of a request's time is the host's."""
    percentiles: dict[float, float] = {}
    """Seconds of the latency by percentile; none for mixed loads."""
    flush_every: int = Field(default=0, ge=0)
    """Writes between flushes; 0: no flushes."""
    flushes: dict[float, float] = {}
    """Seconds of a flush by percentile."""
    begins: float | None = None
    """Unix time."""
    full: bool = False
    """Writes preceded it directly, so a write cache was full at its start."""

    @property
    def total(self) -> int:
        """Requests in flight."""
        return self.depth * self.jobs

    @property
    def name(self) -> str:
        """Its operation, depth and jobs, in words."""
        share = self.read_share
        what = {0.0: "writes", 1.0: "reads"}.get(share, f"{share:.0%} reads")
        jobs = f", {self.jobs} jobs" if self.jobs > 1 else ""
        flush = f", flush after {self.flush_every}" if self.flush_every else ""
        return f"{what}, depth {self.depth}{jobs}{flush}"


class Point(Model):
    """One value, of the disk and of the model."""

    name: str
    group: str = ""
    """Values of one group are judged together, such as rates of reads."""
    fitted: bool = True
    """Whether the model's values were fitted to it."""
    unit: Literal["seconds", "bytes_per_second", "per_second"]
    measured: float
    model: float

    @property
    def error(self) -> float:
        """Relative error of the model."""
        return self.model / self.measured - 1


class Profile(Model):
    """A disk's values for scenarios: ``disks.model: profile:NAME``."""

    kind: Literal["hdd", "ssd"]
    disk: dict[str, str | int] = {}
    """The measured disk: name, model, serial, size."""
    measured_at: str = ""
    """ISO 8601, UTC."""
    hdd: HddParameters = HddParameters()
    ssd: SsdParameters = SsdParameters()
    assumed: tuple[str, ...] = ()
    """Values that reading does not show; they are the preset's."""
    points: tuple[Point, ...] = ()
    """Each measured value with that of a model that was fitted to some of them."""
    samples: Samples | None = None

    @property
    def score(self) -> float:
        """Median relative error of the model."""
        errors = sorted(abs(p.error) for p in self.points)
        middle = len(errors) // 2
        if not errors:
            return 0.0
        return errors[middle] if len(errors) % 2 else (errors[middle - 1] + errors[middle]) / 2
