"""A cell as a setting for the simulation, or the reason why theory does not cover it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from lab.md.facts.geometry import PAGE, Geometry
from lab.md.facts.kernels import marks_whole_rows, plugs_writes
from lab.md.facts.levels import NAMES, Level
from lab.md.facts.option_rules import journal_disk, without_idle
from lab.md.facts.segments import volume_bytes
from lab.md.facts.sizes import data_offset_of, geometry_of, without_disks_aside
from lab.md.theory.bitmap import Bitmap
from lab.md.theory.bucket import Direction, Limits, Unit
from lab.md.theory.concurrent import TooLongError, UnlimitedError
from lab.md.theory.load_prediction import LoadPrediction, predict_load
from lab.md.theory.mechanism import ModelledDrive
from lab.md.theory.paths import SEGMENT_LIMIT, Load, Sender, SequentialLoad
from lab.md.theory.sequential import MemberLoad
from lab.md.theory.sequential_prediction import StreamPrediction, predict_stream
from lab.md.theory.stripe import StripeRules
from lab.md.theory.volume import first_segment, placed, stays
from lab.model.scenario.document import Array, Cell, Disk, InitialSync
from lab.model.scenario.drive import SolidStateDrive
from lab.model.scenario.guest import Clock

LEAST_SECONDS = 0.25
"""Shorter workloads consist mostly of guest and host overhead, which theory leaves out."""

MOST_DOUBT = 0.03
"""Largest relative uncertainty from the cutting of requests."""

MOST_ORDER_DOUBT = 0.12
"""Largest relative doubt from when md's thread runs, which decides how many writes share a bitmap
write."""

Work = SequentialLoad | Load
"""A workload in theory's terms."""

Drives = Mapping[str, ModelledDrive]
"""Modelled drives by serial."""

Found = StreamPrediction | LoadPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A cell in theory's terms."""

    geometry: Geometry
    limits: tuple[Limits, ...]
    groups: tuple[str | None, ...]
    rules: StripeRules
    bitmap: Bitmap | None = None
    """The bitmap that writes wait for, if any."""
    serials: tuple[str, ...] = ()
    """Of the members, in their order."""
    plugged: bool | None = None
    """Whether the guest's kernel plugs each write to a block device; ``None``: unknown."""
    sealed: bool = False
    """Whether the disks are ``lab_disk``'s, of a guest with virtual time."""
    busy: float = 0.0
    """Share of the time in which the guest's only processor works for a sequential load."""
    start: int = 0
    """Byte of the array at which the target begins."""
    room: int | None = None
    """Bytes of the target if it is smaller than the array."""
    drives: tuple[ModelledDrive, ...] = ()
    """The members' drives where they are modelled, instead of ``limits``."""
    aside: Limits | None = None
    """Limits of the disk that holds the bitmap's file."""


class UnknownError(Exception):
    """Theory has no prediction; the message says why."""


def why_not(
    cell: Cell, work: Work, drives: Drives | None = None, kernel: str | None = None
) -> str | None:
    """Why theory has no prediction of a workload; ``None`` if it has one."""
    try:
        follow(setting_of(cell, work, drives, kernel), work)
    except UnknownError as unknown:
        return str(unknown)
    return None


def follow(setting: Setting, work: Work) -> Found:
    """The prediction of a workload. ``UnknownError`` if there is none."""
    found: Found
    work = placed(work, setting.start, setting.room)
    if setting.drives:
        return _follow_drives(setting, work)
    if isinstance(work, SequentialLoad):
        found = _follow(setting, work)
    else:
        work = _bounded(work, setting.geometry)
        alone = not work.random and work.depth == 1 and work.read_share in (0, 1)
        found = _follow_timed(setting, work) if alone else _follow_load(setting, work)
    for number, (load, limits) in enumerate(zip(found.members, setting.limits, strict=True), 1):
        moved = ((Direction.READ, load.read_bytes), (Direction.WRITE, load.written_bytes))
        for direction, size in moved:
            if size and not limits.limited(direction):
                raise UnknownError(f"member {number} has no limit on its {direction}s")
    if setting.aside is not None:
        _check_aside(setting.aside, found.throughput / work.block)
    if found.seconds < LEAST_SECONDS:
        raise UnknownError(
            f"the workload ends within {found.seconds:.2g} s, before the throttles delay it"
        )
    return found


def _follow_drives(setting: Setting, work: Work) -> LoadPrediction:
    if not isinstance(work, Load) or not work.random:
        raise UnknownError("theory has no rules for sequential loads on arrays of modelled drives")
    solid = any(isinstance(each.drive, SolidStateDrive) for each in setting.drives)
    mirrors = setting.geometry.level in (Level.RAID1, Level.RAID10)
    if solid and mirrors and work.read_share > 0 and setting.geometry.members > 1:
        raise UnknownError("theory has no rules for how md spreads reads over solid-state disks")
    return _follow_load(setting, _bounded(work, setting.geometry))


def _check_aside(limits: Limits, pace: float) -> None:
    """Refuse a bitmap disk that may delay writes: each array write dirties at most one page."""
    for limit in limits.limits:
        need = pace if limit.unit is Unit.OPERATIONS else pace * PAGE
        if limit.counts(Direction.WRITE) and need > limit.average:
            raise UnknownError(
                f"the disk with the bitmap's file may delay writes: {limit.name} is "
                f"{limit.average:g}, and the bitmap may need {need:.3g}"
            )


def _follow(setting: Setting, stream: SequentialLoad) -> StreamPrediction:
    _check_stream(setting.geometry, stream)
    after = partial(
        predict_stream,
        setting.geometry,
        setting.limits,
        stream,
        rules=setting.rules,
        groups=setting.groups,
        bitmap=setting.bitmap,
        sender=Sender(plugs_writes=setting.plugged is not False, at_once=setting.sealed),
    )
    found = after()
    if setting.busy:
        requests = -(-stream.total // stream.block)
        found = after(processor=setting.busy * found.seconds / requests)
    if found.doubt > MOST_DOUBT and found.seconds >= LEAST_SECONDS:
        raise UnknownError(
            f"the time depends by {found.doubt:.0%} on how the kernel cuts and merges requests"
        )
    return found


def _bounded(load: Load, geometry: Geometry) -> Load:
    """The load with an end: without ``total`` or ``seconds`` each job covers its span once."""
    if load.total is not None or load.seconds is not None:
        return load
    span = load.span or geometry.size - load.offset
    return replace(load, total=(span - span % load.block) * load.jobs)


def _follow_timed(setting: Setting, load: Load) -> StreamPrediction:
    """A sequential load limited by time: the initial burst, then the steady rate.

    At the end of its span it starts again at the beginning.
    """
    span = load.span or setting.geometry.size - load.offset
    span -= span % load.block
    direction = Direction.READ if load.read_share else Direction.WRITE

    def over(total: int) -> StreamPrediction:
        size = max(min(total - total % load.block, span), load.block)
        stream = SequentialLoad(
            direction=direction, block=load.block, total=size, offset=load.offset
        )
        return _follow(setting, stream)

    if load.seconds is None:
        return over(min(load.total or span, span))
    whole = over(span)
    half = over(span // 2)
    pace = (span - span // 2) / max(whole.seconds - half.seconds, 1e-9)

    def reached(seconds: float) -> float:
        return max(span + (seconds - whole.seconds) * pace, 0.0)

    end = min(reached(load.rest + load.seconds), load.total or float("inf"))
    moved = end - (reached(load.rest) if load.rest else 0.0)
    near = over(round(moved)) if moved <= span else whole
    share = moved / (near.throughput * near.seconds)
    members = tuple(
        MemberLoad(
            read_bytes=round(m.read_bytes * share), written_bytes=round(m.written_bytes * share)
        )
        for m in near.members
    )
    return replace(near, seconds=load.seconds, throughput=moved / load.seconds, members=members)


@lru_cache(maxsize=256)
def _follow_load(setting: Setting, load: Load) -> LoadPrediction:
    geometry = setting.geometry
    _check_load(setting, load)
    try:
        found = predict_load(
            geometry,
            setting.limits,
            load,
            rules=setting.rules,
            groups=setting.groups,
            bitmap=setting.bitmap,
            plugged=setting.plugged,
            drives=setting.drives,
        )
    except UnlimitedError:
        raise UnknownError("no limit ever delays a request") from None
    except TooLongError:
        raise UnknownError("it takes too many requests until the rate is steady") from None
    if found.doubt - found.chance > MOST_ORDER_DOUBT:
        raise UnknownError(
            "microseconds of the guest's processor decide how many writes share a bitmap write, "
            f"which changes the rate by ±{found.doubt - found.chance:.0%}"
        )
    return found


def _check_load(setting: Setting, load: Load) -> None:
    """Refuse loads whose result depends on what the kernel happens to merge."""
    geometry = setting.geometry
    grain = PAGE if geometry.has_parity else 512
    if load.block % grain or load.offset % grain:
        raise UnknownError(f"block and offset are not all multiples of {grain} bytes")
    end = load.offset + (load.span or load.block)
    if end > geometry.size:
        raise UnknownError(f"the span ends at byte {end}, and the array has about {geometry.size}")
    counted = any(x.unit is Unit.OPERATIONS for each in setting.limits for x in each.limits)
    if not load.random:
        if 0 < load.read_share < 1:
            raise UnknownError("sequential reads and writes each keep an offset of their own")
        if counted and load.depth > 1:
            raise UnknownError("adjacent requests may or may not be merged")
        if (
            geometry.has_parity
            and load.read_share < 1
            and load.depth > 1
            and (load.block % geometry.stripe or load.offset % geometry.stripe)
        ):
            raise UnknownError("concurrent writes share stripes in an order that is not known")
    if counted and load.block > (geometry.chunk if geometry.has_parity else SEGMENT_LIMIT):
        raise UnknownError("a request that spans rows may or may not be merged on each member")


def _check_stream(geometry: Geometry, stream: SequentialLoad) -> None:
    if stream.depth != 1:
        raise UnknownError(
            "theory knows sequential loads of one request at a time, and this one has more"
        )
    grain = PAGE if geometry.has_parity else 512
    if stream.block % grain or stream.total % grain or stream.offset % grain:
        raise UnknownError(f"block, total and offset are not all multiples of {grain} bytes")
    if stream.offset + stream.total > geometry.size:
        raise UnknownError(
            f"the workload ends at byte {stream.offset + stream.total}, and the array has about "
            f"{geometry.size}"
        )


def setting_of(
    cell: Cell, work: Work, drives: Drives | None = None, kernel: str | None = None
) -> Setting:
    """The cell in theory's terms. ``UnknownError`` for what theory has no rule for.

    ``drives``: the modelled drives by serial; without them theory knows throttled disks.
    ``kernel``: the version of the guest's kernel, if known.
    """
    if cell.filesystem is not None:
        raise UnknownError("the file system decides where data goes")
    disks = [disk for _, disk in cell.each_disk]
    serials = [serial for serial, _ in cell.each_disk]
    array, start = cell.array, 0
    room: int | None = None
    aside: Limits | None = None
    if array is None or cell.array is None:
        if len(disks) != 1:
            raise UnknownError("there is no array, and more than one disk")
        geometry = Geometry(level=Level.RAID1, members=1, component_size=disks[0].size)
        members, rules, bitmap = disks, StripeRules(), None
    else:
        file = array.bitmap == "external" and not only_reads(work)
        if file and array.bitmap_disk is not None:
            aside = Limits.from_throttle(disks[array.bitmap_disk - 1].throttle)
        disks = list(without_disks_aside(array, disks))
        serials = list(without_disks_aside(array, serials))
        array = without_idle(array)
        if array.kind == "segments":
            if array.volume == "striped":
                raise UnknownError("the volume is striped over arrays that share their disks")
            segment = first_segment(array, disks)
            array, disks, start = segment.array, list(segment.disks), segment.start
        members = disks[: array.members or max(len(disks) - array.spares, 0)]
        if array.members and array.members > len(disks):
            raise UnknownError(f"{array.members} members need more than {len(disks)} disks")
        geometry = _geometry(array, disks)
        if cell.array.kind == "segments":
            room = volume_bytes(geometry.size, start)
            if not stays(work, room, alone=cell.array.segments == 1):
                raise UnknownError(
                    "the workload goes beyond the first segment, into another array on the same "
                    "disks"
                )
        reads_only = only_reads(work)
        _check_array(array, geometry, reads_only=reads_only)
        rules = _rules(array)
        bitmap = None
        if not reads_only:
            bitmap = _bitmap(array, geometry, marks_whole_rows(kernel), members)
    for disk in members:
        if disk.device is not None:
            raise UnknownError("theory has no rules for real disks")
        if disk.model != "throttle" and not drives:
            raise UnknownError(f"theory has no rules for the disk model {disk.model!r}")
        if disk.scheduler not in ("none", "mq-deadline"):
            raise UnknownError(f"the I/O scheduler {disk.scheduler!r} may delay requests")
    beginning = data_offset_of(array, disks[0].size, geometry.chunk) if array else 0
    known = [drives[s] for s in serials[: len(members)] if drives and s in drives]
    if known and len(known) < len(members):
        raise UnknownError("some members are modelled drives and others are not")
    return Setting(
        geometry=geometry,
        drives=tuple(replace(each, start=beginning) for each in known),
        limits=tuple(Limits.from_throttle(disk.throttle) for disk in members),
        groups=tuple(disk.throttle.group for disk in members),
        rules=rules,
        bitmap=bitmap,
        plugged=plugs_writes(kernel),
        sealed=cell.guest.clock is Clock.VIRTUAL,
        serials=tuple(serials[: len(members)]),
        start=start,
        room=room,
        aside=aside,
    )


def only_reads(work: Work) -> bool:
    """Whether a workload writes nothing."""
    return work.read_share >= 1 if isinstance(work, Load) else work.direction is Direction.READ


def _geometry(array: Array, disks: list[Disk]) -> Geometry:
    if array.kind != "md":
        raise UnknownError(f"theory has no rules for arrays of kind {array.kind!r}")
    level = NAMES.get(array.level)
    if level is None or level is Level.LINEAR:
        raise UnknownError(f"theory has no rules for the level {array.level!r}")
    sizes = [disk.size for disk in disks]
    if level is Level.RAID0 and array.component_size is None and len(set(sizes)) > 1:
        raise UnknownError("RAID 0 of unequal disks has zones, and theory has no rules for them")
    try:
        return geometry_of(array, sizes)
    except LookupError:
        raise UnknownError("the array has no members") from None
    except ValueError as error:
        raise UnknownError(str(error)) from None


def _check_array(array: Array, geometry: Geometry, *, reads_only: bool) -> None:
    redundant = geometry.level is not Level.RAID0
    if redundant and array.initial_sync is InitialSync.NONE:
        raise UnknownError("the initial sync uses the disks while the workload runs")
    if reads_only:
        return
    if array.bitmap not in ("none", "internal", "external"):
        raise UnknownError(f"theory has no rules for a {array.bitmap} bitmap")
    if journal_disk(array) is not None:
        raise UnknownError("theory has no rules for the writes of a journal")
    if array.consistency_policy == "ppl":
        raise UnknownError("theory has no rules for the writes of a partial parity log")
    if array.write_behind is not None:
        raise UnknownError("with write-behind a write ends before every copy is written")


def _bitmap(
    array: Array, geometry: Geometry, whole_rows: bool | None, members: Sequence[Disk]
) -> Bitmap | None:
    """An internal one; an external one is on a disk without a limit, and costs nothing."""
    if array.bitmap != "internal":
        return None
    sectors = {disk.sectors.logical for disk in members}
    if len(sectors) > 1:
        raise UnknownError(
            "members with different logical block sizes write bitmaps of different sizes"
        )
    try:
        base = float(array.sysfs.get("bitmap/time_base", Bitmap(chunk=PAGE).time_base))
    except ValueError:
        raise UnknownError("the bitmap's time_base is not a number") from None
    return Bitmap(
        chunk=geometry.bitmap_chunk,
        time_base=base,
        sector=max(sectors, default=512),
        whole_rows=whole_rows,
    )


def _rules(array: Array) -> StripeRules:
    if array.sysfs.get("skip_copy", "0").strip() not in ("", "0"):
        raise UnknownError("with skip_copy the stripe cache does not keep written data")
    if array.sysfs.get("stripe_size", "4096").strip() != str(PAGE):
        raise UnknownError(f"theory knows stripe heads of {PAGE} bytes")
    default = StripeRules()
    try:
        return StripeRules(
            cache_size=int(array.sysfs.get("stripe_cache_size", default.cache_size)),
            rmw_level=int(array.sysfs.get("rmw_level", default.rmw_level)),
        )
    except ValueError:
        raise UnknownError("stripe_cache_size and rmw_level must be whole numbers") from None
