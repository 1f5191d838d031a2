"""Foreign text made safe for terminals, HTML, tables and file names."""

from __future__ import annotations

import json
import re
from typing import Final

_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]"
)
"""C0 and C1 but for tab and line feed, DEL, what changes the direction of writing or is not seen,
and what XML 1.0 has no place for. Half of a surrogate pair: a byte of a name that is not UTF-8."""
_LONGEST: Final = 100


def printable(text: str) -> str:
    r"""The text with each control character as JSON writes it, such as ``\u001b``.

    JSON stays the same JSON.
    """
    return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text.replace("\r\n", "\n"))


def cell_text(text: str) -> str:
    """The text for a table that a spreadsheet may open: ``'`` in front of what begins a formula."""
    shown = printable(text)
    return f"'{shown}" if shown[:1] in ("=", "+", "-", "@", "\t") else shown


def as_name(text: str) -> str:
    """A file name made of a value: never empty, hidden, an option or a path."""
    name = re.sub(r"[^A-Za-z0-9._,-]+", "-", text).lstrip(".-")
    return name[:_LONGEST] or "none"
