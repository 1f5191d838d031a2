"""The write-intent bitmap: regions, pages, clearing, and what it costs a sequential stream."""

from __future__ import annotations

import pytest

from lab.md.facts.geometry import Geometry
from lab.md.facts.levels import Level
from lab.md.theory.bitmap import Bitmap, BitmapState
from lab.md.theory.bucket import Direction, Limit, Limits, Scope, Unit
from lab.md.theory.paths import SequentialLoad
from lab.md.theory.sequential_prediction import predict_stream
from tests.geometries import geometry as made

KIB, MIB, GIB = 1024, 1024**2, 1024**3
RAID5 = made(Level.RAID5, 4, 512 * MIB, chunk=64 * KIB)


def test_a_bit_is_set_once_and_again_after_two_looks() -> None:
    state = BitmapState(Bitmap(chunk=64 * KIB), RAID5)
    regions = state.start(1.0, 0, 4096)
    assert len(state.take_dirty()) == 1
    state.start(1.5, 64 * KIB, 4096)  # the same row: the same bytes of each member
    assert state.take_dirty() == []
    state.end(2.0, regions)
    state.end(2.0, regions)
    assert state.start(9.9, 0, 4096)
    assert state.take_dirty() == []  # one scan since: stepped down, not clean
    state.end(9.9, regions)
    state.start(15.1, 0, 4096)
    assert len(state.take_dirty()) == 1
    assert state.sets == 2


@pytest.mark.parametrize(("sector", "size"), [(512, 512), (4096, 4096)])
def test_the_last_page_is_cut_to_logical_blocks(sector: int, size: int) -> None:
    state = BitmapState(Bitmap(chunk=64 * MIB, sector=sector), RAID5)
    state.start(0.0, 0, 4096)
    assert state.take_dirty() == [size]


@pytest.mark.parametrize(
    ("level", "members", "offset", "same"),
    [
        (Level.RAID5, 4, 3 * 64 * KIB, False),
        (Level.RAID5, 4, 2 * 64 * KIB, True),
        (Level.RAID1, 2, 2 * 64 * KIB, False),
        (Level.RAID10, 4, 64 * KIB, False),
        (Level.RAID10, 4, 63 * KIB, True),
    ],
)
def test_a_bit_covers_members_bytes_but_for_raid_10(
    level: Level, members: int, offset: int, *, same: bool
) -> None:
    geometry = made(level, members, 512 * MIB, chunk=64 * KIB)
    state = BitmapState(Bitmap(chunk=64 * KIB), geometry)
    state.start(0.0, 0, 512)
    state.take_dirty()
    state.start(0.0, offset, 512)
    assert (state.take_dirty() == []) is same


def test_newer_kernels_mark_whole_rows() -> None:
    wide = made(Level.RAID5, 4, 512 * MIB, chunk=512 * KIB)
    whole = BitmapState(Bitmap(chunk=64 * KIB), wide)
    assert len(whole.start(0.0, 0, 4096)) == 8
    single = BitmapState(Bitmap(chunk=64 * KIB, whole_rows=False), wide)
    assert len(single.start(0.0, 0, 4096)) == 1


def test_the_last_page_is_written_as_far_as_it_is_used() -> None:
    # 8192 bits are 1024 bytes, after a superblock of 256: three sectors
    state = BitmapState(Bitmap(chunk=64 * KIB), RAID5)
    state.start(0.0, 0, 4096)
    assert state.take_dirty() == [1536]
    large = made(Level.RAID5, 4, 8 * GIB, chunk=64 * KIB)
    state = BitmapState(Bitmap(chunk=64 * KIB), large)
    state.start(0.0, 0, 4096)
    state.start(0.0, large.size - 192 * KIB, 4096)
    assert state.take_dirty() == [4096, 512]


def _seconds(bitmap: Bitmap | None, geometry: Geometry, unit: Unit, rate: float) -> float:
    limit = Limits(limits=(Limit(scope=Scope.TOTAL, unit=unit, average=rate),))
    stream = SequentialLoad(direction=Direction.WRITE, block=192 * KIB, total=48 * MIB)
    found = predict_stream(geometry, [limit] * geometry.members, stream, bitmap=bitmap)
    return found.seconds


def test_a_sequential_stream_marks_each_region_once() -> None:
    geometry = made(Level.RAID5, 4, 512 * MIB, chunk=64 * KIB)
    plain = _seconds(None, geometry, Unit.OPERATIONS, 50)
    # every full stripe of 192 KiB is its own region: one more operation for each
    fine = _seconds(Bitmap(chunk=64 * KIB), geometry, Unit.OPERATIONS, 50)
    assert fine == pytest.approx(2 * plain, rel=0.03)
    coarse = _seconds(Bitmap(chunk=64 * MIB), geometry, Unit.OPERATIONS, 50)
    assert coarse == pytest.approx(plain, rel=0.01)
    assert _seconds(Bitmap(chunk=MIB), geometry, Unit.BYTES, 5e6) == pytest.approx(
        _seconds(None, geometry, Unit.BYTES, 5e6), rel=0.01
    )


def test_repetitions_are_skipped_as_they_would_have_been_followed() -> None:
    marks = Bitmap(chunk=256 * KIB)
    limit = Limits(limits=(Limit(scope=Scope.TOTAL, unit=Unit.BYTES, average=5e6),))
    found = []
    for total in (96 * MIB, 192 * MIB):
        stream = SequentialLoad(direction=Direction.WRITE, block=128 * KIB, total=total)
        found.append(predict_stream(RAID5, [limit] * 4, stream, bitmap=marks))
    extra = [
        sum(m.written_bytes for m in each.members)
        - sum(
            m.written_bytes
            for m in predict_stream(
                RAID5,
                [limit] * 4,
                SequentialLoad(direction=Direction.WRITE, block=128 * KIB, total=total),
            ).members
        )
        for each, total in zip(found, (96 * MIB, 192 * MIB), strict=True)
    ]
    # a region is 768 KiB of the array: so many writes of a page's used part, to four members
    assert extra == [128 * 4 * 512, 256 * 4 * 512]
