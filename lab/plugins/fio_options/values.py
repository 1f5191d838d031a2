"""Values of fio's options in one spelling: bytes, seconds, 1 and 0.

fio reads ``4k``, ``4kB`` and ``4KiB`` as 4096, 4096 and 4000 bytes (``kb_base``, fio's manual under
"Parameter types"), and ``2m`` as two minutes. In the lab ``4KiB`` is 4096 and ``4kB`` 4000.
``4KiB`` is read as in the lab and passed on in bytes; ``4kB`` is refused.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Final

from lab.core.units import as_yaml, is_digits, parse_seconds, parse_size
from lab.plugins.fio_options.names import (
    MICROSECONDS,
    NUMBERS,
    OPTIONS,
    OTHER_NAMES,
    SIZES,
    SWITCHES,
    TIMES,
)

Value = str | int | float

LOGS: Final = ("write_bw_log", "write_iops_log", "write_lat_log", "write_hist_log")
"""Options that take a file name; the lab chooses it."""

_SUFFIXES: Final = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_FIO_SIZE: Final = re.compile(r"(\d+)([kmgtp])", re.IGNORECASE)
_OUR_SIZE: Final = re.compile(r"\d+(\.\d+)?\s*([KMGT]iB|B)?")
_FIO_TIME: Final = re.compile(r"\d+(\.\d+)?(d|h|m|s|ms|us|msec|usec|sec)?")
_TIME_UNITS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "us": 1e-6, "usec": 1e-6}
_TIME_UNITS_LONG: Final = {"msec": 1e-3, "sec": 1.0}
_NUMBER: Final = re.compile(r"-?\d+[kmgtp]?(,-?\d+[kmgtp]?){0,2}", re.IGNORECASE)


def unknown(key: str) -> str:
    """Return the error for an option that fio does not have."""
    if key in ("output", "output-format", "output_format", "name"):
        return f"{key!r} is set by the lab: remove it"
    near = get_close_matches(key, {*OPTIONS, *OTHER_NAMES}, n=1)
    guess = f"did you mean '{near[0]}'?" if near else "`fio --cmdhelp=all` lists what there is"
    return f"unknown key '{key}': fio has no such option; {guess}"


def normal(name: str, given: object) -> Value:
    """Return the value of one option in the lab's spelling."""
    if isinstance(given, list | tuple | dict):
        raise ValueError(
            f"{name} takes one value, found {as_yaml(given)}: write it as on fio's command line"
        )
    if name in SWITCHES or name in LOGS:
        return _switch(name, given)
    if name in SIZES:
        return _size(name, given)
    if name in MICROSECONDS:
        return _microseconds(name, given)
    if name in TIMES:
        return _time(name, given)
    if isinstance(given, bool):
        return int(given)
    if name in NUMBERS and not _NUMBER.fullmatch(str(given).strip()):
        raise ValueError(f"{name}: expected a whole number such as 16, found {given!r}")
    return given if isinstance(given, int | float) else str(given)


def _switch(name: str, given: object) -> int:
    switches = {"true": 1, "yes": 1, "1": 1, "": 1, "false": 0, "no": 0, "0": 0}
    found = switches.get(str(given).strip().lower())
    if found is None:
        raise ValueError(f"{name}: expected true or false, found {given!r}")
    return found


def _size(name: str, given: object) -> Value:
    """Return bytes; percentages and ranges stay text."""
    text = str(given).strip()
    if text.endswith("%") and is_digits(text[:-1].replace(".", "", 1)):
        return text
    parts = [[_bytes(name, word) for word in part.split("-")] for part in text.split(",")]
    if len(parts) == 1 and len(parts[0]) == 1:
        return parts[0][0]
    return ",".join("-".join(str(size) for size in part) for part in parts)


def _bytes(name: str, text: str) -> int:
    match = _FIO_SIZE.fullmatch(text)
    if match:
        return int(match[1]) << 10 * _SUFFIXES[match[2].lower()]
    if not _OUR_SIZE.fullmatch(text):
        raise ValueError(
            f"{name}: {text!r} does not mean the same size in fio and in the lab: write 4k or "
            "4KiB, 1m or 1MiB, or the number of bytes"
        )
    return parse_size(int(text) if is_digits(text) else text)


def _microseconds(name: str, given: object) -> str:
    """Return the value with its unit: a plain number means microseconds here, seconds elsewhere."""
    match = _FIO_TIME.fullmatch(str(given).strip())
    alone = match is not None and not match[2]
    return f"{round(float(str(given)) if alone else _time(name, given) * 1e6)}us"


def _time(name: str, given: object) -> float:
    text = str(given).strip()
    match = _FIO_TIME.fullmatch(text)
    units = _TIME_UNITS | _TIME_UNITS_LONG
    if match and match[2] in units:
        return float(text.removesuffix(match[2])) * units[match[2]]
    try:
        return parse_seconds(text if match is None or match[2] else float(text))
    except ValueError:
        raise ValueError(
            f"{name}: '{as_yaml(given)}' is not a time: write it as 15, 15s or 2min"
        ) from None
