"""Theory and a scenario's cell: what can be said of each workload, and why not of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lab.model.measurement import SECONDS, THROUGHPUT, Prediction
from lab.model.scenario import Array, Cell, Disk, InitialSync
from lab.theory.bucket import Direction, Limits
from lab.theory.layout import DEFAULT_CHUNK, Geometry, Level, level_of
from lab.theory.paths import Stream
from lab.theory.prediction import StreamPrediction, predict_stream
from lab.theory.stripe import PAGE, StripeRules

LEAST_SECONDS = 0.25
"""A shorter stream is made of what theory leaves out: the guest's and the host's own time."""

MOST_DOUBT = 0.03
"""Share of the time that may hang on how requests are cut."""

_MIB = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """A cell in theory's words."""

    geometry: Geometry
    limits: tuple[Limits, ...]
    groups: tuple[str | None, ...]
    rules: StripeRules


class _Unknown(Exception):  # noqa: N818 - an answer, not an error
    """Theory has nothing to say, and why."""


def predict(cell: Cell, streams: Mapping[str, Stream]) -> list[Prediction]:
    """Throughput and seconds of each workload that is a stream and that theory knows.

    ``streams`` has a workload's stream by the workload's name.
    """
    predictions = []
    for workload in cell.workloads:
        stream = streams.get(workload.name)
        if stream is None:
            continue
        try:
            found = _predict(cell, stream)
        except _Unknown:
            continue
        for metric, value in ((THROUGHPUT, found.throughput), (SECONDS, found.seconds)):
            predictions.append(
                Prediction(
                    workload=workload.name, metric=metric.name, value=value, reason=found.reason
                )
            )
    return predictions


def why_not(cell: Cell, stream: Stream) -> str | None:
    """Why theory has nothing to say of a stream in a cell; ``None`` where it has."""
    try:
        _predict(cell, stream)
    except _Unknown as unknown:
        return str(unknown)
    return None


def _predict(cell: Cell, stream: Stream) -> StreamPrediction:
    setting = _setting(cell, stream)
    geometry = setting.geometry
    _check_stream(geometry, stream)
    found = predict_stream(
        geometry, setting.limits, stream, rules=setting.rules, groups=setting.groups
    )
    for number, (load, limits) in enumerate(zip(found.members, setting.limits, strict=True), 1):
        moved = ((Direction.READ, load.read_bytes), (Direction.WRITE, load.written_bytes))
        for direction, size in moved:
            if size and not limits.limited(direction):
                raise _Unknown(f"member {number} has no limit on its {direction}s")
    if found.seconds < LEAST_SECONDS:
        raise _Unknown(
            f"the stream is over within {found.seconds:.2g} s, before the buckets hold it"
        )
    if found.doubt > MOST_DOUBT:
        raise _Unknown(
            f"how the kernel cuts and merges requests changes the time by {found.doubt:.0%}"
        )
    return found


def _check_stream(geometry: Geometry, stream: Stream) -> None:
    if stream.depth != 1:
        raise _Unknown("theory follows one request at a time, and this stream has more")
    grain = PAGE if geometry.has_parity else 512
    if stream.block % grain or stream.total % grain or stream.offset % grain:
        raise _Unknown(f"block, total and offset are not all multiples of {grain} bytes")
    if stream.offset + stream.total > geometry.size:
        raise _Unknown(
            f"the stream ends at byte {stream.offset + stream.total}, "
            f"and the array has about {geometry.size}"
        )


def _setting(cell: Cell, stream: Stream) -> _Setting:
    if cell.filesystem is not None:
        raise _Unknown("a file system decides where data goes, and theory does not know it")
    disks = [disk for _, disk in cell.each_disk]
    array = cell.array
    if array is None:
        if len(disks) != 1:
            raise _Unknown("without an array theory must know which one disk is meant")
        geometry = Geometry(level=Level.DISK, members=1, component=disks[0].size)
        members, rules = disks, StripeRules()
    else:
        members = disks[: array.members or max(len(disks) - array.spares, 0)]
        if array.members and array.members > len(disks):
            raise _Unknown(f"{array.members} members need more than {len(disks)} disks")
        geometry = _geometry(array, members)
        _check_array(array, geometry, stream)
        rules = _rules(array)
    for disk in members:
        if disk.model != "throttle":
            raise _Unknown(f"theory has no rules yet for disks of the model {disk.model!r}")
        if disk.scheduler not in ("none", "mq-deadline"):
            raise _Unknown(f"the elevator {disk.scheduler!r} holds requests back as it sees fit")
    return _Setting(
        geometry=geometry,
        limits=tuple(Limits.from_throttle(disk.throttle) for disk in members),
        groups=tuple(disk.throttle.group for disk in members),
        rules=rules,
    )


def _geometry(array: Array, members: list[Disk]) -> Geometry:
    if array.kind != "md":
        raise _Unknown(f"theory knows md, and not arrays of the kind {array.kind!r}")
    level = level_of(array.level)
    if level is None:
        raise _Unknown(f"theory has no rules for the level {array.level!r}")
    if not members:
        raise _Unknown("the array has no members")
    if level is Level.RAID0 and array.component_size is None and len({d.size for d in members}) > 1:
        raise _Unknown("RAID 0 of unequal disks has zones, which theory does not know")
    chunk = array.chunk or DEFAULT_CHUNK
    component = array.component_size or min(_usable(disk, array) for disk in members)
    if level is not Level.RAID1:
        component -= component % chunk
    layout = array.layout if level not in (Level.RAID0, Level.RAID1) else None
    shunned = frozenset(m - 1 for m in array.write_mostly)
    try:
        return Geometry(
            level=level,
            layout=layout,
            members=len(members),
            component=component,
            chunk=chunk,
            shunned=shunned if level is Level.RAID1 else frozenset(),
        )
    except ValueError as error:
        raise _Unknown(str(error)) from None


def _usable(disk: Disk, array: Array) -> int:
    """Bytes that mdadm leaves of a disk for data: ``super1.c: validate_geometry1``.

    Without ``--data-offset``: a headroom of 128 MiB, halved until it is a thousandth of the disk,
    and what superblock and bitmap need, in whole MiB.
    """
    if array.data_offset is not None:
        return max(disk.size - array.data_offset, 0)
    headroom = 128 * _MIB
    while headroom * 1024 > disk.size:
        headroom //= 2
    return max(disk.size - headroom // _MIB * _MIB - _MIB, 0)


def _check_array(array: Array, geometry: Geometry, stream: Stream) -> None:
    redundant = geometry.level is not Level.RAID0
    if redundant and array.initial_sync is InitialSync.NONE:
        raise _Unknown("the initial sync takes its share of the disks while the workload runs")
    if stream.direction is Direction.READ:
        return
    if array.bitmap != "none" or array.consistency_policy == "bitmap":
        raise _Unknown("writes wait for the bitmap's own writes, which theory does not know yet")
    if array.consistency_policy == "ppl":
        raise _Unknown("a partial parity log adds writes that theory does not know")
    if array.write_behind is not None:
        raise _Unknown("write-behind ends a write before every copy is written")


def _rules(array: Array) -> StripeRules:
    if array.sysfs.get("skip_copy", "0").strip() not in ("", "0"):
        raise _Unknown("with skip_copy the stripe cache forgets what was written")
    if array.sysfs.get("stripe_size", "4096").strip() != str(PAGE):
        raise _Unknown(f"theory knows stripe heads of {PAGE} bytes")
    default = StripeRules()
    try:
        return StripeRules(
            cache_size=int(array.sysfs.get("stripe_cache_size", default.cache_size)),
            rmw_level=int(array.sysfs.get("rmw_level", default.rmw_level)),
        )
    except ValueError:
        raise _Unknown("stripe_cache_size and rmw_level are whole numbers") from None
