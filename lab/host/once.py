"""Work that several processes want done, and that only the first of them does."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

from lab.host import files


def once(directory: Path, name: str, work: Callable[[], str]) -> str:
    """What ``work`` returned, here or in the process that came first: the others wait for it.

    Work that raises, or whose process dies, is not done: the next one does it. ``directory`` is
    there, and goes with those who share it.
    """
    done = directory / name
    with (directory / f".{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.is_file():
            return done.read_text(encoding="utf-8")
        text = work()
        files.write(done, text, durable=False)
        return text
