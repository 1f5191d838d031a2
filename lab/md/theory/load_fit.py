"""Fits a modelled drive to results of fio: random requests in closed loops, on ``drive/drive.h``.

The values are few, and each has a meaning of its own (``lab.model.scenario.drive``). Half of the
loads are fitted, the others test the result. The search changes one value at a time by a factor,
and halves the factor when no change helps (R. Hooke and T. A. Jeeves, "Direct search solution of
numerical and statistical problems", J. ACM 8(2), 1961). The error of a rate counts with 5 % as its
unit, that of a percentile with 15 %. Large errors count less than by their square, so a run with a
disturbance does not decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Final, TypeVar

from drive.loop import Answers, Core, Loop
from lab.core.errors import InputError
from lab.core.units import MIB
from lab.model.scenario.drive import (
    HardDrive,
    HddParameters,
    SolidStateDrive,
    SsdParameters,
    integers,
)
from lab.model.scenario.profile import Load, Point, Profile

Drive = HardDrive | SolidStateDrive
D = TypeVar("D", HardDrive, SolidStateDrive)

TURNS: Final = 0.0015
"""Seconds of a single random read above which a disk rotates."""
SPEEDS: Final = ((0.009, 7200.0), (0.006, 10_000.0), (0.0, 15_000.0))
"""Seconds of a single random read from which a drive has so many revolutions per minute. Loads show
an arm and platters together only, so this is assumed if nobody says better."""
HOST: Final = 5e-6
"""Seconds of the host from an answer to the next request, if fio's results do not show them."""
SATA: Final = 540_000_000
"""Bytes per second of a SATA cable at 6 Gbit/s."""
SIZES: Final = {True: 10**12, False: 256 * 10**9}
"""Bytes of a disk whose size nobody says, by whether it rotates."""
DEEPEST: Final = 32
"""Requests in flight above which loads are not used: the kernel's queue holds the others."""
RATE: Final = 0.05
PERCENTILE: Final = 0.15
JUDGED: Final = (50.0, 99.0)
"""Percentiles that are compared; single requests of a hard disk show all of ``SHAPE``."""
SHAPE: Final = (5.0, 10.0, 25.0, 30.0, 70.0, 75.0, 90.0, 95.0)
_PAGE: Final = 4096
_SEARCH: Final = 2500
"""Requests of a simulated load during the search; a mean of so many has an error of about 1 %."""
_WHOLE: Final = 20_000
_THREADS: Final = 6
_FLUSHES: Final = 60
_PLACES: Final = (16, 64, 256, 1024)
_CHOICES: Final = (0, 2, 8, 32, 128)
_LEADS: Final = (0, 1, 2, 4, 8)
_QUEUES: Final = (16, 8)
_CHANNELS: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128)
_LEAST_GC: Final = 32 * _PAGE
_EXCESS: Final = 1.15
"""A first run of writes that is faster by this factor than later ones filled an empty cache."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A drive, and what the loads do not show of it."""

    drive: Drive
    assumed: tuple[str, ...]


def fit_loads(
    core: Core,
    loads: Sequence[Load],
    *,
    hdd: HardDrive,
    ssd: SolidStateDrive,
    size: int | None = None,
    rpm: float | None = None,
) -> Profile:
    """Return a profile from fio's results; values that they do not show come from the presets.

    ``InputError``: too few loads. ``size``: bytes of the disk; seeks are fractions of the stroke,
    so it matters little.
    """
    loads = chosen(loads)
    half = halves(loads)
    known = [load for load, fitted in zip(loads, half, strict=True) if fitted]
    turns = rotates(loads)
    size = size or SIZES[turns]
    bench = _Bench(core, size, known, _hosts(known))
    found = _fit_hdd(bench, hdd, rpm) if turns else _fit_ssd(bench, ssd)
    own = asdict(found.drive)
    for name in ("source", "seed", "certificate"):
        own.pop(name, None)
    return Profile(
        kind="hdd" if turns else "ssd",
        hdd=HddParameters.model_validate(own) if turns else HddParameters(),
        ssd=SsdParameters() if turns else SsdParameters.model_validate(own),
        assumed=found.assumed,
        points=points_of(core, found.drive, loads, half, size),
    )


def rotates(loads: Sequence[Load]) -> bool:
    """Return whether single reads, or the fewest at a time, take as long as those of platters."""
    reads = [x for x in loads if x.read_share == 1] or list(loads)
    least = min(reads, key=lambda x: x.total)
    return least.total / least.rate > TURNS


def chosen(loads: Sequence[Load]) -> list[Load]:
    """Return the loads that are used, each with the state of the write cache at its start.

    Writes of several jobs are left out if there are enough of one: fio gives the jobs of each run
    the same random positions as those of the previous one, so a large cache already has them.
    ``InputError``: there are too few depths.
    """
    in_time = sorted(loads, key=lambda x: x.begins or 0.0)
    before: Load | None = None
    found = []
    for load in in_time:
        full = (
            before is not None
            and before.read_share < 1
            and load.begins is not None
            and before.begins is not None
            and load.begins - before.begins < before.seconds + 60
        )
        found.append(load.model_copy(update={"full": full}))
        before = load
    found = [x for x in found if x.total <= DEEPEST]
    for share in (1.0, 0.0):
        ones = [x for x in found if x.read_share == share and x.jobs == 1 and not x.flush_every]
        if share == 0 and len({x.depth for x in ones}) >= 3:
            found = [x for x in found if x.read_share != share or x.jobs == 1]
    found.sort(key=lambda x: (-x.read_share, x.flush_every, x.block, x.jobs, x.depth))
    depths = {x.total for x in found if x.read_share == 1 and not x.flush_every}
    if not depths:
        raise InputError(
            "no random reads were found: expected fio's results with rw=randread",
            hint="measure them at depths 1, 2, 4, 8, 16 and 32: fio --rw=randread --iodepth=…",
        )
    if len(depths) < 3:
        only = " and ".join(str(d) for d in sorted(depths))
        raise InputError(
            f"random reads have {'one depth' if len(depths) == 1 else 'two depths'} only, {only}: "
            "expected three or more, since half of the results test the fit",
            hint="measure them at depths 1, 2, 4, 8, 16 and 32",
        )
    return found


def halves(loads: Sequence[Load]) -> list[bool]:
    """Return for each load whether it is fitted: every other depth of each operation and number of
    jobs, from the least on."""
    seen: dict[tuple[float, int, int, int], int] = {}
    found = []
    for load in loads:
        key = (load.read_share, load.flush_every and 1, load.block, load.jobs)
        seen[key] = seen.get(key, -1) + 1
        found.append(seen[key] % 2 == 0)
    return found


def points_of(
    core: Core, drive: Drive, loads: Sequence[Load], half: Sequence[bool], size: int
) -> tuple[Point, ...]:
    """Return the measured and the modelled values of all loads."""
    known = [load for load, fitted in zip(loads, half, strict=True) if fitted]
    bench = _Bench(core, size, known, _hosts(known))
    points: list[Point] = []
    for load, fitted in zip(loads, half, strict=True):
        for (group, unit), (measured, model) in bench.compared(drive, load, _WHOLE).items():
            points.append(
                Point(
                    name=load.name,
                    group=group,
                    fitted=fitted,
                    unit="per_second" if unit == "per_second" else "seconds",
                    measured=measured,
                    model=model,
                )
            )
    return tuple(sorted(points, key=lambda p: _ORDER.index(p.group)))


_KINDS: Final = ("reads", "writes", "mixed", "writes with flushes")
_ORDER: Final = (
    *(f"{kind}: {what}" for kind in _KINDS for what in ("rate", "median", "99th percentile")),
    *("flushes: median", "flushes: 99th percentile"),
)
_NAMES: Final = {50.0: "median", 99.0: "99th percentile"}


def _kind(load: Load) -> str:
    if load.flush_every:
        return _KINDS[3]
    return {1.0: _KINDS[0], 0.0: _KINDS[1]}.get(load.read_share, _KINDS[2])


def _hosts(loads: Sequence[Load]) -> dict[str, float]:
    """Return the host's seconds per request by kind of load: what a request's latency leaves of
    its time, in the load with the fewest in flight."""
    found = {}
    for load in sorted(loads, key=lambda x: -x.total):
        if load.mean is not None:
            found[_kind(load)] = max(load.total / load.rate - load.mean, 0.0)
    return found


class _Bench:
    """Runs loads on the timing core, and compares them with what was measured."""

    def __init__(
        self, core: Core, size: int, loads: Sequence[Load], host: Mapping[str, float]
    ) -> None:
        self._core, self._size, self._host = core, size, host
        self._threads = ThreadPoolExecutor(_THREADS)  # the core runs without Python's lock
        self.loads = loads

    def host(self, load: Load) -> float:
        """Return seconds of the host from an answer to the next request."""
        return self._host.get(_kind(load), HOST)

    def of(self, *kinds: str) -> list[Load]:
        return [x for x in self.loads if _kind(x) in kinds]

    def compared(
        self, drive: Drive, load: Load, most: int
    ) -> Mapping[tuple[str, str], tuple[float, float]]:
        """Return measured and modelled values by group and unit."""
        kind = _kind(load)
        if load.flush_every:
            return self._flushes(drive, load)
        answers = self._closed(drive, load, most)
        found = {(f"{kind}: rate", "per_second"): (load.rate, answers.rate)}
        times = sorted(answers.reads or answers.writes)
        for percentile in JUDGED:
            if percentile in load.percentiles and kind != "mixed" and times:
                name = (f"{kind}: {_NAMES[percentile]}", "seconds")
                found[name] = (load.percentiles[percentile], _at(times, percentile))
        return found

    def _flushes(self, drive: Drive, load: Load) -> Mapping[tuple[str, str], tuple[float, float]]:
        times = self._core.flush(
            integers(drive, "drive"),
            self._size,
            load.flush_every,
            pause=0.0 if load.flush_every == 1 else 0.1,
            count=_FLUSHES if isinstance(drive, HardDrive) else 1000,
        )
        found = {}
        for percentile in JUDGED:
            if percentile in load.flushes and (percentile == 50 or len(times) > 500):
                name = (f"flushes: {_NAMES[percentile]}", "seconds")
                found[name] = (load.flushes[percentile], _at(sorted(times), percentile))
        return found

    def _closed(self, drive: Drive, load: Load, most: int) -> Answers:
        turns = isinstance(drive, HardDrive)
        warm = 0
        if load.read_share < 1 and load.full and isinstance(drive, HardDrive):
            pages = drive.write_cache // _PAGE
            places = min(drive.write_places or pages, pages)
            warm = round(places * 1.3) + load.total
        elif load.read_share < 1 and not load.full:
            most = max(most, round(load.rate * load.seconds * 1.2)) if turns else most
        loop = Loop(
            depth=load.total,
            block=load.block,
            read_share=load.read_share,
            think=self.host(load),
            span=load.span,
            warm=warm,
            count=min(most, 200_000),
            limit=load.seconds,
        )
        return self._core.closed(integers(drive, "drive"), self._size, loop)

    def cost(self, drive: Drive, loads: Sequence[Load], *, shape: bool = False) -> float:
        """Return the mean of all errors, each in its unit; infinite: no such drive."""
        if isinstance(drive, HardDrive) and not _moves(drive):
            return math.inf
        try:
            found = list(self._threads.map(lambda x: self._off(drive, x, shape=shape), loads))
        except ValueError:
            return math.inf
        return sum(map(sum, found)) / max(sum(map(len, found)), 1)

    def _off(self, drive: Drive, load: Load, *, shape: bool) -> list[float]:
        """Return the squares of a load's errors in their units; large ones count less."""
        pairs = dict(self.compared(drive, load, _SEARCH))
        if shape and load.total == 1:
            times = sorted(self._closed(drive, load, _SEARCH).reads)
            more = (p for p in SHAPE if p in load.percentiles)
            pairs |= {(str(p), "seconds"): (load.percentiles[p], _at(times, p)) for p in more}
        found = []
        for (_, unit), (measured, model) in pairs.items():
            scale = RATE if unit == "per_second" else PERCENTILE
            off = (math.log(max(model, 1e-9) / measured) / scale) ** 2
            found.append(off / (1 + off / 25))
        return found


def _at(times: Sequence[float], percentile: float) -> float:
    return times[min(int(len(times) * percentile / 100), len(times) - 1)]


def _moves(drive: HardDrive) -> bool:
    """Return whether the arm's times make a seek curve."""
    curve = drive.seek_curve
    ordered = 0 <= drive.track_to_track <= drive.average_seek <= drive.full_stroke
    return ordered and curve.b >= 0 and curve.e >= 0


_UNITS: Final = {"write_settle": 0.002, "oldest_share": 0.05, "track_to_track": 0.001}
"""A step of a value is this times the search's step at least, since the value may be 0."""


def _search(
    start: D, names: Sequence[str], cost: Callable[[D], float], *, step: float, rounds: int
) -> tuple[float, D]:
    """Return the least cost and its drive, by changing one value at a time."""
    best, least = start, cost(start)
    for _ in range(rounds):
        moved = False
        for name in names:
            value = getattr(best, name)
            unit = max(value, _UNITS.get(name, 0.0)) * step
            for sign in (1, -1):
                changed = value + sign * unit
                if changed < 0 or (name == "oldest_share" and changed > 1):
                    continue
                if name == "gc_after":
                    changed = max(round(changed), _LEAST_GC)
                drive = replace(best, **{name: changed})
                found = cost(drive)
                if found < least:
                    best, least, moved = drive, found, True
                    break
        if not moved:
            step /= 2
    return least, best


# --- hard disks -----------------------------------------------------------------------------------


def _fit_hdd(bench: _Bench, preset: HardDrive, rpm: float | None) -> Fitted:
    reads, assumed = bench.of("reads"), ["outer_rate", "inner_rate", "read_ahead", "link_rate"]
    writes, flushes = bench.of("writes"), bench.of("writes with flushes")
    overhead = preset.overhead
    cached = [x.percentiles[50.0] for x in writes if x.total == 1 and 50.0 in x.percentiles]
    if cached and cached[0] < TURNS:  # a cache takes single writes at once
        overhead = max(cached[0] - _PAGE / preset.link_rate, 0.0)
    else:
        assumed.append("overhead")
    start = replace(
        preset,
        source="measured",
        certificate="",
        overhead=overhead,
        write_settle=0.0,
        ageing=0.0,
        lead=0,
        oldest_share=0.0,
        seek_only=0,
        write_places=0,
        write_choice=0,
    )
    least = min(reads, key=lambda x: x.total)
    if rpm is None:
        single = least.total / least.rate
        rpm = next(speed for seconds, speed in SPEEDS if single >= seconds)
        assumed.append("rpm")
    start = _arm(bench, replace(start, rpm=rpm), least)
    everything = (*_few(reads), *_later(writes), *flushes, *bench.of("mixed"))
    names: tuple[str, ...] = ("average_seek", "full_stroke", "track_to_track", "oldest_share")
    if writes or flushes:
        names = (*names, "write_settle")

    def found(seek_only: int) -> tuple[float, HardDrive]:
        drive = _queue(bench, replace(start, seek_only=seek_only), reads)
        if writes or flushes:
            drive = _cache(bench, drive, writes, flushes)
        return _search(drive, names, lambda d: bench.cost(d, everything), step=0.1, rounds=5)

    # Writes tell these apart, since they show what short seeks take.
    _, drive = min(found(0), found(1), key=lambda one: one[0])
    if not (writes or flushes):
        assumed += ["write_cache", "write_settle", "write_places", "write_choice"]
        drive = replace(drive, write_settle=preset.write_settle)
    return Fitted(_rounded_hdd(drive), tuple(assumed))


def _few(loads: Sequence[Load]) -> list[Load]:
    """Return one load for each number of requests in flight: that of the fewest jobs."""
    found: dict[int, Load] = {}
    for load in sorted(loads, key=lambda x: x.jobs):
        found.setdefault(load.total, load)
    return list(found.values())


def _arm(bench: _Bench, start: HardDrive, load: Load) -> HardDrive:
    """Return the drive with an arm that fits the fewest requests in flight."""
    seek = load.total / load.rate - start.overhead - start.revolution / 2
    if seek <= 0:
        raise InputError(
            f"single reads take {load.total / load.rate * 1000:.1f} ms, less than half a revolution"
            f" at {start.rpm:g} per minute: give the drive's speed with --rpm"
        )
    _, found = _search(
        replace(start, track_to_track=0.15 * seek, average_seek=seek, full_stroke=1.8 * seek),
        ("average_seek", "full_stroke", "track_to_track"),
        lambda d: bench.cost(d, (load,), shape=True),
        step=0.2,
        rounds=8,
    )
    return found


def _queue(bench: _Bench, start: HardDrive, reads: Sequence[Load]) -> HardDrive:
    """Return the drive with the queue that fits reads at all depths."""
    some, names = _few(reads), ("oldest_share", "average_seek", "track_to_track", "full_stroke")

    def tried(drive: HardDrive) -> tuple[float, HardDrive]:
        return _search(drive, names, lambda d: bench.cost(d, some), step=0.4, rounds=5)

    found = [tried(replace(start, lead=lead, oldest_share=0.1)) for lead in _LEADS]
    least, best = min(found, key=lambda one: one[0])
    found = [tried(replace(best, queue_depth=depth)) for depth in _QUEUES]
    _, best = min([(least, best), *found], key=lambda one: one[0])
    return _search(best, names, lambda d: bench.cost(d, some, shape=True), step=0.1, rounds=4)[1]


def _later(writes: Sequence[Load]) -> list[Load]:
    """Return writes without a first run that shows how much an empty cache took."""
    first = [x for x in writes if not x.full]
    full = [x.rate for x in writes if x.full]
    if len(first) == 1 and full and first[0].rate > _EXCESS * max(full):
        return [x for x in writes if x.full]
    return list(writes)


def _cache(
    bench: _Bench, start: HardDrive, writes: Sequence[Load], flushes: Sequence[Load]
) -> HardDrive:
    """Return the drive with the write cache that fits writes and flushes.

    A first run that is faster than later ones shows the cache's size: what it took beyond their
    rate.
    """
    empty = [x for x in writes if not x.full]
    full = [x.rate for x in writes if x.full]
    places: Sequence[int] = _PLACES
    if len(_later(writes)) < len(writes):
        taken = (empty[0].rate - sorted(full)[len(full) // 2]) * empty[0].seconds
        places = (min(round(taken), 60_000),)
    best, least = start, math.inf
    loads = (*_later(writes), *flushes)
    names = ("write_settle", "track_to_track") if len(places) == 1 else ("write_settle",)
    for most in places:
        size = max(start.write_cache, -(-most * _PAGE // MIB) * MIB)
        for choice in _CHOICES:
            if choice > 8 and len(places) == 1:  # a large cache is sorted by place
                continue
            drive = replace(start, write_places=most, write_choice=choice, write_cache=size)
            cost, found = _search(
                drive,
                names,
                lambda d: bench.cost(d, loads),
                step=0.5,
                rounds=4,
            )
            if cost < least:
                best, least = found, cost
    return best


def _rounded_hdd(drive: HardDrive) -> HardDrive:
    times = ("overhead", "track_to_track", "average_seek", "full_stroke", "write_settle")
    rounded = {name: round(getattr(drive, name), 6) for name in times}
    return replace(drive, oldest_share=round(drive.oldest_share, 4), **rounded)


# --- solid-state disks ----------------------------------------------------------------------------


def _fit_ssd(bench: _Bench, preset: SolidStateDrive) -> Fitted:
    reads = _few(bench.of("reads"))
    writes = [x for x in bench.of("writes") if x.block == _PAGE]
    assumed = ["page", "link_rate", "write_cache"]
    fastest = max(x.rate * x.block for x in bench.loads)
    start = replace(
        preset,
        source="measured",
        certificate="",
        page=_PAGE,
        link_rate=max(SATA, round(2 * fastest)),
        wake=0.0,
        gc_after=0,
        gc_stall=0.0,
    )
    drive = _reads(bench, start, reads)
    if writes:
        drive = _writes(bench, drive, writes)
    else:
        assumed += ["write_latency"]
        drive = replace(drive, gc_after=preset.gc_after, gc_stall=preset.gc_stall)
        assumed += ["gc_after", "gc_stall"]
    flushes = [x for x in bench.of("writes with flushes") if 50.0 in x.flushes]
    if flushes:
        drive = replace(drive, flush_latency=max(flushes[0].flushes[50.0] - drive.overhead, 0.0))
    else:
        assumed.append("flush_latency")
    times = ("overhead", "read_latency", "write_latency", "flush_latency", "link_command", "wake")
    rounded = {name: round(getattr(drive, name), 8) for name in times}
    whole = round(drive.gc_after / _PAGE) * _PAGE
    drive = replace(drive, gc_stall=round(drive.gc_stall, 6), gc_after=whole, **rounded)
    return Fitted(drive, tuple(assumed))


def _reads(bench: _Bench, start: SolidStateDrive, loads: Sequence[Load]) -> SolidStateDrive:
    """Return the drive whose channels and cable fit reads; the controller's time is the rest of a
    single read's.

    A drive that is more than twice as fast with two requests as with one wakes for each of a few.
    """
    ordered = sorted(loads, key=lambda x: x.total)
    one = ordered[0]
    top = max(x.rate for x in loads)
    least, best = math.inf, start
    two = [x for x in ordered if x.total == 2 * one.total]
    wakes = [0.0]
    if two and two[0].rate > 2.1 * one.rate:
        wakes.append(one.total / one.rate - two[0].total / two[0].rate)
    bound = max(1 / top - _PAGE / start.link_rate, 1e-7)
    host = bench.host(one)
    writes = [x for x in bench.of("writes") if x.block == _PAGE]
    single = min(writes, key=lambda x: x.total, default=None)
    most = math.inf  # a write takes the controller's time too
    if single:
        most = single.total / single.rate - bench.host(single) - _PAGE / start.link_rate
    for channels in _CHANNELS:
        for wake in wakes:
            whole = one.total / one.rate - host - _PAGE / start.link_rate

            def made(
                drive: SolidStateDrive,
                whole: float = whole,
                channels: int = channels,
            ) -> SolidStateDrive:
                rest = whole - drive.read_latency - drive.link_command - drive.wake
                return replace(drive, overhead=rest, channels=channels)

            def cost(
                drive: SolidStateDrive,
                made: Callable[[SolidStateDrive], SolidStateDrive] = made,
            ) -> float:
                whole = made(drive)
                used = whole.overhead + whole.link_command
                return bench.cost(whole, loads) if 0 <= whole.overhead < used <= most else math.inf

            found_cost, found = _search(
                replace(
                    start,
                    read_latency=0.7 * (whole - wake),
                    link_command=min(bound, 0.2 * whole),
                    wake=wake,
                ),
                ("read_latency", "link_command", "wake")
                if wake
                else ("read_latency", "link_command"),
                cost,
                step=0.3,
                rounds=16,
            )
            if found_cost < least:
                least, best = found_cost, made(found)
    return best


def _writes(bench: _Bench, start: SolidStateDrive, loads: Sequence[Load]) -> SolidStateDrive:
    """Return the drive with writes: a channel's time, and stops for garbage collection."""
    one = min(loads, key=lambda x: x.total)
    used = start.overhead + start.link_command + start.wake + _PAGE / start.link_rate
    base = max(one.total / one.rate - bench.host(one) - used, 1e-6)
    usual = one.percentiles.get(50.0)
    if usual is not None:
        base = max(min(base, usual - used), 1e-6)
    late = max((x.percentiles.get(99.0, 0.0) for x in loads), default=0.0)
    fastest = 1 / max(x.rate for x in loads)
    free = max(start.link_command + _PAGE / start.link_rate, base / start.channels)
    least, best = math.inf, start
    for stall in (0.0, late / 4, late):
        # What a write takes beyond channels and cable is its part of a stop.
        part = max(fastest - free, 0.02 * fastest)
        after = max(round(stall / part) * _PAGE, _LEAST_GC) if stall else 0
        drive = replace(start, write_latency=base, gc_after=after, gc_stall=stall)
        names = ("write_latency", "gc_stall", "gc_after") if stall else ("write_latency",)
        cost, found = _search(drive, names, lambda d: bench.cost(d, loads), step=0.5, rounds=10)
        assert isinstance(found, SolidStateDrive)
        if cost < least:
            least, best = cost, found
    return best
