"""Work that several processes need, and that one of them does for all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from lab.host.system import made

WORKING: Final = 4 * 3600.0
"""Timeout in seconds for the first process: its work is a whole run of a scenario."""


def once(directory: Path, name: str, work: Callable[[], str]) -> str:
    """Return the result of ``work``, done here or by the first process; the others wait.

    If the work raises or its process dies, the next process does it. ``directory`` is shared by the
    processes. ``LockedError`` after :data:`WORKING`.
    """
    place = directory / name

    def find() -> str | None:
        return place.read_text(encoding="utf-8") if place.is_file() else None

    def make(part: Path) -> None:
        part.write_text(work(), encoding="utf-8")

    what = f"another process to make '{name}'"
    return made.once(place, find, make, seconds=WORKING, what=what)
