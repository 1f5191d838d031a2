"""Parses and formats sizes, rates and times with units.

Inside the lab a size is an ``int`` of bytes, a rate a number of bytes per second, a time a
``float`` of seconds. Decimal (``kB``, ``MB``) and binary (``KiB``, ``MiB``) prefixes follow IEC
80000-13. A bare ``K`` or ``M`` is refused, because mdadm and dd read it as binary and disk vendors
as decimal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
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
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_RATE: Final = re.compile(r"(.*?)\s*(?:/\s*s)?\s*")
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


def _quoted(value: object) -> str:
    return repr(value) if isinstance(value, str) else as_yaml(value)


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
        if not math.isfinite(value) or value != int(value) or value < 0:
            raise ValueError(
                f"{value} is not {what}, a whole number, 0 or more: write it as {examples}"
            )
        return int(value)
    match = _SIZE.fullmatch(value)
    if match is None:
        raise wrong
    number, unit = match.groups()
    if unit not in _FACTORS:
        near = {"k": "KiB or kB", "m": "MiB or MB", "g": "GiB or GB", "t": "TiB or TB"}
        hint = near.get(unit[:1].lower(), "KiB, MiB, GiB, TiB, kB, MB, GB or TB")
        raise ValueError(f"{value!r} has the unknown unit {unit!r}: write {hint}")
    if len(number) > 30:
        raise ValueError(f"'{number[:30]}…' is more than any disk holds: write it as {examples}")
    size = Fraction(number) * _FACTORS[unit]  # a float has only 53 bits
    if size.denominator != 1:
        raise ValueError(f"{value!r} is not a whole number of bytes: write it as {examples}")
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
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    try:
        return _amount(match[1] if match else value, *_RATE_WORDS)
    except ValueError as error:
        if match and match[1] != value:  # shows the user's text, with its /s
            raise ValueError(str(error).replace(repr(match[1]), repr(value), 1)) from None
        raise


def parse_share(text: str) -> float:
    """Return the fraction of ``"7%"``; ``ValueError``: it is no percentage."""
    match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*%\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is not a percentage: write 7%")
    return float(match[1]) / 100


def parse_seconds(value: object) -> float:
    """Return seconds of ``90``, ``"90s"``, ``"1.5min"``, ``"200ms"``."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(value))
        if match is None or match.group(2) not in _SECONDS:
            raise ValueError(f"{_quoted(value)} is not a time: write it as 90, 90s, 5min or 200ms")
        seconds = float(match.group(1)) * _SECONDS[match.group(2)]
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{_quoted(value)} is no time: it is 0 or more, and ends; write 90s")
    return seconds


def shortened(text: str, most: int) -> str:
    """Return the text; cut a longer one in the middle, with the number of characters left out."""
    if len(text) <= most:
        return text
    half = most // 2
    left = len(text) - 2 * half
    return f"{text[:half]}\n[lab: {left} characters are left out here]\n{text[-half:]}"


def format_size(size: int) -> str:
    """Return the shortest exact spelling: ``524288`` is ``512KiB``, ``250000000`` is ``250MB``."""
    if size == 0:
        return "0"
    for unit in ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB"):
        if size % _FACTORS[unit] == 0:
            return f"{size // _FACTORS[unit]}{unit}"
    return str(size)


def format_rate(rate: float) -> str:
    """Return bytes per second with three digits, in decimal units like dd and disk vendors."""
    mega = rate / 10**6
    if mega >= 1000:
        return f"{mega / 1000:.2f} GB/s"
    if mega >= 100:
        return f"{mega:.0f} MB/s"
    if mega >= 1:
        return f"{mega:.1f} MB/s" if mega >= 10 else f"{mega:.2f} MB/s"
    return f"{_digits(rate / 1000, 3)} kB/s" if rate >= 1000 else f"{_digits(rate, 3)} B/s"


def format_amount(size: float) -> str:
    """Return bytes with three digits, in binary units: ``769 MiB``, ``54 KiB``."""
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= factor:
            return f"{_digits(size / factor, 3)} {unit}"
    return f"{_digits(size, 3)} B"


def format_times(quotient: float) -> str:
    """Return a ratio: ``0.568``, ``1.000``, ``2.63``, ``60``."""
    return f"{quotient:.3f}" if quotient < 2 else _digits(quotient, 3)


def format_speed(guest: float, host: float) -> str:
    """Return a guest's seconds per second of the host, both > 0: ``13×``, ``3.4×``, ``0.05×``."""
    return f"{_digits(guest / host, 2)}×"


def format_figure(metric: str, value: float) -> str:
    """Return a metric's value in the usual unit for its name."""
    if metric.endswith("throughput"):
        return format_rate(value)
    if metric.endswith("seconds"):
        return format_seconds(value) if value >= 1 or not value else _milliseconds(value)
    if metric.endswith("iops") or metric == "seeks":
        return f"{_digits(value, 4)}/s"
    if "latency" in metric or "clat_" in metric:
        return f"{_digits(value, 3)} s" if value >= 1 else _milliseconds(value)
    if metric in ("disk_reads", "disk_writes", "disk_flushes"):
        return f"{_digits(value, 4)} {metric.removeprefix('disk_')}"
    if metric.endswith("bytes") or metric in ("allocated", "used", "used_total"):
        return format_amount(value)
    return _digits(value, 4)


def _milliseconds(seconds: float) -> str:
    if 0 < seconds < 1e-4:
        return f"{_digits(seconds * 1e6, 3)} µs"
    return f"{_digits(seconds * 1000, 3)} ms"


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
