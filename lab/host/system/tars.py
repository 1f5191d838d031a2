"""Reads tar files of guests and strangers: bounded in size, entries and headers.

Python's module reads a header's text of any size into memory, follows sizes below zero back to an
earlier header for ever, and writes holes of a sparse file as zeros.
"""

from __future__ import annotations

import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Literal

from typing_extensions import override

from lab.core.errors import ToolError
from lab.core.printable import printable
from lab.core.units import GIB, MIB, format_size

MOST: Final = 4 * GIB
"""Most bytes of a guest's files, unpacked."""
ENTRIES: Final = 200_000
"""Most entries of a guest's archive."""
_HEADER: Final = 1 * MIB
"""Most bytes of an entry's long name or further headers."""
_HEADERS: Final = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
Mode = Literal["r:", "r:gz"]


class _Entry(tarfile.TarInfo):
    """An entry whose sizes are possible; ``ReadError`` otherwise."""

    @classmethod
    @override
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Entry:
        found = super().frombuf(buf, encoding, errors)
        if found.type in _HEADERS and found.size > _HEADER:
            raise tarfile.ReadError(f"a header has {found.size} bytes, at most {_HEADER} are read")
        return found

    def _block(self, count: int) -> int:
        # Python's own answer to CVE-2025-8194; all sizes go through it.
        if count < 0:
            raise tarfile.ReadError(f"an entry has {count} bytes")
        found: int = super()._block(count)  # type: ignore[misc]
        return found


@contextmanager
def opened(
    archive: Path | IO[bytes], mode: Mode, *, entries: int = ENTRIES
) -> Iterator[tarfile.TarFile]:
    """Yield an open tar file, with at most so many entries. ``tarfile.TarError``, ``ValueError``,
    ``RecursionError``, ``EOFError``, ``zlib.error``: it cannot be read.

    ``mode``: not packed, or by gzip. No others: a packed text of xz names the memory that it needs.
    """

    class Tar(tarfile.TarFile):
        _entries = 0

        @override
        def next(self) -> tarfile.TarInfo | None:
            if self._entries > entries:
                raise tarfile.ReadError(f"it has more than {entries} entries")
            asked_before = self.offset
            found = super().next()
            self._entries += self.offset != asked_before
            return found

    given: dict[str, Any] = {"name": archive} if isinstance(archive, Path) else {"fileobj": archive}
    with Tar.open(mode=mode, tarinfo=_Entry, **given) as tar:
        yield tar


def unpack(archive: Path, into: Path, mode: Mode = "r:") -> tuple[str, ...]:
    """Unpack regular files below ``into``, which is made; return their paths.

    Links and devices are left out. ``ToolError``: it is no archive, has more than :data:`ENTRIES`
    entries or :data:`MOST` bytes, would leave less than 1 GiB free, or has a name that leads
    elsewhere. A file that exists is replaced.
    """
    into.mkdir(parents=True, exist_ok=True)
    place = _Place(into)
    try:
        with opened(archive, mode) as tar:
            for entry in tar:
                place.take(tar, entry)
    except (tarfile.TarError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise ToolError(f"the guest's archive cannot be read: {printable(str(error))}") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise ToolError(f"the guest's files cannot be written to '{into}': {why}") from error
    return tuple(sorted(place.found))


class _Place:
    """A directory that files are unpacked into."""

    def __init__(self, into: Path) -> None:
        self._into, self._whole = into, into.resolve()
        self._safe = {into}
        """Directories that are known to be below it."""
        self._left = max(0, min(MOST, shutil.disk_usage(into).free - GIB))
        self._most = self._left
        self.found: list[str] = []

    def take(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        name = PurePosixPath(entry.name)
        shown = printable(entry.name)[:120]
        if name.is_absolute() or ".." in name.parts:
            raise ToolError(f"the guest's archive has '{shown}', outside of its place")
        target = self._into / name
        if not entry.isdir() and not entry.isreg():
            return
        self._check(target)
        if entry.isdir():
            self._directory(target)
            return
        self._left -= entry.size
        if entry.issparse() or self._left < 0:
            raise ToolError(
                f"the guest's files have more than {format_size(self._most)}, or '{shown}' is"
                f" sparse: at most {format_size(MOST)}, and 1 GiB of the disk stays free"
            )
        self._directory(target.parent)
        target.unlink(missing_ok=True)
        source = tar.extractfile(entry)
        assert source is not None
        with target.open("xb") as file:
            shutil.copyfileobj(source, file)
        target.chmod(0o755 if entry.mode & 0o100 else 0o644)
        self.found.append(str(target))

    def _check(self, target: Path) -> None:
        """``ToolError``: a link that is there leads elsewhere."""
        if target.parent in self._safe and not target.is_symlink():
            return
        if not target.resolve().is_relative_to(self._whole):
            raise ToolError(f"'{target}' leads out of '{self._into}': remove the link")

    def _directory(self, place: Path) -> None:
        if place not in self._safe:
            place.mkdir(parents=True, exist_ok=True)
            self._safe.add(place)
