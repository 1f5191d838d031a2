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


class Point(Model):
    """One value, of the disk and of the model."""

    name: str
    unit: Literal["seconds", "bytes_per_second", "per_second"]
    measured: float
    model: float

    @property
    def error(self) -> float:
        """Relative error of the model."""
        return self.model / self.measured - 1


class Profile(Model):
    """A disk's values for scenarios: ``disks.model: profile:FILE``."""

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
    samples: Samples | None = None

    @property
    def score(self) -> float:
        """Median relative error of the model."""
        errors = sorted(abs(p.error) for p in self.points)
        middle = len(errors) // 2
        if not errors:
            return 0.0
        return errors[middle] if len(errors) % 2 else (errors[middle - 1] + errors[middle]) / 2
