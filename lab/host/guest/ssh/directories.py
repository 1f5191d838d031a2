"""Packing of a user's directory for a guest. Symbolic links are sent as links."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lab.core.errors import InputError, LabError, ToolError, unwritable
from lab.core.units import format_size
from lab.model.execution.procedure import SendDirectory

if TYPE_CHECKING:  # checks of scenarios need no connection
    from lab.host.guest.ssh.shell import Shell

ENTRIES: Final = 200_000
"""Most entries of a directory; Linux's source has 90 000."""


def send(shell: Shell, step: SendDirectory, scratch: Path) -> None:
    """Pack the directory in ``scratch`` and copy it; ``ToolError``: it changed after the check."""
    packed = scratch / "suite.tar"
    try:
        _pack(Path(step.source), packed, step.left_out, step.most)
        shell.put(packed, step.target)
    except InputError as error:
        raise ToolError(error.message) from None
    finally:
        packed.unlink(missing_ok=True)


def check(directory: Path, left_out: Collection[str], most: int) -> None:
    """``InputError`` if the directory cannot be sent; the message names the entry."""
    for _ in _members(directory, left_out, most):
        pass


def _members(
    directory: Path, left_out: Collection[str], most: int
) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield its directories, files and links, in order; ``InputError`` for anything else."""
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise InputError(f"'{directory}' {what}")
    total = count = 0
    for top, folders, names in os.walk(directory, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if name not in left_out)
        for name in sorted((*folders, *names)):
            path = Path(top, name)
            found = path.lstat()
            kind = stat.S_IFMT(found.st_mode)
            if kind not in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK):
                raise InputError(f"'{path}' is not a file, directory or link: remove it")
            if kind == stat.S_IFREG:
                total += found.st_size
            count += 1
            if count > ENTRIES:
                raise InputError(f"'{directory}' holds more than {ENTRIES} entries")
            if total > most:
                raise InputError(
                    f"'{directory}' holds more than {format_size(most)}, without version control:"
                    " give the suite's own directory, or a fresh checkout"
                )
            yield path, found


def _unreadable(error: OSError) -> None:
    raise InputError(f"'{error.filename}' cannot be read: {error.strerror}") from error


def _pack(directory: Path, packed: Path, left_out: Collection[str], most: int) -> None:
    """Pack into one tar file. In the guest all entries belong to root."""
    try:
        with tarfile.open(packed, "w") as tar:
            for path, found in _members(directory, left_out, most):
                entry = tar.gettarinfo(path, arcname=str(path.relative_to(directory)))
                entry.uid = entry.gid = 0
                entry.uname = entry.gname = "root"
                if stat.S_ISREG(found.st_mode) and entry.isreg():
                    with path.open("rb") as file:
                        tar.addfile(entry, file)
                else:
                    tar.addfile(entry)
    except LabError:
        raise
    except OSError as error:
        if error.filename is not None and Path(error.filename) != packed:
            raise InputError(f"'{error.filename}' cannot be read: {error.strerror}") from error
        raise unwritable(packed, error) from error
