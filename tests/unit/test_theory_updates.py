"""How often the bitmap can be written, and what a run with too few such writes may claim."""

from __future__ import annotations

from typing import Any

import pytest

from lab.judge import Judged, judge
from lab.measure import bitmap_shares, bitmap_updated
from lab.model.claim import Claim, Verdict
from lab.model.result import CellMeasurement, CellResult, MemberCounters, Outcome
from lab.model.scenario import Array, Cell, Disk, Throttle, Workload
from lab.predict import bitmap_updates as updates_of
from lab.theory import Direction, Load, Stream, bitmap_updates
from lab.units import GIB, KIB, MIB

RANDOM = Load(block=4096, read_share=0.0, depth=16, seconds=15.0)
COARSE, FINE = "64MiB", "64KiB"


def cell(chunk: str | None = COARSE, *, disks: int = 8, **fields: Any) -> Cell:
    array = {"level": 5, "chunk": "64KiB", "component_size": "992MiB", "bitmap": "internal"}
    throttle = Throttle(total_operations_per_second=100)
    return Cell.model_validate(
        {
            "scenario": "bitmaps",
            "axes": {},
            "guest": {},
            "disks": (Disk(count=disks, size=GIB, throttle=throttle),),
            "array": Array.model_validate({**array, "bitmap_chunk": chunk, **fields}),
            "workloads": (
                Workload(
                    name="write",
                    tool="fio",
                    parameters={
                        "rw": "randwrite",
                        "bs": 4096,
                        "direct": 1,
                        "ioengine": "libaio",
                        "iodepth": 16,
                        "time_based": 1,
                        "runtime": 15,
                    },
                ),
                Workload(
                    name="read",
                    tool="dd",
                    parameters={"if": "{target}", "bs": MIB, "count": 9, "iflag": "direct"},
                ),
            ),
        }
    )


def test_a_coarse_chunk_has_few_bits_and_a_fine_one_many() -> None:
    assert bitmap_updates(cell(COARSE), RANDOM, 15.0) == 16
    assert (bitmap_updates(cell(FINE), RANDOM, 15.0) or 0) > 1500


def test_an_unknown_workload_sets_each_bit_as_often_as_the_daemon_clears_it() -> None:
    assert bitmap_updates(cell(), None, 4.0) == 16
    assert bitmap_updates(cell(), None, 14.0) == 16 * 3
    slow = cell(sysfs={"bitmap/time_base": "60"})
    assert bitmap_updates(slow, None, 14.0) == 16
    assert bitmap_updates(cell(level=10), None, 1.0) == 8 * 992 // 2 // 64


def test_a_stream_sets_a_bit_for_each_region_that_it_enters() -> None:
    stream = Stream(direction=Direction.WRITE, block=448 * KIB, total=448 * 60 * KIB)
    assert bitmap_updates(cell(FINE), stream, 5.0) == 60
    assert bitmap_updates(cell(COARSE), stream, 5.0) == 1


def test_a_file_elsewhere_is_set_as_often() -> None:
    there = cell(FINE, bitmap="external", bitmap_file="/var/b")
    assert bitmap_updates(there, RANDOM, 15.0) == bitmap_updates(cell(FINE), RANDOM, 15.0)
    default = cell(None, bitmap="external", bitmap_file="/var/b")
    assert (bitmap_updates(default, None, 1.0) or 0) == 992 * MIB // 4096


def test_segments_have_bits_each() -> None:
    cut = cell(COARSE, kind="segments", segments=4, component_size=None)
    assert bitmap_updates(cut, None, 1.0) == 4 * 4


def test_without_a_bitmap_there_is_nothing_to_say() -> None:
    assert bitmap_updates(cell(None, bitmap="none"), RANDOM, 15.0) is None
    assert updates_of(cell(None, bitmap="none"), {"write": 15.0}) == {}


def test_a_workload_that_reads_is_left_out() -> None:
    assert set(updates_of(cell(), {"write": 15.0, "read": 9.0})) == {"write"}


# --- as a part of what the disks did ------------------------------------------------------------


def counted(reads: int, writes: int, workload: str = "write") -> list[MemberCounters]:
    nothing = {"read_bytes": 0, "written_bytes": 0, "flushes": 0, "trial": 1}
    return [
        MemberCounters(workload=workload, serial=f"d{n}", reads=reads, writes=writes, **nothing)
        for n in range(8)
    ]


def test_the_share_is_of_all_operations() -> None:
    assert bitmap_shares(counted(700, 900), {"write": 16}) == {"write": pytest.approx(0.01)}
    assert bitmap_shares(counted(700, 900), {"write": 1e9}) == {"write": 1.0}
    assert bitmap_shares(counted(1600, 0), {"write": 16}) == {}
    assert bitmap_shares(counted(0, 0), {"write": 16}) == {}


def test_a_cell_that_can_show_nothing_says_so() -> None:
    (check,) = bitmap_updated({"write": 0.01}, {"write": 16.0})
    assert not check.passed
    assert "can set 16 bits" in check.detail
    assert "1.00%" in check.detail
    assert "array.bitmap_chunk" in check.detail
    (check,) = bitmap_updated({"write": 0.4}, {"write": 2000.0})
    assert check.passed
    assert bitmap_updated({}, {}) == ()


# --- what may be claimed of it ------------------------------------------------------------------


def judged(
    name: str, figure: float, bitmap: tuple[str, ...] = (), share: float | None = None
) -> Judged:
    values = {"metric": "iops", "unit": "1/s", "values": (figure,), "median": figure}
    measured = tuple(
        CellMeasurement.model_validate({"workload": workload, **values})
        for workload in ("write", "read")
    )
    return Judged(
        result=CellResult(id=name, axes={"arm": name}, outcome=Outcome.DONE, measurements=measured),
        fields={"arm": name},
        published=True,
        bitmap=bitmap,
        bitmap_shares={} if share is None else {"write": share},
    )


def value(arm: str, workload: str = "write") -> dict[str, Any]:
    return {"workload": workload, "metric": "iops", "where": {"arm": arm}}


def verdict(cells: list[Judged], **expect: Any) -> tuple[Verdict, str]:
    claim = Claim.model_validate({"id": "c", "says": "so it is", "expect": expect})
    (found,) = judge([claim], cells)
    return found.verdict, found.reason


NONE = judged("none", 200.0)
HARMLESS = {"kind": "ratio", "of": value("internal"), "to": value("none"), "at_least": 0.95}
COSTLY = {"kind": "ratio", "of": value("none"), "to": value("internal"), "at_least": 1.5}


@pytest.mark.parametrize("expect", [HARMLESS, COSTLY], ids=["no effect", "an effect"])
def test_a_bitmap_that_is_hardly_written_bears_out_nothing(expect: dict[str, Any]) -> None:
    coarse = judged("internal", 199.0, ("internal", COARSE), 0.008)
    found, reason = verdict([NONE, coarse], **expect)
    assert found is Verdict.INCONCLUSIVE
    assert "cannot show a bitmap: at most 0.80%" in reason


def test_a_bitmap_that_is_written_does() -> None:
    """The control: the same figures, and writes of the bitmap enough to change them."""
    fine = judged("internal", 199.0, ("internal", FINE), 0.6)
    assert verdict([NONE, fine], **HARMLESS)[0] is Verdict.HOLDS
    assert verdict([NONE, fine], **COSTLY)[0] is Verdict.REFUTED


def test_the_claims_tolerance_decides() -> None:
    some = judged("internal", 199.0, ("internal", "1MiB"), 0.08)
    assert verdict([NONE, some], **HARMLESS)[0] is Verdict.HOLDS
    assert verdict([NONE, some], **COSTLY)[0] is Verdict.INCONCLUSIVE
    same = {"kind": "same", "values": [value("none"), value("internal")]}
    assert verdict([NONE, some], **same, within=0.07)[0] is Verdict.HOLDS
    assert verdict([NONE, some], **same, within=0.1)[0] is Verdict.INCONCLUSIVE


def test_what_has_nothing_to_do_with_the_bitmap_is_judged_as_ever() -> None:
    one = judged("one", 199.0, ("internal", COARSE), 0.008)
    two = judged("two", 100.0, ("internal", COARSE), 0.008)
    order = {"kind": "order", "values": [value("one"), value("two")]}
    assert verdict([one, two], **order)[0] is Verdict.HOLDS
    bound = {"kind": "bound", "value": value("one"), "near": 200.0}
    assert verdict([one, two], **bound)[0] is Verdict.HOLDS
    reads = {"kind": "ratio", "of": value("one", "read"), "to": value("none", "read")}
    assert verdict([NONE, one], **reads, at_least=0.9)[0] is Verdict.HOLDS


def test_one_cell_that_can_show_it_is_enough() -> None:
    fine = judged("fine", 80.0, ("internal", FINE), 0.6)
    coarse = judged("coarse", 199.0, ("internal", COARSE), 0.008)
    order = {"kind": "order", "values": [value("coarse"), value("fine")]}
    assert verdict([coarse, fine], **order)[0] is Verdict.HOLDS
    three = {"kind": "order", "values": [value("none"), value("coarse"), value("fine")]}
    assert verdict([NONE, coarse, fine], **three)[0] is Verdict.INCONCLUSIVE
