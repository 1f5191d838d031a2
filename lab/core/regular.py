"""Reads files that a scenario or a recipe names: regular files only, at most so many bytes.

A path from a stranger's scenario may lead to a device that never ends, or to a FIFO that blocks.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from lab.core.units import format_size

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}


def check(path: Path, most: int) -> None:
    """``OSError`` unless this is a regular file of at most ``most`` bytes; nothing is opened."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "a special file")
        raise OSError(errno.EINVAL, f"it is {kind}, and no regular file")
    if found.st_size > most:
        has, limit = format_size(found.st_size), format_size(most)
        raise OSError(errno.EFBIG, f"it has {has}, at most {limit} are read")


def read(path: Path, most: int) -> bytes:
    """Return the contents of a regular file of at most ``most`` bytes; else ``OSError``."""
    check(path, most)
    # It may have been replaced since: never block, and never read more.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {format_size(most)}")
    return data
