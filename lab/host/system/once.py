"""Work that several processes need, and that one of them does for all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from lab.host.system import files, locks

WORKING: Final = 4 * 3600.0
"""Timeout in seconds for the first process: its work is a whole run of a scenario."""


def once(directory: Path, name: str, work: Callable[[], str]) -> str:
    """Return the result of ``work``, done here or by the first process; the others wait.

    If the work raises or its process dies, the next process does it. ``directory`` exists and is
    shared by the processes. ``LockedError`` after :data:`WORKING`.
    """
    done = directory / name
    path = directory / f".{name}.lock"
    with path.open("a") as lock:
        locks.take(lock.fileno(), path, seconds=WORKING, what=f"another process to make '{name}'")
        if done.is_file():
            return done.read_text(encoding="utf-8")
        text = work()
        files.write(done, text, durable=False)
        return text
