"""The prediction of one load with many requests: IOPS, latency, bottleneck."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from lab.md.facts.geometry import Geometry
from lab.md.facts.levels import Level
from lab.md.theory.bitmap import Bitmap
from lab.md.theory.bucket import Limits, Unit
from lab.md.theory.concurrent import SURE, LoadResult, Simulation
from lab.md.theory.mechanism import ModelledDrive
from lab.md.theory.paths import Load
from lab.md.theory.sequential import MemberLoad
from lab.md.theory.sequential_prediction import Bottleneck
from lab.md.theory.stripe import StripeRules, Tally

DRIVE = "drive"
"""Name of the limit if a modelled drive is the bottleneck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPrediction:
    """Predicted values of one load."""

    seconds: float
    iops: float
    """Array requests per second."""
    throughput: float
    """Bytes per second."""
    latency: float
    """Mean seconds from a request's start to its end, by Little's law: the sender always has
    ``depth`` requests under way."""
    members: tuple[MemberLoad, ...]
    operations: tuple[float, ...]
    """Requests to each member."""
    limit: Bottleneck
    tally: Tally
    flushes: float
    """Number of bitmap writes."""
    writes_per_flush: float
    """Array writes per bitmap write; 0 without any."""
    sets: float
    """Share of the writes that set a bit."""
    reason: str
    """A sentence: the bottleneck."""
    doubt: float
    """Relative error of the rate from what the rules leave open, and from ``chance``."""
    chance: float
    """Relative error of the rate from places that were not simulated; 95 % lie within it."""


def predict_load(
    geometry: Geometry,
    limits: Sequence[Limits],
    load: Load,
    *,
    rules: StripeRules | None = None,
    groups: Sequence[Hashable] = (),
    bitmap: Bitmap | None = None,
    plugged: bool | None = None,
    drives: Sequence[ModelledDrive] = (),
) -> LoadPrediction:
    """Simulate a load on an idle array with empty buckets and a clean bitmap.

    ``drives``: the members' drives, instead of ``limits``.

    ``doubt`` has what was not simulated, and chance: if the places are not known, or if
    microseconds decide which mirror serves a read, or which job sends the next request.

    With a bitmap, the mean of the two orders in which md's thread and the sender may run; ``doubt``
    has half their difference. With RAID 4, 5 and 6 it also has what the microseconds matter that
    the thread and the sender need: members with equal limits end requests at the same moment, if
    the processor takes no time, so more writes share a bitmap write. On modelled drives the order
    is known. There ``doubt`` has what it matters that md looks for idle regions a second earlier:
    one bit that is set again empties all caches. ``plugged``: whether the kernel plugs each write
    to a block device; ``None``: unknown, and both are simulated. ``UnlimitedError`` if no throttle
    delays a request.
    """
    rules = rules or StripeRules()

    def follow(
        marks: Bitmap | None, *, eager: bool = False, plugs: bool = False, timed: bool = False
    ) -> LoadResult:
        simulation = Simulation(
            geometry,
            limits,
            load,
            rules=rules,
            groups=groups,
            bitmap=marks,
            eager=eager,
            plugged=plugs,
            drives=drives,
            timed=timed,
        )
        return simulation.run()

    results = []
    writes = bitmap is not None and load.read_share < 1
    kernels = (False, True) if plugged is None else (plugged,)
    if not writes or geometry.has_parity:
        kernels = (False,)
    known = bool(drives) and geometry.has_parity
    for plugs in kernels:
        results.append(follow(bitmap, plugs=plugs))
        if writes and not (plugs or known):
            results.append(follow(bitmap, eager=True, plugs=plugs))
    paces = [result.requests / result.seconds for result in results]
    iops = sum(paces) / len(paces)
    doubt = (max(paces) - min(paces)) / 2 / iops
    unknown = bitmap is not None and bitmap.whole_rows is None and bitmap.chunk < geometry.chunk
    if writes and geometry.has_parity and load.depth > 1 and not drives:
        other = follow(bitmap, timed=True)
        doubt = max(doubt, abs(other.requests / other.seconds - iops) / iops)
    if writes and bitmap and geometry.has_parity and unknown:
        other = follow(replace(bitmap, whole_rows=False))
        doubt = max(doubt, abs(other.requests / other.seconds - paces[0]) / iops)
    if writes and bitmap and drives:
        other = follow(replace(bitmap, looked=1.0), plugs=kernels[0])
        doubt = max(doubt, abs(other.requests / other.seconds - paces[0]) / iops)
    result = results[0]
    chance = result.cut
    balanced = geometry.level in (Level.RAID1, Level.RAID10) and load.read_share > 0
    if load.random and not load.known:
        chance += SURE * sqrt(2) * result.chance  # this load and the measured one are two of many
    elif load.random and load.depth > 1 and (load.jobs > 1 or balanced):
        chance += result.chance
    limit = _busiest(result) if drives else _bottleneck(result, limits)
    flushes = sum(each.flushes for each in results) / len(results)
    return LoadPrediction(
        seconds=result.seconds if load.total is None else result.seconds * paces[0] / iops,
        iops=iops,
        throughput=iops * load.block,
        latency=load.depth / iops,
        members=result.members,
        operations=result.operations,
        limit=limit,
        tally=result.tally,
        flushes=flushes,
        writes_per_flush=sum(c.writes for c in results) / len(results) / flushes
        if flushes
        else 0.0,
        sets=result.sets / result.writes if result.writes else 0.0,
        reason="" if drives else _reason(limit, result, limits, load),
        doubt=doubt + chance,
        chance=chance,
    )


def _busiest(result: LoadResult) -> Bottleneck:
    """Return the busiest drives."""
    most = max(result.used)
    alike = [m for m, used in enumerate(result.used) if used >= most * 0.95]
    busy = min(most / result.seconds, 1.0)
    return Bottleneck(member=alike[0], alike=len(alike), limit=DRIVE, busy=busy)


def _bottleneck(result: LoadResult, limits: Sequence[Limits]) -> Bottleneck:
    most = max(result.used)
    if most <= 0:
        return Bottleneck(member=None, alike=0, limit="", busy=0.0)
    alike = [m for m, used in enumerate(result.used) if used >= most * 0.95]
    first = limits[alike[0]].limits
    load, seconds = result.members[alike[0]], result.seconds

    def need(index: int) -> float:
        limit = first[index]
        moved = {"read": load.read_bytes, "write": load.written_bytes}
        size = moved.get(limit.scope.value, sum(moved.values()))
        amount = result.operations[alike[0]] if limit.unit is Unit.OPERATIONS else size
        return float(amount) / limit.average

    limit = first[max(range(len(first)), key=need)]
    return Bottleneck(
        member=alike[0], alike=len(alike), limit=limit.name, busy=min(most / seconds, 1.0)
    )


def _reason(limit: Bottleneck, result: LoadResult, limits: Sequence[Limits], load: Load) -> str:
    if limit.member is None:
        return "the throttles' initial burst covers the whole workload"
    held = next(x for x in limits[limit.member].limits if x.name == limit.limit)
    who, each = f"member {limit.member + 1}", "it"
    if limit.alike > 1:
        who = f"each of {limit.alike} members"
        each = "them"
    if held.unit is Unit.OPERATIONS:
        per = result.operations[limit.member] / result.requests
        does = f"needs {per:.3g} operations per array request"
    else:
        moved = result.members[limit.member]
        per = (moved.read_bytes + moved.written_bytes) / result.requests / load.block
        does = f"moves {per:.3g} times the bytes of an array request"
    said = f"{who} {does}; {limit.limit} limits {each} for {limit.busy:.0%} of the time"
    if limit.busy < 0.97:
        said += f". At queue depth {load.depth} not all members are busy all the time"
    return said
