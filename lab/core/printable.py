"""Makes untrusted text safe for terminals, HTML, tables and file names."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import Final

_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]"
)
"""C0 and C1 except tab and line feed; DEL; invisible characters and those that change the direction
of writing; characters that XML 1.0 does not allow. Halves of surrogate pairs stand for bytes of
names that are not UTF-8."""
_LONGEST: Final = 100


def printable(text: str) -> str:
    r"""Return the text with each control character as in JSON, such as ``\u001b``.

    JSON text keeps its meaning.
    """
    return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text.replace("\r\n", "\n"))


def cell_text(text: str) -> str:
    """Return the text for a spreadsheet's table: ``'`` precedes the beginning of a formula."""
    shown = printable(text)
    return f"'{shown}" if shown[:1] in ("=", "+", "-", "@", "\t") else shown


def as_name(text: str) -> str:
    """Return a file name made of a value: never empty, hidden, an option or a path."""
    name = re.sub(r"[^A-Za-z0-9._,-]+", "-", text).lstrip(".-")
    return name[:_LONGEST] or "none"


LONGEST: Final = 200
"""Longest file name in bytes. File systems allow 255, and temporary files have longer names."""


def path_below(text: str) -> PurePosixPath:
    """Parse the path of a received file; ``ValueError``: it is not below a directory."""
    parts = text.split("/")
    long = any(len(part.encode()) > LONGEST for part in parts)  # UnicodeError is a ValueError
    if long or "\0" in text or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{text!r} is not a path below a directory")
    return PurePosixPath(text)
