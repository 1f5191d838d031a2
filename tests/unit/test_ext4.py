"""File systems that others may have made are read and changed in a sandbox."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from pathlib import Path

import pytest

from lab.core.errors import HostError
from lab.host.images import ext4, sandbox


def disk(directory: Path, files: dict[str, bytes]) -> Path:
    """Return an ext4 file system with these files."""
    for name, data in files.items():
        path = directory / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    made = directory / "disk.raw"
    places = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    words = ["mke2fs", "-q", "-t", "ext4", "-d", directory / "root", made, "8M"]
    subprocess.run(words, check=True, env={"PATH": places})
    return made


def test_files_are_read_and_replaced(tmp_path: Path) -> None:
    made = disk(tmp_path, {"a/one": b"1" * 5000, "a/two": b"2", "b": b""})
    assert ext4.names(made, "/a", tmp_path, image="x") >= {"one", "two"}
    ext4.replace(made, {"/a/one": b"new", "/b": b"\0" * 9000}, tmp_path, executable=True, image="x")
    paths = {"one": "/a/one", "two": "/a/two", "b": "/b", "none": "/none"}
    found = ext4.contents(made, paths, tmp_path, most=10_000, image="x")
    assert found == {"one": b"new", "two": b"2", "b": b"\0" * 9000}
    assert not (tmp_path / "ext4").exists()
    ext4.replace(made, {"/a/one": b"new"}, tmp_path, executable=True, image="x")
    again = made.read_bytes()
    ext4.replace(made, {"/a/one": b"new"}, tmp_path, executable=True, image="x")
    assert made.read_bytes() == again


def test_a_file_has_a_limit(tmp_path: Path) -> None:
    made = disk(tmp_path, {"big": b"1" * (2 << 20)})
    for most in (100, 1 << 20, (2 << 20) - 1):
        with pytest.raises(HostError, match="/big is larger than"):
            ext4.contents(made, {"big": "/big"}, tmp_path, most=most, image="x")
    assert ext4.contents(made, {"big": "/big"}, tmp_path, most=2 << 20, image="x")


@pytest.mark.parametrize("path", ["/a b", '/a"', "/a\nrm /b", "relative", "/é", "/" + "a" * 2000])
def test_a_path_is_one_word(tmp_path: Path, path: str) -> None:
    made = disk(tmp_path, {"b": b"1"})
    with pytest.raises(HostError, match="odd"):
        ext4.contents(made, {"name": path}, tmp_path, most=100, image="x")


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/link").symlink_to("/etc/hostname")
    made = disk(tmp_path, {"b": b"1"})
    assert ext4.contents(made, {"name": "/link"}, tmp_path, most=100, image="x")["name"] == b""
    back = ext4.tree(made, "rdump / /out\n", tmp_path, image="x")
    assert (back / "link").is_symlink()


def test_debugfs_is_in_the_sandbox_and_sees_the_disk_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = disk(tmp_path, {"a/b": b"1"})
    seen = []
    monkeypatch.setattr(sandbox, "run", lambda box, words, **_: seen.append((box, words)))
    with pytest.raises(FileNotFoundError):  # no log
        ext4.names(made, "/a", tmp_path, image="x")
    ((box, words),) = seen
    assert words[0] == "debugfs"
    assert set(box.read) == {"/disk", "/commands"}
    assert not box.write


@pytest.mark.parametrize("seed", range(6))
def test_a_corrupt_file_system_is_one_sentence(tmp_path: Path, seed: int) -> None:
    made = disk(tmp_path, {"a/one": b"1" * 5000})
    data, draw = bytearray(made.read_bytes()), random.Random(seed)
    for _ in range(3000):
        data[draw.randrange(1024, 1 << 20)] = draw.randrange(256)
    made.write_bytes(data)
    found: dict[str, bytes] = {}
    with contextlib.suppress(HostError):  # any other error is a bug
        found = ext4.contents(made, {"one": "/a/one"}, tmp_path, most=1 << 20, image="x")
    assert found.keys() <= {"one"}
