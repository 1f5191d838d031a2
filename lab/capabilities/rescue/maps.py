"""Reads ddrescue's map files: which bytes of an image were not read. Pure but for the file."""

from __future__ import annotations

from pathlib import Path

from lab.core import regular
from lab.core.errors import InputError
from lab.core.units import MIB

_MOST = 64 * MIB


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
    rows = [
        (number, line.split())
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    for number, words in rows[1:]:  # the first is ddrescue's own state
        try:
            begin, length, status = int(words[0], 0), int(words[1], 0), words[2]
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
    return found
