"""The stripe diagram of one write: against md's rules, and what a real guest's disks counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.core.units import KIB, MIB
from lab.md.facts.geometry import Geometry
from lab.md.facts.levels import Level, layout_number
from lab.md.theory.anatomy import MOST, anatomy
from lab.md.theory.stripe import StripeRules
from lab.model.result.explanation import Anatomy
from lab.results.report import page_of
from tests.kept import unpacked


def of(
    level: Level, members: int, block: int = 4 * KIB, layout: str = "", **more: object
) -> Anatomy:
    default = {Level.RAID10: "n2", Level.RAID5: "left-symmetric", Level.RAID6: "left-symmetric"}
    name = layout or default.get(level, "")
    given = {"layout": layout_number(level, name)} if name else {}
    geometry = Geometry(
        level=level, members=members, component_size=64 * MIB, chunk=64 * KIB, **given, **more
    )
    found = anatomy(geometry, StripeRules(), block)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("level", "members", "counts"),
    [
        (Level.RAID0, 4, (0, 1)),
        (Level.RAID10, 4, (0, 2)),
        (Level.RAID5, 3, (1, 2)),  # reconstruct: the one other data chunk
        (Level.RAID5, 4, (2, 2)),
        (Level.RAID5, 8, (2, 2)),  # read-modify-write: old data and old parity
        (Level.RAID6, 4, (1, 3)),
        (Level.RAID6, 8, (3, 3)),
    ],
)
def test_a_small_write_costs_what_md_says(
    level: Level, members: int, counts: tuple[int, int]
) -> None:
    assert of(level, members).counts == counts


def test_a_write_of_a_stripe_reads_nothing() -> None:
    assert of(Level.RAID5, 5, 256 * KIB).counts == (0, 5)
    assert of(Level.RAID5, 5, 1024 * KIB).block == 256 * KIB


def test_chunks_stand_where_the_layout_has_them() -> None:
    rows = [" ".join(c.name for c in row) for row in of(Level.RAID5, 4).chunks]
    assert rows == ["D0 D1 D2 P", "D4 D5 P D3", "D8 P D6 D7"]
    rows = [
        " ".join(c.name for c in row) for row in of(Level.RAID5, 4, layout="parity-last").chunks
    ]
    assert rows == ["D0 D1 D2 P", "D3 D4 D5 P", "D6 D7 D8 P"]
    rows = [" ".join(c.name for c in row) for row in of(Level.RAID10, 4).chunks]
    assert rows == ["D0 D0 D1 D1", "D2 D2 D3 D3", "D4 D4 D5 D5"]
    far = of(Level.RAID10, 4, layout="f2")
    assert (
        len({n for n, row in zip(far.rows, far.chunks, strict=True) for c in row if c.written}) == 2
    )


def test_a_failed_member_is_neither_read_nor_written() -> None:
    found = of(Level.RAID5, 4, failed=frozenset({0}))
    assert {(row[0].name, row[0].read, row[0].written) for row in found.chunks} == {
        ("failed", False, False)
    }


def test_levels_without_chunks_and_wide_arrays_have_none() -> None:
    one = Geometry(level=Level.RAID1, members=2, component_size=64 * MIB)
    wide = Geometry(level=Level.RAID0, members=MOST + 1, component_size=64 * MIB, chunk=64 * KIB)
    for geometry in (one, wide):
        assert anatomy(geometry, StripeRules(), 4 * KIB) is None


def test_a_real_guest_counted_as_many_reads_and_writes_for_each_write(tmp_path: Path) -> None:
    page = page_of(unpacked("bitmap-random-write", tmp_path))
    [cell] = [
        c
        for c in page.cells
        if c.result.axes["array.bitmap"] == "none" and c.result.axes["disks.count"] == 8
    ]
    reads, writes = of(Level.RAID5, 8).counts
    [run] = tmp_path.iterdir()
    report = json.loads((run / f"cells/{cell.result.id}/raw/write_alone.1.stdout.txt").read_text())
    requests = report["jobs"][0]["write"]["total_ios"]
    counters = [c for c in cell.result.counters if c.workload == "write_alone"]
    assert sum(c.read_bytes for c in counters) / requests / 4096 == pytest.approx(reads, rel=0.05)
    assert sum(c.written_bytes for c in counters) / requests / 4096 == pytest.approx(
        writes, rel=0.05
    )
