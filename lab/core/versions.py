"""Order of kernel and mdadm versions, and version ranges."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

_BOUND: Final = re.compile(r"(<=|>=|==|<|>)\s*(\d+(?:\.\d+)*)")
_NUMBER: Final = re.compile(
    r"(\d+(?:\.\d+)*)(~|[-_.]?(?:rc|pre|alpha|beta)\d*(?![a-z]))?", re.ASCII
)
"""Numbers of a version, and what says that it came before its release. Debian's other suffixes
(``+dfsg``, ``-1~bpo12+1``, ``+deb13``) come after it."""
_HOLDS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}


def age(version: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key of versions, oldest first, in the order of ``deb-version(7)``.

    ``~`` sorts before the end, and ``-rc`` counts as ``~rc``.
    """
    parts = re.findall(r"\d+|\D+", version.replace("-rc", "~rc"))
    keys = [
        (2, len(number), number)  # as numbers sort, however long they are
        if (number := part.lstrip("0")).isdecimal() or not number
        else (0 if part[0] == "~" else 3, 0, part)
        for part in parts
    ]
    return (*keys, (1, 0, ""))


def parse_range(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the bounds of ``">=6.12 <6.18"``; ``ValueError`` has the expected form."""
    bounds = _BOUND.findall(text)
    if not bounds or _BOUND.sub("", text).replace(",", "").strip():
        raise ValueError(
            f"'{text}' is not a range of versions: write bounds such as '>=6.12', '<4.4' or "
            "'>=6.12 <6.18'"
        )
    return tuple((sign, _numbers(number)) for sign, number in bounds)


def in_range(version: str | None, text: str) -> bool:
    """Return whether all bounds hold, each with its own precision: 6.12.57 is ``==6.12``.

    A version before a release, such as ``6.1-rc1`` and Debian's ``6.1~rc1``, is ``<6.1``. ``False``
    for an unknown version.
    """
    found = _NUMBER.match(version or "")
    if found is None:
        return False
    mine, early = _numbers(found[1]), bool(found[2])

    def cut(length: int) -> tuple[tuple[int, ...], bool]:
        whole = not (early and not any(mine[length:]))
        return (*mine, *[0] * length)[:length], whole

    return all(_HOLDS[sign](cut(len(bound)), (bound, True)) for sign, bound in parse_range(text))


def release_of(version: str | None) -> str | None:
    """Return the release that a version is of, or comes before: ``6.14`` of ``6.14-rc1``."""
    found = _NUMBER.match(version or "")
    return found[1] if found else None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split("."))
