"""Order of kernel and mdadm versions, and version ranges."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

_BOUND: Final = re.compile(r"(<=|>=|==|<|>)\s*(\d+(?:\.\d+)*)")
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
        (2, int(part), "") if part.isdecimal() else (0 if part[0] == "~" else 3, 0, part)
        for part in parts
    ]
    return (*keys, (1, 0, ""))


def parse_range(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the bounds of ``">=6.12 <6.18"``; ``ValueError`` has the expected form."""
    bounds = _BOUND.findall(text)
    if not bounds or _BOUND.sub("", text).replace(",", "").strip():
        raise ValueError(
            f"'{text}' is not a range of versions: write bounds such as '>=6.12', '<4.4' or"
            " '>=6.12 <6.18'"
        )
    return tuple((sign, _numbers(number)) for sign, number in bounds)


def in_range(version: str | None, text: str) -> bool:
    """Return whether all bounds hold, each with its own precision: 6.12.57 is ``==6.12``.

    ``False`` for an unknown version.
    """
    found = re.match(r"\d+(?:\.\d+)*", version or "")
    if found is None:
        return False
    mine = _numbers(found.group())
    return all(
        _HOLDS[sign]((*mine, *[0] * len(bound))[: len(bound)], bound)
        for sign, bound in parse_range(text)
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split("."))
