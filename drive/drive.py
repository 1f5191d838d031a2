"""Parameters of the timing core, ``struct lab_drive_parameters`` of ``drive.h``, as integers.

Nanoseconds, bytes and bytes per second; a test compares the layout with the header's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from enum import IntEnum
from typing import Final

CACHE_MAX: Final = 256 << 20
TIME_MAX: Final = 1 << 50
"""Largest parameter in nanoseconds: 13 days."""
WHOLE_MAX: Final = 1 << 61
"""Longest transfer of the whole disk in nanoseconds: 70 years."""
LIMIT_ONE: Final = 1 << 62
"""``seek_limit`` of the full stroke."""
TIMES: Final = (
    *("overhead", "revolution", "seek_a", "seek_b", "seek_c", "seek_e", "write_settle"),
    *("read_latency", "write_latency", "flush_latency", "gc_stall"),
    *("link_command", "wake_after", "wake"),
)
RATES: Final = ("link_rate", "outer_rate", "inner_rate")
PARAMETERS: Final = struct.Struct("<8Qq24Q")


class Kind(IntEnum):
    """``enum lab_drive_kind``."""

    NONE = 0
    HDD = 1
    SSD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """A drive in the form that ``drive.h`` takes. The fields are in the header's order."""

    kind: int = Kind.NONE
    seed: int = 0
    overhead: int = 0
    link_rate: int = 0
    cache: int = 0
    revolution: int = 0
    seek_a: int = 0
    seek_b: int = 0
    seek_c: int = 0
    seek_e: int = 0
    seek_limit: int = 0
    write_settle: int = 0
    outer_rate: int = 0
    inner_rate: int = 0
    zones: int = 0
    read_ahead: int = 0
    queue_depth: int = 0
    ageing: int = 0
    read_latency: int = 0
    write_latency: int = 0
    flush_latency: int = 0
    channels: int = 0
    page: int = 0
    gc_bytes: int = 0
    gc_stall: int = 0
    link_command: int = 0
    lead: int = 0
    oldest_share: int = 0
    write_places: int = 0
    write_choice: int = 0
    wake_after: int = 0
    wake: int = 0
    seek_only: int = 0

    def pack(self) -> bytes:
        """Return the struct's bytes, little-endian."""
        return PARAMETERS.pack(*astuple(self))

    def out_of_range(self, size: int) -> Iterator[tuple[str, str]]:
        """Yield fields beyond the core's integers on a disk of ``size`` bytes, each with a
        reason."""
        if self.cache > CACHE_MAX:
            yield "cache", f"expected {CACHE_MAX >> 20}MiB or less"
        for name in TIMES:
            if abs(getattr(self, name)) > TIME_MAX:
                yield name, f"expected {TIME_MAX // 10**9} s or less"
        for name in RATES:
            rate = getattr(self, name)
            if 0 < rate <= size * 10**9 // WHOLE_MAX:
                yield name, f"the whole disk takes more than 70 years at {rate} bytes per second"

    def words(self) -> tuple[str, ...]:
        """Return ``NAME=VALUE`` arguments for the disk server's command line."""
        return tuple(f"{field.name}={int(getattr(self, field.name))}" for field in fields(self))
