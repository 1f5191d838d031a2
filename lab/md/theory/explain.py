"""Why theory expects what it expects, in sentences, and what would be faster.

What would lift a limit is found by asking theory about the changed cell, never from a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lab.core.units import KIB, MIB, format_rate, format_size
from lab.md.facts.geometry import LEFT_SYMMETRIC, PAGE, Geometry
from lab.md.facts.levels import Level
from lab.md.theory.bucket import Unit
from lab.md.theory.cell import Found, Setting, UnknownError, Work, follow
from lab.md.theory.load import LoadPrediction
from lab.md.theory.paths import Load
from lab.md.theory.prediction import StreamPrediction
from lab.md.theory.stripe import Tally, WriteMethod

WORTH = 1.05
"""A change that does not do better by this factor is not mentioned."""


def because(setting: Setting, work: Work, found: Found) -> Iterator[str]:
    """What happens on the way, what holds it, and the bucket's bonus."""
    geometry = setting.geometry
    if geometry.has_parity and _writes(work):
        yield from _stripes(geometry, work, found.tally)
    elif geometry.has_parity and not geometry.failed:
        yield from _parity_reads(geometry)
    if isinstance(found, LoadPrediction) and found.flushes:
        yield from _bitmap(setting, found)
    yield from _busiest(setting, found)
    if isinstance(found, LoadPrediction):
        yield from _depth(work, found)
    else:
        yield from _bonus(setting, found)


def lifts(setting: Setting, work: Work, found: Found) -> Iterator[str]:
    """What would make it faster, by theory's own figures for each change, the best first."""
    better: list[tuple[float, str]] = []
    verb = "write" if _writes(work) else "read"
    for words, changed, other in _changes(setting, work):
        try:
            then = follow(changed, other)
        except UnknownError:
            continue
        if then.throughput > found.throughput * WORTH:
            sentence = f"With {words} it would {verb} {_speed(then)}."
            better.append((then.throughput, sentence + _after(setting, changed, other, then)))
    yield from (sentence for _, sentence in sorted(better, key=lambda b: -b[0]))
    if not better:
        yield "Nothing that theory knows would make it faster but faster disks, or more of them."


def _speed(found: Found) -> str:
    if isinstance(found, LoadPrediction):
        return f"{found.iops:.4g} requests a second"
    return format_rate(found.throughput)


def _writes(work: Work) -> bool:
    return work.read_share < 1 if isinstance(work, Load) else work.direction.value == "write"


def _amount(size: float) -> str:
    if size == int(size) and size % KIB == 0 and (size < MIB or size % MIB == 0):
        return format_size(int(size)).replace("KiB", " KiB").replace("MiB", " MiB")
    return f"{size / MIB:.4g} MiB" if size >= MIB else f"{size / KIB:.4g} KiB"


def _stripe(geometry: Geometry) -> int:
    return geometry.stripe


def _stripes(geometry: Geometry, work: Work, tally: Tally) -> Iterator[str]:
    """Which writes were partial stripes, and what they made md read."""
    stripe, data, checks = _stripe(geometry), geometry.data_members, geometry.members
    checks -= data
    parity = "parity" if checks == 1 else "P and Q"
    heights = {how: tally.height(how) for how in WriteMethod}
    whole = sum(heights.values())
    if not whole:
        return
    covers = f"A stripe holds {data} × {_amount(geometry.chunk)} = {_amount(stripe)} of data"
    if heights[WriteMethod.FULL] == whole:
        yield (
            f"{covers}, and every write covers whole stripes: {parity} follow{_s(checks)} from "
            "what is written, and md reads nothing."
        )
        return
    part = work.block / stripe
    covered = min(max(-(-work.block // geometry.chunk), 1), data)
    size = f"a write has {_amount(work.block)}"
    yield (
        f"{covers}, and {size}, {_fraction(part)} of it"
        if part < 1
        else f"{covers}, and {size}, which is not a whole number of stripes"
    ) + f": {parity} cannot be computed from what is written alone."
    modify, construct = covered + checks, data - covered
    rest = f"{construct} chunk{_s(construct, 's', '')} that the write does not cover"
    old = f"the old data and the old {parity}, {modify} chunks"
    for how, name, reads, instead in (
        (
            WriteMethod.RECONSTRUCT,
            "reconstruct-write",
            rest,
            f"read-modify-write would read {modify}",
        ),
        (WriteMethod.MODIFY, "read-modify-write", old, f"reconstruct-write would read {construct}"),
    ):
        if heights[how]:
            yield (
                f"For {heights[how] // PAGE} of {whole // PAGE} stripe heads (4 KiB of each "
                f"member) md read first what it needs, by {name} ({reads}; {instead}): "
                f"{_amount(tally.read(how))} altogether."
            )
    if heights[WriteMethod.CACHED]:
        yield (
            f"{heights[WriteMethod.CACHED] // PAGE} more found it in the stripe cache, where an "
            f"earlier write to the same stripe had left it, but wrote {parity} once again."
        )


def _fraction(part: float) -> str:
    for count, word in ((2, "half"), (3, "a third"), (4, "a quarter")):
        if abs(part * count - 1) < 1e-9:
            return word
    return f"{part:.2g}"


def _s(number: int, many: str = "", one: str = "s") -> str:
    return one if number == 1 else many


def _parity_reads(geometry: Geometry) -> Iterator[str]:
    idle = _dedicated(geometry)
    if idle:
        yield (
            f"Parity is never read, and it is all on {_members(idle)}: only "
            f"{geometry.data_members} of {geometry.members} disks have anything to read."
        )
    else:
        yield (
            f"Parity is never read, and it is on every disk in turn: all {geometry.members} serve "
            "the reads, and to pass over parity costs a throttled disk nothing."
        )


def _dedicated(geometry: Geometry) -> list[int]:
    """Members that hold nothing but parity."""
    if not geometry.has_parity:
        return []
    rows = [geometry.row(number) for number in range(geometry.members)]
    return [m for m in range(geometry.members) if all(m in row.checks for row in rows)]


def _members(members: list[int]) -> str:
    *first, last = [str(m + 1) for m in members]
    return f"disks {', '.join(first)} and {last}" if first else f"disk {last}"


def _busiest(setting: Setting, found: Found) -> Iterator[str]:
    """The busiest members, their bytes or operations, beside the least busy."""
    limit = found.limit
    if limit.member is None:
        yield "The members' buckets take all of it at once."
        return
    held = next(x for x in setting.limits[limit.member].limits if x.name == limit.limit)
    counted = isinstance(found, LoadPrediction) and held.unit is Unit.OPERATIONS
    if isinstance(found, LoadPrediction) and counted:
        moved = list(found.operations)
    else:
        moved = [float(load.read_bytes + load.written_bytes) for load in found.members]

    def say(value: float) -> str:
        return f"{value:.0f} operations" if counted else _amount(value)

    load, most = found.members[limit.member], moved[limit.member]
    # Places drawn at random are not quite even.
    near = 0.9 if isinstance(found, LoadPrediction) else 0.999
    busiest = [m for m, size in enumerate(moved) if size >= near * most]
    ways = [
        f"{verb} {_amount(size)}"
        for verb, size in (("reads", load.read_bytes), ("writes", load.written_bytes))
        if size
    ]
    alike = [found.members[m] for m in busiest]
    same = isinstance(found, LoadPrediction) or len(set(alike)) == 1
    does = " and ".join(ways)
    if counted or len(ways) > 1:
        does += f", {say(most)}"
    if not same:
        does = f"reads and writes {say(most)} altogether"
    pace = f"{held.average:g} operations" if counted else _amount(held.average)
    time = f"{pace} per second make that {most / held.average:.3g} s."
    if len(busiest) == len(moved):
        yield f"All {len(moved)} disks have about as much to do: each {does}; {time}"
        return
    parity = _dedicated(setting.geometry)
    kind = "parity" if len(parity) < 2 else "P and Q"
    verb = "each " if len(busiest) > 1 else "it "
    yield (
        f"{_members(busiest).capitalize()} {'have' if len(busiest) > 1 else 'has'} the most to do: "
        f"{verb}{does}, of {say(sum(moved))} on all disks; the least busy one has "
        f"{say(min(moved))}. {time}"
    )
    if set(parity) & set(busiest) and load.written_bytes:
        writes = found.members[parity[0]].written_bytes
        yield (
            f"All {kind} lies on {_members(parity)}, and every write to any stripe writes it "
            f"again: {_amount(writes)}{_needed(setting.geometry, found, parity, writes)}."
        )


def _needed(geometry: Geometry, found: Found, parity: list[int], writes: int) -> str:
    """What whole stripes would have needed, for a stream."""
    if isinstance(found, LoadPrediction):
        return ""
    once = found.throughput * found.seconds / geometry.data_members
    if writes <= 1.01 * once:
        return ""
    each = " each" if len(parity) > 1 else ""
    return f"{each}, where {_amount(round(once))} would do if each stripe were written at once"


def _bonus(setting: Setting, found: StreamPrediction) -> Iterator[str]:
    limit = found.limit
    if limit.member is None:
        return
    held = next(x for x in setting.limits[limit.member].limits if x.name == limit.limit)
    load = found.members[limit.member]
    moved = load.read_bytes + load.written_bytes
    if held.unit is Unit.BYTES and limit.busy >= 0.97:
        given = moved / held.average - found.seconds
        if given > 0:
            yield (
                f"A rested bucket lets {_amount(held.size)} through at once, and what comes last "
                f"does not wait for itself: {given:.2g} s are given, and it takes "
                f"{found.seconds:.3g} s."
            )
            return
    if limit.busy < 0.97:
        yield (
            f"The limit alone explains {limit.busy:.0%} of the {found.seconds:.3g} s: one block at "
            "a time goes round the disks, and the others wait while one is late."
        )


def _depth(work: Work, found: LoadPrediction) -> Iterator[str]:
    depth = work.depth
    if found.limit.member is not None and found.limit.busy < 0.97:
        yield (
            f"With {depth} request{_s(depth, 's', '')} under way that disk is busy for "
            f"{found.limit.busy:.0%} of the time: now and then all wait for others."
        )
    yield (
        f"Each request takes {_time(found.latency)} in the mean: {depth} under way, "
        f"{found.iops:.4g} ended each second."
    )


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _bitmap(setting: Setting, found: LoadPrediction) -> Iterator[str]:
    yield (
        f"{found.sets:.0%} of the writes are the first in a clean region of the bitmap, and wait "
        f"until its bit is written to all {setting.geometry.members} disks. About "
        f"{found.writes_per_flush:.2g} writes share one such write; how many, the guest's "
        f"scheduler decides, so that the rate may lie {found.doubt:.0%} higher or lower."
    )


def _changes(setting: Setting, work: Work) -> Iterator[tuple[str, Setting, Work]]:
    """Cells that differ in one thing, and what that is."""
    geometry = setting.geometry
    stripe = _stripe(geometry)
    random = isinstance(work, Load) and work.random
    if geometry.has_parity and _writes(work) and not random and work.block % stripe:
        words = f"bs={format_size(stripe)}, a full stripe,"
        yield words, setting, replace(work, block=stripe)
        chunk, rest = divmod(work.block, geometry.data_members)
        if not rest and chunk >= PAGE and not chunk & (chunk - 1):
            smaller = replace(geometry, chunk=chunk, component_size=_whole(geometry, chunk))
            words = f"array.chunk={format_size(chunk)}, of which a block fills a stripe,"
            yield words, replace(setting, geometry=smaller), work
    if _dedicated(geometry):
        turned = replace(geometry, level=_level(geometry), layout=LEFT_SYMMETRIC)
        words = "array.layout=left-symmetric, parity on each disk in turn,"
        yield words, replace(setting, geometry=turned), work
    if setting.bitmap is not None:
        yield "array.bitmap=none", replace(setting, bitmap=None), work
        coarse = replace(setting.bitmap, chunk=setting.bitmap.chunk * 16)
        words = f"array.bitmap_chunk={format_size(coarse.chunk)}"
        yield words, replace(setting, bitmap=coarse), work
    if isinstance(work, Load) and work.random:
        words = f"{work.depth * 4} requests under way instead of {work.depth}"
        yield words, setting, replace(work, depth=work.depth * 4)


def _whole(geometry: Geometry, chunk: int) -> int:
    return geometry.component_size - geometry.component_size % chunk


def _level(geometry: Geometry) -> Level:
    return Level.RAID5 if geometry.level is Level.RAID4 else geometry.level


def _after(before: Setting, setting: Setting, work: Work, found: Found) -> str:
    """What a change comes to: the load spread out, or a layout that no longer matters."""
    geometry = setting.geometry
    moved = [load.read_bytes + load.written_bytes for load in found.members]
    if geometry.layout != before.geometry.layout:
        spread = max(moved) <= 1.1 * min(moved) or isinstance(found, LoadPrediction)
        mean = _amount(round(sum(moved) / len(moved)))
        return f" The same work is spread over {len(moved)} disks, {mean} each." if spread else ""
    if not _dedicated(geometry):
        return ""
    turned = replace(geometry, level=_level(geometry), layout=LEFT_SYMMETRIC)
    try:
        other = follow(replace(setting, geometry=turned), work)
    except UnknownError:
        return ""
    if abs(other.throughput / found.throughput - 1) > 0.01:
        return ""
    return " So would left-symmetric: the layout no longer matters."
