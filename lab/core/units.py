"""Parses and formats sizes, rates and times with units.

Inside the lab a size is an ``int`` of bytes, a rate a number of bytes per second, a time a
``float`` of seconds. Decimal (``kB``, ``MB``) and binary (``KiB``, ``MiB``) prefixes follow IEC
80000-13. A bare ``K`` or ``M`` is refused, because mdadm and dd read it as binary and disk vendors
as decimal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Final

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

_FACTORS: Final = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": 1024**4,
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)
_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


def as_yaml(value: object) -> str:
    """Return a value as YAML on one line: ``null``, ``true``, ``[1, two]``."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{as_yaml(k)}: {as_yaml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(as_yaml, value)) + "]"
    return str(value)


_LONGEST: Final = 30
"""Most digits of a number: more than any disk, rate or time has."""


def _quoted(value: object) -> str:
    """Return a value for a message, the start of a long one."""
    text = value if isinstance(value, str) else as_yaml(value)
    text = f"{text[:_LONGEST]}…" if len(text) > 4 * _LONGEST else text
    return repr(text) if isinstance(value, str) else text


_SIZE_WORDS: Final = ("a size", "5MiB, 250MB or 4096")
_RATE_WORDS: Final = ("a rate", "8MiB/s, 8MB/s or 100")


def parse_size(value: object) -> int:
    """Return bytes of ``"5MiB"``, ``"250MB"``, ``4096``; ``ValueError`` has the expected form."""
    return _amount(value, *_SIZE_WORDS)


def _amount(value: object, what: str, examples: str) -> int:
    wrong = ValueError(f"{_quoted(value)} is not {what}: write it as {examples}")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise wrong
    if isinstance(value, int | float):
        if value != value or not 0 <= value < 10**_LONGEST or value != int(value):
            raise ValueError(
                f"{_quoted(value)} is not {what}, a whole number from 0 on: write it as {examples}"
            )
        return int(value)
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise wrong
    number, unit = match.groups()
    if unit not in _FACTORS:
        near = {"k": "KiB or kB", "m": "MiB or MB", "g": "GiB or GB", "t": "TiB or TB"}
        hint = near.get(unit[:1].lower(), "KiB, MiB, GiB, TiB, kB, MB, GB or TB")
        raise ValueError(f"{_quoted(value)} has the unknown unit {_quoted(unit)}: write {hint}")
    if len(number) > _LONGEST:
        raise ValueError(
            f"'{number[:_LONGEST]}…' is more than any disk holds: write it as {examples}"
        )
    size = Fraction(number) * _FACTORS[unit]  # a float has only 53 bits
    if size.denominator != 1:
        raise ValueError(f"{_quoted(value)} is not a whole number of bytes: write it as {examples}")
    return int(size)


def same_value(one: object, other: object) -> bool:
    """Return whether two values of a field are equal; ``512KiB`` and ``524288`` are."""
    if one == other:
        return True
    try:
        return parse_rate(one) == parse_rate(other)
    except ValueError:
        return str(one) == str(other) and one is not None and other is not None


def readings(text: str) -> Iterator[float]:
    """Yield possible values of a word in a scenario: a size or a rate, fio's ``4k``, a time, a
    percentage."""
    ways: tuple[Callable[[str], float], ...] = (
        parse_rate,
        lambda word: parse_size(f"{word.upper()}iB"),
        parse_seconds,
        parse_share,
    )
    for way in ways:
        with suppress(ValueError):
            yield way(text)


def parse_rate(value: object) -> int:
    """Return bytes (or operations) per second of ``"5MiB/s"``, ``"5MiB"``, ``100``."""
    amount = value
    if isinstance(value, str):
        amount = value.strip()
        before = amount.removesuffix("s").rstrip()
        if amount.endswith("s") and before.endswith("/"):
            amount = before[:-1].rstrip()
    try:
        return _amount(amount, *_RATE_WORDS)
    except ValueError as error:
        if amount != value:  # shows the user's text, with its /s
            raise ValueError(str(error).replace(_quoted(amount), _quoted(value), 1)) from None
        raise


def parse_share(text: str) -> float:
    """Return the fraction of ``"7%"``; ``ValueError``: it is no percentage."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*%", text.strip(), re.ASCII)
    if match is None or len(match[1]) > _LONGEST:
        raise ValueError(f"{_quoted(text)} is not a percentage: write 7%")
    return float(match[1]) / 100


def parse_seconds(value: object) -> float:
    """Return seconds of ``90``, ``"90s"``, ``"1.5min"``, ``"200ms"``."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) < 10**_LONGEST else math.inf
    else:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip(), re.ASCII)
        if match is None or match.group(2) not in _SECONDS:
            raise ValueError(f"{_quoted(value)} is not a time: write it as 90, 90s, 5min or 200ms")
        seconds = float(match.group(1)) * _SECONDS[match.group(2)]
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{_quoted(value)} is no time: it is 0 or more, and ends; write 90s")
    return seconds


def is_digits(text: str) -> bool:
    """Return whether a text is 1 to 18 ASCII digits, which ``int`` reads as they look."""
    return re.fullmatch(r"[0-9]{1,18}", text) is not None


def whole_number(text: str) -> int | None:
    """Return a number from 1 on, of at most nine ASCII digits; ``None``: the text is none.

    ``str.isdigit`` holds for ``²`` too, and ``int`` takes ``１２``.
    """
    if not re.fullmatch(r"[0-9]{1,9}", text) or not int(text):
        return None
    return int(text)


def shortened(text: str, most: int) -> str:
    """Return the text; cut a longer one in the middle, with the number of characters left out."""
    if len(text) <= most:
        return text
    half = most // 2
    left = len(text) - 2 * half
    return f"{text[:half]}\n[lab: {left} characters are left out here]\n{text[-half:]}"


def format_size(size: int) -> str:
    """Return the exact spelling with the fewest digits: ``524288`` is ``512KiB``, 4·10¹² is
    ``4TB``."""
    if size == 0:
        return "0"
    units = ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB")
    exact = [(str(size // _FACTORS[u]), u) for u in units if size % _FACTORS[u] == 0]
    if not exact:
        return str(size)
    number, unit = min(exact, key=lambda pair: len(pair[0]))
    return f"{number}{unit}"


def format_rate(rate: float, more: int = 0) -> str:
    """Return bytes per second in decimal units like dd and disk vendors: three digits, and ``more``
    of them."""
    size = abs(rate)
    for factor, unit in ((10**9, "GB/s"), (10**6, "MB/s"), (10**3, "kB/s")):
        if size >= factor:
            if more or factor == 10**3 or 100 * factor <= size < 1000 * factor:
                return f"{_digits(rate / factor, 3 + more)} {unit}"
            tenths = unit == "MB/s" and size >= 10 * factor
            return f"{rate / factor:.{1 if tenths else 2}f} {unit}"
    return f"{_digits(rate, 3 + more)} B/s"


def format_amount(size: float, more: int = 0) -> str:
    """Return bytes in binary units: ``769 MiB``, ``54 KiB``; three digits, and ``more`` of them."""
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size) >= factor:
            return f"{_digits(size / factor, 3 + more)} {unit}"
    return f"{_digits(size, 3 + more)} B"


def format_times(quotient: float, more: int = 0) -> str:
    """Return a ratio: ``0.568``, ``1.000``, ``2.63``, ``60``; with ``more`` digits."""
    return f"{quotient:.{3 + more}f}" if quotient < 2 else _digits(quotient, 3 + more)


def apart(values: Sequence[float], form: Callable[[float, int], str]) -> list[str]:
    """Return the values as text, with as many digits as those that differ need to differ.

    ``form`` returns a value with so many more digits than usual.
    """
    distinct = len(set(values))
    texts: list[str] = []
    for more in range(15):
        texts = [form(value, more) for value in values]
        if len(set(texts)) == distinct:
            break
    return texts


def format_speed(guest: float, host: float) -> str:
    """Return a guest's seconds per second of the host, both > 0: ``13×``, ``3.4×``, ``0.05×``."""
    return f"{_digits(guest / host, 2)}×"


def format_value(value: float, unit: str, more: int = 0) -> str:
    """Return a metric's value with its unit, ``more`` digits longer than usual.

    A count (``1``) has no unit, and any other text stands after the number.
    """
    match unit:
        case "B/s":
            return format_rate(value, more)
        case "B":
            return format_amount(value, more)
        case "s":
            return _duration(value, more)
        case "1/s":
            return f"{_digits(value, 4 + more)}/s"
        case "1" | "":
            return _digits(value, 4 + more)
        case _:
            return f"{_digits(value, 4 + more)} {unit}"


def format_values(values: Sequence[float], unit: str) -> list[str]:
    """Return values of one unit, with as many digits as those that differ need to differ."""
    return apart(values, lambda value, more: format_value(value, unit, more))


def _duration(seconds: float, more: int) -> str:
    size = abs(seconds)
    if not size:
        return format_seconds(0)
    if size < 1e-4:
        return f"{_digits(seconds * 1e6, 3 + more)} µs"
    if size < 1:
        return f"{_digits(seconds * 1000, 3 + more)} ms"
    if more:
        return f"{_digits(seconds, 3 + more)} s"
    return f"{seconds:.2f}".removesuffix("0") + " s" if size < 9.995 else format_seconds(seconds)


def _digits(value: float, count: int) -> str:
    """Return ``count`` significant digits, and all digits before the point."""
    if abs(value) < 10 ** (count - 1):
        return f"{value:.{count}g}"
    return f"{value:.0f}" if abs(value) < 10**4 else f"{value:,.0f}"


def format_seconds(seconds: float) -> str:
    """Return ``0.4 s``, ``26 s``, ``3 min 12 s``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
