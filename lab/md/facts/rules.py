"""What mdadm or the kernel would refuse of an array, found before a guest boots.

Each problem names the field that should change. Sources: mdadm ``mdadm.c``, ``Create.c``,
``super1.c``; kernel ``raid5.c: setup_conf``, ``raid10.c: setup_conf``, ``raid0.c``,
``raid5-ppl.c``; the manual pages ``mdadm(8)`` and ``md(4)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lab.core.units import GIB, KIB, format_size
from lab.core.wording import guess
from lab.md.facts.levels import NAMES, REFUSED, Level, copies, layout_names, layout_number
from lab.md.facts.options import SMALLEST_BITMAP_DISK, bitmap_problems, option_problems
from lab.md.facts.sizes import (
    DEFAULT_CHUNK,
    SMALLEST_CHUNK,
    SUPERBLOCK_END,
    data_offset_of,
    member_count,
    present,
    room_on,
    without_bitmap_disk,
)
from lab.model.plugin import Problem
from lab.model.scenario.document import Array, InitialSync
from lab.model.scenario.zfs import ZfsParameters

METADATA = ("1.0", "1.1", "1.2")


def array_problems(array: Array, sizes: Sequence[int]) -> Iterable[Problem]:
    """Everything wrong with an array on single disks of these sizes (bytes, in order).

    What cannot be judged before something else is mended is judged the next time.
    """
    if array.zfs != ZfsParameters():
        yield Problem(key="array.zfs", message="a pool has these and md does not: leave it out")
    level = NAMES.get(array.level)
    if level is None:
        yield _no_level(array.level)
        return
    aside = list(_bitmap_disk_problems(array, sizes))
    yield from aside
    if aside:
        return
    sizes = without_bitmap_disk(array, sizes)
    shape = [
        *_member_problems(array, level, len(sizes)),
        *_missing_problems(array, level, len(sizes)),
        *_layout_problems(array, level),
        *_chunk_problems(array, level),
        *_metadata_problems(array),
    ]
    yield from shape
    yield from _name_problems(array)
    yield from option_problems(array, level, member_count(array, len(sizes)))
    if not shape:
        fit = list(_fit_problems(array, level, sizes))
        yield from fit
        yield from bitmap_problems(array, level, () if fit else sizes)


def _bitmap_disk_problems(array: Array, sizes: Sequence[int]) -> Iterable[Problem]:
    number = array.bitmap_disk
    if number is None:
        return
    if number > len(sizes):
        message = f"there is no disk {number}: they count from 1 to {len(sizes)}"
    elif sizes[number - 1] < SMALLEST_BITMAP_DISK:
        message = (
            f"disk {number} has {format_size(sizes[number - 1])}, and an ext4 for the bitmap needs "
            f"{format_size(SMALLEST_BITMAP_DISK)}: give it more"
        )
    else:
        return
    yield Problem(key="array.bitmap_disk", message=message)


def _no_level(name: str) -> Problem:
    why = f"it {REFUSED[name]}" if name in REFUSED else "md has no such level"
    return Problem(
        key="array.level",
        message=f"{name!r} cannot be built: {why}; write 0, 1, 4, 5, 6, 10 or linear",
    )


def _member_problems(array: Array, level: Level, disks: int) -> Iterable[Problem]:
    members = member_count(array, disks)
    if array.spares and not level.redundant:
        yield Problem(
            key="array.spares",
            message=f"{level.title} cannot lose a member, so it takes no spares: set spares to 0",
        )
    elif array.members is not None and members + array.spares > disks:
        spares = f" and {array.spares} spares" if array.spares else ""
        yield Problem(
            key="array.members",
            message=f"{members} members{spares} do not fit on the {disks} disks that there are: "
            "raise disks.count, or lower members or spares",
        )
    elif members < level.smallest:
        if array.members is not None:
            key, found = "array.members", f"{members} are asked for: raise members"
        elif array.spares and disks >= level.smallest:
            key = "array.spares"
            found = f"{array.spares} spares leave {max(members, 0)} of {disks} disks: lower spares"
        else:
            key, found = "disks.count", f"the disks leave {max(members, 0)}: raise disks.count"
        yield Problem(
            key=key, message=f"{level.title} needs at least {level.smallest} members, and {found}"
        )
    yield from _layout_width_problems(array, level, members)


def _missing_problems(array: Array, level: Level, disks: int) -> Iterable[Problem]:
    """A degraded array keeps its bits, recovers onto a spare, and syncs if it is not clean."""
    if array.missing is None:
        return
    members = member_count(array, disks)
    if not level.redundant:
        message = f"{level.title} does not run without a member: leave missing out"
    elif array.missing > members:
        message = f"there is no member {array.missing}: they count from 1 to {members}"
    elif array.spares:
        message = "md would recover the missing member onto a spare at once: set spares to 0"
    elif array.bitmap != "none":
        message = (
            f"an array without a member never clears bits, and the lab waits for a clean "
            f"{array.bitmap} bitmap: set bitmap to none"
        )
    elif array.initial_sync is not InitialSync.ASSUME_CLEAN:
        message = "an array without a member cannot sync all of them: set initial_sync to "
        message += "assume_clean"
    else:
        return
    yield Problem(key="array.missing", message=message)


def _layout_width_problems(array: Array, level: Level, members: int) -> Iterable[Problem]:
    """RAID 10 keeps no two copies of a chunk on one member."""
    if level is not Level.RAID10 or members < level.smallest:
        return
    try:
        stored = copies(layout_number(level, array.layout))
    except ValueError:
        return  # _layout_problems says so
    if stored < 2:
        yield Problem(
            key="array.layout",
            message=f"{array.layout!r} stores each chunk once, and the kernel's RAID 10 wants 2 "
            "copies or more: write n2, or set level to 0",
        )
    elif stored > members:
        yield Problem(
            key="array.layout",
            message=f"{array.layout!r} needs {stored} members for its copies, and there are "
            f"{members}: raise the number of members, or write n2",
        )


def _layout_problems(array: Array, level: Level) -> Iterable[Problem]:
    if array.layout is None:
        return
    try:
        layout_number(level, array.layout)
    except ValueError:
        known = layout_names(level)
        if known:
            advice = f"write one of {', '.join(known)}"
            if level is Level.RAID10:
                advice += ", N being the number of copies (n2)"
        else:
            advice = "leave it out"
            if level is Level.RAID4:
                advice += " (RAID 5 with parity-last places data and parity in the same way)"
        yield Problem(
            key="array.layout",
            message=f"{level.title} has no layout {array.layout!r}: {advice}"
            + guess(array.layout, known),
        )


def _chunk_problems(array: Array, level: Level) -> Iterable[Problem]:
    chunk = array.chunk
    if chunk is None:
        return
    found = format_size(chunk)
    if not level.striped:
        message = f"{level.title} is not striped and has no chunk: leave {found} out"
    elif chunk < SMALLEST_CHUNK:
        message = f"{found} is below a page: md's smallest chunk is 4KiB"
    elif chunk > GIB:
        message = f"{found} is more than md can address: give 1GiB or less"
    elif level is Level.RAID0 and chunk % SMALLEST_CHUNK:
        message = f"{found} is not whole pages: md's RAID 0 needs a multiple of 4KiB"
    elif level is not Level.RAID0 and chunk & (chunk - 1):
        near = 1 << chunk.bit_length() - 1
        message = (
            f"{found} is not a power of two: md's {level.title} needs 4KiB, 8KiB, …; near it are "
            f"{format_size(near)} and {format_size(2 * near)}"
        )
    else:
        return
    yield Problem(key="array.chunk", message=message)


def _metadata_problems(array: Array) -> Iterable[Problem]:
    if array.metadata not in METADATA:
        why = "is not one of md's own 1.x formats, which the lab can predict and read back"
        yield Problem(
            key="array.metadata", message=f"{array.metadata!r} {why}: write 1.2, 1.1 or 1.0"
        )
        return
    offset = array.data_offset
    if offset is None:
        return
    if array.metadata == "1.0":
        message = (
            "with metadata 1.0 the superblock is at the end and data begin at 0: leave the data "
            "offset out, or set metadata to 1.2"
        )
    elif offset % KIB:
        message = f"{offset} bytes are not whole KiB, in which mdadm counts: round it"
    elif offset < SUPERBLOCK_END[array.metadata]:
        least = format_size(SUPERBLOCK_END[array.metadata])
        message = (
            f"at {format_size(offset)} data would lie on the superblock: metadata "
            f"{array.metadata} needs {least} or more"
        )
    else:
        return
    yield Problem(key="array.data_offset", message=message)


def _fit_problems(array: Array, level: Level, sizes: Sequence[int]) -> Iterable[Problem]:
    """Whether metadata and component fit on every member and spare."""
    used = present(array, sizes)
    chunk = (array.chunk or DEFAULT_CHUNK) if level.striped else 0
    offset = data_offset_of(array, used[0], chunk)
    smallest = min(used)
    room = room_on(array, smallest, offset, chunk)
    if room < (64 * KIB if level is Level.RAID1 else SMALLEST_CHUNK):
        where = f"{format_size(offset)} of data offset" if offset else "metadata at the end"
        unit = f" and a whole chunk of {format_size(chunk)}" if chunk else ""
        key = "array.data_offset" if array.data_offset else "disks.size"
        yield Problem(
            key=key,
            message=f"a disk of {format_size(smallest)} has no room left behind {where}{unit}: "
            "give larger disks or a smaller chunk or offset",
        )
        return
    if level is Level.RAID0 and array.layout == "dangerous":
        yield from _dangerous_problems(used, offset, chunk)
    if array.component_size is None:
        return
    yield from _component_problems(array, level, room, chunk)


def _dangerous_problems(used: Sequence[int], offset: int, chunk: int) -> Iterable[Problem]:
    if len({(size - offset) // chunk for size in used}) > 1:
        yield Problem(
            key="array.layout",
            message="the disks differ in size, and for them the kernel refuses a RAID 0 whose "
            "layout is left open: write original or alternate",
        )


def _component_problems(array: Array, level: Level, room: int, chunk: int) -> Iterable[Problem]:
    component = array.component_size or 0
    found = format_size(component)
    least = max(chunk, SMALLEST_CHUNK)
    if level is Level.RAID10:
        least *= layout_number(level, array.layout) >> 8 & 255
    if not level.redundant:
        message = f"{level.title} uses all of each member: leave {found} out, and size the disks"
    elif component % KIB:
        message = f"{component} bytes are not whole KiB, in which mdadm counts: round it"
    elif component < least:
        message = f"{found} is less than {format_size(least)}, the smallest with this chunk"
    elif component > room:
        message = (
            f"{found} is more than the {format_size(room)} that the smallest disk has behind its "
            "data offset: lower it, or give larger disks"
        )
    else:
        return
    yield Problem(key="array.component_size", message=message)


_NUMBERED = re.compile(r"(md|d)\d+|md_.*")


def _name_problems(array: Array) -> Iterable[Problem]:
    """Names that mdadm reads as a device number."""
    if _NUMBERED.fullmatch(array.name):
        yield Problem(
            key="array.name",
            message=f"mdadm would read {array.name!r} as a device number: write a word such as "
            "bench",
        )
