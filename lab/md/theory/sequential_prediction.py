"""The prediction of one sequential load: time, throughput, bytes per member, bottleneck.

If md and the block layer may cut requests in several ways, each way is simulated; ``doubt`` is the
largest difference.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from lab.md.facts.geometry import Geometry
from lab.md.facts.levels import Level
from lab.md.theory.bitmap import Bitmap, BitmapPath
from lab.md.theory.bucket import Direction, Limits, Meter, Unit
from lab.md.theory.paths import (
    BIO_LIMIT,
    BIO_PAGES,
    SEGMENT_LIMIT,
    Cutting,
    Path,
    Sender,
    SequentialLoad,
    path_of,
)
from lab.md.theory.sequential import MemberLoad, StreamClock, StreamResult
from lab.md.theory.stripe import StripeRules, Tally

_MIB = 1024**2
_HELD = 0.97
"""Fraction of the time above which one member counts as the bottleneck all the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The member whose throttle needs the most time."""

    member: int | None
    """The first such member; ``None`` if no throttle delays a request."""
    alike: int
    """Number of members that need equally long."""
    limit: str
    """The limit's name in scenario files; empty: none."""
    busy: float
    """Fraction of the time that the limit explains, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPrediction:
    """Predicted values of one sequential load."""

    seconds: float
    throughput: float
    """Bytes per second; infinite if no throttle delays a request."""
    members: tuple[MemberLoad, ...]
    limit: Bottleneck
    reason: str
    """A sentence: the bottleneck."""
    tally: Tally
    """Bytes by write method of stripes."""
    doubt: float = 0.0
    """Largest relative change of ``seconds`` if requests are cut in another way."""


def predict_stream(
    geometry: Geometry,
    limits: Sequence[Limits],
    stream: SequentialLoad,
    *,
    rules: StripeRules | None = None,
    groups: Sequence[Hashable] = (),
    bitmap: Bitmap | None = None,
    sender: Sender | None = None,
    processor: float = 0.0,
) -> StreamPrediction:
    """Simulate a sequential load on an idle array with empty buckets.

    ``limits`` has one entry per member. Members with the same entry in ``groups``, other than
    ``None``, share one throttle. ``ValueError`` for a load that does not fit on the array.
    """
    rules = rules or StripeRules()
    if len(limits) != geometry.members:
        raise ValueError(f"{len(limits)} sets of limits for {geometry.members} members")
    if stream.offset + stream.total > geometry.size:
        raise ValueError(f"the stream ends beyond the array's {geometry.size} bytes")
    follow = partial(
        _follow,
        geometry,
        stream=stream,
        rules=rules,
        groups=groups,
        bitmap=bitmap,
        sender=sender,
        processor=processor,
    )
    path, meters, outcome = follow(limits, cutting=None)
    doubt = 0.0
    for cutting in path.cuttings:
        if _matters(cutting, geometry, limits, stream):
            other = follow(limits, cutting=cutting)[2].seconds
            bare = other
            if cutting.limit < SEGMENT_LIMIT:  # even then it matters only for limits on operations
                volume = [_without_operations(each) for each in limits]
                bare = follow(volume, cutting=cutting)[2].seconds
            if cutting.limit >= SEGMENT_LIMIT or other > bare * 1.001:
                doubt = max(doubt, abs(other - outcome.seconds))
    if sender is not None and sender.at_once:
        doubt = max(doubt, _last_choice(geometry, limits, stream))
    limit = _bottleneck(meters, outcome)
    return StreamPrediction(
        seconds=outcome.seconds,
        throughput=stream.total / outcome.seconds if outcome.seconds else float("inf"),
        members=outcome.members,
        limit=limit,
        reason=_reason(limit, outcome, geometry),
        tally=path.tally,
        doubt=doubt / outcome.seconds if outcome.seconds else 0.0,
    )


def _follow(
    geometry: Geometry,
    limits: Sequence[Limits],
    *,
    stream: SequentialLoad,
    rules: StripeRules,
    groups: Sequence[Hashable],
    bitmap: Bitmap | None,
    sender: Sender | None,
    processor: float,
    cutting: Cutting | None,
) -> tuple[Path, list[Meter], StreamResult]:
    shared: dict[Hashable, Meter] = {}
    meters = []
    for member, limit in enumerate(limits):
        group = groups[member] if groups else None
        if group is None:
            meters.append(Meter(limit))
        else:
            meters.append(shared.setdefault(group, Meter(limit)))
    path = path_of(geometry, stream.direction, rules, sender)
    if bitmap is not None and stream.direction is Direction.WRITE:
        path = BitmapPath(path, bitmap, geometry)
    clock = StreamClock(geometry, path, meters, cutting=cutting, processor=processor)
    return path, meters, clock.run(stream)


def _last_choice(geometry: Geometry, limits: Sequence[Limits], stream: SequentialLoad) -> float:
    """Return seconds of one part of a read, if microseconds decide which of two copies serves it.

    If the number of members is not a multiple of the near copies, the copies form a ring. Each part
    then goes to the copy that is idle at that moment (``raid10.c: read_balance``).
    """
    ring = geometry.near > 1 and geometry.members % geometry.near
    if not ring or stream.direction is Direction.WRITE:
        return 0.0
    part = min(geometry.chunk, stream.block)
    counted = [x for each in limits for x in each.limits if x.counts(Direction.READ)]
    return max(((part if x.unit is Unit.BYTES else 1) / x.average for x in counted), default=0.0)


def _matters(
    cutting: Cutting, geometry: Geometry, limits: Sequence[Limits], stream: SequentialLoad
) -> bool:
    """Return whether another way of cutting is possible and changes the result."""
    if any(limit.unit is Unit.OPERATIONS for each in limits for limit in each.limits):
        return True
    if cutting.bio > BIO_PAGES:
        copies = geometry.level in (Level.RAID1, Level.RAID10)
        return stream.block > (SEGMENT_LIMIT if copies else BIO_PAGES)
    if cutting.limit < SEGMENT_LIMIT:
        return False
    whole = min(geometry.chunk, SEGMENT_LIMIT) if geometry.has_chunks else BIO_LIMIT
    return stream.block > whole


def _without_operations(limits: Limits) -> Limits:
    return Limits(limits=tuple(x for x in limits.limits if x.unit is not Unit.OPERATIONS))


def _bottleneck(meters: Sequence[Meter], outcome: StreamResult) -> Bottleneck:
    bounds = [meter.idle_bound for meter in meters]
    most = max(bound for bound, _ in bounds)
    if most <= 0 or not outcome.seconds:
        return Bottleneck(member=None, alike=0, limit="", busy=0.0)
    alike = [m for m, (bound, _) in enumerate(bounds) if bound >= most * 0.999]
    limit = bounds[alike[0]][1]
    return Bottleneck(
        member=alike[0],
        alike=len(alike),
        limit=limit.name if limit else "",
        busy=min(most / outcome.seconds, 1.0),
    )


def _reason(limit: Bottleneck, outcome: StreamResult, geometry: Geometry) -> str:
    """Return the bottleneck as a sentence. Members count from 1 here, as in disks' serials."""
    if limit.member is None:
        return "the throttles' initial burst covers the whole workload"
    load = outcome.members[limit.member]
    moves = " and ".join(
        f"{verb} {size / _MIB:.4g} MiB"
        for verb, size in (("reads", load.read_bytes), ("writes", load.written_bytes))
        if size
    )
    who = f"member {limit.member + 1}"
    if limit.alike > 1:
        who = f"each of {limit.alike} members"
    missing = f", with {len(geometry.failed)} missing" if geometry.failed else ""
    if limit.busy >= _HELD:
        return f"{who} {moves}; {limit.limit} limits it all the time{missing}"
    return (
        f"{who} {moves}; {limit.limit} limits it for {limit.busy:.0%} of the time. The rest is "
        f"waiting: one request at a time visits the members{missing}"
    )
