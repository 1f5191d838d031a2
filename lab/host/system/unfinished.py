"""Names of files and directories that are being made.

Everything that is renamed into its place is made next to it, under a name such as::

    .NAME.PID.TICKS.RANDOM.part     process id, its start time in clock ticks, 64 random bits

It is a leftover if that process has ended (:mod:`lab.host.system.leftovers`).
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from secrets import token_hex
from typing import Final

from lab.host.system.pids import started_ticks

_NAME: Final = re.compile(r"\..+\.(?P<pid>\d+)\.(?P<ticks>\d+)\.[0-9a-f]{16}\.part", re.DOTALL)
_SHORT: Final = re.compile(r"\.(?!lock-|tree-|work-|removing-|l\.).+\.(?P<pid>\d{1,7})")
"""Names of directories with sockets, whose paths must be short."""
_LONGEST: Final = 128
"""Most bytes of the final name in such a name; a name may have 255."""


def name(place: Path) -> Path:
    """Return a new name next to ``place``, for something that will be renamed to it."""
    begin = os.fsencode(place.name.lstrip("."))[:_LONGEST].decode(errors="ignore") or "x"
    return place.with_name(f".{begin}.{_own(os.getpid())}.{token_hex(8)}.part")


@functools.cache
def _own(pid: int) -> str:
    return f"{pid}.{started_ticks(pid)}"


def is_made(given: str) -> bool:
    """Return whether `name` gave this name."""
    return _NAME.fullmatch(given) is not None


def is_under_way(given: str) -> bool:
    """Return whether this is the name of something that a live process is making."""
    known = any(pattern.fullmatch(given) for pattern in (_NAME, _SHORT))
    return known and not is_abandoned(given)


def is_abandoned(given: str) -> bool:
    """Return whether this is the name of something whose process has ended."""
    for pattern in (_NAME, _SHORT):
        if made := pattern.fullmatch(given):
            ticks = made.groupdict().get("ticks")
            now = started_ticks(int(made["pid"]))
            return now != int(ticks) if ticks else not now
    return False
