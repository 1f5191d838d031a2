"""Many requests on one array: how many a second, how long each takes, and what holds them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from lab.md.facts.geometry import Geometry
from lab.md.theory.bitmap import Bitmap
from lab.md.theory.bucket import Limits, Unit
from lab.md.theory.concurrent import LoadResult, Simulation
from lab.md.theory.paths import Load
from lab.md.theory.prediction import Bottleneck
from lab.md.theory.sequential import MemberLoad
from lab.md.theory.stripe import StripeRules, Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPrediction:
    """What theory expects of a load."""

    seconds: float
    iops: float
    """Array requests per second."""
    throughput: float
    """Bytes per second."""
    latency: float
    """Seconds from a request's start to its end, in the mean: Little's law, as the sender always
    has as many under way as its depth."""
    members: tuple[MemberLoad, ...]
    operations: tuple[float, ...]
    """Requests to each member."""
    limit: Bottleneck
    tally: Tally
    flushes: float
    """Times that the bitmap was written."""
    writes_per_flush: float
    """Array writes that shared one of them; 0 without any."""
    sets: float
    """Part of the writes that had to set a bit."""
    reason: str
    """A sentence: what holds the load."""
    doubt: float
    """Share by which the rate may lie higher or lower, by what the rules leave open."""


def predict_load(
    geometry: Geometry,
    limits: Sequence[Limits],
    load: Load,
    *,
    rules: StripeRules | None = None,
    groups: Sequence[Hashable] = (),
    bitmap: Bitmap | None = None,
    plugged: bool | None = None,
) -> LoadPrediction:
    """Follow a load on an idle array whose buckets are empty and whose bitmap is clean.

    With a bitmap, the mean of the two orders in which md's thread and the sender may run; ``doubt``
    is half of what lies between them. ``plugged``: whether the kernel plugs each write to a block
    device; ``None``: nobody knows, and both go into the doubt. ``UnlimitedError`` where no bucket
    ever makes a request wait.
    """
    rules = rules or StripeRules()

    def follow(marks: Bitmap | None, *, eager: bool, plugs: bool) -> LoadResult:
        simulation = Simulation(
            geometry,
            limits,
            load,
            rules=rules,
            groups=groups,
            bitmap=marks,
            eager=eager,
            plugged=plugs,
        )
        return simulation.run()

    crowds = []
    writes = bitmap is not None and load.read_share < 1
    kernels = (False, True) if plugged is None else (plugged,)
    if not writes or geometry.has_parity:
        kernels = (False,)
    for plugs in kernels:
        crowds.append(follow(bitmap, eager=False, plugs=plugs))
        if writes and not plugs:
            crowds.append(follow(bitmap, eager=True, plugs=plugs))
    paces = [crowd.requests / crowd.seconds for crowd in crowds]
    iops = sum(paces) / len(paces)
    doubt = (max(paces) - min(paces)) / 2 / iops
    if writes and bitmap and geometry.has_parity and bitmap.chunk < geometry.chunk:
        other = follow(replace(bitmap, whole_rows=False), eager=False, plugs=False)
        doubt = max(doubt, abs(other.requests / other.seconds - paces[0]) / iops)
    crowd = crowds[0]
    limit = _bottleneck(crowd, limits)
    flushes = sum(each.flushes for each in crowds) / len(crowds)
    return LoadPrediction(
        seconds=crowd.seconds if load.total is None else crowd.seconds * paces[0] / iops,
        iops=iops,
        throughput=iops * load.block,
        latency=load.depth / iops,
        members=crowd.members,
        operations=crowd.operations,
        limit=limit,
        tally=crowd.tally,
        flushes=flushes,
        writes_per_flush=sum(c.writes for c in crowds) / len(crowds) / flushes if flushes else 0.0,
        sets=crowd.sets / crowd.writes if crowd.writes else 0.0,
        reason=_reason(limit, crowd, limits, load),
        doubt=doubt,
    )


def _bottleneck(crowd: LoadResult, limits: Sequence[Limits]) -> Bottleneck:
    most = max(crowd.used)
    if most <= 0:
        return Bottleneck(member=None, alike=0, limit="", busy=0.0)
    alike = [m for m, used in enumerate(crowd.used) if used >= most * 0.95]
    first = limits[alike[0]].limits
    load, seconds = crowd.members[alike[0]], crowd.seconds

    def need(index: int) -> float:
        limit = first[index]
        moved = {"read": load.read_bytes, "write": load.written_bytes}
        size = moved.get(limit.scope.value, sum(moved.values()))
        amount = crowd.operations[alike[0]] if limit.unit is Unit.OPERATIONS else size
        return float(amount) / limit.average

    limit = first[max(range(len(first)), key=need)]
    return Bottleneck(
        member=alike[0], alike=len(alike), limit=limit.name, busy=min(most / seconds, 1.0)
    )


def _reason(limit: Bottleneck, crowd: LoadResult, limits: Sequence[Limits], load: Load) -> str:
    if limit.member is None:
        return "the whole load fits into the members' buckets"
    held = next(x for x in limits[limit.member].limits if x.name == limit.limit)
    who, each = f"member {limit.member + 1}", "it"
    if limit.alike > 1:
        who = f"each of {limit.alike} members"
        each = "them"
    if held.unit is Unit.OPERATIONS:
        per = crowd.operations[limit.member] / crowd.requests
        does = f"takes {per:.3g} operations for each request to the array"
    else:
        moved = crowd.members[limit.member]
        per = (moved.read_bytes + moved.written_bytes) / crowd.requests / load.block
        does = f"moves {per:.3g} times the bytes of each request to the array"
    said = f"{who} {does}, and {limit.limit} holds {each} for {limit.busy:.0%} of the time"
    if limit.busy < 0.97:
        said += f"; with {load.depth} under way, requests do not always find each member busy"
    return said
