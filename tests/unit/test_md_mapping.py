"""md's layouts: every byte has its own location, and the location maps back to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.md.facts.geometry import Geometry
from lab.md.facts.levels import Level, layout_names
from tests.geometries import geometry as made

CHUNK = 64 * 1024

PARITY = [
    (Level.RAID4, None),
    *((Level.RAID5, name) for name in layout_names(Level.RAID5)),
    *((Level.RAID6, name) for name in layout_names(Level.RAID6)),
]
MIRRORS = [(Level.RAID10, name) for name in ("n2", "n3", "f2", "f3", "o2", "o3")]


def geometry(level: Level, layout: str | None, members: int) -> Geometry:
    return made(level, members, 60 * CHUNK, layout=layout, chunk=CHUNK)


@pytest.mark.parametrize(("level", "layout"), PARITY)
@given(members=st.integers(4, 12), number=st.integers(0, 10**6))
def test_a_row_uses_each_member_once(
    level: Level, layout: str | None, members: int, number: int
) -> None:
    row = geometry(level, layout, members).row(number)
    assert sorted((*row.data, *row.checks)) == list(range(members))
    assert len(row.checks) == (2 if level is Level.RAID6 else 1)


@pytest.mark.parametrize(("level", "layout"), [*PARITY, *MIRRORS, (Level.RAID0, None)])
@given(data=st.data())
def test_every_byte_comes_back(level: Level, layout: str | None, data: st.DataObject) -> None:
    array = geometry(level, layout, data.draw(st.integers(4, 9)))
    offset = data.draw(st.integers(0, array.size - 1))
    places = array.locate(offset)
    assert len({place.member for place in places}) == len(places)
    for place in places:
        assert 0 <= place.offset < array.component_size
        assert array.array_offset(place) == offset


@pytest.mark.parametrize(("level", "layout"), [*PARITY, *MIRRORS, (Level.RAID0, None)])
def test_no_two_chunks_share_a_place(level: Level, layout: str | None) -> None:
    array = geometry(level, layout, 5)
    places = [p for chunk in range(array.size // CHUNK) for p in array.locate(chunk * CHUNK)]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(("level", "layout"), PARITY)
def test_parity_goes_round_evenly_or_not_at_all(level: Level, layout: str | None) -> None:
    array = geometry(level, layout, 7)
    turns = array.rotation
    parities = [array.row(r).parity for r in range(turns)]
    assert len(set(parities)) == turns
    assert array.row(turns) == array.row(0)


@pytest.mark.parametrize(
    ("level", "layout", "rows"),
    [
        # Data members in order, then P, then Q; rows 0 and 1 of five members.
        (Level.RAID4, None, [(0, 1, 2, 3, 4), (0, 1, 2, 3, 4)]),
        (Level.RAID5, "left-symmetric", [(0, 1, 2, 3, 4), (4, 0, 1, 2, 3)]),
        (Level.RAID5, "right-symmetric", [(1, 2, 3, 4, 0), (2, 3, 4, 0, 1)]),
        (Level.RAID5, "left-asymmetric", [(0, 1, 2, 3, 4), (0, 1, 2, 4, 3)]),
        (Level.RAID5, "right-asymmetric", [(1, 2, 3, 4, 0), (0, 2, 3, 4, 1)]),
        (Level.RAID5, "parity-first", [(1, 2, 3, 4, 0), (1, 2, 3, 4, 0)]),
        (Level.RAID5, "parity-last", [(0, 1, 2, 3, 4), (0, 1, 2, 3, 4)]),
        (Level.RAID5, "ddf-N-restart", [(0, 1, 2, 3, 4), (0, 1, 2, 4, 3)]),
        (Level.RAID6, "left-symmetric", [(1, 2, 3, 4, 0), (0, 1, 2, 3, 4)]),
        (Level.RAID6, "right-asymmetric", [(2, 3, 4, 0, 1), (0, 3, 4, 1, 2)]),
        (Level.RAID6, "ddf-N-restart", [(0, 1, 2, 3, 4), (0, 1, 4, 2, 3)]),
        (Level.RAID6, "ddf-N-continue", [(0, 1, 2, 4, 3), (4, 0, 1, 3, 2)]),
        (Level.RAID6, "left-symmetric-6", [(0, 1, 2, 3, 4), (3, 0, 1, 2, 4)]),
    ],
)
def test_rows_as_the_kernel_draws_them(
    level: Level, layout: str | None, rows: list[tuple[int, ...]]
) -> None:
    array = geometry(level, layout, 5)
    found = [array.row(0), array.row(1)]
    assert [(*row.data, *row.checks) for row in found] == rows


@pytest.mark.parametrize(
    ("layout", "members", "expected"),
    [
        ("n2", 4, [[(0, 0), (1, 0)], [(2, 0), (3, 0)], [(0, 1), (1, 1)]]),
        ("n2", 3, [[(0, 0), (1, 0)], [(2, 0), (0, 1)], [(1, 1), (2, 1)]]),
        ("f2", 4, [[(0, 0), (1, 30)], [(1, 0), (2, 30)], [(2, 0), (3, 30)]]),
        ("o2", 4, [[(0, 0), (1, 1)], [(1, 0), (2, 1)], [(2, 0), (3, 1)]]),
    ],
)
def test_copies_as_the_kernel_places_them(
    layout: str, members: int, expected: list[list[tuple[int, int]]]
) -> None:
    array = geometry(Level.RAID10, layout, members)
    found = [
        [(place.member, place.offset // CHUNK) for place in array.mirrors(chunk)]
        for chunk in range(3)
    ]
    assert found == expected


def test_sizes_count_data_only() -> None:
    component = 60 * CHUNK
    assert geometry(Level.RAID0, None, 5).size == 5 * component
    assert geometry(Level.RAID1, None, 5).size == component
    assert geometry(Level.RAID5, None, 5).size == 4 * component
    assert geometry(Level.RAID6, None, 5).size == 3 * component
    assert geometry(Level.RAID10, "f2", 5).size == 5 * component // 2


@pytest.mark.parametrize(
    ("level", "layout", "members", "failed"),
    [
        (Level.RAID5, "sideways", 5, ()),
        (Level.RAID5, None, 1, ()),
        (Level.RAID6, None, 3, ()),
        (Level.RAID10, "n5", 4, ()),
        (Level.RAID0, None, 3, (1,)),
        (Level.RAID5, None, 3, (0, 1)),
        (Level.RAID6, None, 6, (0, 1, 2)),
        (Level.RAID10, "n2", 4, (2, 3)),
        (Level.RAID5, None, 3, (7,)),
    ],
)
def test_arrays_that_cannot_be_are_refused(
    level: Level, layout: str | None, members: int, failed: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError):
        made(level, members, CHUNK, layout=layout, chunk=CHUNK, failed=failed)
