"""Superblocks that mdadm 4.2 and Linux 6.1 wrote are read as `mdadm --examine` printed them."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.capabilities.rescue.logic import examine, signatures, superblocks
from lab.capabilities.rescue.run import examined
from lab.core.errors import InputError

RECORDED: Mapping[str, Any] = json.loads(
    (Path(__file__).parents[3] / "golden/rescue/members.json").read_text()
)
EXAMINED = [name for name, member in RECORDED.items() if "examine" in member]
FIELDS = [
    *("version", "array_uuid", "name", "created", "level", "layout", "chunk", "raid_disks"),
    *("size", "data_offset", "role", "device_uuid", "features", "at", "checksum_ok"),
]


class Disk:
    """The recorded pages of a disk; all else is zero."""

    def __init__(self, name: str) -> None:
        member = RECORDED[name]
        self.size: int = member["size"]
        self.data = bytearray(self.size)
        for place, page in member["pages"].items():
            raw = zlib.decompress(base64.b64decode(page))
            self.data[int(place) : int(place) + len(raw)] = raw

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.data[max(0, offset) : max(0, offset + length)])


def block_of(disk: Disk) -> superblocks.Superblock:
    found = superblocks.find(disk.read, disk.size)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("name", EXAMINED)
def test_as_mdadm_prints_it(name: str) -> None:
    block = block_of(Disk(name))
    (printed,) = examine.parse(RECORDED[name]["examine"]).values()
    for field in FIELDS if name != "0.90" else [f for f in FIELDS if f != "at"]:
        assert getattr(block, field) == getattr(printed, field), field
    if name in ("0.90", "1.0", "1.1", "1.2-bitmap", "1.2-failed"):  # the others went on
        assert (block.events, block.updated) == (printed.events, printed.updated)


@pytest.mark.parametrize("name", RECORDED)
def test_a_flipped_bit_is_seen(name: str) -> None:
    disk = Disk(name)
    block = block_of(disk)
    disk.data[block.at + 85] ^= 4
    assert not block_of(disk).checksum_ok


def test_roles_are_those_of_the_last_update() -> None:
    assert block_of(Disk("1.2-bitmap")).active_roles == {0, 1, 2}
    assert block_of(Disk("1.2-failed")).active_roles == {0, 1, 2, 3}
    assert block_of(Disk("1.1")).active_roles == {0, 1}
    assert block_of(Disk("0.90")).active_roles == {0, 1, 2}


def test_bitmap() -> None:
    disk = Disk("1.2-bitmap")
    found = superblocks.bitmap(disk.read, block_of(disk))
    assert found is not None
    assert (found.chunk, found.bits, found.dirty) == (64 * 1024**2, 1, 1)
    clean = Disk("1.0")
    before = superblocks.bitmap(clean.read, block_of(clean))  # it stands before the superblock
    assert before is not None
    assert before.dirty == 0


def test_reshape_of_three_to_four() -> None:
    reshape = block_of(Disk("1.2-reshape")).reshape
    assert reshape is not None
    assert (reshape.delta_disks, reshape.new_offset, reshape.backwards) == (1, -384 * 512, False)
    assert 0 < reshape.position < 46 * 1024**2


def test_journal_and_ppl() -> None:
    journal, member, ppl = Disk("1.2-journal"), Disk("1.2-journaled"), Disk("1.2-ppl")
    assert superblocks.has_journal(journal.read, block_of(journal))
    assert block_of(member).feature_journal
    assert not superblocks.has_journal(member.read, block_of(member))
    ppl.data[8192 + 528 : 8192 + 532] = struct.pack("<I", 1)
    assert superblocks.has_ppl(ppl.read, block_of(ppl))
    ppl.data[8192 + 528 : 8192 + 532] = bytes(4)
    assert not superblocks.has_ppl(ppl.read, block_of(ppl))


def test_bad_block_log() -> None:
    disk = Disk("1.2-bitmap")
    block = block_of(disk)
    log = struct.pack("<QQQ", 4096 << 10 | 8, 8192 << 10 | 1, 2**64 - 1)
    disk.data[block.bad_at : block.bad_at + len(log)] = log
    found = superblocks.bad_blocks(disk.read, block)
    assert found is not None
    assert found.ranges == ((4096 * 512, 8 * 512), (8192 * 512, 512))


@given(
    raw=st.binary(max_size=600),
    name=st.sampled_from(sorted(RECORDED)),
    at=st.sampled_from((0, 60, 90, 120, 150, 180, 210, 3968)),
)
def test_hostile_bytes_never_raise(raw: bytes, name: str, at: int) -> None:
    disk = Disk(name)
    block = block_of(disk)
    begin = block.at + 8 + at  # the magic stays
    disk.data[begin : begin + len(raw)] = raw
    del disk.data[disk.size :]
    for found in superblocks.find(disk.read, disk.size):
        superblocks.bitmap(disk.read, found)
        superblocks.bad_blocks(disk.read, found)
        superblocks.has_journal(disk.read, found)
        superblocks.has_ppl(disk.read, found)


@given(
    raw=st.binary(max_size=3000),
    magic=st.sampled_from(
        [
            (510, b"\x55\xaa"),
            (512, b"EFI PART"),
            (0, b"XFSB"),
            (1080, b"\x53\xef"),
            (512, b"LABELONE"),
            (0, b"LUKS\xba\xbe"),
        ]
    ),
)
def test_hostile_signatures_never_raise(raw: bytes, magic: tuple[int, bytes]) -> None:
    data = bytearray(raw.ljust(70000, b"\xa5"))
    data[magic[0] : magic[0] + len(magic[1])] = magic[1]

    def read(offset: int, length: int) -> bytes:
        return bytes(data[max(0, offset) : max(0, offset + length)])

    signatures.content(read, 0)
    signatures.table(read, len(data))
    signatures.foreign_raid(read, len(data))


@given(text=st.text(max_size=400))
def test_hostile_examine_output_never_raises(text: str) -> None:
    examine.parse(text)
    examine.parse(f"/dev/sda:\n Magic : a92b4efc\n Version : 1.2\n{text}")


def test_gpt_is_read_from_its_backup() -> None:
    size, sector = 8 * 1024**2, 512
    data = bytearray(size)
    kind = bytes.fromhex("0f889da1fc053b4da006743f0f84911e")
    entry = kind + bytes(16) + struct.pack("<QQ", 2048, 8191)
    data[size - 33 * sector : size - 33 * sector + 48] = entry
    head = struct.pack(
        "<8sIIIIQQQQ16sQIII",
        b"EFI PART",
        0x10000,
        92,
        0,
        0,
        size // 512 - 1,
        1,
        34,
        9000,
        bytes(16),
        size // 512 - 33,
        128,
        128,
        0,
    )
    head = head[:16] + struct.pack("<I", zlib.crc32(head)) + head[20:]
    data[size - sector : size - sector + 92] = head

    def read(offset: int, length: int) -> bytes:
        return bytes(data[max(0, offset) : max(0, offset + length)])

    found = signatures.table(read, size)
    assert found is not None
    assert (found.corrupt, found.partitions[0].at) == ("primary", 2048 * 512)
    assert found.partitions[0].kind == "a19d880f-05fc-4d3b-a006-743f0f84911e"
    data[size - sector + 60] ^= 1
    assert signatures.table(read, size) is None


def test_firmware_raid_is_recognised() -> None:
    data = bytearray(1024 * 1024)
    data[-1024:-1000] = b"Intel Raid ISM Cfg Sig. "

    def read(offset: int, length: int) -> bytes:
        return bytes(data[max(0, offset) : max(0, offset + length)])

    assert signatures.foreign_raid(read, len(data)) == "imsm"
    data[-1024:] = bytes(1024)
    assert signatures.foreign_raid(read, len(data)) == ""
    data[-512:-508] = b"\xde\x11\xde\x11"
    assert signatures.foreign_raid(read, len(data)) == "ddf"


def test_more_text_than_an_array_can_have_is_refused_unread(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("x" * (1 << 20))
    with pytest.raises(InputError, match=r"have more than 4MiB"):
        examined(tmp_path)
