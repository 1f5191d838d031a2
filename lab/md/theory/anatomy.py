"""Where one write goes: the chunks of a few rows, and what md reads and writes for it."""

from __future__ import annotations

from typing import Final

from lab.md.facts.geometry import PAGE, Geometry, Location
from lab.md.facts.levels import Level
from lab.md.theory.stripe import PageCache, StripeRules, StripeWork, members_of
from lab.model.result.explanation import Anatomy, ChunkUse

MOST: Final = 10
"""Most members: more do not fit in 80 columns."""
ROWS: Final = 3
_SHOWN: Final = (Level.RAID0, Level.RAID4, Level.RAID5, Level.RAID6, Level.RAID10)


def anatomy(geometry: Geometry, rules: StripeRules, block: int) -> Anatomy | None:
    """Return the first write of ``block`` bytes to the second row, with an empty stripe cache.

    It begins at the row's second chunk if it is no larger than a chunk, else at its first; what is
    larger than a stripe is one stripe. ``None``: no chunks, or more than `MOST` members.
    """
    if geometry.level not in _SHOWN or geometry.members > MOST:
        return None
    chunk = geometry.chunk
    small = block <= chunk
    per_row = geometry.data_members if geometry.level is not Level.RAID10 else 0
    first = per_row + (small and per_row > 1) if per_row else -(-geometry.members // geometry.near)
    size = min(-(-block // PAGE) * PAGE, max(per_row, 1) * chunk)
    reads: set[tuple[int, int]] = set()
    writes: set[tuple[int, int]] = set()
    if geometry.has_parity:
        work = StripeWork(geometry, rules, PageCache(rules.cache_size))
        for run in work.write(first * chunk, size):
            row = run.start // chunk
            reads |= {(row, m) for m in members_of(run.decision.reads)}
            writes |= {(row, m) for m in members_of(run.decision.writes)}
    else:
        for begin in range(first * chunk, first * chunk + size, chunk):
            found = geometry.locate(begin)
            writes |= {
                (at.offset // chunk, at.member) for at in found if at.member not in geometry.failed
            }
    numbers = sorted({*range(ROWS), *(row for row, _ in writes)})
    return Anatomy(
        block=size,
        rows=tuple(numbers),
        chunks=tuple(
            tuple(
                ChunkUse(
                    name=_name(geometry, row, member),
                    read=(row, member) in reads,
                    written=(row, member) in writes,
                )
                for member in range(geometry.members)
            )
            for row in numbers
        ),
    )


def _name(geometry: Geometry, row: int, member: int) -> str:
    if member in geometry.failed:
        return "failed"
    if geometry.has_parity:
        roles = geometry.row(row)
        if member == roles.parity:
            return "P"
        if member == roles.syndrome:
            return "Q"
    found = geometry.array_offset(Location(member=member, offset=row * geometry.chunk))
    return "" if found is None else f"D{found // geometry.chunk}"
