"""Rules for an array's bitmap, policy, member flags and sysfs settings.

mdadm and the kernel accept some violations silently; others are found only after a boot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lab.core.units import GIB, KIB, MIB, format_size
from lab.core.wording import choice
from lab.md.facts.levels import NAMES, Level
from lab.md.facts.sizes import (
    DEFAULT_BITMAP_CHUNK,
    LOCKLESS_BITMAP,
    PPL,
    SMALLEST_CHUNK,
    SUPERBLOCK_END,
    bitmap_bytes,
    bitmap_covers,
    geometry_of,
    smallest_bitmap_chunk,
)
from lab.md.facts.sysfs import ACTIONS, CHOICES, FORMS, OWNED, RAID456, READ_ONLY, Form, printed
from lab.model.plugin import Problem
from lab.model.scenario.document import Array

BITMAPS: Final = ("none", "internal", "external", "lockless")
POLICIES: Final = ("resync", "bitmap", "journal", "ppl")
BAD_BLOCK_LOG: Final = 4 * KIB
"""mdadm writes it after the bitmap, or over it if there is no room: ``write_init_super1``."""

BITMAP_MOUNT: Final = "/mnt/bitmap"
"""Mount point of the file system on ``array.bitmap_disk``."""
SMALLEST_BITMAP_DISK: Final = 16 * MIB
SMALLEST_JOURNAL_DISK: Final = 16 * MIB
"""Room for metadata and for the 256 stripes of md's cache. A smaller log makes writes wait for room
(``raid5-cache.c: r5l_write_stripe``, ``no_space_stripes``)."""

_SYSFS_KEY: Final = re.compile(r"[a-z][a-z0-9_]*(/[a-z][a-z0-9_]*)?")
_NO_FILE_SYSTEM: Final = ("/dev/", "/proc/", "/sys/", "/run/")


def bitmap_path(array: Array) -> str | None:
    """Return the file of an external bitmap; ``None``: there is none."""
    if array.bitmap != "external":
        return None
    return array.bitmap_file or f"{BITMAP_MOUNT}/{array.name}"


def journal_disk(array: Array) -> int | None:
    """Return the disk of the write journal, from 1; ``None``: the array has no journal."""
    level = NAMES.get(array.level)
    if level is None or not level.parity or array.bitmap != "none":
        return None
    return array.journal_disk if array.consistency_policy in (None, "journal") else None


def without_idle(array: Array) -> Array:
    """Return the array without settings that only a bitmap uses, if it has none."""
    if array.bitmap in ("internal", "external"):
        return array
    sysfs = {k: v for k, v in array.sysfs.items() if not k.startswith("bitmap/")}
    return array.model_copy(update={"bitmap_chunk": None, "sysfs": sysfs})


def option_problems(array: Array, level: Level, members: int) -> Iterable[Problem]:
    """Yield problems of policy, member flags and sysfs settings."""
    yield from _policy_problems(array, level)
    yield from _journal_problems(array, level)
    yield from _flag_problems(array, level, members)
    for key, value in array.sysfs.items():
        yield from _sysfs_problems(array, level, key, value)


def bitmap_problems(array: Array, level: Level, sizes: Sequence[int]) -> Iterable[Problem]:
    """Yield problems of the bitmap's kind and chunk; with ``sizes`` also if it does not fit."""
    kind = array.bitmap
    if kind not in BITMAPS:
        yield Problem(key="array.bitmap", message=choice(kind, BITMAPS))
        return
    if kind != "none" and not level.redundant:
        yield Problem(
            key="array.bitmap",
            message=f"{level.title} has no redundancy, so it takes no bitmap: set bitmap to none",
            idle_by="array.level",
        )
        return
    yield from _bitmap_file_problems(array)
    yield from _bitmap_disk_problems(array)
    if kind == "lockless" and array.metadata != "1.2":
        yield Problem(
            key="array.metadata",
            message=f"a lockless bitmap needs metadata 1.2, not {array.metadata}: write 1.2",
        )
    chunk = list(_bitmap_chunk_problems(array))
    yield from chunk
    if sizes and not chunk:
        yield from _bitmap_fit_problems(array, level, sizes)


def _bitmap_file_problems(array: Array) -> Iterable[Problem]:
    path = array.bitmap_file
    if array.bitmap == "external" and path is None and array.bitmap_disk is None:
        yield Problem(
            key="array.bitmap",
            message="an external bitmap needs a file: set bitmap_file to a path in the guest on an "
            "ext4 outside the array, such as /var/lib/bench-bitmap, or bitmap_disk to the number "
            "of a disk for it",
        )
    elif array.bitmap != "external" and path is not None:
        yield Problem(
            key="array.bitmap_file",
            message=f"{path!r} needs an external bitmap, and bitmap is {array.bitmap}: set it to "
            "external, or remove bitmap_file",
            idle_by="array.bitmap",
        )
    elif path is not None and (
        not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", path)
        or {".", ".."} & set(path.split("/"))
        or path.startswith(_NO_FILE_SYSTEM)
    ):
        yield Problem(
            key="array.bitmap_file",
            message=f"{path!r} is not an absolute path of a file on a disk: write a path on ext4 "
            "such as /var/lib/bench-bitmap",
        )


def _bitmap_disk_problems(array: Array) -> Iterable[Problem]:
    if array.bitmap_disk is None:
        return
    if array.bitmap != "external":
        yield Problem(
            key="array.bitmap_disk",
            message=f"disk {array.bitmap_disk} is for an external bitmap, and bitmap is "
            f"{array.bitmap}: set it to external, or remove bitmap_disk",
            idle_by="array.bitmap",
            kept=True,  # it is set aside, so that arrays with other bitmaps have as many members
        )
    elif array.bitmap_file is not None:
        yield Problem(
            key="array.bitmap_file",
            message="bitmap_file and bitmap_disk both place the bitmap: remove one of them",
        )


def _bitmap_chunk_problems(array: Array) -> Iterable[Problem]:
    chunk = array.bitmap_chunk
    if chunk is None:
        return
    found = format_size(chunk)
    idle_by = "" if array.bitmap in ("internal", "external") else "array.bitmap"
    if array.bitmap == "none":
        message = "there is no bitmap: set bitmap, or remove bitmap_chunk"
    elif array.bitmap == "lockless":
        message = "the kernel chooses the chunk of a lockless bitmap: remove it"
    elif chunk < SMALLEST_CHUNK or chunk & (chunk - 1):
        message = f"{found} is not a power of two of 4KiB or more"
    elif chunk > GIB:
        message = f"{found} is too large for a bitmap's superblock: write 1GiB or less"
    else:
        return
    yield Problem(key="array.bitmap_chunk", message=message, idle_by=idle_by)


def _bitmap_fit_problems(array: Array, level: Level, sizes: Sequence[int]) -> Iterable[Problem]:
    """Yield a problem if bitmap or log do not fit between superblock and data."""
    reserved = 0
    if array.bitmap == "internal":
        shape = geometry_of(array, sizes)
        covered = bitmap_covers(level, shape.layout, shape.members, shape.component_size)
        least = smallest_bitmap_chunk(shape.component_size, covered)
        if array.bitmap_chunk is not None and array.bitmap_chunk < least:
            yield Problem(
                key="array.bitmap_chunk",
                message=f"{format_size(array.bitmap_chunk)} needs more bits than mdadm reserves "
                f"for components of {format_size(shape.component_size)}: write "
                f"{format_size(least)} or more",
            )
            return
        chunk = array.bitmap_chunk or max(DEFAULT_BITMAP_CHUNK, least)
        reserved = bitmap_bytes(covered, chunk)
    elif array.bitmap == "lockless":
        reserved = LOCKLESS_BITMAP
    elif array.consistency_policy == "ppl":
        reserved = PPL
    if not reserved or array.data_offset is None:
        return
    needed = SUPERBLOCK_END[array.metadata] + reserved + BAD_BLOCK_LOG
    if array.data_offset < needed:
        what = "partial parity log" if array.bitmap == "none" else f"{array.bitmap} bitmap"
        yield Problem(
            key="array.data_offset",
            message=f"{format_size(array.data_offset)} leaves no room for the {what} between "
            f"superblock and data: write {format_size(needed)} or more",
        )


def _policy_problems(array: Array, level: Level) -> Iterable[Problem]:
    policy = array.consistency_policy
    if policy is None:
        return
    if policy not in POLICIES:
        message = choice(policy, POLICIES)
    elif not level.redundant:
        yield Problem(
            key="array.consistency_policy",
            message=f"{level.title} has no redundancy: remove it",
            idle_by="array.level",
        )
        return
    elif policy == "bitmap" and array.bitmap == "none":
        message = "'bitmap' needs a bitmap: set bitmap to internal"
    elif policy != "bitmap" and array.bitmap != "none":
        message = (
            f"{policy!r} excludes a bitmap, and bitmap is {array.bitmap}: set bitmap to none, or "
            "remove the policy"
        )
    elif policy == "ppl" and level is not Level.RAID5:
        message = f"a partial parity log needs RAID 5, and this is {level.title}: write resync"
    elif policy == "journal" and not level.parity:
        message = f"a write journal needs RAID 4, 5 or 6, and this is {level.title}: write resync"
    elif policy == "journal" and array.journal_disk is None:
        message = "'journal' needs a disk: set journal_disk to its number"
    else:
        return
    yield Problem(key="array.consistency_policy", message=message)


def _journal_problems(array: Array, level: Level) -> Iterable[Problem]:
    """Yield a problem if there is a journal's disk, and no journal.

    mdadm's ``--write-journal`` implies the policy ``journal`` (``mdadm(8)``).
    """
    number, policy = array.journal_disk, array.consistency_policy
    if number is None or policy == "journal":  # then the policy's problems have been reported
        return
    if not level.parity:
        message = f"only RAID 4, 5 and 6 have a write journal, and this is {level.title}: remove it"
        idle_by = "array.level"
    elif policy is not None:
        message = (
            f"disk {number} is for a write journal, and consistency_policy is {policy}: set it to "
            "journal, or remove journal_disk"
        )
        idle_by = "array.consistency_policy"
    elif array.bitmap != "none":
        message = (
            f"a write journal excludes a bitmap, and bitmap is {array.bitmap}: set bitmap to none, "
            "or remove journal_disk"
        )
        idle_by = "array.bitmap"
    else:
        return
    yield Problem(
        key="array.journal_disk",
        message=message,
        idle_by=idle_by,
        kept=True,  # it is set aside, so that arrays without a journal have as many members
    )


def _flag_problems(array: Array, level: Level, members: int) -> Iterable[Problem]:
    wrong = [m for m in array.write_mostly if not 1 <= m <= members]
    if array.write_mostly and level is not Level.RAID1:
        yield Problem(
            key="array.write_mostly",
            message=f"only RAID 1 has write-mostly members, and this is {level.title}: remove it",
        )
    elif wrong:
        yield Problem(
            key="array.write_mostly",
            message=f"there is no member {wrong[0]}: write 1 to {members}",
        )
    if array.write_behind is not None:
        if not array.write_mostly:
            yield Problem(
                key="array.write_behind",
                message="it needs write-mostly members: set write_mostly",
            )
        if array.bitmap not in ("internal", "external"):
            yield Problem(
                key="array.write_behind",
                message=f"it needs a bitmap, and bitmap is {array.bitmap}: set it to internal",
            )
    if array.failfast and level not in (Level.RAID1, Level.RAID10):
        yield Problem(
            key="array.failfast",
            message=f"only RAID 1 and 10 have failfast, and this is {level.title}: remove it",
        )


def _sysfs_problems(array: Array, level: Level, key: str, value: str) -> Iterable[Problem]:
    if not _SYSFS_KEY.fullmatch(key):
        yield Problem(
            key="array.sysfs",
            message=f"{key!r} is not a file below /sys/block/mdX/md/: write a name such as "
            "stripe_cache_size or bitmap/time_base",
        )
        return
    if key in OWNED:
        message = f"set {OWNED[key]} instead"
    elif key in READ_ONLY:
        message = "the kernel only prints it: remove it"
    elif key in ACTIONS:
        message = "it starts an action and holds no setting: remove it"
    elif key in RAID456 and level not in (Level.RAID4, Level.RAID5, Level.RAID6):
        yield Problem(
            key=f"array.sysfs.{key}",
            message=f"only RAID 4, 5 and 6 have this file, and this is {level.title}: remove it",
            idle_by="array.level",
        )
        return
    elif key.startswith("bitmap/") and array.bitmap not in ("internal", "external"):
        yield Problem(
            key=f"array.sysfs.{key}",
            message=f"bitmap is {array.bitmap}, which has no such file: remove it",
            idle_by="array.bitmap",
        )
        return
    elif not value or len(value.split()) != 1 or not value.isprintable() or value == "system":
        message = f"{value!r} is not a single word: write a number"
    elif key in CHOICES and value not in CHOICES[key]:
        message = f"{value!r} is no choice: write {' or '.join(CHOICES[key])}"
    elif key == "journal_mode" and journal_disk(array) is None:
        message = "only an array with a write journal has a mode: set array.journal_disk"
    elif key == "ppl_write_hint" and array.consistency_policy != "ppl":
        message = "only an array with a partial parity log has it: set array.consistency_policy"
    elif FORMS.get(key) in (Form.MILLISECONDS, Form.SECONDS) and not _is_seconds(value):
        message = f"{value!r} is not a number of seconds: write 5 or 0.2"
    else:
        return
    yield Problem(key=f"array.sysfs.{key}", message=message)


def _is_seconds(value: str) -> bool:
    return re.fullmatch(r"\d{1,9}(\.\d{1,3})?", value) is not None


def read_back(settings: Mapping[str, str]) -> dict[str, str]:
    """Return what a verification prints of these settings."""
    return {key: printed(key, value) for key, value in settings.items()}
