"""Inputs of a rescue are opened for reading only; those in use or changed are refused."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from lab.core import qemu_img
from lab.core.errors import InputError
from lab.host.real_disks import inputs
from lab.host.real_disks.inputs import Input
from lab.host.system import process
from tests import loops
from tests.loops import Bay, mount, unmount

MIB = 1024**2


@pytest.fixture
def bay(tmp_path: Path) -> Iterator[Bay]:
    yield from loops.bay(tmp_path / "bay")


def opened(path: Path, tmp_path: Path) -> Input:
    return inputs.open_input(path, tmp_path, tmp_path / "leases")


def file_of(tmp_path: Path, name: str = "disk.raw") -> Path:
    path = tmp_path / name
    path.write_bytes(os.urandom(MIB) + bytes(7 * MIB) + os.urandom(MIB))
    return path


def test_a_descriptor_cannot_write(tmp_path: Path) -> None:
    found = opened(file_of(tmp_path), tmp_path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(found.descriptor, b"x")
    found.close()


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    found = opened(path, tmp_path)
    assert found.read(0, found.size) == path.read_bytes()
    assert found.read(found.size - 10, 100) == path.read_bytes()[-10:]
    assert found.read(found.size, 1) == b""
    assert found.read(-1, 5) == b""
    assert found.changed() == ""
    found.close()


def test_a_file_that_is_written_meanwhile_is_seen(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    found = opened(path, tmp_path)
    facts = path.stat()
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"other")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # its time does not show it
    assert str(path) in found.changed()
    found.close()


def test_a_file_that_is_open_for_writing_is_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    with path.open("r+b"), pytest.raises(InputError, match="open for writing"):
        opened(path, tmp_path)
    with path.open("rb"):
        opened(path, tmp_path).close()


def test_qcow2_is_read_and_never_leads_to_another_file(tmp_path: Path) -> None:
    raw = file_of(tmp_path)
    packed = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", "-c", raw, packed], check=True)
    found = opened(packed, tmp_path)
    assert found.size == raw.stat().st_size
    assert found.read(0, found.size) == raw.read_bytes()
    found.close()
    over = tmp_path / "over.qcow2"
    words = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", raw, "-F", "raw", over]
    subprocess.run(words, check=True)
    with pytest.raises(InputError, match="over another file"):
        opened(over, tmp_path)


def test_the_name_of_a_qcow2_file_is_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(0.5)
        name = f"nbd:127.0.0.1:{stranger.getsockname()[1]}"
        monkeypatch.chdir(tmp_path)
        bare = ["qemu-img", "create", "-q", "-f", "qcow2", "disk", "4M"]
        subprocess.run(bare, check=True)
        Path("disk").rename(name)
        found = opened(Path(name), tmp_path)
        assert found.size == 4 << 20
        found.close()
        subprocess.run(qemu_img.info(name, qemu_img.QCOW2), check=True, stdout=subprocess.DEVNULL)
        with pytest.raises(TimeoutError):
            stranger.accept()
        # The control: QEMU with that name connects.
        words = ["qemu-img", "info", "-f", "qcow2", name]
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as client:
            stranger.settimeout(10)
            stranger.accept()[0].close()
        assert client.returncode == 1


def test_a_header_that_names_a_data_file_is_refused_before_qemu_opens_it(tmp_path: Path) -> None:
    other, over = tmp_path / "other.raw", tmp_path / "over.qcow2"
    words = ["qemu-img", "create", "-q", "-f", "qcow2", "-o", f"data_file={other}", over, "4M"]
    subprocess.run(words, check=True)
    with mock.patch("lab.host.system.process.run", side_effect=AssertionError("QEMU ran")):
        with pytest.raises(InputError, match="over another file"):
            opened(over, tmp_path)
        plain = tmp_path / "plain.qcow2"
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", plain, "4M"], check=True)
        with pytest.raises(AssertionError, match="QEMU ran"):  # the control
            opened(plain, tmp_path)


def test_a_header_that_is_changed_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", path, "4M"], check=True)
    ran = process.run

    def change(words: Sequence[str], **how: Any) -> process.ProcessResult:
        done = ran(words, **how)
        if words[1] == "convert":
            head, facts = path.read_bytes(), path.stat()
            path.write_bytes(head)  # as it was
            os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        return done

    opened(path, tmp_path).close()
    monkeypatch.setattr(process, "run", change)
    with pytest.raises(InputError, match="was changed by another process"):
        opened(path, tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["disk.qcow2"]


def test_what_is_no_disk_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    os.mkfifo(tmp_path / "fifo")
    for path in (empty, tmp_path, tmp_path / "fifo", tmp_path / "missing"):
        with pytest.raises(InputError):
            opened(path, tmp_path)


def test_a_block_device_is_leased_and_its_writes_are_seen(bay: Bay, tmp_path: Path) -> None:
    disk = bay.loop("one")
    found = opened(Path(disk.device), tmp_path)
    with pytest.raises(InputError, match="in use"):
        opened(Path(disk.device), tmp_path)  # leased
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(found.descriptor, b"x")
    assert found.changed() == ""
    with Path(disk.device).open("r+b") as file:
        assert str(disk.device) in found.changed()  # somebody has it open
        file.write(b"x" * 4096)
        os.fsync(file.fileno())
    assert str(disk.device) in found.changed()
    found.close()


def test_a_block_device_in_use_is_refused(bay: Bay, tmp_path: Path) -> None:
    disk = bay.loop("one")
    subprocess.run(["mke2fs", "-q", disk.device], check=True)
    point = tmp_path / "mnt"
    point.mkdir()
    assert mount(disk.device, point) == 0
    try:
        with pytest.raises(InputError, match="in use"):
            opened(Path(disk.device), tmp_path)
    finally:
        unmount(point)
    before = hashlib.sha256(disk.file.read_bytes()).hexdigest()
    opened(Path(disk.device), tmp_path).close()
    assert hashlib.sha256(disk.file.read_bytes()).hexdigest() == before


def test_a_read_only_device_is_no_problem(bay: Bay, tmp_path: Path) -> None:
    disk = bay.loop("one", "--read-only")
    opened(Path(disk.device), tmp_path).close()
