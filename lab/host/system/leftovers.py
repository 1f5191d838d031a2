"""The cleaner of files and directories that a killed process was making.

Their names are those of :mod:`lab.host.system.unfinished`. `lab clean` finds them in
all directories of the lab (:func:`lab.host.system.paths.places`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from lab.compile.image.build import namespaced
from lab.core.errors import HostError
from lab.host.system import clock, paths, process, unfinished

_ENDS: Final = 20
"""Attempts to remove a directory in which a process that is being killed still writes."""


def abandoned(entries: Iterable[Path]) -> Iterator[Path]:
    """Yield the entries whose process has ended."""
    return (entry for entry in entries if unfinished.is_abandoned(entry.name))


def every() -> list[Path]:
    """Return all leftovers in the directories of the lab."""
    return sorted({left for place in paths.places() for left in abandoned(place.glob(".*"))})


def remove(entries: Iterable[Path]) -> list[str]:
    """Remove the entries whose process has ended; return their names."""
    removed = []
    for entry in list(abandoned(entries)):
        discard(entry)
        removed.append(entry.name)
    return removed


def discard(entry: Path) -> None:
    """Remove a file or a directory, which may hold files of subordinate users.

    ``HostError``: it could not be removed.
    """
    for attempt in range(_ENDS):
        if entry.is_dir() and not entry.is_symlink():
            with contextlib.suppress(RecursionError):  # foreign code may nest directories
                shutil.rmtree(entry, ignore_errors=True)
        else:
            try:
                entry.unlink(missing_ok=True)
            except OSError as error:
                raise HostError(f"'{entry}' could not be removed: {error.strerror}") from error
        if not os.path.lexists(entry):
            return
        argv = ("rm", "-rf", "--", str(entry))
        root = os.geteuid() == 0
        process.run(argv if root else namespaced(argv, root=False), check=False, timeout=120)
        if not os.path.lexists(entry):
            return
        clock.pause(0.05 * (attempt + 1))
    raise HostError(f"the directory '{entry}' could not be removed", hint="try again: lab clean")
