"""Sentences that explain a prediction, and changes that would make the workload faster.

Each suggested change is predicted itself; none comes from a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lab.core.units import KIB, MIB, format_rate, format_size
from lab.md.facts.geometry import LEFT_SYMMETRIC, PAGE, Geometry
from lab.md.facts.levels import Level
from lab.md.theory.bucket import Unit
from lab.md.theory.cell import Found, Setting, UnknownError, Work, follow
from lab.md.theory.load_prediction import LoadPrediction
from lab.md.theory.paths import Load
from lab.md.theory.sequential_prediction import StreamPrediction
from lab.md.theory.stripe import Tally, WriteMethod

WORTH = 1.05
"""Smallest speed-up of a change that is mentioned."""


def because(setting: Setting, work: Work, found: Found) -> Iterator[str]:
    """Yield sentences on stripes, bitmap, the busiest disk, and burst or queue."""
    geometry = setting.geometry
    if geometry.has_parity and _writes(work):
        yield from _stripes(geometry, work, found.tally)
    elif geometry.has_parity and not geometry.failed:
        yield from _parity_reads(geometry)
    if isinstance(found, LoadPrediction) and found.flushes:
        yield from _bitmap(setting, found)
    if setting.drives and isinstance(found, LoadPrediction):
        yield _arm(setting, work, found)
    else:
        yield from _busiest(setting, found)
    if isinstance(found, LoadPrediction):
        yield from _depth(work, found)
    else:
        yield from _bonus(setting, found)


def lifts(setting: Setting, work: Work, found: Found) -> Iterator[str]:
    """Yield changes that would make it faster, with their predictions, best first."""
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
        yield "The only known way to make it faster: faster disks, or more of them."


def _speed(found: Found) -> str:
    if isinstance(found, LoadPrediction):
        return f"{found.iops:.4g} requests per second"
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
    """Yield partial stripe writes, and the reads that md needed for them."""
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
            f"{covers}, and every write covers whole stripes: md computes {parity} from the "
            "written data and reads nothing."
        )
        return
    part = work.block / stripe
    covered = min(max(-(-work.block // geometry.chunk), 1), data)
    size = f"A write is {_amount(work.block)}"
    yield (
        f"{covers}. {size}, {_fraction(part)} of a stripe"
        if part < 1
        else f"{covers}. {size}, which is not a whole number of stripes"
    ) + f": md cannot compute {parity} from the written data alone."
    modify, construct = covered + checks, data - covered
    rest = f"{construct} chunk{_s(construct, 's', '')} outside the write"
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
                f"member) md reads first, by {name} ({reads}; {instead}): "
                f"{_amount(tally.read(how))} in total."
            )
    if heights[WriteMethod.CACHED]:
        yield (
            f"For {heights[WriteMethod.CACHED] // PAGE} more, an earlier write to the same stripe "
            f"left the data in the stripe cache. md writes {parity} again."
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
            f"Reads skip parity, and all parity is on {_members(idle)}: only "
            f"{geometry.data_members} of {geometry.members} disks serve reads."
        )
    else:
        yield (
            f"Reads skip parity, which rotates over the disks: all {geometry.members} serve reads. "
            "Skipping parity costs a throttled disk nothing."
        )


def _dedicated(geometry: Geometry) -> list[int]:
    """Return members that hold only parity."""
    if not geometry.has_parity:
        return []
    rows = [geometry.row(number) for number in range(geometry.members)]
    return [m for m in range(geometry.members) if all(m in row.checks for row in rows)]


def _members(members: list[int]) -> str:
    *first, last = [str(m + 1) for m in members]
    return f"disks {', '.join(first)} and {last}" if first else f"disk {last}"


def _busiest(setting: Setting, found: Found) -> Iterator[str]:
    """Yield the load of the busiest members and of the least busy one."""
    limit = found.limit
    if limit.member is None:
        yield "The throttles' initial burst covers the whole workload."
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
    # Random offsets do not load the members quite evenly.
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
        does = f"reads and writes {say(most)} in total"
    pace = f"{held.average:g} operations" if counted else _amount(held.average)
    time = f"At {pace} per second that takes {most / held.average:.3g} s."
    if len(busiest) == len(moved):
        yield f"All {len(moved)} disks have about the same load: each {does}. {time}"
        return
    parity = _dedicated(setting.geometry)
    kind = "parity" if len(parity) < 2 else "P and Q"
    verb = "each " if len(busiest) > 1 else "it "
    yield (
        f"The busiest: {_members(busiest)}. {verb.capitalize()}{does}, of {say(sum(moved))} on all "
        f"disks; the least busy disk has {say(min(moved))}. {time}"
    )
    if set(parity) & set(busiest) and load.written_bytes:
        writes = found.members[parity[0]].written_bytes
        yield (
            f"All {kind} is on {_members(parity)}, and every write to any stripe writes there: "
            f"{_amount(writes)}{_needed(setting.geometry, found, parity, writes)}."
        )


def _needed(geometry: Geometry, found: Found, parity: list[int], writes: int) -> str:
    """Return what full-stripe writes would need; empty for a load."""
    if isinstance(found, LoadPrediction):
        return ""
    once = found.throughput * found.seconds / geometry.data_members
    if writes <= 1.01 * once:
        return ""
    each = " each" if len(parity) > 1 else ""
    return f"{each}. Full-stripe writes would need {_amount(round(once))}"


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
                f"The initial burst of {_amount(held.size)} and the final request do not wait, "
                f"which saves {given:.2g} s: the workload takes {found.seconds:.3g} s."
            )
            return
    if limit.busy < 0.97:
        yield (
            f"The limit explains {limit.busy:.0%} of the {found.seconds:.3g} s. With one request "
            "at a time, the other disks wait for the slowest."
        )


def _arm(setting: Setting, work: Work, found: LoadPrediction) -> str:
    """Return the work of a modelled drive."""
    member = found.limit.member or 0
    drive = setting.drives[member].drive
    counted = found.operations[member] / (found.iops * found.seconds)
    said = f"Each request needs {counted:.2g} of the busiest drive's operations"
    if len(setting.drives) == 1:
        said = f"The drive serves {found.iops:.4g} random requests per second"
    if drive.write_cache and _writes(work):
        said += f". Writes end in its cache of {_amount(drive.write_cache)} until that is full"
    return f"{said}. It works for {found.limit.busy:.0%} of the time."


def _depth(work: Work, found: LoadPrediction) -> Iterator[str]:
    depth = work.depth
    if found.limit.member is not None and found.limit.busy < 0.97:
        yield (
            f"At queue depth {depth} that disk is busy for {found.limit.busy:.0%} of the time: at "
            "times all requests wait for other disks."
        )
    yield (
        f"Mean latency {_time(found.latency)}: queue depth {depth}, {found.iops:.4g} requests per "
        "second."
    )


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _bitmap(setting: Setting, found: LoadPrediction) -> Iterator[str]:
    yield (
        f"{found.sets:.0%} of the writes are the first in a clean region of the bitmap. They wait "
        f"until md has written the bit to all {setting.geometry.members} disks. About "
        f"{found.writes_per_flush:.2g} writes share one bitmap write. The guest's kernel decides "
        f"how many: the rate may be {found.doubt - found.chance:.0%} higher or lower."
    )


def _changes(setting: Setting, work: Work) -> Iterator[tuple[str, Setting, Work]]:
    """Yield settings with one change, and the change's name."""
    geometry = setting.geometry
    stripe = _stripe(geometry)
    random = isinstance(work, Load) and work.random
    if geometry.has_parity and _writes(work) and not random and work.block % stripe:
        words = f"bs={format_size(stripe)}, a full stripe,"
        yield words, setting, replace(work, block=stripe)
        chunk, rest = divmod(work.block, geometry.data_members)
        if not rest and chunk >= PAGE and not chunk & (chunk - 1):
            smaller = replace(geometry, chunk=chunk, component_size=_whole(geometry, chunk))
            words = f"array.chunk={format_size(chunk)}, so that a block fills a stripe,"
            yield words, replace(setting, geometry=smaller), work
    if _dedicated(geometry):
        turned = replace(geometry, level=_level(geometry), layout=LEFT_SYMMETRIC)
        words = "array.layout=left-symmetric, rotating parity,"
        yield words, replace(setting, geometry=turned), work
    if setting.bitmap is not None:
        yield "array.bitmap=none", replace(setting, bitmap=None), work
        coarse = replace(setting.bitmap, chunk=setting.bitmap.chunk * 16)
        words = f"array.bitmap_chunk={format_size(coarse.chunk)}"
        yield words, replace(setting, bitmap=coarse), work
    if isinstance(work, Load) and work.random:
        words = f"queue depth {work.depth * 4} instead of {work.depth}"
        yield words, setting, replace(work, depth=work.depth * 4)


def _whole(geometry: Geometry, chunk: int) -> int:
    return geometry.component_size - geometry.component_size % chunk


def _level(geometry: Geometry) -> Level:
    return Level.RAID5 if geometry.level is Level.RAID4 else geometry.level


def _after(before: Setting, setting: Setting, work: Work, found: Found) -> str:
    """Return the effect of a change: load spread evenly, or a layout that no longer matters."""
    geometry = setting.geometry
    moved = [load.read_bytes + load.written_bytes for load in found.members]
    if geometry.layout != before.geometry.layout:
        spread = max(moved) <= 1.1 * min(moved) or isinstance(found, LoadPrediction)
        mean = _amount(round(sum(moved) / len(moved)))
        return f" The load spreads over {len(moved)} disks, {mean} each." if spread else ""
    if not _dedicated(geometry):
        return ""
    turned = replace(geometry, level=_level(geometry), layout=LEFT_SYMMETRIC)
    try:
        other = follow(replace(setting, geometry=turned), work)
    except UnknownError:
        return ""
    if abs(other.throughput / found.throughput - 1) > 0.01:
        return ""
    return " left-symmetric would be as fast: the layout no longer matters."
