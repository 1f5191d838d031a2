"""Order, chunk, layout and offset of an array without superblocks are found from its data."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable

import pytest

from lab.capabilities.rescue.logic import arrangement, ext4
from lab.capabilities.rescue.logic.diagnosis import arranged, diagnose, parts_of
from lab.capabilities.rescue.logic.parity import compare, geometry_of
from lab.capabilities.rescue.model import Diagnosis, Part, Shape
from lab.md.facts.geometry import Geometry, Location

KIB, MIB = 1024, 1024**2
MEMBER = 20 * MIB


@pytest.fixture(scope="module")
def file_system(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An ext4 of 32 MiB with directories and files."""
    place = tmp_path_factory.mktemp("ext4")
    dice = random.Random(5)
    for number in range(40):
        path = place / "files" / str(number % 9) / f"file-{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dice.randbytes(dice.randrange(200 * KIB)))
    image = place / "image"
    image.write_bytes(b"")
    words = ("mke2fs", "-q", "-t", "ext4", "-O", "metadata_csum,64bit", "-d", str(place / "files"))
    subprocess.run((*words, str(image), "32M"), check=True)
    return image.read_bytes()


def spread(shape: Shape, content: bytes) -> list[bytearray]:
    """Return members with the content, and right parity for one parity block in a row."""
    geometry = geometry_of(shape, MEMBER - shape.data_offset)
    assert geometry is not None
    members = [bytearray(MEMBER) for _ in range(shape.disks)]
    step = shape.chunk or 64 * KIB
    for at in range(0, len(content), step):
        piece = content[at : at + step]
        for place in geometry.locate(at):
            begin = shape.data_offset + place.offset
            members[place.member][begin : begin + len(piece)] = piece
    if geometry.has_parity:
        for row in range(geometry.component_size // shape.chunk):
            begin = shape.data_offset + row * shape.chunk
            roles = geometry.row(row)
            total = 0
            for member in roles.data:
                total ^= int.from_bytes(members[member][begin : begin + shape.chunk], "little")
            assert roles.parity is not None
            data = total.to_bytes(shape.chunk, "little")
            members[roles.parity][begin : begin + shape.chunk] = data
    return members


def reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: bytes(data[max(0, offset) : max(0, offset + length)])


def given(
    members: list[bytearray], order: list[int]
) -> tuple[Diagnosis, dict[str, Callable[[int, int], bytes]]]:
    """Return what is read of the members, as inputs ``a``, ``b``, … in this order."""
    parts: list[Part] = []
    for number, member in enumerate(order):
        data = members[member]
        parts += parts_of(number, chr(97 + number), f"/dev/{number}", MEMBER, reader(data))
    reads = {chr(97 + n): reader(bytes(members[member])) for n, member in enumerate(order)}
    return diagnose(parts), reads


def shape(level: int, disks: int, chunk: int, layout: int, offset: int = MIB) -> Shape:
    version = "1.2" if offset else "1.0"
    return Shape(
        level=level,
        disks=disks,
        chunk=chunk,
        layout=layout,
        version=version,
        data_offset=offset,
        size=0,
    )


@pytest.mark.parametrize(
    "wanted",
    [
        shape(5, 4, 64 * KIB, 2),
        shape(5, 3, 16 * KIB, 0, 2 * MIB),
        shape(5, 5, 128 * KIB, 3),
        shape(0, 3, 32 * KIB, 0),
        shape(10, 4, 64 * KIB, 0x102, 0),
        shape(4, 4, 64 * KIB, 0),
    ],
    ids=lambda s: f"raid{s.level}x{s.disks}-{s.chunk}-{s.layout}",
)
def test_an_arrangement_is_found(file_system: bytes, wanted: Shape) -> None:
    order = list(range(wanted.disks))
    random.Random(wanted.chunk).shuffle(order)
    diagnosis, reads = given(spread(wanted, file_system), order)
    found = arrangement.search(diagnosis, reads)
    slots = [chr(97 + order.index(role)) for role in range(wanted.disks)]
    best = found[0]
    assert (best.shape.chunk, best.shape.data_offset) == (wanted.chunk, wanted.data_offset)
    geometry, own = (geometry_of(s, MEMBER - s.data_offset) for s in (best.shape, wanted))
    assert geometry is not None
    assert own is not None
    for at in range(0, 30 * MIB, 61 * KIB):  # RAID 4 is also a RAID 5 with parity at an end
        there = {(best.slots[place.member], place.offset) for place in geometry.locate(at)}
        expected = {(slots[place.member], place.offset) for place in own.locate(at)}
        if wanted.level == 10:  # the members of a mirror are alike, so either may come first
            expected |= {(slots[place.member ^ 1], place.offset) for place in own.locate(at)}
        assert there <= expected
    assert best.score > 0.9


def test_random_bytes_give_no_arrangement() -> None:
    dice = random.Random(1)
    members = [bytearray(dice.randbytes(4 * MIB).ljust(MEMBER, b"\0")) for _ in range(3)]
    diagnosis, reads = given(members, [0, 1, 2])
    assert arrangement.search(diagnosis, reads) == ()


def test_a_missing_member_leaves_its_slot_empty(file_system: bytes) -> None:
    wanted = shape(5, 4, 64 * KIB, 2)
    diagnosis, reads = given(spread(wanted, file_system), [3, 0, 2])
    hinted = arrangement.arrange(
        list(diagnosis.parts),
        arrangement.scan(reads, {part.name: part.size for part in diagnosis.parts}),
        reads,
        [wanted],
    )
    assert hinted[0].slots == ("b", "", "c", "a")


def test_the_diagnosis_says_what_the_data_contradict(file_system: bytes) -> None:
    wanted = shape(5, 4, 64 * KIB, 2)
    diagnosis, reads = given(spread(wanted, file_system), [0, 1, 2, 3])
    found = arrangement.search(diagnosis, reads)
    assert arranged(diagnosis, found).arrangements == found


def test_parity_that_is_wrong_is_counted(file_system: bytes) -> None:
    wanted = shape(5, 4, 64 * KIB, 2)
    members = spread(wanted, file_system)
    geometry = geometry_of(wanted, MEMBER - MIB)
    assert geometry is not None
    reads = {str(n): reader(bytes(member)) for n, member in enumerate(members)}
    placed = {n: (str(n), MIB) for n in range(4)}
    assert compare(geometry, placed, reads) == 0
    members[1][MIB : 4 * MIB] = bytes(3 * MIB)
    reads["1"] = reader(bytes(members[1]))
    wrong = compare(geometry, placed, reads)
    assert wrong is not None
    assert wrong > 0.1
    del placed[2]
    assert compare(geometry, placed, reads) is None  # a missing member: nothing to compare


def test_checksums_are_those_of_ext4() -> None:
    assert crc("123456789") == 0xE3069283  # the check value of CRC-32C


def crc(text: str) -> int:
    return ext4.crc32c(text.encode()) ^ 0xFFFFFFFF


def test_locations_have_an_inverse() -> None:
    wanted = geometry_of(shape(5, 4, 64 * KIB, 2), MEMBER)
    assert isinstance(wanted, Geometry)
    place = wanted.locate(MIB + 77)[0]
    assert wanted.array_offset(Location(member=place.member, offset=place.offset)) == MIB + 77
