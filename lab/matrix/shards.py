"""Which parts of a matrix are run: shares of it for several machines, and what a budget has room
for. Numbers in, names out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from lab.core.errors import InputError

_SHARD: Final = re.compile(r"([1-9]\d{0,3})/([1-9]\d{0,3})")


class Reason(IntEnum):
    """Why a part is informative, the most informative reason first."""

    NEVER = 0
    """These cells were never run here to their end."""
    CHANGED = 1
    """Image, kernel or mdadm differ from the last run's."""
    UNCLEAR = 2
    """A verdict of the last run was inconclusive, or a cell of it failed."""
    FLIPPED = 3
    """A verdict of the last run differs from that of the run before."""
    KNOWN = 4
    """None of these: the oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part as plans see it."""

    id: str
    seconds: float
    """What it should take."""
    reason: Reason = Reason.NEVER
    last: str = ""
    """When it was last run, ISO 8601; empty: never."""


def parse_shard(text: str) -> tuple[int, int]:
    """``(2, 4)`` of ``2/4``; ``InputError`` where there is no such shard."""
    found = _SHARD.fullmatch(text)
    number, of = (int(found[1]), int(found[2])) if found else (1, 0)
    if number > of:
        raise InputError(f"--shard {text}: expected K/N, the K-th of N shares, as in 2/4")
    return number, of


def shares(pieces: Sequence[Piece], of: int) -> tuple[tuple[str, ...], ...]:
    """The pieces' names in ``of`` shares that take about as long; each piece is in one of them.

    The longest first, each to the share with the least to do: no share is longer than another by
    more than a piece, and the longest by at most a third than it must be (Graham 1969, "Bounds on
    multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17). Names stay in the
    order in which they were given.
    """
    loads = [0.0] * of
    share: dict[str, int] = {}
    for piece in sorted(pieces, key=lambda p: (-p.seconds, p.id)):
        least = min(range(of), key=lambda n: (loads[n], n))
        share[piece.id] = least
        loads[least] += piece.seconds
    return tuple(tuple(p.id for p in pieces if share[p.id] == n) for n in range(of))


def informative(pieces: Sequence[Piece]) -> list[Piece]:
    """The most informative first; of those alike the cheap before the dear.

    Of those about which nothing is new the oldest come first.
    """

    def key(piece: Piece) -> tuple[int, str, float, str]:
        last = piece.last if piece.reason is Reason.KNOWN else ""
        return (piece.reason, last, piece.seconds, piece.id)

    return sorted(pieces, key=key)


def within(pieces: Sequence[Piece], budget: float) -> tuple[list[str], list[str]]:
    """Names that a budget of seconds has room for, in that order, and those that are left out.

    What does not fit any more gives way to later ones that do.
    """
    taken: list[str] = []
    left: list[str] = []
    spent = 0.0
    for piece in informative(pieces):
        if spent + piece.seconds <= budget:
            taken.append(piece.id)
            spent += piece.seconds
        else:
            left.append(piece.id)
    return taken, left
