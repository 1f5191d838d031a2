"""md's numbers and sizes, compared with worked examples and a copy of mdadm's loops."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.core.units import GIB, KIB, MIB, parse_size
from lab.md.facts.levels import (
    NAMES,
    Level,
    copies,
    far_copies,
    layout_names,
    layout_number,
    near_copies,
)
from lab.md.facts.sizes import (
    bitmap_bytes,
    bitmap_covers,
    bitmap_room,
    data_offset_of,
    geometry_of,
    room_on,
    round_component,
    smallest_bitmap_chunk,
)
from lab.model.scenario.document import Array


def _array(**fields: Any) -> Array:
    return Array.model_validate(fields)


@pytest.mark.parametrize(
    ("level", "layout", "number"),
    [
        ("5", None, 2),
        ("5", "left-asymmetric", 0),
        ("5", "la", 0),
        ("5", "right-asymmetric", 1),
        ("5", "ra", 1),
        ("5", "left-symmetric", 2),
        ("5", "ls", 2),
        ("5", "right-symmetric", 3),
        ("5", "rs", 3),
        ("5", "parity-first", 4),
        ("5", "parity-last", 5),
        ("5", "ddf-zero-restart", 1),
        ("5", "ddf-N-restart", 0),
        ("5", "ddf-N-continue", 2),
        ("6", None, 2),
        ("6", "parity-last", 5),
        ("6", "ddf-zero-restart", 8),
        ("6", "ddf-N-restart", 9),
        ("6", "ddf-N-continue", 10),
        ("6", "left-asymmetric-6", 16),
        ("6", "right-asymmetric-6", 17),
        ("6", "left-symmetric-6", 18),
        ("6", "right-symmetric-6", 19),
        ("6", "parity-first-6", 20),
        ("10", None, 0x102),
        ("10", "n3", 0x103),
        ("10", "f2", 0x201),
        ("10", "o2", 0x10201),
        ("0", None, 1),
        ("0", "alternate", 2),
        ("0", "dangerous", 0),
        ("4", None, 0),
        ("1", None, 0),
        ("linear", None, 0),
    ],
)
def test_layouts_have_the_kernels_numbers(level: str, layout: str | None, number: int) -> None:
    assert layout_number(NAMES[level], layout) == number


@pytest.mark.parametrize(
    ("level", "layout"),
    [
        ("5", "left-symmetric-6"),
        ("5", "LS"),
        ("5", "n2"),
        ("5", ""),
        ("6", "ddf"),
        ("4", "parity-last"),
        ("1", "n2"),
        ("10", "ls"),
        ("10", "n"),
        ("10", "n0"),
        ("10", "n201"),
        ("10", "x2"),
        ("10", ""),
        ("0", "3"),
        ("linear", "0"),
    ],
)
def test_layouts_of_other_levels_are_refused(level: str, layout: str) -> None:
    with pytest.raises(ValueError, match="has no layout"):
        layout_number(NAMES[level], layout)


def test_every_named_layout_has_a_number() -> None:
    for level in Level:
        for name in layout_names(level):
            assert layout_number(level, name.replace("N", "2") if "N" in name[1:2] else name) >= 0


@given(kind=st.sampled_from("nfo"), count=st.integers(1, 200))
def test_raid10_numbers_hold_their_copies(kind: str, count: int) -> None:
    number = layout_number(Level.RAID10, f"{kind}{count}")
    assert copies(number) == count
    assert (near_copies(number), far_copies(number)) == ((count, 1) if kind == "n" else (1, count))
    assert bool(number >> 16) == (kind == "o")


@pytest.mark.parametrize(
    ("size", "chunk", "offset"),
    [("20GiB", "512KiB", "17MiB"), ("1GiB", "512KiB", "2MiB"), ("1TiB", "512KiB", "129MiB")],
)
def test_default_data_offset_of_worked_examples(size: str, chunk: str, offset: str) -> None:
    assert data_offset_of(_array(), parse_size(size), parse_size(chunk)) == parse_size(offset)


def _mdadm_offset(sectors: int, chunk_kib: int, space: int) -> int:
    """``validate_geometry1``'s loop, counted up instead of down; in sectors."""
    steps = [128 * 1024 * 2 >> n for n in range(19)]
    floor = next(
        (h for h in steps if chunk_kib and h // 2 < chunk_kib * 4),
        0,
    )
    headroom = next(h for h in steps if h << 10 <= sectors or h == floor)
    return -(-(24 + space + headroom) // 2048) * 2048


@given(
    size=st.integers(256, 4 * 1024**2).map(lambda n: n * MIB),
    chunk=st.sampled_from([0, 4, 64, 512, 4096, 65536]),
)
def test_default_data_offset_is_mdadms(size: int, chunk: int) -> None:
    sectors = size // 512
    expected = _mdadm_offset(sectors, chunk, bitmap_room(size) // 512)
    assert data_offset_of(_array(), size, chunk * KIB) == expected * 512


def test_metadata_at_the_end_begins_at_zero() -> None:
    assert data_offset_of(_array(metadata="1.0"), GIB, 512 * KIB) == 0
    # 8 KiB for the superblock, 4 for the bad-block log, 4 for a bitmap; rounded to a chunk.
    assert room_on(_array(metadata="1.0"), GIB, 0, 4 * KIB) == GIB - 16 * KIB
    assert room_on(_array(metadata="1.0"), GIB, 0, 512 * KIB) == GIB - 512 * KIB


def test_a_partial_parity_log_takes_a_mebibyte() -> None:
    assert data_offset_of(_array(consistency_policy="ppl"), GIB, 512 * KIB) == 3 * MIB


@pytest.mark.parametrize(
    ("component", "least"),
    [
        ("256MiB", "16KiB"),
        ("512MiB", "32KiB"),
        ("1GiB", "64KiB"),
        ("2GiB", "128KiB"),
        ("4GiB", "256KiB"),
        ("8GiB", "512KiB"),
        ("10GiB", "32KiB"),
        ("20GiB", "64KiB"),
        ("100GiB", "256KiB"),
        ("250GiB", "256KiB"),
        ("1000GiB", "1MiB"),
        ("10TiB", "16MiB"),
    ],
)
def test_smallest_bitmap_chunk_of_worked_examples(component: str, least: str) -> None:
    size = parse_size(component)
    assert smallest_bitmap_chunk(size, size) == parse_size(least)


@given(component=st.integers(1, 16 * 1024**2).map(lambda n: n * 64 * KIB))
def test_smallest_bitmap_chunk_fits_and_half_of_it_does_not(component: int) -> None:
    chunk = smallest_bitmap_chunk(component, component)
    room = bitmap_room(component) - 256
    assert component // chunk // 8 <= room
    if chunk > 4 * KIB:
        assert (component // (chunk // 2) + 1) > room * 8
    assert bitmap_bytes(component, chunk) <= max(bitmap_room(component), 4 * KIB)


def test_a_bitmap_of_raid10_covers_the_array() -> None:
    number = layout_number(Level.RAID10, "n2")
    assert bitmap_covers(Level.RAID10, number, 6, GIB) == 3 * GIB
    assert bitmap_covers(Level.RAID5, 2, 6, GIB) == GIB


def test_default_bitmap_chunk_is_64_mib_or_what_fits() -> None:
    assert geometry_of(_array(bitmap="internal"), [20 * GIB] * 3).bitmap_chunk == 64 * MIB
    small = _array(bitmap="internal", bitmap_chunk="64KiB", component_size="1GiB")
    assert geometry_of(small, [20 * GIB] * 3).bitmap_chunk == 64 * KIB
    assert geometry_of(_array(), [20 * GIB] * 3).bitmap_chunk == 0


@pytest.mark.parametrize(
    ("fields", "sizes", "component"),
    [
        # 20 GiB minus 17 MiB is a multiple of the chunk already.
        ({}, [20 * GIB] * 3, 20 * GIB - 17 * MIB),
        ({"component_size": "1GiB"}, [20 * GIB] * 3, GIB),
        # Rounded down to a chunk.
        ({"component_size": "1000KiB", "chunk": "64KiB"}, [GIB] * 3, 960 * KIB),
        # The smallest member decides; the first member's offset applies to all.
        ({}, [20 * GIB, GIB, 20 * GIB], GIB - 17 * MIB),
        ({}, [GIB, 20 * GIB, 20 * GIB], GIB - 2 * MIB),
        # Spares count as well.
        ({"spares": 1}, [GIB, GIB, GIB, 512 * MIB], 512 * MIB - 2 * MIB),
        # RAID 1 is rounded to 64 KiB if no size was requested, and otherwise not.
        ({"level": 1, "data_offset": "1MiB"}, [GIB + 4 * KIB] * 2, GIB - MIB),
        ({"level": 1, "component_size": "100KiB"}, [GIB] * 2, 100 * KIB),
        ({"level": 0}, [GIB] * 2, GIB - 2 * MIB),
        # Far copies: an odd chunk remains.
        (
            {"level": 10, "layout": "f2", "chunk": "64KiB", "component_size": "448KiB"},
            [GIB] * 2,
            384 * KIB,
        ),
        # Near copies over an odd number of members: the last row is half used.
        (
            {"level": 10, "layout": "n2", "chunk": "64KiB", "component_size": "320KiB"},
            [GIB] * 3,
            320 * KIB,
        ),
    ],
)
def test_component_size_as_the_kernel_reports_it(
    fields: dict[str, Any], sizes: list[int], component: int
) -> None:
    assert geometry_of(_array(**fields), sizes).component_size == component


@given(
    members=st.integers(2, 20),
    chunks=st.integers(8, 10**6),
    layout=st.sampled_from(["n2", "f2", "o2"]),
)
def test_raid10_components_are_whole_chunks_and_no_larger(
    members: int, chunks: int, layout: str
) -> None:
    number = layout_number(Level.RAID10, layout)
    size = chunks * 64 * KIB
    rounded = round_component(Level.RAID10, number, members, 64 * KIB, size)
    assert rounded % (64 * KIB) == 0
    assert size - 2 * 64 * KIB < rounded <= size
    assert round_component(Level.RAID10, number, members, 64 * KIB, rounded) == rounded


def test_members_and_what_they_hold() -> None:
    five = geometry_of(_array(layout="parity-last"), [GIB] * 5)
    assert (five.members, five.data_members, five.stripe) == (5, 4, 2 * MIB)
    assert five.size == 4 * five.component_size
    six = geometry_of(_array(level=6, spares=1, members=6), [GIB] * 8)
    assert (six.members, six.spares, six.data_members) == (6, 1, 4)
    ten = geometry_of(_array(level=10), [GIB] * 5)
    assert (ten.near, ten.size, ten.stripe) == (2, 5 * ten.component_size // 2, 0)
    twin = geometry_of(_array(level=1), [GIB] * 3)
    assert (twin.size, twin.chunk) == (twin.component_size, 0)


def test_levels_say_what_sysfs_says() -> None:
    assert [level.kernel_name for level in Level] == [
        *("linear", "raid0", "raid1", "raid4", "raid5", "raid6", "raid10")
    ]
    assert [level.redundant for level in Level] == [False, False, True, True, True, True, True]
