"""Files that a killed process was writing.

A file that is written by rename is first called ``.NAME.PID.part`` or ``.NAME.PID``, with the id of
the writing process.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from lab.host.system.pids import started_ticks

_IN_THE_MAKING: Final = re.compile(r"\..+\.(\d+)(\.part)?")


def abandoned(entries: Iterable[Path]) -> Iterator[Path]:
    """Yield the entries whose process has ended."""
    for entry in entries:
        made = _IN_THE_MAKING.fullmatch(entry.name)
        if made and not started_ticks(int(made[1])):
            yield entry


def remove(entries: Iterable[Path]) -> list[str]:
    """Remove the entries whose process has ended; return their names."""
    removed = []
    for entry in list(abandoned(entries)):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
        removed.append(entry.name)
    return removed
