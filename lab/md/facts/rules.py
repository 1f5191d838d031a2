"""Arrays that mdadm, the kernel or the lab refuses, found before a guest boots.

A refusal by mdadm would cost a boot of up to 30 s, and what mdadm accepts silently would give a
wrong measurement. Each problem names the field to change. Sources: mdadm ``mdadm.c``, ``Create.c``,
``super1.c``; kernel ``raid5.c: setup_conf``, ``raid10.c: setup_conf``, ``raid0.c``,
``raid5-ppl.c``; the manual pages ``mdadm(8)`` and ``md(4)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lab.core.units import GIB, KIB, format_size
from lab.core.wording import guess
from lab.md.facts.levels import NAMES, Level, copies, layout_names, layout_number
from lab.md.facts.option_rules import (
    SMALLEST_BITMAP_DISK,
    SMALLEST_JOURNAL_DISK,
    bitmap_problems,
    option_problems,
)
from lab.md.facts.sizes import (
    DEFAULT_CHUNK,
    SMALLEST_CHUNK,
    SUPERBLOCK_END,
    data_offset_of,
    member_count,
    present,
    room_on,
    without_disks_aside,
)
from lab.model.plugin import Problem
from lab.model.scenario.document import Array, InitialSync
from lab.model.scenario.zfs import ZfsParameters

METADATA = ("1.0", "1.1", "1.2")


def array_problems(array: Array, sizes: Sequence[int]) -> Iterable[Problem]:
    """Yield every problem of an array on single disks of these sizes (bytes, in order).

    Checks that depend on a wrong field run once that field is right.
    """
    if array.zfs != ZfsParameters():
        yield Problem(key="array.zfs", message="only arrays of kind zfs have these: remove it")
    level = NAMES.get(array.level)
    if level is None:
        yield _no_level(array.level)
        return
    aside = list(_aside_problems(array, sizes))
    yield from aside
    if aside:
        return
    sizes = without_disks_aside(array, sizes)
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


def _aside_problems(array: Array, sizes: Sequence[int]) -> Iterable[Problem]:
    """Yield a problem of each disk that is set aside for the bitmap or the journal."""
    offset = array.data_offset or 0  # mdadm's option applies to the journal's disk too
    for key, number, least, use in (
        ("bitmap_disk", array.bitmap_disk, SMALLEST_BITMAP_DISK, "the bitmap's ext4"),
        ("journal_disk", array.journal_disk, offset + SMALLEST_JOURNAL_DISK, "the journal"),
    ):
        if number is None:
            continue
        if number > len(sizes):
            message = f"there is no disk {number}: write 1 to {len(sizes)}"
        elif sizes[number - 1] < least:
            message = (
                f"disk {number} has {format_size(sizes[number - 1])}: {use} needs "
                f"{format_size(least)} or more"
            )
        elif key == "journal_disk" and number == array.bitmap_disk:
            message = f"disk {number} is for the bitmap too: give the journal another one"
        else:
            continue
        yield Problem(key=f"array.{key}", message=message)


def _no_level(name: str) -> Problem:
    message = f"the lab has no md level {name!r}: write 0, 1, 4, 5, 6, 10 or linear"
    return Problem(key="array.level", message=message)


def _member_problems(array: Array, level: Level, disks: int) -> Iterable[Problem]:
    members = member_count(array, disks)
    if array.spares and not level.redundant:
        yield Problem(
            key="array.spares",
            message=f"{level.title} has no redundancy, so it takes no spares: set spares to 0",
        )
    elif array.members is not None and members + array.spares > disks:
        spares = f" and {array.spares} spares" if array.spares else ""
        yield Problem(
            key="array.members",
            message=f"{members} members{spares} need more than {disks} disks: raise disks.count, "
            "or lower members or spares",
        )
    elif members < level.smallest:
        if array.members is not None:
            key, found = "array.members", f"members is {members}: raise it"
        elif array.spares and disks >= level.smallest:
            key = "array.spares"
            found = f"spares leaves {max(members, 0)} of {disks} disks: lower it"
        else:
            key, found = (
                "disks.count",
                f"there are {max(members, 0)} disks for them: raise disks.count",
            )
        yield Problem(
            key=key, message=f"{level.title} needs at least {level.smallest} members, and {found}"
        )
    yield from _layout_width_problems(array, level, members)


def _missing_problems(array: Array, level: Level, disks: int) -> Iterable[Problem]:
    """A degraded array never clears bits, recovers onto a spare, and syncs if it is not clean."""
    if array.missing is None:
        return
    members = member_count(array, disks)
    if not level.redundant:
        message = f"{level.title} does not run without a member: remove missing"
    elif array.missing > members:
        message = f"there is no member {array.missing}: write 1 to {members}"
    elif array.spares:
        message = "md would recover onto a spare at once: set spares to 0"
    elif array.bitmap != "none":
        message = (
            f"a degraded array never clears bits, and the lab waits for a clean {array.bitmap} "
            "bitmap: set bitmap to none"
        )
    elif array.initial_sync is not InitialSync.ASSUME_CLEAN:
        message = "a degraded array cannot sync: set initial_sync to assume_clean"
    else:
        return
    yield Problem(key="array.missing", message=message)


def _layout_width_problems(array: Array, level: Level, members: int) -> Iterable[Problem]:
    """RAID 10 stores two copies or more, on different members."""
    if level is not Level.RAID10 or members < level.smallest:
        return
    try:
        stored = copies(layout_number(level, array.layout))
    except ValueError:
        return  # _layout_problems reports it
    if stored < 2:
        yield Problem(
            key="array.layout",
            message=f"{array.layout!r} stores each chunk once, and RAID 10 needs 2 copies or more: "
            "write n2, or set level to 0",
        )
    elif stored > members:
        yield Problem(
            key="array.layout",
            message=f"{array.layout!r} needs {stored} members, and there are {members}: raise the "
            "number of members, or write n2",
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
            advice = "remove it"
            if level is Level.RAID4:
                advice += " (RAID 5 with parity-last is the same mapping)"
        yield Problem(
            key="array.layout",
            message=f"{level.title} has no layout {array.layout!r}: {advice}"
            + guess(array.layout, known),
            idle_by="" if known else "array.level",
        )


def _chunk_problems(array: Array, level: Level) -> Iterable[Problem]:
    chunk = array.chunk
    if chunk is None:
        return
    found = format_size(chunk)
    if not level.striped:
        message = f"{level.title} has no chunk: remove it"
        yield Problem(key="array.chunk", message=message, idle_by="array.level")
        return
    if chunk < SMALLEST_CHUNK:
        message = f"{found} is less than a page: write 4KiB or more"
    elif chunk > GIB:
        message = f"{found} is too large for md: write 1GiB or less"
    elif level is Level.RAID0 and chunk % SMALLEST_CHUNK:
        message = f"{found} is not a multiple of 4KiB, which RAID 0 needs"
    elif level is not Level.RAID0 and chunk & (chunk - 1):
        near = 1 << chunk.bit_length() - 1
        message = (
            f"{found} is not a power of two: write {format_size(near)} or {format_size(2 * near)}"
        )
    else:
        return
    yield Problem(key="array.chunk", message=message)


def _metadata_problems(array: Array) -> Iterable[Problem]:
    if array.metadata not in METADATA:
        message = f"the lab does not support metadata {array.metadata!r}: write 1.2, 1.1 or 1.0"
        yield Problem(key="array.metadata", message=message)
        return
    offset = array.data_offset
    if offset is None:
        return
    if array.metadata == "1.0":
        message = (
            "metadata 1.0 is at the end, and data start at 0: remove data_offset, or set metadata "
            "to 1.2"
        )
    elif offset % KIB:
        message = f"{offset} bytes are not a multiple of 1KiB, mdadm's unit: round it"
    elif offset < SUPERBLOCK_END[array.metadata]:
        least = format_size(SUPERBLOCK_END[array.metadata])
        message = (
            f"data at {format_size(offset)} would overwrite the superblock: metadata "
            f"{array.metadata} needs {least} or more"
        )
    else:
        return
    yield Problem(key="array.data_offset", message=message)


def _fit_problems(array: Array, level: Level, sizes: Sequence[int]) -> Iterable[Problem]:
    """Yield problems if metadata and component do not fit on every member and spare."""
    used = present(array, sizes)
    chunk = (array.chunk or DEFAULT_CHUNK) if level.striped else 0
    offset = data_offset_of(array, used[0], chunk)
    smallest = min(used)
    room = room_on(array, smallest, offset, chunk)
    if room < (64 * KIB if level is Level.RAID1 else SMALLEST_CHUNK):
        where = f"a data offset of {format_size(offset)}" if offset else "metadata at the end"
        unit = f" and a whole chunk of {format_size(chunk)}" if chunk else ""
        key = "array.data_offset" if array.data_offset else "disks.size"
        yield Problem(
            key=key,
            message=f"a disk of {format_size(smallest)} is too small for {where}{unit}: write "
            "larger disks, or a smaller chunk or offset",
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
            message="the kernel refuses this layout on disks of different sizes: write original or "
            "alternate",
        )


def _component_problems(array: Array, level: Level, room: int, chunk: int) -> Iterable[Problem]:
    component = array.component_size or 0
    found = format_size(component)
    least = max(chunk, SMALLEST_CHUNK)
    if level is Level.RAID10:
        least *= layout_number(level, array.layout) >> 8 & 255
    if not level.redundant:
        message = f"{level.title} uses all of each member: remove it, and set disks.size"
    elif component % KIB:
        message = f"{component} bytes are not a multiple of 1KiB, mdadm's unit: round it"
    elif component < least:
        message = f"{found} is too small for this chunk: write {format_size(least)} or more"
    elif component > room:
        message = (
            f"{found} is more than the smallest disk has after its data offset, "
            f"{format_size(room)}: lower it, or write larger disks"
        )
    else:
        return
    yield Problem(key="array.component_size", message=message)


_NUMBERED = re.compile(r"(md|d)\d+|md_.*")


def _name_problems(array: Array) -> Iterable[Problem]:
    """mdadm silently reads some names as device numbers."""
    if _NUMBERED.fullmatch(array.name):
        yield Problem(
            key="array.name",
            message=f"mdadm reads {array.name!r} as a device number: write a word such as bench",
        )
