"""The log of requests that the driver writes when a guest stops at a time (``lab_hunt.c``)."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

ENTRY: Final = struct.Struct("<QQIHHcBHI")
"""``struct lab_seen``."""
MARK: Final = b"\n@lab requests "
_NUMBERS: Final = re.compile(rb"(\d{1,20}) (\d{1,20}) (\d{1,9})")
OPERATIONS: Final = ("read", "write", "flush", "discard", "zeroes")
"""By number: ``enum lab_op``."""
FLAGS: Final = ("fua", "sync", "meta", "readahead")
"""By bit: ``enum lab_seen_flags``."""
EVENTS: Final = {"D": "issued", "R": "received", "C": "completed", "E": "failed"}
"""``received``: a disturbed disk receives a request later than it was issued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a request."""

    nanoseconds: int
    """By the guest's clock."""
    disk: int
    """From 1, in the cell's order."""
    tag: int
    event: str
    operation: str
    sector: int
    bytes: int
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A guest that has stopped."""

    nanoseconds: int
    """By the guest's clock."""
    output: bytes
    """Output of its commands so far."""
    total: int
    """Number of events so far; the driver keeps the last ones."""
    events: tuple[Event, ...]


def stop_of(output: bytes) -> Stop | None:
    """Return where the guest stopped, from its output; ``None``: it did not stop."""
    before, mark, rest = output.rpartition(MARK)
    line, _, data = rest.partition(b"\n")
    numbers = _NUMBERS.fullmatch(line)
    if not mark or numbers is None:
        return None
    nanoseconds, total, kept = map(int, numbers.groups())
    if len(data) < kept * ENTRY.size:
        return None
    found = ENTRY.iter_unpack(data[: kept * ENTRY.size])
    return Stop(
        nanoseconds=nanoseconds, output=before, total=total, events=tuple(map(_event, found))
    )


def _event(entry: tuple[int, int, int, int, int, bytes, int, int, int]) -> Event:
    when, sector, size, disk, tag, event, operation, flags, _ = entry
    return Event(
        nanoseconds=when,
        disk=disk,
        tag=tag,
        event=event.decode("ascii", errors="replace"),
        operation=OPERATIONS[operation] if operation < len(OPERATIONS) else "other",
        sector=sector,
        bytes=size,
        flags=tuple(name for bit, name in enumerate(FLAGS) if flags >> bit & 1),
    )


def lines(events: Iterable[Event], names: dict[int, str]) -> Iterator[str]:
    """Yield a line for each event; ``names``: disks by number.

    Seconds, disk, event, operation, first sector, sectors, flags; and after the last event of a
    request the seconds since it was issued.
    """
    issued: dict[tuple[int, int], int] = {}
    for one in events:
        key = (one.disk, one.tag)
        took = ""
        if one.event == "D":
            issued[key] = one.nanoseconds
        elif one.event in "CE" and key in issued:
            took = f" {(one.nanoseconds - issued.pop(key)) / 1e9:.9f}"
        yield (
            f"{one.nanoseconds / 1e9:.9f} {names.get(one.disk, one.disk)}"
            f" {EVENTS.get(one.event, 'other')} {one.operation} {one.sector} {one.bytes >> 9}"
            f" {','.join(one.flags) or '-'}{took}"
        )
