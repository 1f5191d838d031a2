"""Tar files of guests and strangers: a header says any size, and none takes time or space."""

from __future__ import annotations

import gzip
import io
import tarfile
import time
from itertools import islice
from pathlib import Path

import pytest

from lab.core.errors import InputError, ToolError
from lab.host.images import archive, debs
from lab.host.system import tars


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE, extra: bytes = b"") -> bytes:
    """Return a header of the form of GNU tar, with a size that no archiver writes."""
    raw = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    raw[124:136] = bytes([128 if size >= 0 else 255]) + (size & (1 << 88) - 1).to_bytes(11, "big")
    raw[156:157] = kind
    if extra:  # a map of one part, and the size with its holes
        raw[386:410] = b"%011o\0%011o\0" % (0, 512)
        raw[483:495] = bytes([128]) + extra
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


END = bytes(1024)
PAX = b"14 size=-512\n\n".ljust(512, b"\0")
HOSTILE: dict[str, tuple[bytes, str]] = {
    "a size that leads back": (header("a", 0) + header("b", -512) + END, "cannot be read"),
    "the same of a further header": (
        header("a", 0) + header("x", 14, tarfile.XHDTYPE) + PAX + header("b", 0) + END,
        "cannot be read",
    ),
    "a long name": (header("a", 1 << 40, tarfile.GNUTYPE_LONGNAME) + END, "at most"),
    "a further header": (header("a", 1 << 40, tarfile.XHDTYPE) + END, "at most"),
    "holes": (
        header("a", 512, tarfile.GNUTYPE_SPARSE, (1 << 45).to_bytes(11, "big")) + bytes(512) + END,
        "sparse",
    ),
    "a large file": (header("a", 1 << 40) + END, "more than"),
    "a file over a directory": (header("d", 0, tarfile.DIRTYPE) + header("d", 0) + END, "written"),
    "a file below a file": (header("d", 0) + header("d/x", 0) + END, "written"),
    "a directory as a file": (header(".", 0) + END, "written"),
}


@pytest.mark.parametrize("which", HOSTILE)
@pytest.mark.parametrize("packed", [False, True])
def test_a_guests_archive_takes_neither_time_nor_space(
    tmp_path: Path, which: str, packed: bool
) -> None:
    raw, said = HOSTILE[which]
    path = tmp_path / "a.tar"
    path.write_bytes(gzip.compress(raw) if packed else raw)
    began = time.monotonic()
    with pytest.raises(ToolError, match=said):
        tars.unpack(path, tmp_path / "out", "r:gz" if packed else "r:")
    assert time.monotonic() - began < 5
    assert sum(f.stat().st_size for f in (tmp_path / "out").rglob("*") if f.is_file()) == 0


def test_the_number_of_entries_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"".join(header(f"d{n}", 0, tarfile.DIRTYPE) for n in range(200)) + END)
    assert tars.unpack(path, tmp_path / "out") == ()
    with tars.opened(path, "r:", entries=200) as tar:
        assert len(tar.getnames()) == 200
    with (
        tars.opened(path, "r:", entries=100) as tar,
        pytest.raises(tarfile.ReadError, match="more than 100 entries"),
    ):
        tar.getnames()


def member(name: str, data: bytes) -> bytes:
    line = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n"
    return line.encode() + data


BACK = [name for name in HOSTILE if "back" in name or "header" in name or "name" in name]


@pytest.mark.parametrize("which", BACK)
def test_a_package_is_refused_at_once(tmp_path: Path, which: str) -> None:
    path = tmp_path / "x.deb"
    parts = (member("debian-binary", b"2.0\n"), member("control.tar", HOSTILE[which][0]))
    path.write_bytes(b"!<arch>\n" + b"".join(parts))
    with pytest.raises(ToolError, match="cannot be read"):
        debs.fields(path, "Package")


@pytest.mark.parametrize("which", BACK)
def test_the_archive_of_an_image_is_refused_at_once(tmp_path: Path, which: str) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(HOSTILE[which][0])
    with pytest.raises(InputError, match="is not an archive of an image"):
        archive.unpack(path, tmp_path, "x.tar")


def test_the_control_follows_the_size_back() -> None:
    """Python's own module reads the second header again and again."""
    raw = HOSTILE["a size that leads back"][0]
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        names = [entry.name for entry in islice(tar, 50)]
    if len(names) < 50:
        pytest.skip("this Python has the fix of CVE-2025-8194")
    assert set(names[1:]) == {"b"}
