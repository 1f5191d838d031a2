"""Says what an array was and what happened to it, from superblocks and signatures alone. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from lab.capabilities.rescue.logic import signatures, superblocks
from lab.capabilities.rescue.logic.superblocks import JOURNAL, Read, Superblock
from lab.capabilities.rescue.model import (
    Arrangement,
    Array,
    Diagnosis,
    Finding,
    Member,
    Part,
    Shape,
    Weight,
)
from lab.core.units import format_size

_TOLERATED: Final = 1
"""Events that a member may be behind: ``Assemble.c: assemble`` takes it as current."""
_PLACES: Final = (0, 8192, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 17 << 20, 65 << 20, 129 << 20)
"""Usual data offsets, beside those that superblocks name."""
_SAME_TIME: Final = 2
"""Seconds between the creation times that one ``--create`` writes."""


def parts_of(
    disk: int,
    name: str,
    path: str,
    size: int,
    read: Read,
    unread: Sequence[tuple[int, int]] = (),
) -> list[Part]:
    """Return the disk, and its partitions, as possible members.

    A superblock at the end of the last partition may be at the end of the disk as well: it is the
    disk's only if it says so.
    """
    table = signatures.table(read, size)
    whole = _part(disk, name, path, 0, size, read, unread, table)
    found = [whole]
    for number, partition in enumerate(table.partitions if table else (), 1):
        length = min(partition.size, size - partition.at)
        if length < 128 * 1024:
            continue
        inner = _inner(read, partition.at, length)
        holes = [(b - partition.at, n) for b, n in unread if b < partition.at + length]
        holes = [(max(0, b), n + min(0, b)) for b, n in holes if b + n > 0]
        joint = f"{path}p{number}" if path[-1:].isdigit() else f"{path}{number}"
        found.append(
            _part(disk, f"{name}{number}", joint, partition.at, length, inner, holes, None)
        )
    members = [part for part in found[1:] if part.superblocks]
    if members:  # what the whole disk seems to have belongs to its partition
        seen = {block.device_uuid for part in members for block in part.superblocks}
        own = [b for b in whole.superblocks if b.device_uuid not in seen and b.version != "0.90"]
        if not own:
            return members
    if not whole.superblocks:
        lost = _lost_partitions(disk, name, path, size, read, unread)
        if lost:
            return lost
    return [whole]


def _lost_partitions(
    disk: int, name: str, path: str, size: int, read: Read, unread: Sequence[tuple[int, int]]
) -> list[Part]:
    """Return members at places where partitions usually begin, on a disk without a table."""
    found: list[Part] = []
    for at in (63 * 512, *range(1 << 20, min(size, 1 << 30), 1 << 20)):
        block = superblocks.at(_inner(read, at, size - at), 4096, "1.2")
        if block is None or not block.checksum_ok or block.stored_at != 4096:
            continue
        length = min(size - at, block.data_offset + max(block.data_size, block.size))
        inner = _inner(read, at, length)
        holes = [(b - at, n) for b, n in unread if at <= b < at + length]
        where = f"{path} at byte {at}"
        part = _part(disk, f"{name}{len(found) + 1}", where, at, length, inner, holes, None)
        if part.superblocks:
            found.append(part)
    return found


def _inner(read: Read, at: int, length: int) -> Read:
    def inner(offset: int, count: int) -> bytes:
        return read(at + offset, min(count, length - offset)) if 0 <= offset < length else b""

    return inner


def _part(
    disk: int,
    name: str,
    path: str,
    at: int,
    size: int,
    read: Read,
    unread: Sequence[tuple[int, int]],
    table: signatures.Table | None,
) -> Part:
    blocks = superblocks.find(read, size)
    valid = [block for block in blocks if block.checksum_ok]
    newest = max(valid, key=lambda block: (block.created, block.updated), default=None)
    offsets = dict.fromkeys([*(block.data_offset for block in valid), *_PLACES])
    contents = [signatures.content(read, place) for place in offsets if place < size]
    return Part(
        disk=disk,
        name=name,
        path=path,
        size=size,
        at=at,
        superblocks=tuple(blocks),
        bitmap=superblocks.bitmap(read, newest) if newest else None,
        bad_blocks=superblocks.bad_blocks(read, newest) if newest else None,
        journal_blocks=bool(newest and superblocks.has_journal(read, newest)),
        ppl=bool(newest and superblocks.has_ppl(read, newest)),
        contents=tuple(content for content in contents if content),
        table=table,
        foreign=signatures.foreign_raid(read, size),
        unread=tuple(unread),
    )


def diagnose(parts: Sequence[Part]) -> Diagnosis:
    """Return arrays and findings."""
    arrays = _arrays(parts)
    findings = [*_of_parts(parts), *_of_generations(parts)]
    for array in arrays:
        findings += _of_array(parts, array)
    if not arrays:
        sentence = "No disk has a valid md superblock: the arrangement must be found from the data."
        findings.append(Finding(kind="no-superblocks", weight=Weight.DANGER, sentence=sentence))
    findings += _strangers(parts, arrays)
    order = {Weight.DANGER: 0, Weight.WARNING: 1, Weight.NOTE: 2}
    findings.sort(key=lambda finding: order[finding.weight])
    return Diagnosis(parts=tuple(parts), arrays=tuple(arrays), findings=tuple(findings))


def arranged(diagnosis: Diagnosis, found: Sequence[Arrangement]) -> Diagnosis:
    """Return the diagnosis with arrangements from the data, and what they contradict."""
    findings = list(diagnosis.findings)
    newest = diagnosis.arrays[0] if diagnosis.arrays else None
    if found and newest is not None:
        best, shape = found[0], newest.shape
        slots = {member.part: member.role for member in newest.members}
        differs = []
        if (best.shape.level, best.shape.layout) != (shape.level, shape.layout):
            differs.append(f"level {best.shape.level} and layout {best.shape.layout:#x}")
        if best.shape.chunk != shape.chunk:
            differs.append(f"chunk {format_size(best.shape.chunk)}, not {format_size(shape.chunk)}")
        if best.shape.data_offset != shape.data_offset:
            differs.append(f"data from byte {best.shape.data_offset}, not {shape.data_offset}")
        if any(name and slots.get(name, role) != role for role, name in enumerate(best.slots)):
            differs.append(f"the order {' '.join(f'{{{n}}}' for n in best.slots if n)}")
        if differs:
            findings.insert(
                0,
                Finding(
                    kind="recreated",
                    weight=Weight.DANGER,
                    sentence=f"The superblocks of {moment(newest.created)} do not fit the data. "
                    f"The data says: {'; '.join(differs)} ({best.evidence}). Somebody created an "
                    "array over it.",
                    parts=tuple(slots),
                ),
            )
    return replace(diagnosis, arrangements=tuple(found), findings=tuple(findings))


def shape_of(block: Superblock) -> Shape:
    """Return the shape that a superblock describes."""
    return Shape(
        level=block.level,
        disks=block.raid_disks,
        chunk=block.chunk,
        layout=block.layout,
        version=block.version,
        data_offset=block.data_offset,
        size=block.size,
    )


def _arrays(parts: Sequence[Part]) -> list[Array]:
    by_array: dict[str, list[tuple[Part, Superblock]]] = defaultdict(list)
    for part in parts:
        for block in part.superblocks:
            if block.checksum_ok:
                by_array[block.array_uuid].append((part, block))
    found = [_array(uuid, members) for uuid, members in by_array.items()]
    return sorted(found, key=lambda array: (array.created, len(array.members)), reverse=True)


def _array(uuid: str, members: list[tuple[Part, Superblock]]) -> Array:
    newest = max((block for _, block in members), key=lambda block: (block.events, block.updated))
    current = newest.active_roles
    listed = []
    for part, block in members:
        if not block.is_member:
            continue
        behind = newest.events - block.events > _TOLERATED
        dropped = newest.version != "0.90" and block.role not in current
        listed.append(
            Member(
                part=part.name,
                role=block.role,
                events=block.events,
                updated=block.updated,
                stale=behind or dropped,
                recovering=block.recovery is not None,
            )
        )
    listed.sort(key=lambda member: (member.role, -member.events))
    roles = {member.role for member in listed}
    journal = next((part.name for part, block in members if block.role == JOURNAL), "")
    return Array(
        uuid=uuid,
        name=newest.name,
        created=newest.created,
        shape=shape_of(newest),
        members=tuple(listed),
        spares=tuple(p.name for p, b in members if not b.is_member and b.role != JOURNAL),
        journal=journal,
        needs_journal=newest.feature_journal,
        missing=tuple(role for role in range(min(newest.raid_disks, 384)) if role not in roles),
        clean=newest.clean,
        reshaping=newest.reshape is not None,
    )


# -- findings


def moment(seconds: int) -> str:
    """Return a time as text, in UTC."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "an impossible time"


def level_name(level: int) -> str:
    """Return a level as people write it."""
    return {-1: "linear"}.get(level, f"RAID {level}")


def _of_parts(parts: Sequence[Part]) -> Iterable[Finding]:
    for part in parts:
        for block in part.superblocks:
            if not block.checksum_ok:
                yield _finding(
                    "checksum",
                    Weight.WARNING,
                    f"{{{part.name}}} has a {block.version} superblock whose checksum is wrong: it "
                    "is corrupt, and mdadm ignores it.",
                    part,
                )
            elif block.stored_at != block.at and block.version != "0.90":
                yield _finding(
                    "moved",
                    Weight.WARNING,
                    f"{{{part.name}}}'s superblock says that it is at byte {block.stored_at}, and "
                    f"it is at byte {block.at}: the device was cut, shifted or resized.",
                    part,
                )
            needed = block.data_offset + block.size
            if block.checksum_ok and block.is_member and block.size and needed > part.size:
                yield _finding(
                    "truncated",
                    Weight.DANGER,
                    f"{{{part.name}}} is {format_size(part.size)}, and the array uses its first "
                    f"{format_size(needed)}: {format_size(needed - part.size)} at its end are "
                    "missing (a copy that was cut, or a host-protected area).",
                    part,
                )
        if part.unread:
            total = sum(length for _, length in part.unread)
            yield _finding(
                "holes",
                Weight.WARNING,
                f"{{{part.name}}} has {len(part.unread)} ranges, {format_size(total)} in all, that "
                "could not be read when it was copied. They read as errors in the attempts, so "
                "that md rebuilds them from the other members where it can.",
                part,
            )
        if part.bad_blocks and part.bad_blocks.ranges:
            total = sum(length for _, length in part.bad_blocks.ranges)
            yield _finding(
                "bad-blocks",
                Weight.WARNING,
                f"md has recorded {len(part.bad_blocks.ranges)} unreadable ranges "
                f"({format_size(total)}) on {{{part.name}}}.",
                part,
            )
        if part.foreign:
            kind = {"imsm": "Intel (IMSM)", "ddf": "DDF"}[part.foreign]
            yield _finding(
                "firmware",
                Weight.WARNING,
                f"{{{part.name}}} has metadata of firmware RAID: {kind}. It is recognised, and no "
                "attempt is made with it.",
                part,
            )
        if part.table and part.table.corrupt:
            yield _finding(
                "table",
                Weight.WARNING,
                f"The {part.table.corrupt} partition table (GPT) of {{{part.name}}} is corrupt.",
                part,
            )


def _finding(kind: str, weight: Weight, sentence: str, *parts: Part) -> Finding:
    return Finding(
        kind=kind, weight=weight, sentence=sentence, parts=tuple(part.name for part in parts)
    )


def _of_generations(parts: Sequence[Part]) -> Iterable[Finding]:
    """Return what several arrays on the same disks say."""
    for part in parts:
        uuids = {block.array_uuid for block in part.superblocks if block.checksum_ok}
        if len(uuids) > 1:
            words = ", ".join(
                f"{block.version} of {moment(block.created)}"
                for block in sorted(part.superblocks, key=lambda block: block.created)
                if block.checksum_ok
            )
            yield _finding(
                "generations",
                Weight.DANGER,
                f"{{{part.name}}} has superblocks of {len(uuids)} arrays: {words}. Somebody "
                "created an array over an older one, with another version of metadata.",
                part,
            )


def _of_array(parts: Sequence[Part], array: Array) -> Iterable[Finding]:
    shape = array.shape
    title = f"'{array.name}'" if array.name else array.uuid[:8]
    chunk = f", chunk {format_size(shape.chunk)}" if shape.chunk else ""
    slots = ", ".join(f"slot {member.role} {{{member.part}}}" for member in array.members)
    yield Finding(
        kind="array",
        weight=Weight.NOTE,
        sentence=f"{level_name(shape.level)} of {shape.disks} members {title}{chunk}, metadata "
        f"{shape.version}, created {moment(array.created)}: {slots or 'no member'}.",
        parts=tuple(member.part for member in array.members),
    )
    newest = max((member.events for member in array.members), default=0)
    latest = max((member.updated for member in array.members), default=0)
    for member in array.members:
        if member.stale and newest > member.events:
            yield Finding(
                kind="stale",
                weight=Weight.WARNING,
                sentence=f"{{{member.part}}} (slot {member.role}) is stale: it was updated last at "
                f"{moment(member.updated)} with event count {member.events}; the newest member has "
                f"{newest} at {moment(latest)}. What was written between is not on it.",
                parts=(member.part,),
            )
        elif newest > member.events:
            yield Finding(
                kind="behind",
                weight=Weight.NOTE,
                sentence=f"{{{member.part}}} is {newest - member.events} event behind: mdadm "
                "accepts it.",
                parts=(member.part,),
            )
        if member.recovering:
            yield Finding(
                kind="recovering",
                weight=Weight.WARNING,
                sentence=f"{{{member.part}}} was being rebuilt in slot {member.role} and is not "
                "complete.",
                parts=(member.part,),
            )
    doubled = [r for r, count in Counter(m.role for m in array.members).items() if count > 1]
    for role in doubled:
        both = [member.part for member in array.members if member.role == role]
        yield Finding(
            kind="doubled",
            weight=Weight.DANGER,
            sentence=f"Slot {role} has {len(both)} disks: "
            f"{' and '.join(f'{{{name}}}' for name in both)}. One is a copy, or was replaced.",
            parts=tuple(both),
        )
    if array.missing:
        usable = shape.disks - len(array.missing)
        yield Finding(
            kind="missing",
            weight=Weight.WARNING if usable >= needed(shape) else Weight.DANGER,
            sentence=f"No disk is here for {_slots(array.missing)} of {shape.disks}; "
            f"{level_name(shape.level)} needs {needed(shape)} members.",
        )
    if len(array.fresh) < needed(shape) <= len({m.role for m in array.members}):
        yield Finding(
            kind="too-few-fresh",
            weight=Weight.DANGER,
            sentence=f"Current members: {len(array.fresh)}; needed: {needed(shape)}. "
            "The array starts only with a member that is behind (--force).",
        )
    if not array.clean and shape.level in (4, 5, 6):
        yield Finding(
            kind="dirty",
            weight=Weight.NOTE,
            sentence="The array was not stopped cleanly: parity may not fit the data of the last "
            "writes.",
        )
    if array.needs_journal and not array.journal:
        yield Finding(
            kind="journal-lost",
            weight=Weight.DANGER,
            sentence="The array has a write journal, and the journal's device is not here. What "
            "was acknowledged and only in the journal is lost.",
        )
    yield from _of_reshape(parts, array)


def _of_reshape(parts: Sequence[Part], array: Array) -> Iterable[Finding]:
    blocks = {p.name: b for p in parts for b in p.superblocks if b.array_uuid == array.uuid}
    moving = [(name, block) for name, block in blocks.items() if block.reshape]
    if not moving:
        return
    _, block = max(moving, key=lambda item: item[1].events)
    reshape = block.reshape
    assert reshape is not None
    data = max(1, data_disks(shape_of(block)))
    whole = block.size * data
    done = reshape.position / whole if whole else 0.0
    if reshape.backwards:
        done = 1 - done
    what = []
    if reshape.delta_disks:
        what.append(f"{block.raid_disks - reshape.delta_disks} to {block.raid_disks} members")
    if reshape.new_level != block.level:
        what.append(f"{level_name(block.level)} to {level_name(reshape.new_level)}")
    if reshape.new_chunk != block.chunk:
        what.append(f"chunk {format_size(block.chunk)} to {format_size(reshape.new_chunk)}")
    if reshape.new_layout != block.layout:
        what.append("another layout")
    backup = "" if reshape.new_offset else " It moves data in place, with a backup file."
    yield Finding(
        kind="reshape",
        weight=Weight.DANGER,
        sentence=f"A reshape was under way ({', '.join(what) or 'of the data offset'}), at "
        f"{format_size(reshape.position)} of the array, about {done:.0%}.{backup}",
        parts=tuple(name for name, _ in moving),
    )


def _strangers(parts: Sequence[Part], arrays: Sequence[Array]) -> Iterable[Finding]:
    """Return disks without a place in the array that has most of them."""
    if not arrays:
        return
    main = max(arrays, key=lambda array: len(array.members))
    mine = {*(member.part for member in main.members), *main.spares, main.journal}
    for part in parts:
        if part.name in mine:
            continue
        if part.best is not None:
            yield _finding(
                "foreign-disk",
                Weight.WARNING,
                f"{{{part.name}}} belongs to another array ({part.best.array_uuid[:8]}, "
                f"{moment(part.best.created)}).",
                part,
            )
        else:
            yield _finding(
                "no-superblock",
                Weight.WARNING,
                f"{{{part.name}}} has no valid superblock: it may be the missing member, or a disk "
                "that never belonged here.",
                part,
            )


def _slots(roles: Sequence[int]) -> str:
    words = ", ".join(str(role) for role in roles[:8])
    return f"slot {words}" if len(roles) == 1 else f"slots {words}"


def data_disks(shape: Shape) -> int:
    """Return chunks of data in a row."""
    if shape.level == 10:
        near, far = shape.layout & 255, shape.layout >> 8 & 255
        return max(1, shape.disks // max(1, near * far))
    return max(1, shape.disks - {4: 1, 5: 1, 6: 2}.get(shape.level, 0)) if shape.level != 1 else 1


def needed(shape: Shape) -> int:
    """Return the fewest members that can run the array; of RAID 10, if they are the right ones."""
    if shape.level == 1:
        return 1
    if shape.level in (4, 5, 6):
        return data_disks(shape)
    if shape.level == 10:
        copies = max(1, (shape.layout & 255) * (shape.layout >> 8 & 255))
        return -(-shape.disks // copies)
    return shape.disks


def named(sentence: str, names: Callable[[str], str]) -> str:
    """Replace ``{a}`` in a sentence or command by what ``names`` returns."""
    parts = sentence.split("{")
    out = parts[:1]
    for part in parts[1:]:
        name, closed, rest = part.partition("}")
        out.append(f"{names(name)}{rest}" if closed else f"{{{part}")
    return "".join(out)
