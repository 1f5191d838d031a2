"""The files below ``/sys/block/mdX/md/`` that hold a setting, and how each is read back.

From ``md.c: md_default_attrs, md_redundancy_attrs``, ``raid5.c: raid5_attrs``, ``md-bitmap.c:
md_bitmap_attrs`` and ``md-llbitmap.c: md_llbitmap_attrs``, Linux 6.1 to 7.x. A kernel without a
file refuses it when it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Final

from lab.core.units import is_digits


class Form(Enum):
    """How the kernel prints a setting."""

    WORD = "as it was written"
    NUMBER = "a whole number in decimal"
    FIRST = "a number, then where it comes from: 1000 (local)"
    FLAG = "1 or 0, whatever word kstrtobool read"
    CHOICE = "all choices, the current one in brackets"
    MILLISECONDS = "seconds with three decimals"
    SECONDS = "seconds; with three decimals unless they are whole"


FORMS: Final[Mapping[str, Form]] = {
    # md.c
    "safe_mode_delay": Form.MILLISECONDS,
    "reshape_direction": Form.WORD,
    "max_read_errors": Form.NUMBER,
    "fail_last_dev": Form.FLAG,
    "serialize_policy": Form.FLAG,
    "bitmap_type": Form.CHOICE,  # newer kernels
    "logical_block_size": Form.NUMBER,  # newer kernels
    "sync_min": Form.NUMBER,
    "sync_max": Form.NUMBER,  # or max
    "sync_speed_min": Form.FIRST,
    "sync_speed_max": Form.FIRST,
    "sync_io_depth": Form.FIRST,  # newer kernels
    "sync_force_parallel": Form.NUMBER,
    # raid5.c, raid5-cache.c, raid5-ppl.c
    "stripe_cache_size": Form.NUMBER,
    "preread_bypass_threshold": Form.NUMBER,
    "group_thread_cnt": Form.NUMBER,
    "rmw_level": Form.NUMBER,
    "skip_copy": Form.NUMBER,
    "stripe_size": Form.NUMBER,
    "journal_mode": Form.CHOICE,
    "ppl_write_hint": Form.NUMBER,
    # md-bitmap.c
    "bitmap/space": Form.NUMBER,
    "bitmap/time_base": Form.SECONDS,
    "bitmap/metadata": Form.WORD,
    "bitmap/can_clear": Form.WORD,
    # md-llbitmap.c
    "llbitmap/daemon_sleep": Form.NUMBER,
    "llbitmap/barrier_idle": Form.NUMBER,
}
OWNED: Final = {
    "level": "array.level",
    "layout": "array.layout",
    "chunk_size": "array.chunk",
    "raid_disks": "array.members",
    "component_size": "array.component_size",
    "metadata_version": "array.metadata",
    "consistency_policy": "array.consistency_policy",
    "sync_action": "array.initial_sync",
    "resync_start": "array.initial_sync",
    "bitmap/chunksize": "array.bitmap_chunk",
    "bitmap/location": "array.bitmap",
    "bitmap/backlog": "array.write_behind",
}
"""Files that an array field sets."""
ACTIONS: Final = frozenset(
    (
        *("array_state", "array_size", "new_dev", "new_level", "bitmap_set_bits"),
        *("reshape_position", "suspend_lo", "suspend_hi", "bitmap/max_backlog_used"),
    )
)
"""Files that start an action and hold no setting."""
READ_ONLY: Final = frozenset(
    (
        *("uuid", "last_sync_action", "mismatch_cnt", "sync_speed", "sync_completed", "degraded"),
        *("stripe_cache_active", "llbitmap/bits", "llbitmap/metadata"),
    )
)
RAID456: Final = frozenset(
    (
        "stripe_cache_size",
        "preread_bypass_threshold",
        "group_thread_cnt",
        "rmw_level",
        "skip_copy",
        "stripe_size",
        "journal_mode",
        "ppl_write_hint",
    )
)
"""Files of ``raid5.c: raid5_attrs``."""
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "journal_mode": ("write-through", "write-back"),
    "bitmap_type": ("none", "bitmap", "llbitmap"),
}
"""Words of files that list choices."""
TRUE: Final = ("1", "y", "Y", "t", "T", "yes", "true", "on", "On", "ON")
"""Words that ``kstrtobool`` reads as true."""


def read_lines(key: str) -> str:
    """Return shell lines that print a setting as ``sysfs.KEY=VALUE``; ``$md`` is its directory.

    The value is the word in brackets of a file that lists choices, and of others the first word. A
    file that is not known here may be of either kind.
    """
    if FORMS.get(key, Form.CHOICE) is not Form.CHOICE:
        return f'v=\nread -r v rest < "$md/{key}"\necho "sysfs.{key}=$v"\n'
    return (
        f'v=\nread -r v < "$md/{key}"\n'
        "case $v in *\\[*\\]*) v=${v#*\\[} v=${v%%\\]*} ;; *) v=${v%% *} ;; esac\n"
        f'echo "sysfs.{key}=$v"\n'
    )


def printed(key: str, value: str) -> str:
    """Return what ``read_lines`` prints of a setting that was written."""
    match FORMS.get(key):
        case Form.NUMBER | Form.FIRST:
            return str(int(value)) if is_digits(value) else value
        case Form.FLAG:
            return str(int(value in TRUE))
        case Form.MILLISECONDS | Form.SECONDS as form:
            try:
                seconds = Decimal(value)
            except InvalidOperation:
                return value
            whole = seconds == seconds.to_integral_value() and form is Form.SECONDS
            return str(int(seconds)) if whole else f"{seconds:.3f}"
        case _:
            return value
