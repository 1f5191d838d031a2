"""Reads tar files of guests and strangers: bounded in size, entries, headers and their fields.

Python's module reads a header's text of any size into memory, one key of it for each two bytes,
keeps all entries with their headers, copies a header that is for all entries to each, reads a map
of holes of any length, follows sizes below zero back to an earlier header for ever, and writes
holes as zeros. A file with holes is refused: no archive that the lab makes or asks for has one.
"""

from __future__ import annotations

import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Literal, Self

from typing_extensions import override

from lab.core.errors import ToolError
from lab.core.printable import printable
from lab.core.units import GIB, KIB, format_size

MOST: Final = 4 * GIB
"""Most bytes of a guest's files, unpacked."""
ENTRIES: Final = 200_000
"""Most entries of a guest's archive."""
_HEADER: Final = 16 * KIB
"""Most bytes of an entry's long name or of a further header. A path of Linux has 4 KiB at most."""
_NESTED: Final = 5
"""Most headers of one entry: its own, long names, further fields."""
_FIELDS: Final = 64
"""Most fields of a further header."""
_HEADERS: Final = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
Mode = Literal["r:", "r:gz"]


class _Entry(tarfile.TarInfo):
    """An entry whose sizes and headers are possible; ``ReadError`` otherwise."""

    _decoded = 0
    """Names and values of the header's fields that were read."""

    @classmethod
    @override
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        assert isinstance(tarfile, _Tar)
        tarfile.begin_header()
        return super().fromtarfile(tarfile)

    @classmethod
    @override
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a file is sparse")
        if found.type in _HEADERS and found.size > _HEADER:
            raise tarfile.ReadError(f"a header has {found.size} bytes, at most {_HEADER} are read")
        return found

    def _block(self, count: int) -> int:
        # Python's own answer to CVE-2025-8194; all sizes go through it.
        if count < 0:
            raise tarfile.ReadError(f"an entry has {count} bytes")
        found: int = super()._block(count)  # type: ignore[misc]
        return found

    def _decode_pax_field(self, value: bytes, *how: str) -> str:
        self._decoded += 1
        if self._decoded > 2 * _FIELDS:
            raise tarfile.ReadError(f"a header has more than {_FIELDS} fields")
        if value.startswith(b"GNU.sparse."):
            raise tarfile.ReadError("a file is sparse")
        found: str = super()._decode_pax_field(value, *how)  # type: ignore[misc]
        return found


class _Tar(tarfile.TarFile):
    """A tar file that keeps no entry but those that its reader keeps."""

    most = ENTRIES
    _entries = _headers = 0

    def begin_header(self) -> None:
        """Count a header; ``ReadError``: its entry has too many."""
        self._headers += 1
        if self._headers > _NESTED:
            raise tarfile.ReadError(f"an entry has more than {_NESTED} headers")

    @override
    def next(self) -> tarfile.TarInfo | None:
        if self._entries > self.most:
            raise tarfile.ReadError(f"it has more than {self.most} entries")
        asked_before = self.offset
        self._headers = 0
        found = super().next()
        self._entries += self.offset != asked_before
        self.pax_headers = {}  # one entry's fields for all others
        return found


@contextmanager
def opened(
    archive: Path | IO[bytes], mode: Mode, *, entries: int = ENTRIES
) -> Iterator[tarfile.TarFile]:
    """Yield an open tar file, with at most so many entries. ``tarfile.TarError``, ``ValueError``,
    ``EOFError``, ``zlib.error``: it cannot be read.

    ``mode``: not packed, or by gzip. No others: a packed text of xz names the memory that it needs.
    """

    given: dict[str, Any] = {"name": archive} if isinstance(archive, Path) else {"fileobj": archive}
    with _Tar.open(mode=mode, tarinfo=_Entry, **given) as tar:
        tar.most = entries
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
            while (entry := tar.next()) is not None:
                place.take(tar, entry)
                tar.members.clear()  # type: ignore[attr-defined]
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
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
        if self._left < 0:
            raise ToolError(
                f"the guest's files have more than {format_size(self._most)}: at most"
                f" {format_size(MOST)}, and 1 GiB of the disk stays free"
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
