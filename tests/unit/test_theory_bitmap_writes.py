"""Possible bitmap writes, and the claims of runs with too few of them."""

from __future__ import annotations

import math
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lab.analysis.judge import JudgedCell, judge
from lab.analysis.measure import bitmap_shares, bitmap_updated
from lab.analysis.predict import bitmap_updates as updates_of
from lab.analysis.sequential import EACH
from lab.compile.scenario.compiler import compile_scenario
from lab.compile.scenario.identity import cell_id
from lab.core.statistics import Spread, t_quantile
from lab.core.units import GIB, KIB, MIB
from lab.md.theory.bitmap_writes import bitmap_updates
from lab.md.theory.bucket import Direction
from lab.md.theory.paths import Load, SequentialLoad
from lab.model.execution.procedure import Procedure
from lab.model.result.document import (
    CellMeasurement,
    CellResult,
    MemberCounters,
    Outcome,
    Result,
)
from lab.model.scenario.claim import Claim, Verdict
from lab.model.scenario.document import Array, Cell, Disk, Throttle, Workload
from lab.report.terminal.screen import result_page
from lab.results.documents import result_of
from lab.store.runs import RunStore, StoredCell, StoredOutcome, StoredRun
from tests.fakes import FLOORS, raw_of

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
    stream = SequentialLoad(direction=Direction.WRITE, block=448 * KIB, total=448 * 60 * KIB)
    assert bitmap_updates(cell(FINE), stream, 5.0) == 60
    assert bitmap_updates(cell(COARSE), stream, 5.0) == 1


def test_a_file_elsewhere_is_set_as_often() -> None:
    there = cell(FINE, bitmap="external", bitmap_file="/var/b")
    assert bitmap_updates(there, RANDOM, 15.0) == bitmap_updates(cell(FINE), RANDOM, 15.0)
    default = cell(None, bitmap="external", bitmap_file="/var/b")
    assert (bitmap_updates(default, None, 1.0) or 0) == 992 * MIB // 4096


@pytest.mark.parametrize("model", ["hdd", "ssd"])
def test_a_modelled_drives_flushes_cost_more_than_their_number_says(model: str) -> None:
    preset = {"hdd": "hdd_7200", "ssd": "ssd_sata"}[model]
    drive = Disk.model_validate({"count": 8, "size": GIB, "model": model, "preset": preset})
    assert bitmap_updates(cell().model_copy(update={"disks": (drive,)}), RANDOM, 15.0) is None


def test_segments_have_bits_each() -> None:
    cut = cell(COARSE, kind="segments", segments=4, component_size=None)
    assert bitmap_updates(cut, None, 1.0) == 4 * 4


def test_without_a_bitmap_there_is_nothing_to_say() -> None:
    assert bitmap_updates(cell(None, bitmap="none"), RANDOM, 15.0) is None
    assert updates_of(cell(None, bitmap="none"), {"write": 15.0}) == {}


def test_a_workload_that_reads_is_left_out() -> None:
    assert set(updates_of(cell(), {"write": 15.0, "read": 9.0})) == {"write"}


# --- as a fraction of the disks' operations ------------------------------------------------------


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
    assert "can set a bit of the bitmap 16 times" in check.detail
    assert "1.00%" in check.detail
    assert "array.bitmap_chunk" in check.detail
    (check,) = bitmap_updated({"write": 0.4}, {"write": 2000.0})
    assert check.passed
    assert bitmap_updated({}, {}) == ()


# --- claims about it ----------------------------------------------------------------------------


def judged(
    name: str,
    figure: float,
    bitmap: tuple[str, ...] = (),
    share: float | None = None,
    scatter: float = 0.0,
) -> JudgedCell:
    values = {"metric": "iops", "unit": "1/s", "values": (figure,), "median": figure}
    off = math.log1p(scatter / figure) / t_quantile(1 - EACH / 2, 9)
    measured = tuple(
        CellMeasurement.model_validate({"workload": workload, **values})
        for workload in ("write", "read")
    )
    return JudgedCell(
        result=CellResult(id=name, axes={"arm": name}, outcome=Outcome.DONE, measurements=measured),
        fields={"arm": name},
        published=True,
        bitmap=bitmap,
        bitmap_shares={} if share is None else {"write": share},
        noise={"iops": Spread(deviation=off, freedom=9)},
    )


def value(arm: str, workload: str = "write") -> dict[str, Any]:
    return {"workload": workload, "metric": "iops", "where": {"arm": arm}}


def verdict(cells: list[JudgedCell], **expect: Any) -> tuple[Verdict, str]:
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
    """Negative control: equal values with enough bitmap writes to change them."""
    fine = judged("internal", 199.0, ("internal", FINE), 0.6)
    assert verdict([NONE, fine], **HARMLESS)[0] is Verdict.HOLDS
    assert verdict([NONE, fine], **COSTLY)[0] is Verdict.REFUTED


def test_an_interval_neither_hides_nor_replaces_what_a_bitmap_cannot_show() -> None:
    coarse = judged("internal", 199.0, ("internal", COARSE), 0.008, scatter=20.0)
    found, reason = verdict([NONE, coarse], **HARMLESS)
    assert found is Verdict.INCONCLUSIVE
    assert "cannot show a bitmap" in reason
    fine = judged("internal", 199.0, ("internal", FINE), 0.6, scatter=20.0)
    found, reason = verdict([NONE, fine], **HARMLESS)
    assert found is Verdict.INCONCLUSIVE
    assert "too close to tell" in reason


def test_what_cannot_show_a_bitmap_is_told_with_its_figure() -> None:
    coarse = judged("internal", 199.0, ("internal", COARSE), 0.008)
    claim = Claim.model_validate({"id": "c", "says": "so it is", "expect": HARMLESS})
    (found,) = judge([claim], [NONE, coarse])
    assert found.measured == pytest.approx(199 / 200)
    assert "is 0.995" in found.reason


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


# --- from a scenario's file to its report -------------------------------------------------------

SCENARIO = """\
title: A bitmap
question: Does it cost anything?
disks: {count: 8, size: 1GiB, throttle: {total_bytes_per_second: 5MiB}}
array: {level: 5, chunk: 64KiB, bitmap: none, bitmap_chunk: CHUNK}
workloads:
  - {name: write, tool: dd, of: '{target}', bs: 448KiB, count: 200, oflag: direct}
matrix:
  array.bitmap: [none, internal]
claims:
  - id: harmless
    says: It costs nothing
    expect:
      kind: ratio
      of: {workload: write, where: {array.bitmap: internal}}
      to: {workload: write, where: {array.bitmap: none}}
      at_least: 0.95
"""


def ran(parent: Path, chunk: str) -> Result:
    """Return the scenario as a run in which all cells have the same speed."""
    path = parent / f"{chunk}.yaml"
    path.write_text(SCENARIO.replace("CHUNK", chunk))
    compiled = compile_scenario(path)
    store = RunStore(parent / f"run-{chunk}")
    (store.directory / "cells").mkdir(parents=True)
    store.save_run(
        StoredRun(
            id=store.id,
            scenario=compiled.name,
            title=compiled.scenario.title,
            question=compiled.scenario.question,
            started="2026-11-20T12:00:00+00:00",
            finished="2026-11-20T12:02:00+00:00",
            environment={},
            cells=tuple(StoredCell(id=cell_id(c), cell=c, published=True) for c in compiled.cells),
            claims=compiled.scenario.claims,
            noise=FLOORS,
        )
    )
    for each in compiled.cells:
        attempt = store.begin_cell(cell_id(each), each, Procedure(name="q", steps=()))
        (attempt / "raw").mkdir()
        for name, text in raw_of(each, 30.0).items():
            (attempt / "raw" / name).write_text(text)
        for name, writes in (("before", 0), ("after", 250)):
            lines = [
                f"disk disk{n} vd{n}\n 254 {n} vd{n} 0 0 0 0 {writes} 0 {writes * 128} 0 0 0 0\n"
                for n in range(1, 9)
            ]
            (attempt / "raw" / f"write.1.{name}.txt").write_text("".join(lines))
        (attempt / "raw" / "write.1.pressure.txt").write_text("wait=0.01\nseconds=3.1\n")
        store.finish_cell(cell_id(each), attempt, StoredOutcome(outcome=Outcome.DONE))
    return result_of(store)


def page(result: Result) -> str:
    console = Console(width=500, file=StringIO())
    console.print(result_page(result, title="T", question=""))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_sixteen_bits_are_no_evidence_that_a_bitmap_costs_nothing(tmp_path: Path) -> None:
    coarse = ran(tmp_path, "64MiB")
    assert [c.verdict for c in coarse.claims] == [Verdict.INCONCLUSIVE]
    failed = [c for cell in coarse.cells for c in cell.checks if not c.passed]
    assert [c.name for c in failed] == ["bitmap_updated"]
    assert "write can set a bit of the bitmap 1 times" in page(coarse)
    assert "cannot show a bitmap" in page(coarse)


def test_the_same_figures_with_bits_enough_are(tmp_path: Path) -> None:
    """Negative control."""
    fine = ran(tmp_path, "64KiB")
    assert [c.verdict for c in fine.claims] == [Verdict.HOLDS]
    checks = [c for cell in fine.cells for c in cell.checks if c.name == "bitmap_updated"]
    assert [c.passed for c in checks] == [True]
    assert "cannot show a bitmap" not in page(fine)
