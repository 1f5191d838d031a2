"""Names of runs and of matrix runs: ids, and their short forms. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from lab.core.errors import InputError

LAST: Final = "last"
BUNDLE: Final = ".lab.zip"
"""How the name of a bundle's file ends."""
SHOWN: Final = 5
"""Most ids in the error for an ambiguous prefix."""


def parts(id_: str) -> tuple[str, str, int]:
    """Split an id into scenario (or matrix), time and number; an unknown form is all scenario."""
    match = re.fullmatch(r"(.+)-(\d{8}-\d{6})(?:-(\d+))?", id_)
    return (match[1], match[2], int(match[3] or 0)) if match else (id_, "", 0)


def age(id_: str) -> tuple[str, int, str]:
    """Return a key that sorts ids by age, oldest first."""
    _, time, number = parts(id_)
    return time, number, id_


def is_last(name: str) -> bool:
    """Return whether the name is ``last``, or ``last~N``."""
    return name.partition("~")[0] == LAST


def resolve(name: str, ids: Sequence[str], *, what: str, hint: str) -> str:
    """Return the id that a name stands for; ``ids`` are sorted newest first.

    A name is an id; ``last``; a scenario, for its last run; either of these with ``~N``, for the
    N-th run before that one; or a unique prefix of an id. ``InputError``: no id matches, or several
    do.
    """
    if name in ids:
        return name
    base, back = name, 0
    if match := re.fullmatch(r"(.+)~(\d{1,6})", name):
        base, back = match[1], int(match[2])
    mine = [id_ for id_ in ids if base in (LAST, parts(id_)[0])]
    if back < len(mine):
        return mine[back]
    if mine:
        there = f"{len(mine)} {what}{'s' if len(mine) > 1 else ''}"
        raise InputError(
            f"there is no {what} '{name}': '{base}' has {there}",
            hint=f"the oldest is '{base}~{len(mine) - 1}'",
        )
    begun = [id_ for id_ in ids if name and id_.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        more = f" and {len(begun) - SHOWN} more" if len(begun) > SHOWN else ""
        raise InputError(
            f"'{name}' is ambiguous: {len(begun)} {what}s begin with it:"
            f" {', '.join(begun[:SHOWN])}{more}",
            hint="type more of the id",
        )
    raise InputError(f"there is no {what} '{name}'", hint=hint)
