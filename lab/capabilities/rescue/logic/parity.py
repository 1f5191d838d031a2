"""Samples rows of an array and compares its copies and parity. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from lab.capabilities.rescue.model import Attempt, Diagnosis, Shape
from lab.core.units import GIB
from lab.md.facts.geometry import Geometry, Location
from lab.md.facts.levels import Level

Reader = Callable[[int, int], bytes]
_ROWS: Final = 256
"""Most rows in a sample."""
_PIECE: Final = 4096
_LEVELS: Final = {
    0: Level.RAID0,
    1: Level.RAID1,
    4: Level.RAID4,
    5: Level.RAID5,
    6: Level.RAID6,
    10: Level.RAID10,
}


def geometry_of(shape: Shape, size: int = 0) -> Geometry | None:
    """Return the mapping of a shape; ``None``: md has none, or cannot run it."""
    level = _LEVELS.get(shape.level)
    if level is None or not 1 <= shape.disks <= 384:
        return None
    chunk = shape.chunk if level is not Level.RAID1 else 0
    try:
        return Geometry(
            level=level,
            layout=shape.layout,
            members=shape.disks,
            component_size=(shape.size or size) // (chunk or 1) * (chunk or 1),
            chunk=chunk,
            data_offset=shape.data_offset,
        )
    except ValueError:
        return None


def mismatches(attempt: Attempt, diagnosis: Diagnosis, reads: Mapping[str, Reader]) -> float | None:
    """Return the share of sampled rows that contradict themselves; ``None``: nothing to compare."""
    if attempt.arrangement is not None:
        shape = attempt.arrangement.shape
        placed = {
            role: (name, _offset(attempt, role))
            for role, name in enumerate(attempt.arrangement.slots)
            if name
        }
    else:
        parts = {part.name: part for part in diagnosis.parts}
        array = next(
            (a for a in diagnosis.arrays if {m.part for m in a.members} & set(attempt.parts)), None
        )
        if array is None or array.reshaping:
            return None
        shape = array.shape
        placed = {}
        for member in array.members:
            if member.part in attempt.parts:
                blocks = parts[member.part].superblocks
                own = next((b for b in blocks if b.array_uuid == array.uuid), None)
                if own is not None:
                    placed[member.role] = (member.part, own.data_offset)
    size = shape.size or min(
        (part.size for part in diagnosis.parts if part.name in attempt.parts), default=0
    )
    geometry = geometry_of(shape, size)
    if geometry is None or geometry.component_size < _PIECE:
        return None
    return compare(geometry, placed, reads)


def _offset(attempt: Attempt, role: int) -> int:
    assert attempt.arrangement is not None
    offsets = attempt.arrangement.offsets
    return offsets[role] if offsets else attempt.arrangement.shape.data_offset


def compare(
    geometry: Geometry, placed: Mapping[int, tuple[str, int]], reads: Mapping[str, Reader]
) -> float | None:
    """Return the share of compared pieces that differ; pieces of zeros only are not counted."""
    right = wrong = 0

    def at(role: int, offset: int) -> bytes:
        name, begin = placed[role]
        return reads[name](begin + offset, _PIECE)

    everybody = len(placed) == geometry.members
    if geometry.level in (Level.RAID4, Level.RAID5, Level.RAID6) and not everybody:
        return None
    for offset in _sample(geometry.component_size):
        if geometry.has_parity:
            roles = set(range(geometry.members))
            if geometry.level is Level.RAID6:
                syndrome = geometry.row(offset // geometry.chunk).syndrome
                roles.discard(-1 if syndrome is None else syndrome)
            pieces = [at(role, offset) for role in sorted(roles)]
            if min(map(len, pieces)) < _PIECE or sum(any(piece) for piece in pieces) == 0:
                continue
            equal = xor(pieces) == 0
        else:
            groups = _copies(geometry, offset)
            pieces = [at(m, o) for m, o in groups if m in placed]
            if len(pieces) < 2 or min(map(len, pieces)) < _PIECE or not any(map(any, pieces)):
                continue
            equal = len(set(pieces)) == 1
        right, wrong = right + equal, wrong + (not equal)
    return wrong / (right + wrong) if right + wrong else None


def _copies(geometry: Geometry, offset: int) -> Sequence[tuple[int, int]]:
    """Return all places of the data at an offset of the first member."""
    if geometry.level is Level.RAID1:
        return [(member, offset) for member in range(geometry.members)]
    if geometry.level is not Level.RAID10:
        return []
    member = offset // _PIECE % geometry.members
    virtual = geometry.array_offset(Location(member=member, offset=offset))
    if virtual is None or virtual >= geometry.size:
        return []
    return [(place.member, place.offset) for place in geometry.locate(virtual)]


def _sample(size: int) -> Iterable[int]:
    """Return offsets of pieces, most of them near the start, where a file system has its data."""
    dice = random.Random(size)  # noqa: S311
    pieces = size // _PIECE
    if pieces <= 4 * _ROWS:
        return range(0, size - _PIECE + 1, _PIECE * max(1, pieces // _ROWS))
    near = min(pieces, GIB // _PIECE)
    found = {dice.randrange(near) for _ in range(_ROWS)} | {
        dice.randrange(pieces) for _ in range(_ROWS)
    }
    return [piece * _PIECE for piece in sorted(found)]


def xor(pieces: Sequence[bytes]) -> int:
    """Return the XOR of pieces of the same length."""
    total = 0
    for piece in pieces:
        total ^= int.from_bytes(piece, "little")
    return total
