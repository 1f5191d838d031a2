"""A stranger's .deb is read on the host with limits, and without its links."""

from __future__ import annotations

import io
import lzma
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab.core.errors import InputError, ToolError
from lab.host.images import debs
from lab.host.images import recipes as image_recipes

CONTROL = b"Package: mine\nVersion: 1:2-3\nDescription: a\n b\n .\n c\n"
Member = tuple[tarfile.TarInfo, bytes]


def member(name: str, data: bytes) -> Member:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    return entry, data


def link(name: str, kind: bytes, target: str) -> Member:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry, b""


def tar_of(members: Sequence[Member]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry, data in members:
            tar.addfile(entry, io.BytesIO(data))
    return made.getvalue()


def gzip(data: bytes) -> bytes:
    packing = zlib.compressobj(wbits=31)
    return packing.compress(data) + packing.flush()


def deb(place: Path, data: bytes, name: str = "control.tar.xz") -> Path:
    path, written = place / "x.deb", b"!<arch>\n"
    for title, content in (("debian-binary", b"2.0\n"), (name, data), ("data.tar", b"")):
        written += f"{title:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        written += content + b"\n" * (len(content) % 2)
    path.write_bytes(written)
    return path


@pytest.mark.parametrize(
    ("name", "pack"),
    [("control.tar", bytes), ("control.tar.gz", gzip), ("control.tar.xz", lzma.compress)],
)
@pytest.mark.parametrize("control", ["control", "./control"])
def test_the_fields_are_those_of_the_control_file(
    tmp_path: Path, name: str, pack: type[bytes], control: str
) -> None:
    members = [member("./md5sums", b"x" * 3000), member(control, CONTROL + b"\n")]
    path = deb(tmp_path, pack(tar_of(members)), name)
    assert debs.fields(path, "Version", "Package") == ("1:2-3", "mine")
    debs.write_archive(tmp_path)
    text = (tmp_path / "Packages").read_text()
    assert text.startswith(CONTROL.decode() + f"Filename: ./x.deb\nSize: {path.stat().st_size}\n")
    assert text.count("\n\n") == 1
    with pytest.raises(ToolError, match="no field 'Section'"):
        debs.fields(path, "Section")


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg is not installed")
@pytest.mark.parametrize("kind", ["xz", "gzip", "none"])
def test_a_package_that_dpkg_made_reads_as_dpkg_reads_it(tmp_path: Path, kind: str) -> None:
    (tmp_path / "p/DEBIAN").mkdir(parents=True)
    lines = "Package: mine\nVersion: 1\nArchitecture: all\nMaintainer: A <a@b>\nDescription: x\n"
    (tmp_path / "p/DEBIAN/control").write_text(lines)
    path = tmp_path / "p.deb"
    build = ["dpkg-deb", f"-Z{kind}", "--uniform-compression", "--build", tmp_path / "p", path]
    subprocess.run(build, check=True, capture_output=True, timeout=60)
    shown = subprocess.run(
        ["dpkg-deb", "--field", path], check=True, capture_output=True, text=True, timeout=60
    )
    assert debs._control(path) + "\n" == shown.stdout == lines


GOOD = member("./control", CONTROL)
HOSTILE: dict[str, tuple[list[Member], str]] = {
    "a link to a device": ([link("./control", tarfile.SYMTYPE, "/dev/zero")], "no single regular"),
    "a hard link": ([GOOD, link("control", tarfile.LNKTYPE, "/etc/passwd")], "no single regular"),
    "a device": ([link("./control", tarfile.CHRTYPE, "")], "no single regular"),
    "two": ([GOOD, GOOD], "no single regular"),
    "none": ([member("./postinst", b"")], "no single regular"),
    "large": ([member("./control", b"A: b\n" * 220_000)], "larger than 1MiB"),
    "two stanzas": ([member("./control", CONTROL + b"\nPackage: libc6\n")], "an empty line"),
    "a blank line": ([member("./control", CONTROL + b" \t\nPackage: x\n")], "an empty line"),
    "nothing": ([member("./control", b"")], "an empty line"),
    "no text": ([member("./control", b"\xff\xfe")], "cannot be read"),
    "a bomb": ([GOOD, member("./x", bytes(40 << 20))], "unpacked larger than 16MiB"),
}


@pytest.mark.parametrize("which", HOSTILE)
def test_a_hostile_control_archive_is_a_sentence(tmp_path: Path, which: str) -> None:
    members, said = HOSTILE[which]
    path = deb(tmp_path, gzip(tar_of(members)), "control.tar.gz")
    with pytest.raises(InputError, match=f"is not a Debian package: .*{said}"):
        image_recipes.brought_package(path)
    with pytest.raises(ToolError, match=said):
        debs.write_archive(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["x.deb"]


def test_a_file_that_is_no_package_is_a_sentence(tmp_path: Path) -> None:
    whole = lzma.compress(tar_of([GOOD]))
    for data, name, said in (
        (whole[:-9], "control.tar.xz", "cut off"),
        (b"this is junk", "control.tar.xz", "cannot be read"),
        (b"junk", "control.tar.gz", "cannot be read"),
        (b"junk" * 200, "control.tar", "cannot be read"),
        (whole, "control.tar.zst", "pack it anew with `dpkg-deb -Zxz`"),
        (whole, "data.tar.xz", r"control\.tar is missing"),
        (bytes(17 << 20), "control.tar", r"control\.tar is larger than 16MiB"),
    ):
        with pytest.raises(ToolError, match=said):
            debs.fields(deb(tmp_path, data, name), "Package")
    for data in (b"", b"!<arch>\n", b"!<arch>\n" + b"9" * 60):
        (tmp_path / "x.deb").write_bytes(data)
        with pytest.raises(ToolError, match=r"no ar archive|is missing"):
            debs.fields(tmp_path / "x.deb", "Package")
