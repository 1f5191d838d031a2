"""Explanations of a cell's speed use theory's own values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from lab.analysis.predict import explanations, predictions
from lab.cli.commands import app
from lab.compile.scenario.compiler import compile_scenario
from lab.core.yaml import parse_override
from lab.model.result.document import CellResult, MemberCounters, Outcome
from lab.model.result.explanation import CellExplanation, Explanation, MemberBytes
from lab.plugins import catalog
from lab.report.terminal.explanation import explanation_page
from lab.results.documents import result_of
from lab.results.explain import beside, explanation_of_run
from lab.results.report import page_of
from tests.fakes import compiled_text
from tests.runs import SMALL, theory_run


def explained(name: str, workload: str, *sets: str) -> Explanation:
    path = catalog.scenario_path(name)
    overrides = [parse_override(text) for text in ("matrix={}", *sets)]
    cell = compile_scenario(path, overrides=overrides).base
    return next(e for e in explanations(cell) if e.workload == workload)


def test_after_a_fault_the_reason_is_the_fault_and_counters_are_shown(tmp_path: Path) -> None:
    cell = compiled_text(tmp_path, AFTER).base
    before, after, unknown = explanations(cell)
    assert "iops" in before.expected
    assert after.sentences == (
        "No prediction: theory has no rules for workloads during or after a fault.",
    )
    assert "during or after a fault" in unknown.sentences[0]
    counters = tuple(
        MemberCounters(
            workload="after",
            trial=1,
            serial=serial,
            reads=256,
            read_bytes=1 << 20,
            writes=0,
            written_bytes=0,
            flushes=0,
        )
        for serial in ("disk1", "disk3")
    )
    result = CellResult(id="c", axes={}, outcome=Outcome.DONE, counters=counters)
    shown = beside(after, result)
    assert [(m.serial, m.counted_read_bytes) for m in shown.members] == [
        ("disk1", 1 << 20),
        ("disk3", 1 << 20),
    ]
    assert all(m.read_bytes is None and m.error is None for m in shown.members)
    console = Console(width=100, file=StringIO())
    console.print(explanation_page("t", [CellExplanation(id="c", axes={}, workloads=(shown,))]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"disk3 +– +– +1\.00 MiB +0\.00 MiB +–", text), text


AFTER = """\
title: t
question: q
disks: {count: 3, size: 1GiB, throttle: {total_operations_per_second: 100}}
array: {level: 5, chunk: 64KiB, component_size: 64MiB}
workloads:
  - {name: before, tool: fio, rw: randread, bs: 4KiB, iodepth: 4, direct: 1, ioengine: libaio,
     size: 8MiB, runtime: 5, time_based: 1}
  - {name: after, tool: fio, rw: randread, bs: 4KiB, iodepth: 4, direct: 1, ioengine: libaio,
     size: 8MiB, runtime: 5, time_based: 1}
  - {name: unknown, tool: fio, rw: randread, bs: 4KiB, size: 8MiB, runtime: 5, time_based: 1}
faults:
  - {name: gone, fault: fail, after: before, disk: 2}
"""


def test_what_post_004_left_open() -> None:
    found = explained("raid5-parity-last", "write")
    text = " ".join(found.sentences)
    for words in (
        *("4 × 512 KiB = 2 MiB", "half of a stripe"),
        *("6400 of 12800 stripe heads", "reconstruct-write (2 chunks", "would read 3)", "50 MiB"),
        *("6400 more", "stripe cache", "disks 3, 4 and 5", "parity is on disk 5"),
        *("would need 25 MiB", "saves 0.2 s"),
        *("With bs=2MiB, a full stripe, it would write 21.8 MB/s", "layout no longer matters"),
        *("With array.layout=left-symmetric", "it would write 13.4 MB/s."),
    ):
        assert words in text, words
    assert [m.written_bytes >> 20 for m in found.members] == [25, 25, 25, 25, 50]
    assert [m.read_bytes >> 20 for m in found.members] == [0, 0, 25, 25, 0]
    assert sum(m.read_bytes for m in found.members) == 50 * 2**20


@pytest.mark.parametrize(
    ("name", "lift"),
    [
        ("bs=2MiB", ("workloads.write.bs=2MiB", "workloads.write.count=50")),
        ("array.chunk=256KiB", ("array.chunk=256KiB",)),
    ],
)
def test_a_lift_is_what_the_changed_cell_would_do(name: str, lift: tuple[str, ...]) -> None:
    sentence = next(
        s for s in explained("raid5-parity-last", "write").sentences if f"With {name}" in s
    )
    match = re.search(r"it would write ([\d.]+) MB/s", sentence)
    assert match is not None
    changed = explained("raid5-parity-last", "write", *lift)
    assert changed.expected["throughput"] / 1e6 == pytest.approx(float(match[1]), abs=0.06)


def test_full_stripes_read_nothing_and_have_nothing_to_lift() -> None:
    text = " ".join(explained("raid5-parity-last", "write_stripe").sentences)
    assert "reads nothing" in text
    assert "With " not in text


def test_reads_leave_a_parity_disk_idle() -> None:
    text = " ".join(explained("raid5-parity-last", "read").sentences)
    assert "only 4 of 5 disks" in text
    turned = explained("raid5-parity-last", "read", "array.layout=left-symmetric")
    assert "all 5 serve" in " ".join(turned.sentences)


def test_small_random_writes_name_the_way_and_the_parity_disk() -> None:
    five = " ".join(explained("raid5-random-write", "write", "array.layout=parity-last").sentences)
    assert "read-modify-write (the old data and the old parity, 2 chunks" in five
    assert "disk 5" in five
    assert "With array.layout=left-symmetric" in five
    four = explained("raid5-random-write", "write", "disks.count=4")
    assert "by reconstruct-write" in " ".join(four.sentences)


def test_a_bitmap_is_explained_with_its_doubt() -> None:
    marked = ("array.bitmap=internal", "array.bitmap_chunk=64KiB")
    found = explained("raid5-random-write", "write", *marked, "disks.count=4")
    text = " ".join(found.sentences)
    assert "clean region of the bitmap" in text
    assert re.search(r"\d+% higher or lower", text)
    assert "With array.bitmap=none it would write" in text
    (said,) = explained(
        "bitmap-external", "write", *marked[:1], "array.bitmap_chunk=16KiB"
    ).sentences
    assert re.search(r"microseconds .* decide how many writes share a bitmap write", said)


def test_where_theory_cannot_say_it_says_so() -> None:
    found = explained("raid5-random-write", "write", "workloads.write.rw=randtrim")
    (said,) = found.sentences
    assert "no rule" in said
    assert "fio" in said
    assert found.expected == {}
    found = explained("raid5-random-write", "write", "disks.scheduler=bfq")
    assert "'bfq'" in found.sentences[0]
    assert found.expected == {}


def test_every_prediction_has_its_reason() -> None:
    for name, path in catalog.scenarios().items():
        for cell in compile_scenario(path).cells:
            for prediction in predictions(cell):
                assert prediction.reason.endswith("."), name
                assert "per second" in prediction.reason


@pytest.mark.parametrize(
    ("read", "written", "error"), [(None, None, None), (50, 50, 0.0), (50, 51, 0.01), (0, 0, -1.0)]
)
def test_members_error(read: int | None, written: int | None, error: float | None) -> None:
    member = MemberBytes(
        serial="disk1",
        read_bytes=50,
        written_bytes=50,
        counted_read_bytes=read,
        counted_written_bytes=written,
    )
    assert member.error == error


def lab(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["scenario", "explain", *arguments])


def test_the_command_prints_sentences_and_members() -> None:
    done = lab("raid5-parity-last", "--workload", "write", "--set", "matrix={}")
    assert done.exit_code == 0
    assert "expected 10.7 MB/s" in done.stdout
    assert "50.00 MiB" in done.stdout
    assert "write_stripe" not in done.stdout


def test_the_command_prints_json() -> None:
    done = lab("raid5-random-write", "--json", "--set", "matrix={}")
    document = json.loads(done.stdout)
    workload = document["cells"][0]["workloads"][0]
    assert workload["workload"] == "write"
    assert workload["expected"]["iops"] == pytest.approx(60, rel=0.05)
    assert len(workload["members"]) == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workload", "wrote"), "there is no workload 'wrote'"),
        (("--run", "x", "--set", "matrix={}"), "--run and --set"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], words: str) -> None:
    done = lab("raid5-parity-last", *arguments)
    assert done.exit_code != 0
    assert words in str(done.exception)


def test_claims_of_the_random_write_scenario_are_what_theory_expects() -> None:
    compiled = compile_scenario(catalog.scenario_path("raid5-random-write"))
    iops = {
        (c.axes["array.layout"], c.axes["disks.count"]): p.value
        for c in compiled.cells
        for p in predictions(c)
        if p.metric == "iops"
    }
    checks: list[Callable[[], bool]] = [
        lambda: abs(iops["parity-last", 4] / iops["left-symmetric", 4] - 1) < 0.04,
        lambda: 0.37 < iops["parity-last", 5] / iops["left-symmetric", 5] < 0.46,
        lambda: 0.24 < iops["parity-last", 8] / iops["left-symmetric", 8] < 0.3,
    ]
    assert all(check() for check in checks)
    assert Path(compiled.path).stem == "raid5-random-write"


def test_a_sealed_cell_is_explained_with_its_processors_time_as_it_is_predicted(
    tmp_path: Path,
) -> None:
    run = theory_run(tmp_path, SMALL + "guest: {clock: virtual}\n")
    (first, other) = (stored.id for stored in run.load_run().cells)
    raw = run.cell_directory(first) / "raw"
    for moment, ticks in (("before", "0 0 0 0"), ("after", "30 0 0 70")):
        file = raw / f"read.1.{moment}.txt"
        file.write_text(f"cpu  {ticks} 0 0 0 0 0 0\n{file.read_text()}")
    cells = {cell.id: cell for cell in result_of(run).cells}
    found = {cell.id: cell.workloads[0].expected for cell in explanation_of_run(run)}
    for name in (first, other):
        said = {p.metric: p.value for p in cells[name].predictions}
        both = said.keys() & found[name].keys()
        assert {"throughput", "seconds"} <= both
        assert all(found[name][metric] == said[metric] for metric in both)
    quiet = explanations(run.load_run().cells[0].cell)[0].expected
    assert found[first]["throughput"] < 0.999 * quiet["throughput"]
    (page,) = (cell for cell in page_of(run).cells if cell.result.id == first)
    assert page.explanations[0].expected == found[first]
