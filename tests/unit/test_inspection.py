"""An imported disk is read before it is accepted: real file systems in real partition tables."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest

from lab.core.errors import HostError, InputError
from lab.host import images
from lab.host.images import download, inspection
from lab.host.system import paths
from tests.fakes import Cli

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("bwrap", "qemu-img", "mke2fs")),
    reason="bubblewrap, qemu-img or e2fsprogs is missing",
)
WHOLE = {
    "etc/os-release": "ID=debian\n",
    "boot/vmlinuz-6.1": "kernel",
    "usr/bin/cloud-init": "#!/bin/sh\n",
    "usr/sbin/sshd": "sshd",
    "usr/sbin/mdadm": "mdadm",
}
MIB = 1 << 20


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")


def file_system(tmp_path: Path, files: dict[str, str]) -> bytes:
    """Return an ext4 of 8 MiB with these files; a text that begins with `->` is a link."""
    root, raw = tmp_path / "root", tmp_path / "fs"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("->"):
            path.symlink_to(text[2:])
        else:
            path.write_text(text)
    raw.unlink(missing_ok=True)
    words = ("mke2fs", "-q", "-F", "-t", "ext4", "-d", str(root), str(raw), "8M")
    subprocess.run(words, check=True, timeout=30)
    return raw.read_bytes()


def gpt(parts: list[bytes]) -> bytes:
    """Return a disk with a GUID partition table; the checksums are not read by the lab."""
    start, table, body = 2048, b"", b""
    for part in parts:
        sectors = len(part) // 512
        table += struct.pack("<16s16sQQQ72s", b"t" * 16, b"u" * 16, start, start + sectors, 0, b"")
        start, body = start + sectors, body + part
    head = struct.pack("<8s64xQII4x", b"EFI PART", 2, 128, 128)
    first = bytes(446) + bytes([0, 0, 0, 0, 0xEE, 0, 0, 0]) + struct.pack("<II", 1, start)
    disk = first.ljust(510, b"\0") + b"\x55\xaa" + head.ljust(512, b"\0") + table
    return disk.ljust(MIB, b"\0") + body


def mbr(parts: list[bytes], *, logical: bool = False) -> bytes:
    def sector(entries: list[tuple[int, int]]) -> bytes:
        text = b"".join(struct.pack("<4xB3xII", kind, begin, 1) for kind, begin in entries)
        return bytes(446) + text.ljust(64, b"\0") + b"\x55\xaa"

    first, extended = parts[0], 2048 + len(parts[0]) // 512
    if not logical:
        return sector([(0x83, 2048)]).ljust(MIB, b"\0") + first
    disk = sector([(0x83, 2048), (5, extended)]).ljust(MIB, b"\0") + first
    return disk + sector([(0x83, 2048)]).ljust(MIB, b"\0") + parts[1]


def bring(tmp_path: Path, disk: bytes, name: str = "mine") -> images.Image:
    file = tmp_path / f"{name}.raw"
    file.write_bytes(disk)
    checksum = f"sha256:{hashlib.sha256(disk).hexdigest()}"
    return download.import_image(
        str(file), name=name, checksum=checksum, progress=lambda _what, _part: None
    )


def without(names: Collection[str]) -> dict[str, str]:
    return {name: text for name, text in WHOLE.items() if name not in names}


def left() -> list[str]:
    return sorted(p.name for p in paths.images().iterdir())


def test_an_image_with_all_that_a_guest_needs_is_accepted(tmp_path: Path) -> None:
    whole = file_system(tmp_path, WHOLE)
    for number, disk in enumerate(
        (gpt([whole]), mbr([whole]), mbr([file_system(tmp_path, {"a": ""}), whole], logical=True))
    ):
        assert bring(tmp_path, disk, f"mine{number}").manifest.unread == ""


def test_a_kernel_in_its_own_partition_and_links_are_found(tmp_path: Path) -> None:
    linked = without(["boot/vmlinuz-6.1", "usr/sbin/sshd", "usr/sbin/mdadm"])
    linked |= {"etc/os-release": "->../usr/lib/os-release", "usr/lib/os-release": "x"}
    linked |= {"usr/sbin": "->bin", "usr/bin/sshd": "x", "usr/bin/mdadm": "x"}
    boot = file_system(tmp_path, {"vmlinuz-6.1": "kernel"})
    assert bring(tmp_path, gpt([boot, file_system(tmp_path, linked)])).manifest.unread == ""


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        (["usr/bin/cloud-init"], "no cloud-init"),
        (["usr/sbin/sshd"], "no SSH server"),
        (["usr/sbin/mdadm"], "no mdadm"),
        (["boot/vmlinuz-6.1"], "no kernel in"),
        (["usr/bin/cloud-init", "usr/sbin/mdadm"], "no cloud-init, no mdadm"),
        (["etc/os-release"], "none of its 1 file systems is a root"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_stored(
    tmp_path: Path, lacks: list[str], said: str
) -> None:
    disk = gpt([file_system(tmp_path, without(lacks))])
    with pytest.raises(InputError, match=said):
        bring(tmp_path, disk)
    assert left() == []


def test_a_disk_without_any_file_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file system in any partition"):
        bring(tmp_path, gpt([bytes(MIB)]))
    assert left() == []


@pytest.mark.parametrize(
    ("kind", "place", "magic"),
    [("XFS", 0, b"XFSB"), ("btrfs", 0x10040, b"_BHRfS_M"), ("LVM", 512, b"LABELONE")],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, kind: str, place: int, magic: bytes) -> None:
    other = (bytes(place) + magic).ljust(MIB, b"\0")
    boot = file_system(tmp_path, {"vmlinuz-6.1": "kernel"})
    unread = bring(tmp_path, gpt([boot, other])).manifest.unread
    assert kind in unread
    assert "cloud-init" in unread


def test_a_hostile_table_ends(tmp_path: Path) -> None:
    """A chain of logical partitions that leads to itself; a table far away; a corrupt ext4."""
    disk = bytearray(mbr([bytes(MIB), bytes(MIB)], logical=True))
    at = 2 * MIB
    disk[at + 446 + 16 :][:16] = b""
    disk[at + 462 : at + 478] = struct.pack("<4xB3xII", 5, 0, 1)
    with pytest.raises(InputError):
        bring(tmp_path, bytes(disk))
    far = bytearray(gpt([bytes(MIB)]))
    far[512 + 72 : 512 + 80] = b"\xff" * 8
    with pytest.raises(InputError):
        bring(tmp_path, bytes(far))
    corrupt = bytearray(file_system(tmp_path, WHOLE))
    corrupt[1024 + 60 :] = os.urandom(len(corrupt) - 1084)
    with pytest.raises(InputError):
        bring(tmp_path, gpt([bytes(corrupt)]))


def test_the_command_says_use_it_with_only_for_what_was_read(cli: Cli, tmp_path: Path) -> None:
    def imported(disk: bytes, name: str) -> str:
        (tmp_path / f"{name}.raw").write_bytes(disk)
        checksum = f"sha256:{hashlib.sha256(disk).hexdigest()}"
        done = cli("image", "import", f"{name}.raw", "--checksum", checksum)
        return done.stdout + done.stderr

    whole = file_system(tmp_path, WHOLE)
    assert "use it with" in imported(gpt([whole]), "good")
    said = imported(gpt([file_system(tmp_path, without(["usr/bin/cloud-init"]))]), "bad")
    assert "use it with" not in said
    assert "has no cloud-init" in said
    said = imported(gpt([b"XFSB".ljust(MIB, b"\0")]), "xfs")
    assert "use it with" not in said
    assert "XFS" in said


def test_reading_is_of_the_file_systems_that_are_there(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(gpt([bytes(MIB), file_system(tmp_path, WHOLE)]))
    (found,) = inspection.file_systems(raw)
    assert (found.offset, found.kind) == (2 * MIB, "ext4")


def test_a_disk_larger_than_what_is_free_is_not_unpacked(tmp_path: Path) -> None:
    """A qcow2 file of some megabytes stands for a petabyte."""
    path = tmp_path / "large.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", path, "1P"], check=True)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(HostError, match=r"large\.qcow2' needs 1125899\.9 GB in .* are free"):
        download.import_image(
            str(path), name="mine", checksum=f"sha256:{sha256}", progress=lambda *_: None
        )
    assert left() == []
