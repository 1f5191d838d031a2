"""Files in the making, whose maker was killed.

Whatever is written by rename is first called ``.NAME.PID.part``, or ``.NAME.PID``: the process
that makes it. Once that process is gone nobody will finish the file.
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
    """Those that were being made by processes that are gone."""
    for entry in entries:
        made = _IN_THE_MAKING.fullmatch(entry.name)
        if made and not started_ticks(int(made[1])):
            yield entry


def remove(entries: Iterable[Path]) -> list[str]:
    """Remove those whose makers are gone; their names."""
    removed = []
    for entry in list(abandoned(entries)):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
        removed.append(entry.name)
    return removed
