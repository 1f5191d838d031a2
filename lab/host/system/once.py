"""Work that several processes request and only the first of them does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from lab.host.system import files, locks

WORKING: Final = 4 * 3600.0
"""Seconds for the first process: its work is a whole run of a scenario."""


def once(directory: Path, name: str, work: Callable[[], str]) -> str:
    """The result of ``work``, done here or by the process that came first; the others wait.

    Work that raises, or whose process dies, is done by the next process. ``directory`` exists and
    is shared by the processes. ``LockedError`` after :data:`WORKING`.
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
