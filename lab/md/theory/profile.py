"""Fits a drive model's values to the reads of a real disk, and measures how well the model matches.

A small read after a seek takes command, seek, rotational wait and transfer. The wait is uniform
over a revolution, so its variance gives the length of the revolution; the seek is the rest of the
mean. The seek curve is linear in the data sheet's three values, so least squares find them. C.
Ruemmler and J. Wilkes measure drives in this way, "An introduction to disk drive modeling", IEEE
Computer 27(3), 1994.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Final, TypeVar

from lab.core.errors import ToolError
from lab.md.theory.drive import LARGE, SMALL, random_read_rate, sequential_read_rate
from lab.model.scenario.drive import HardDrive, HddParameters, SolidStateDrive, SsdParameters
from lab.model.scenario.profile import Jumps, Point, Profile, Samples, ZoneRate

D = TypeVar("D", HardDrive, SolidStateDrive)

SPEEDS: Final = (4200, 5400, 5900, 7200, 10_000, 15_000)
"""Usual revolutions per minute of drives."""
SNAP: Final = 0.04
"""Relative difference up to which a speed counts as one of those."""
OUTLIER: Final = 1.6
"""Revolutions after the fastest read above which a read had more than one rotational wait."""
LEVEL: Final = 0.97
"""Zones above this fraction of the fastest rate count as equally fast."""
SLOPE: Final = 0.9
"""If the last zone is slower than this fraction of the fastest, it shows the medium's rate."""
QUEUE: Final = 1.15
"""A disk that is faster by this factor with sixteen requests reorders them."""
CHANNELS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
_HDD_ASSUMED: Final = ("write_settle", "write_cache", "ageing", "zones")
_SSD_ASSUMED: Final = ("write_latency", "flush_latency", "page", "gc_after", "gc_stall")
_HALVINGS: Final = 25


def fit(samples: Samples, hdd: HardDrive, ssd: SolidStateDrive) -> Profile:
    """Return a profile; values that reads do not show come from the presets ``hdd`` and ``ssd``.

    ``ToolError``: no drive of the model matches.
    """
    fitted = half_of(samples)
    if samples.rotational:
        drive, assumed = fit_hdd(samples, hdd)
        tested = _tried(lambda: fit_hdd(fitted, hdd)[0])
        own = asdict(drive)
        own.pop("source"), own.pop("seed"), own.pop("certificate")
        return Profile(
            kind="hdd",
            hdd=HddParameters.model_validate(own),
            assumed=assumed,
            points=_marked(hdd_points(samples, tested or drive), fitted if tested else samples),
            samples=samples,
        )
    solid = fit_ssd(samples, ssd)
    tested_ssd = _tried(lambda: fit_ssd(fitted, ssd))
    own = asdict(solid)
    own.pop("source"), own.pop("certificate")
    return Profile(
        kind="ssd",
        ssd=SsdParameters.model_validate(own),
        assumed=_SSD_ASSUMED,
        points=_marked(ssd_points(samples, tested_ssd or solid), fitted if tested_ssd else samples),
        samples=samples,
    )


def half_of(samples: Samples) -> Samples:
    """Return every other zone and distance, and every other read of the rest."""
    return samples.model_copy(
        update={
            "zones": samples.zones[::2],
            "jumps": samples.jumps[::2],
            "near": samples.near[::2] if len(samples.near) >= 4 else samples.near,
            "random": samples.random[::2] if len(samples.random) >= 4 else samples.random,
        }
    )


def _tried(fit: Callable[[], D]) -> D | None:
    """Return the drive that half of the samples give; ``None``: they are too few."""
    try:
        return fit()
    except ToolError:
        return None


def _marked(points: Iterable[Point], fitted: Samples) -> tuple[Point, ...]:
    """Return the points, each with whether these samples have it. Random reads of a hard disk are
    not fitted: seeks and streams predict them."""
    known = {_zone_name(z) for z in fitted.zones} | {_jump_name(j) for j in fitted.jumps}
    return tuple(
        p.model_copy(update={"fitted": p.name in known or (not fitted.rotational)}) for p in points
    )


def _zone_name(zone: ZoneRate) -> str:
    return f"stream at {zone.place:.0%}"


def _jump_name(jumps: Jumps) -> str:
    return f"read after a jump over {jumps.distance:.1%}"


def fit_hdd(samples: Samples, preset: HardDrive) -> tuple[HardDrive, tuple[str, ...]]:
    """Return the hard disk, and the names of its values that are the preset's."""
    if len(samples.jumps) < 3:
        raise ToolError("a seek curve needs jumps over three distances or more")
    outer, inner, cable = _rates(samples, preset.zones)
    overhead = max(statistics.median(samples.near) - SMALL / outer, 0.0)
    kept = [_single(j.seconds, _spread_of(j.seconds)) for j in samples.jumps]
    turn = _revolution(kept, ())
    kept = [_single(j.seconds, turn) for j in samples.jumps]
    turn = _snapped(_revolution(kept, _single(samples.near, turn)))
    rest = overhead + turn / 2 + SMALL / ((outer + inner) / 2)
    seeks = [statistics.fmean(times) - rest for times in kept]
    first, average, full = seek_curve([j.distance for j in samples.jumps], seeks, preset)
    assumed = list(_HDD_ASSUMED)
    drive = replace(
        preset,
        source="measured",
        rpm=60 / turn,
        overhead=overhead,
        track_to_track=first,
        average_seek=average,
        full_stroke=full,
        outer_rate=round(outer),
        inner_rate=round(inner),
        link_rate=round(cable or max(preset.link_rate, outer)),
    )
    if cable is None:
        assumed.append("link_rate")
    if samples.read_ahead is None:
        assumed.append("read_ahead")
    else:
        drive = replace(drive, read_ahead=samples.read_ahead)
    if samples.random_16 is None:
        assumed.append("queue_depth")
    elif samples.random_16 * statistics.fmean(samples.random) < QUEUE:
        drive = replace(drive, queue_depth=1, ageing=0.0)
    curve = drive.seek_curve
    if not first <= average <= full or curve.b < 0 or curve.e < 0:
        raise ToolError(
            f"no arm moves like this: {first * 1000:.2f} ms to the next track, "
            f"{average * 1000:.2f} ms on average, {full * 1000:.2f} ms over all of the disk",
            hint="was the disk used by others meanwhile? measure it again, and for longer",
        )
    return drive, tuple(assumed)


def fit_ssd(samples: Samples, preset: SolidStateDrive) -> SolidStateDrive:
    """Return the solid-state disk.

    A single read takes the controller and then a channel. Of many reads, those on the same channel
    wait. For each number of channels one ratio of the two times gives the measured rate. The
    stream's rate decides the number of channels.
    """
    if samples.random_16 is None or samples.large_16 is None:
        raise ToolError("channels show in reads sixteen at a time, and none were measured")
    link = max(round(samples.large_16), 1)
    alone = max(statistics.median(samples.random) - SMALL / link, 1e-9)
    stream = statistics.median(z.rate for z in samples.zones)
    found: list[tuple[float, SolidStateDrive]] = []
    for channels in CHANNELS:
        low, high = 0.0, alone
        for _ in range(_HALVINGS):
            latency = (low + high) / 2
            drive = replace(
                preset,
                source="measured",
                overhead=alone - latency,
                read_latency=latency,
                channels=channels,
                link_rate=link,
            )
            if random_read_rate(drive, 16, requests=500) > samples.random_16:
                low = latency
            else:
                high = latency
        off = abs(random_read_rate(drive, 16) / samples.random_16 - 1)
        off += abs(sequential_read_rate(drive, 0.0, block=LARGE) / stream - 1)
        found.append((off, drive))
    return min(found, key=lambda one: one[0])[1]


def hdd_points(samples: Samples, drive: HardDrive) -> tuple[Point, ...]:
    """Return the model's value for every measured value."""
    points = [
        Point(
            name=_zone_name(z),
            group="streams: rate",
            unit="bytes_per_second",
            measured=z.rate,
            model=sequential_read_rate(drive, z.place),
        )
        for z in samples.zones
    ]
    rest = drive.overhead + drive.revolution / 2 + SMALL / drive.rate(0.5)
    points += [
        Point(
            name=_jump_name(j),
            group="reads after a jump: mean",
            unit="seconds",
            measured=statistics.fmean(_single(j.seconds, drive.revolution)),
            model=rest + drive.seek_curve(j.distance),
        )
        for j in samples.jumps
    ]
    return (*points, *_random_points(samples, drive))


def ssd_points(samples: Samples, drive: SolidStateDrive) -> tuple[Point, ...]:
    """Return the model's value for every measured value."""
    stream = Point(
        name="stream",
        group="streams: rate",
        unit="bytes_per_second",
        measured=statistics.median(z.rate for z in samples.zones),
        model=sequential_read_rate(drive, 0.0),
    )
    return (stream, *_random_points(samples, drive))


def _random_points(samples: Samples, drive: HardDrive | SolidStateDrive) -> list[Point]:
    alone = 1 / statistics.fmean(samples.random)
    points = [
        Point(
            name="random reads, one at a time",
            group="random reads: rate",
            unit="per_second",
            measured=alone,
            model=random_read_rate(drive, 1),
        )
    ]
    if samples.random_16 is not None:
        points.append(
            Point(
                name="random reads, sixteen at a time",
                group="random reads: rate",
                unit="per_second",
                measured=samples.random_16,
                model=random_read_rate(drive, 16),
            )
        )
    return points


def _rates(samples: Samples, zones: int) -> tuple[float, float, float | None]:
    """Return the rates of the first and the last zone, by a straight line through the measured
    rates.

    Also return the cable's rate if it is slower than the outer zones; ``None``: it is not. Then the
    outer zones have equal rates, and the line goes through the others.
    """
    fastest = max(z.rate for z in samples.zones)
    level = [z.rate for z in samples.zones if z.rate >= LEVEL * fastest]
    slower = [z for z in samples.zones if z.rate < LEVEL * fastest]
    bound = len(level) >= 3 and len(slower) >= 2 and slower[-1].rate < SLOPE * fastest
    chosen = slower if bound else samples.zones
    # The model's rate is that of a zone, by its number from 0 to zones - 1.
    at = [min(int(z.place * zones), zones - 1) / max(zones - 1, 1) for z in chosen]
    slope, start = statistics.linear_regression(at, [z.rate for z in chosen])
    outer, inner = max(start, start + slope), min(start, start + slope)
    if inner <= 0:
        raise ToolError("the disk's rates fall to nothing, which no drive's do: measure it again")
    return outer, inner, statistics.fmean(level) if bound else None


def _spread_of(times: Sequence[float]) -> float:
    """Return a first guess of the revolution: 1.25 times the middle four fifths of the waits."""
    ordered = sorted(times)
    tenth = len(ordered) // 10
    return (ordered[-1 - tenth] - ordered[tenth]) * 1.25


def _single(times: Sequence[float], turn: float) -> list[float]:
    """Return the reads with a single wait: without a missed position or another delay."""
    fastest = min(times)
    return [t for t in times if t <= fastest + OUTLIER * turn] if turn else list(times)


def _revolution(groups: Sequence[Sequence[float]], still: Sequence[float]) -> float:
    """Return seconds of a revolution: the variance of a uniform wait is its square divided by
    twelve.

    ``still`` are reads without a rotational wait. Their variance is the host's, and is subtracted.
    """
    own = statistics.variance(still) if len(still) > 1 else 0.0
    total = sum(statistics.variance(g) * (len(g) - 1) for g in groups if len(g) > 1)
    freedom = sum(len(g) - 1 for g in groups)
    turn = float(max(12 * (total / max(freedom, 1) - own), 0.0) ** 0.5)
    if turn <= 0:
        raise ToolError("every read took as long as the others: nothing turns in this disk")
    return turn


def _snapped(turn: float) -> float:
    nearest = min(SPEEDS, key=lambda speed: abs(60 / speed - turn))
    return 60 / nearest if abs(turn * nearest / 60 - 1) <= SNAP else turn


def seek_curve(
    distances: Sequence[float], seeks: Sequence[float], preset: HardDrive
) -> tuple[float, float, float]:
    """Return seconds to the next track, on average and over the full stroke, by least squares.

    ``distances``: parts of the stroke.
    """
    units = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    curves = [
        replace(preset, track_to_track=a, average_seek=b, full_stroke=c).seek_curve
        for a, b, c in units
    ]
    rows = [[curve(d) for curve in curves] for d in distances]
    left = [[sum(r[i] * r[j] for r in rows) for j in range(3)] for i in range(3)]
    right = [sum(r[i] * s for r, s in zip(rows, seeks, strict=True)) for i in range(3)]
    whole = _determinant(left)
    if not whole:
        raise ToolError("the jumps are too much alike to tell a seek curve")
    found = []
    for column in range(3):
        changed = [[right[i] if j == column else left[i][j] for j in range(3)] for i in range(3)]
        found.append(_determinant(changed) / whole)
    first, average, full = found
    return max(first, 0.0), average, full


def _determinant(m: Sequence[Sequence[float]]) -> float:
    return (
        m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
        - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
        + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
    )
