"""Versions of kernels and of mdadm: which one is newer, and whether one lies in a range."""

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
    """A key by which older versions stand before newer ones, as ``deb-version(7)`` orders them.

    Numbers count as numbers; what follows a ``~`` is older than nothing, and ``-rc`` is read so.
    """
    parts = re.findall(r"\d+|\D+", version.replace("-rc", "~rc"))
    keys = [
        (2, int(part), "") if part.isdecimal() else (0 if part[0] == "~" else 3, 0, part)
        for part in parts
    ]
    return (*keys, (1, 0, ""))


def parse_range(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The bounds of ``">=6.12 <6.18"``; ``ValueError`` says what was expected."""
    bounds = _BOUND.findall(text)
    if not bounds or _BOUND.sub("", text).replace(",", "").strip():
        raise ValueError(
            f"'{text}' is no range of versions: write bounds such as '>=6.12', '<4.4' or"
            " '>=6.12 <6.18'"
        )
    return tuple((sign, _numbers(number)) for sign, number in bounds)


def in_range(version: str | None, text: str) -> bool:
    """Whether all bounds hold; each is as exact as it is written: 6.12.57 is ``==6.12``.

    Of a version that nobody knows, none does.
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
