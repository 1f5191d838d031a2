"""Escapes control characters of untrusted text on standard output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TextIO

from lab.core.printable import printable


class Shown:
    """A stream that writes control characters as escapes. ``rich`` writes to ``inner``."""

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def write(self, text: str) -> int:
        """Write the text with control characters escaped."""
        return self.inner.write(printable(text))

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
