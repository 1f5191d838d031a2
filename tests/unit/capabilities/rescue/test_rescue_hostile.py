"""Disks that a stranger has written, and guests that print without end, stop no rescue."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tarfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.capabilities.rescue import maps, run
from lab.capabilities.rescue.logic import arrangement, attempts, signatures
from lab.capabilities.rescue.logic.diagnosis import diagnose, needed
from lab.capabilities.rescue.model import Part
from lab.core import qemu_img
from lab.core.errors import FullError, InputError, LimitError, ToolError
from lab.core.units import GIB, MIB
from lab.host.guest import overlays
from lab.host.images import inspection
from lab.host.real_disks import inputs
from lab.model.image.manifest import Image
from tests.unit.capabilities.rescue.test_rescue import block, part


@contextmanager
def bounded(seconds: float, memory: int) -> Iterator[None]:
    tracemalloc.start()
    began = time.process_time()
    try:
        yield
        assert time.process_time() - began < seconds
        assert tracemalloc.get_traced_memory()[1] < memory
    finally:
        tracemalloc.stop()


# -- superblocks


def members(count: int, fresh: int, **more: object) -> list[Part]:
    """Return members of which ``fresh`` are current, and all others are behind."""
    current = tuple(range(fresh)) if fresh else (0,)
    facts = {"raid_disks": count, "roles": current, **more}
    blocks = [block(n, 100 if n < fresh else n % 50, **facts) for n in range(count)]
    return [
        replace(part("a", one), name=f"a{n}", path=f"/dev/a{n}") for n, one in enumerate(blocks)
    ]


@pytest.mark.parametrize(
    "parts",
    [
        members(60, 10, level=10, layout=0x102),
        members(300, 10, level=10, layout=0x102),
        members(4, 1, raid_disks=1 << 31),
        members(40, 20, raid_disks=60, level=5),
    ],
    ids=["half of mirrors", "many mirrors", "2^31 members", "more than there are"],
)
def test_sets_of_members_are_not_all_made(parts: list[Part]) -> None:
    with bounded(20, 200 * MIB):
        found = attempts.choose(diagnose(parts))
    assert len(found) <= attempts.MOST


def test_the_newest_sets_still_come_first() -> None:
    parts = members(16, 3, level=10, layout=0x102)
    array = diagnose(parts).arrays[0]
    lacking = needed(array.shape) - len(array.fresh)
    old = [member for member in array.members if member.stale]
    best = sorted(old, key=lambda member: -member.events)[:lacking]
    chosen = next(a for a in attempts.choose(diagnose(parts)) if a.name == "force-1")
    assert set(chosen.uses_stale) == {member.part for member in best}


def test_the_control_has_too_many_sets() -> None:
    ways = combinations(range(50), 20)
    began = time.process_time()
    assert len(list(islice(ways, 100_000))) == 100_000  # of 4.7 * 10^13
    assert time.process_time() - began < 20


# -- partitions


def chain(offset: int, length: int) -> bytes:
    """Return a disk on which each sector names the next one as a table of logical partitions."""
    found = b""
    for number in range(offset // 512, -(-(offset + length) // 512)):
        entry = struct.pack("<4xB3xII", 5, max(1, number % (1 << 32)), 1)
        found += bytes(446) + entry + bytes(48) + b"\x55\xaa"
    return found[offset % 512 :][:length]


@pytest.mark.parametrize("size", [1 << 30, 1 << 44])
def test_a_chain_of_tables_ends(size: int) -> None:
    reads = []

    def read(offset: int, length: int) -> bytes:
        reads.append(offset)
        return chain(offset, length)

    assert signatures.table(read, size) is None
    assert inspection._mbr(read) == []
    assert 100 < len(reads) < 2000


# -- what is searched without superblocks


def of_xfs(size: int) -> bytes:
    """Return the superblock of another file system in each sector."""
    found = bytearray(size)
    for at in range(0, size, 512):
        found[at : at + 8] = struct.pack(">4sI", b"XFSB", 4096)
        found[at + 32 : at + 48] = os.urandom(16)
        found[at + 84 : at + 88] = struct.pack(">I", 100)
        found[at + 104 : at + 108] = struct.pack(">HH", 256, 16)
        found[at + 123], found[at + 124] = 4, 8
    return bytes(found)


def of_ext4(size: int) -> bytes:
    """Return the superblock of another file system in each KiB."""
    found = bytearray(size)
    for at in range(0, size, 1024):
        for place, value in ((4, 100_000), (24, 2), (32, 32768), (36, 32768), (40, 8192), (76, 1)):
            struct.pack_into("<I", found, at + place, value)
        struct.pack_into("<H", found, at + 88, 256)
        found[at + 56 : at + 58] = b"\x53\xef"
        struct.pack_into("<I", found, at + 100, 0x400)
        found[at + 104 : at + 120] = os.urandom(16)
    return bytes(found)


def of_directories(size: int) -> bytes:
    """Return blocks of directories, each with entries of other inodes."""
    found, number = [of_ext4(1024) + bytes(3072)], 0
    while len(found) < size // 4096:
        one = bytearray(struct.pack("<I", 7) + b"\x0c\x00\x01\x02.\0\0\0")
        while len(one) < 4096:
            number += 1
            one += struct.pack("<IHxx", number, 8)
        found.append(bytes(one[:4096]))
    return b"".join(found)


def of_blocks(size: int) -> bytes:
    """Return a block of one XFS in each sector."""
    head = of_xfs(512)
    blocks = (struct.pack(">4x4sQ8x16s", b"", n, head[32:48]) for n in range(1, size // 512))
    return head + b"".join(b"XDB3" + one[4:].ljust(508, b"\0") for one in blocks)


@pytest.mark.parametrize(
    ("make", "size"),
    [(of_xfs, 4), (of_ext4, 4), (of_directories, 16), (of_blocks, 32)],
    ids=["XFS", "ext4", "directories", "blocks"],
)
def test_hostile_structures_take_neither_time_nor_memory(
    make: Callable[[int], bytes], size: int
) -> None:
    raw = make(size * MIB)
    parts = [
        Part(disk=n, name=name, path=f"/dev/{name}", size=len(raw)) for n, name in enumerate("ab")
    ]
    reads = dict.fromkeys("ab", lambda at, length: raw[at : at + length])
    with bounded(30, 150 * MIB):
        arrangement.search(diagnose(parts), reads)


# -- ddrescue's maps, and what a guest prints


def test_numbers_and_rows_of_a_map_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ("9" * 5000 + " 1 -", "-5 100 -", "0x" + "f" * 99 + " 1 -", "² 1 -", "1 ２ -"):
        with pytest.raises(InputError, match="m:2: expected"):
            maps.parse(f"0 + 1\n{words}\n", MIB, "m")
    monkeypatch.setattr(maps, "RANGES", 100)
    rows = "".join(f"{n * 1024:#x} 512 -\n" for n in range(101))
    with pytest.raises(InputError, match="more than 100 ranges"):
        maps.parse(f"0 + 1\n{rows}", GIB, "m")


@pytest.mark.parametrize("number", ["9" * 5000, "²", "-1", "1e3"])
def test_numbers_that_a_guest_prints(number: str) -> None:
    assert overlays.parse(f"\n@a {number} 0\n\n@b 0 {number}\n".encode()) == {}
    attempt = attempts.Attempt(name="x", title="x", commands=(), parts=(), writes="")
    for line in (f"=assembled {number} clean", f"=fs ext4 {number} 0 0 0 0"):
        assert not attempts.outcome(attempt, 0, line).assembled


ENDLESS = {
    "answers": ("yes >answers", "printed more than 256MiB"),
    "console": ("yes >console", "printed more than 64MiB"),
    "messages of QEMU": ("yes", "printed more than 16MiB"),
}


@pytest.mark.parametrize("which", ENDLESS)
def test_a_guest_that_prints_without_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    line, said = ENDLESS[which]
    script = f"cd {tmp_path}; {line}"
    monkeypatch.setattr(overlays, "_command", lambda *_: ["sh", "-c", script])
    image = SimpleNamespace(name="x", kernel=tmp_path, initrd=tmp_path)
    with pytest.raises(LimitError, match=said):
        overlays.run(as_image(image), "", work=tmp_path, seconds=60)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 10 * GIB


def as_image(fake: object) -> Image:
    return fake  # type: ignore[return-value]


def test_a_guest_leaves_some_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlays, "_command", lambda *_: ["sleep", "60"])
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=GIB - 1))
    image = SimpleNamespace(name="x", kernel=tmp_path, initrd=tmp_path)
    with pytest.raises(FullError, match="less than 1GiB is free"):
        overlays.run(as_image(image), "", work=tmp_path, seconds=60)


# -- qcow2


def bomb(path: Path, size: int) -> None:
    """Write a qcow2 file whose clusters are all one cluster."""
    cluster = 65536
    tables = -(-size // cluster // (cluster // 8))
    second = 4 * cluster
    data = second + tables * cluster
    head = struct.pack(
        *(">4sIQIIQIIQQIIQQQQII", b"QFI\xfb", 3, 0, 0, 16, size, 0, tables),
        *(cluster, 2 * cluster, 1, 0, 0, 0, 0, 0, 4, 104),
    )
    first = b"".join(struct.pack(">Q", second + n * cluster | 1 << 63) for n in range(tables))
    counts = struct.pack(">H", 1) * (data // cluster + 1)
    parts = (head, first, struct.pack(">Q", 3 * cluster), counts)
    text = b"".join(one.ljust(cluster, b"\0") for one in parts)
    text += struct.pack(">Q", data | 1 << 63) * (cluster // 8 * tables)
    path.write_bytes(text + os.urandom(cluster))


def test_a_small_file_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.qcow2"
    bomb(path, 8 * GIB)
    assert path.stat().st_size < 2 * MIB
    free = shutil.disk_usage(tmp_path).free
    before = free - GIB - 256 * MIB  # as if so little were left

    def usage(place: Path) -> SimpleNamespace:
        return SimpleNamespace(free=used(place).free - before)

    used = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(ToolError, match="left less than 1 GiB of disk space"):
        inputs.open_input(path, tmp_path, tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["bomb.qcow2"]


def test_the_control_unpacks(tmp_path: Path) -> None:
    path = tmp_path / "small.qcow2"
    bomb(path, 64 * MIB)
    found = inputs.open_input(path, tmp_path, tmp_path)
    assert found.size == 64 * MIB
    assert found.read(32 * MIB, 65536) == path.read_bytes()[-65536:]
    found.close()
    words = qemu_img.convert(path, qemu_img.QCOW2, tmp_path / "raw", qemu_img.RAW)
    subprocess.run(words, check=True)
    assert (tmp_path / "raw").stat().st_blocks * 512 >= 64 * MIB


# -- files that are copied out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make devices")
def test_a_disk_of_the_host_is_not_made(tmp_path: Path) -> None:
    path, out = tmp_path / "out.tar", tmp_path / "out"
    with tarfile.open(path, "w") as tar:
        for name, kind in (("disk", tarfile.BLKTYPE), ("memory", tarfile.CHRTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.devmajor, entry.devminor = kind, 0o666, 1, 1
            tar.addfile(entry)
        entry = tarfile.TarInfo("su")
        entry.mode = 0o6777
        tar.addfile(entry)
    out.mkdir()
    for unable, made in ((run.unable(), ["su"]), ((), ["disk", "memory", "su"])):
        words = (*unable, *run.UNTAR, "-f", str(path), "-C", str(out))
        ended = subprocess.run(words, check=False, capture_output=True, text=True)
        assert sorted(one.name for one in out.iterdir()) == made
        assert ("Cannot mknod" in ended.stderr) == bool(unable)
        assert not (out / "su").stat().st_mode & 0o6022


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make devices")
def test_the_guest_leaves_devices_out(tmp_path: Path) -> None:
    place = tmp_path / "x"
    place.mkdir()
    (place / "file").write_text("x")
    os.mknod(place / "disk", 0o60666, os.makedev(1, 1))
    (place / "odd\nname -x").write_text("x")
    script = f"out={tmp_path}/out\n{attempts.COPY}".replace("/mnt/x", str(place))
    subprocess.run(["sh", "-euc", script], check=True)
    with tarfile.open(tmp_path / "out") as tar:
        assert sorted(tar.getnames()) == [".", "./file", "./odd\nname -x"]
