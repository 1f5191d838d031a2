"""A profile: what reading a disk showed, a model's figures that do the same, and how near."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.scenario.drive import HddParameters, SsdParameters


class ZoneRate(Model):
    """A stream of reads at one place."""

    place: float = Field(ge=0, le=1)
    """Share of the disk."""
    rate: float = Field(gt=0)
    """Bytes per second."""


class Jumps(Model):
    """Single small reads, each so far from the one before it."""

    distance: float = Field(gt=0, le=1)
    """Share of the disk."""
    seconds: tuple[float, ...] = Field(min_length=2)


class Samples(Model):
    """What was measured, by reads alone."""

    size: int
    """Bytes of the disk."""
    rotational: bool
    zones: tuple[ZoneRate, ...] = Field(min_length=2)
    jumps: tuple[Jumps, ...] = ()
    """Of a disk that turns."""
    random: tuple[float, ...] = Field(min_length=2)
    """Seconds of small reads all over the disk, one at a time."""
    random_16: float | None = None
    """Small reads all over the disk in a second, sixteen at a time; ``None``: not measured."""
    large_16: float | None = None
    """Bytes per second of large reads all over the disk, sixteen at a time."""
    near: tuple[float, ...] = Field(min_length=2)
    """Seconds of small reads right behind the one before, for which no arm has to move."""
    read_ahead: int | None = None
    """Bytes that the disk had read on by itself; ``None``: not measured."""


class Point(Model):
    """One figure, of the disk and of the model."""

    name: str
    unit: Literal["seconds", "bytes_per_second", "per_second"]
    measured: float
    model: float

    @property
    def error(self) -> float:
        """Share by which the model is off."""
        return self.model / self.measured - 1


class Profile(Model):
    """A disk's figures as a scenario can use them: ``disks.model: profile:FILE``."""

    kind: Literal["hdd", "ssd"]
    disk: dict[str, str | int] = {}
    """Which one it was: name, model, serial, size."""
    measured_at: str = ""
    """ISO 8601, UTC."""
    hdd: HddParameters = HddParameters()
    ssd: SsdParameters = SsdParameters()
    assumed: tuple[str, ...] = ()
    """Figures that reading does not show; they are the preset's."""
    points: tuple[Point, ...] = ()
    samples: Samples | None = None

    @property
    def score(self) -> float:
        """The median share by which the model is off."""
        errors = sorted(abs(p.error) for p in self.points)
        middle = len(errors) // 2
        if not errors:
            return 0.0
        return errors[middle] if len(errors) % 2 else (errors[middle - 1] + errors[middle]) / 2
