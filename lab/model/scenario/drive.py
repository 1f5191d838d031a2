"""Drives: what a scenario can set of a modelled disk, and all values of the modelled drive.

``HddParameters`` and ``SsdParameters`` are for scenarios: each field may be left to the preset.
``HardDrive`` and ``SolidStateDrive`` have every value. All are plain data, in seconds, bytes and
bytes per second; ``drive/drive.h`` documents what the model does with them, and ``integers`` makes
its parameters of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final
from zlib import crc32

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from drive.drive import LIMIT_ONE, Kind, Parameters
from lab.core.base import Rate, Seconds, Size
from lab.core.stable import Stable, named

SHORT: Final = 1 / 3
"""Where short seeks become long ones, as a fraction of the stroke: the mean distance of two random
positions. Data sheets do not give it."""


class HddParameters(Stable):
    """``disks.hdd``: values of a hard disk, as in data sheets; ``None``: the preset's."""

    ALWAYS: ClassVar[frozenset[str]] = named(
        "slower rpm overhead track_to_track average_seek full_stroke write_settle",
        "outer_rate inner_rate zones read_ahead write_cache queue_depth ageing",
        "link_rate seed",
    )

    slower: SkipJsonSchema[float | None] = None
    """Of earlier versions: a factor for all times. Stored runs have it; scenarios must not."""
    rpm: float | None = Field(default=None, ge=0, le=100_000)
    """Revolutions per minute; 0: no rotation, and no wait for it."""
    overhead: Seconds | None = None
    """The controller's time per command; for a queued command concurrent with the arm's work."""
    track_to_track: Seconds | None = None
    """Seek to the next track, for a read."""
    average_seek: Seconds | None = None
    """Mean over all pairs of positions, for a read."""
    full_stroke: Seconds | None = None
    """Seek from the first track to the last, for a read."""
    write_settle: Seconds | None = None
    """How much longer a write's seek is than a read's."""
    outer_rate: Rate | None = None
    """Sustained rate at the disk's start."""
    inner_rate: Rate | None = None
    """Sustained rate at its end; the zones between decrease evenly."""
    zones: int | None = Field(default=None, ge=1, le=256)
    read_ahead: Size | None = None
    """How far the drive reads ahead after a read; 0: not at all."""
    write_cache: Size | None = None
    """Volatile write cache; 0: each write is on the medium before it is acknowledged."""
    queue_depth: int | None = Field(default=None, ge=1, le=1024)
    """Number of requests from which the drive chooses the next."""
    ageing: float | None = Field(default=None, ge=0, le=1)
    """Seconds of positioning time credited per second of waiting."""
    link_rate: Rate | None = None
    """Rate of the cable."""
    seed: int | None = Field(default=None, ge=0, le=2**31)
    """Decides the platters' start position; each serial has another one."""
    lead: int | None = Field(default=None, ge=0, le=1024)
    """The newest waiting commands, so many, are not chosen yet: the drive plans ahead."""
    oldest_share: float | None = Field(default=None, ge=0, le=1)
    """Share of the choices that take the oldest command."""
    seek_only: int | None = Field(default=None, ge=0, le=1)
    """1: the drive does not know the platters' angle, and chooses the shortest seek; 0: it chooses
    the shortest positioning time."""
    write_places: int | None = Field(default=None, ge=0, le=65_536)
    """Pieces of contiguous data that the cache has at most; 0: its pages are the only limit."""
    write_choice: int | None = Field(default=None, ge=0, le=256)
    """Pieces among which the cache's next write is the one with the shortest positioning time; 0:
    in order of place."""
    link_command: Seconds | None = None
    """The cable's time per command with data, in addition to that of its bytes."""
    wake_after: Seconds | None = None
    """Rest after which the first command takes ``wake`` longer."""
    wake: Seconds | None = None
    """0: a drive is as fast after a rest as before it."""


class SsdParameters(Stable):
    """``disks.ssd``: values of a solid-state disk; ``None``: the preset's."""

    ALWAYS: ClassVar[frozenset[str]] = named(
        "slower overhead read_latency write_latency flush_latency channels page",
        "gc_after gc_stall write_cache link_rate",
    )

    slower: SkipJsonSchema[float | None] = None
    """As ``disks.hdd.slower``."""
    overhead: Seconds | None = None
    """The controller's time per command."""
    read_latency: Seconds | None = None
    """A channel's time to read a page."""
    write_latency: Seconds | None = None
    """A channel's time to accept a page."""
    flush_latency: Seconds | None = None
    """From the last accepted page to the flush's end."""
    channels: int | None = Field(default=None, ge=1, le=1024)
    page: Size | None = None
    """Bytes on one channel before the next one's."""
    gc_after: Size | None = None
    """Bytes written between garbage collections; 0: never."""
    gc_stall: Seconds | None = None
    """How long all channels stop for garbage collection."""
    write_cache: Size | None = None
    """Acknowledged, unflushed data lost with the power, at most; 0: none."""
    link_rate: Rate | None = None
    """Rate of the cable."""
    link_command: Seconds | None = None
    """The cable's time per command with data, in addition to that of its bytes."""
    wake_after: Seconds | None = None
    """Rest after which the first command takes ``wake`` longer."""
    wake: Seconds | None = None
    """0: a drive is as fast after a rest as before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekCurve:
    """Seconds of a read's seek over a fraction ``d`` of the stroke.

    ``a + b sqrt(d)`` below ``limit``, ``c + e d`` from there on: C. Ruemmler and J. Wilkes, "An
    introduction to disk drive modeling", IEEE Computer 27(3), 1994.
    """

    a: float
    b: float
    c: float
    e: float
    limit: float = SHORT

    def __call__(self, distance: float) -> float:
        """Seconds of a seek over ``distance``, above 0."""
        if distance < self.limit:
            return self.a + self.b * math.sqrt(distance)
        return self.c + self.e * distance


@dataclass(frozen=True, kw_only=True)
class HardDrive:
    """All values of a hard disk; see ``HddParameters``."""

    source: str
    """Where the values come from."""
    rpm: float
    overhead: float
    track_to_track: float
    average_seek: float
    full_stroke: float
    write_settle: float
    outer_rate: float
    inner_rate: float
    zones: int
    read_ahead: int
    write_cache: int
    queue_depth: int
    ageing: float
    link_rate: float
    seed: int = 1
    lead: int = 0
    oldest_share: float = 0.0
    seek_only: int = 0
    write_places: int = 0
    write_choice: int = 0
    link_command: float = 0.0
    wake_after: float = 0.0
    wake: float = 0.0
    certificate: str = ""
    """What was compared with a real drive, and how far off; empty: nothing was."""

    @property
    def revolution(self) -> float:
        """Seconds; 0 without rotation."""
        return 60 / self.rpm if self.rpm else 0.0

    @property
    def access(self) -> float:
        """Mean seconds from a command to a random position under the head."""
        return self.overhead + self.average_seek + self.revolution / 2

    @cached_property
    def seek_curve(self) -> SeekCurve:
        """The curve through the data sheet's three values, continuous at ``SHORT``.

        The distance of two random positions has the density ``2 (1 - d)``. With ``m(f)`` for the
        integral of ``f(d) 2 (1 - d)``, the slope ``e`` follows from the mean seek: the rest is
        fixed by the first track, the full stroke, and continuity.
        """
        d, root = SHORT, math.sqrt(SHORT)
        short_one = 2 * d - d * d
        short_root = 2 * (2 / 3 * d**1.5 - 2 / 5 * d**2.5)
        long_one = 1 - short_one
        long_d = (1 - 2 / 3) - (d * d - 2 / 3 * d**3)
        first, full = self.track_to_track, self.full_stroke
        known = first * short_one + (full - first) / root * short_root + full * long_one
        slope = (self.average_seek - known) / (long_d - long_one - (1 - d) / root * short_root)
        c = full - slope
        return SeekCurve(a=first, b=(c + slope * d - first) / root, c=c, e=slope)

    def rate(self, place: float) -> float:
        """Sustained bytes per second at a position, from 0 to 1."""
        zone = min(int(place * self.zones), self.zones - 1)
        step = (self.inner_rate - self.outer_rate) / max(self.zones - 1, 1)
        return self.outer_rate + step * zone


@dataclass(frozen=True, slots=True, kw_only=True)
class SolidStateDrive:
    """All values of a solid-state disk; see ``SsdParameters``."""

    source: str
    """Where the values come from."""
    overhead: float
    read_latency: float
    write_latency: float
    flush_latency: float
    channels: int
    page: int
    gc_after: int
    gc_stall: float
    write_cache: int
    link_rate: float
    link_command: float = 0.0
    wake_after: float = 0.0
    wake: float = 0.0
    certificate: str = ""
    """As ``HardDrive.certificate``."""


def integers(drive: HardDrive | SolidStateDrive, serial: str) -> Parameters:
    """The drive as the timing core takes it; ``serial`` decides the platters' start position."""
    if isinstance(drive, SolidStateDrive):
        return Parameters(
            kind=Kind.SSD,
            overhead=_nanoseconds(drive.overhead),
            link_rate=round(drive.link_rate),
            cache=drive.write_cache,
            read_latency=_nanoseconds(drive.read_latency),
            write_latency=_nanoseconds(drive.write_latency),
            flush_latency=_nanoseconds(drive.flush_latency),
            channels=drive.channels,
            page=drive.page,
            gc_bytes=drive.gc_after,
            gc_stall=_nanoseconds(drive.gc_stall),
            link_command=_nanoseconds(drive.link_command),
            wake_after=_nanoseconds(drive.wake_after),
            wake=_nanoseconds(drive.wake),
        )
    curve = drive.seek_curve
    return Parameters(
        kind=Kind.HDD,
        seed=drive.seed + crc32(serial.encode()) % 100_000,
        overhead=_nanoseconds(drive.overhead),
        link_rate=round(drive.link_rate),
        cache=drive.write_cache,
        revolution=_nanoseconds(drive.revolution),
        seek_a=_nanoseconds(curve.a),
        seek_b=_nanoseconds(curve.b),
        seek_c=_nanoseconds(curve.c),
        seek_e=_nanoseconds(curve.e),
        seek_limit=round(curve.limit * LIMIT_ONE),
        write_settle=_nanoseconds(drive.write_settle),
        outer_rate=round(drive.outer_rate),
        inner_rate=round(drive.inner_rate),
        zones=drive.zones,
        read_ahead=drive.read_ahead,
        queue_depth=drive.queue_depth,
        ageing=round(drive.ageing * 1e6),
        link_command=_nanoseconds(drive.link_command),
        lead=drive.lead,
        oldest_share=round(drive.oldest_share * 1e6),
        write_places=drive.write_places,
        write_choice=drive.write_choice,
        wake_after=_nanoseconds(drive.wake_after),
        wake=_nanoseconds(drive.wake),
        seek_only=drive.seek_only,
    )


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
