"""Tar files of guests and strangers: a header says any size, and none takes time or space."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

import pytest

from lab.core.errors import InputError, ToolError
from lab.host.images import archive, debs
from lab.host.system import tars

ROOT = Path(__file__).resolve().parents[2]


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


# -- what takes no size, but memory


def record(key: bytes, value: bytes = b"") -> bytes:
    """Return a field of a further header, with its own length before it."""
    text = b" " + key + b"=" + value + b"\n"
    size = next(n for n in range(len(text), len(text) + 9) if len(str(n)) + len(text) == n)
    return str(size).encode() + text


def further(fields: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return header("x", len(fields), kind) + fields + bytes(-len(fields) % 512)


def link(name: str) -> bytes:
    return header(name, 0, tarfile.SYMTYPE)


COMMENT = further(record(b"comment", b"x" * 16_000))
OLD_COMMENT = further(record(b"comment", b"x" * 1_000_000))
GREEDY: dict[str, Callable[[], Iterator[bytes]]] = {
    "fields of each entry": lambda: (COMMENT + link(f"l{n}") for n in range(6_000)),
    "large fields of each entry": lambda: (OLD_COMMENT + link(f"l{n}") for n in range(400)),
    "headers within each other": lambda: (OLD_COMMENT for _ in range(300)),
    "fields for all entries": lambda: chain(
        (further(b"".join(record(b"k%d" % n) for n in range(60_000)), tarfile.XGLTYPE),),
        (link(f"l{n}") for n in range(3000)),
    ),
    "a map of holes in the data": lambda: chain(
        (further(record(b"GNU.sparse.major", b"1") + record(b"GNU.sparse.minor", b"0")),),
        (header("a", 1 << 30), b"99999999\n"),
        (b"1\n" * 32_768 for _ in range(1000)),
    ),
}
READS = """\
import sys, time
from pathlib import Path
from lab.core.errors import ToolError
from lab.host.system import tars

def most():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10

before, began = most(), time.process_time()
try:
    print(tars.unpack(Path(sys.argv[1]), Path(sys.argv[2]), "r:gz"))
except ToolError as error:
    print(error)
print(most() - before)
print(time.process_time() - began)
"""


@pytest.mark.parametrize("which", GREEDY)
def test_a_small_archive_takes_little_memory(tmp_path: Path, which: str) -> None:
    packed = tmp_path / "a.tar.gz"
    with gzip.open(packed, "wb", compresslevel=1) as file:
        for part in GREEDY[which]():
            file.write(part)
        file.write(END)
    assert packed.stat().st_size < 12 << 20
    words = [sys.executable, "-c", READS, str(packed), str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=ROOT)
    *said, memory, seconds = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert said
    assert int(memory) < 60, said
    assert float(seconds) < 30, said
