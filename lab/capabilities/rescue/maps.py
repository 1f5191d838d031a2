"""Reads ddrescue's map files: which bytes of an image were not read. Pure but for the file."""

from __future__ import annotations

import io
import re
from pathlib import Path

from lab.core import regular
from lab.core.errors import InputError
from lab.core.units import MIB

_MOST = 16 * MIB
RANGES = 200_000
"""Most ranges; each is a line of the script of every attempt."""


def unread_of(path: Path | None, size: int) -> list[tuple[int, int]]:
    """Return the ranges (offset, length) that a map calls not rescued; no map, no ranges."""
    if path is None:
        return []
    try:
        text = regular.read(path, _MOST).decode("ascii", errors="replace")
    except OSError as error:
        raise InputError(f"the map '{path}' cannot be read: {error.strerror}") from error
    return parse(text, size, str(path))


def parse(text: str, size: int, name: str) -> list[tuple[int, int]]:
    """Return the unread ranges. GNU ddrescue's manual, "Mapfile structure"; ``+`` is rescued."""
    found: list[tuple[int, int]] = []
    state = False
    for number, line in enumerate(io.StringIO(text), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if not state:  # ddrescue's own state comes first
            state = True
            continue
        try:
            begin, length, status = _number(words[0]), _number(words[1]), words[2]
        except (ValueError, IndexError):
            raise InputError(
                f"{name}:{number}: expected 'POSITION SIZE STATUS', as ddrescue writes it"
            ) from None
        if status != "+" and length > 0 and begin < size:
            end = min(size, begin + length)
            if found and sum(found[-1]) == begin:
                found[-1] = (found[-1][0], end - found[-1][0])
            else:
                found.append((begin, end - begin))
            if len(found) > RANGES:
                raise InputError(
                    f"{name}: more than {RANGES} ranges were not read",
                    hint="let ddrescue go on: it makes fewer and smaller ones",
                )
    return found


def _number(text: str) -> int:
    """Return a position or a size; ``ValueError``: ddrescue writes none like it."""
    if not re.fullmatch(r"0x[0-9A-Fa-f]{1,16}|[0-9]{1,18}", text):
        raise ValueError(text)
    return int(text, 0)
