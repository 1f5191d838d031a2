"""Raw output to measurements and counters: recorded lines, and unreadable ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.analysis import measure
from lab.compile.scenario.document import compile_scenario
from lab.core.errors import ToolError
from lab.core.yaml import parse_override
from lab.model.result.measurement import Prediction
from lab.model.scenario.document import Cell
from tests.fakes import SCENARIO

SERIALS = ("disk1", "disk2", "disk3", "disk4")
# Linux 6.1: 17 counters; before 5.5 there were 15, before 4.18 there were 11.
LINE = (
    "253 {minor} {name} {reads} 0 {sectors} 7 {writes} 3 {written} 9"
    " 0 {busy} 16 0 0 0 0 {flushes} 5"
)
NOISE = """\
   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
   9       0 md127 5 0 40 0 1 0 8 0 0 0 0
"""


def counters(turn: int, words: int = 20) -> str:
    """Return the guest's output before and after; each disk's counters grow with its number."""
    text = "".join(f"disk {s} vd{'cdef'[i]}\n" for i, s in enumerate(SERIALS)) + NOISE
    for number, name in enumerate(("vdc", "vdd", "vde", "vdf"), 1):
        line = LINE.format(
            minor=number * 16,
            name=name,
            reads=10 + turn * number,
            sectors=80 + turn * 8 * number,
            writes=4 + turn * 2,
            written=32 + turn * 16,
            busy=100 + turn,
            flushes=1 + turn,
        )
        text += " ".join(line.split()[:words]) + "\n"
    return text


def stderr(bytes_: int = 1966080, seconds: float = 0.5) -> str:
    return (
        f"10+0 records in\n10+0 records out\n{bytes_} bytes (2.0 MB) copied, {seconds} s, 4 MB/s\n"
    )


def compiled(directory: Path, *sets: str) -> Cell:
    path = directory / "q.yaml"
    path.write_text(SCENARIO)
    return compile_scenario(path, overrides=[parse_override(s) for s in sets]).base


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return compiled(tmp_path, "trials=2")


def raw(words: int = 20) -> dict[str, str]:
    found = {"environment.txt": "kernel=6.1.0\nmdadm=mdadm - v4.2\nos=Debian = 12\nnothing\n"}
    for workload, seconds in (("write", 0.5), ("read", 0.25)):
        for trial in (1, 2):
            tag = f"{workload}.{trial}"
            found[f"{tag}.before.txt"] = counters(0, words)
            found[f"{tag}.after.txt"] = counters(1, words)
            found[f"{tag}.stdout.txt"] = ""
            found[f"{tag}.stderr.txt"] = stderr(seconds=seconds * trial)
    return found


def test_every_metric_has_a_value_for_each_trial(cell: Cell) -> None:
    found = {(m.workload, m.metric): m for m in measure.measurements(cell, raw())}
    assert set(found) == {(w, m) for w in ("write", "read") for m in ("throughput", "seconds")}
    assert found["write", "seconds"].values == (0.5, 1.0)
    assert found["write", "throughput"].values == (3932160.0, 1966080.0)
    assert found["write", "throughput"].median == pytest.approx(2949120)
    assert found["read", "seconds"].unit == "s"


def test_one_unreadable_trial_is_an_error_and_not_a_smaller_sample(cell: Cell) -> None:
    broken = raw() | {"read.2.stderr.txt": "dd: error reading '/dev/md/bench': I/O error\n"}
    with pytest.raises(ToolError, match="cannot be read"):
        measure.measurements(cell, broken)
    missing = raw()
    del missing["write.1.stderr.txt"]
    with pytest.raises(ToolError):
        measure.measurements(cell, missing)


def test_a_workload_whose_name_begins_like_another_keeps_its_own_output(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(SCENARIO.replace("name: read", "name: write_read"))
    cell = compile_scenario(path).base
    texts = {
        "write.1.stderr.txt": stderr(seconds=0.5),
        "write_read.1.stderr.txt": stderr(seconds=0.1),
    }
    found = measure.measurements(cell, texts)
    assert [m.values[0] for m in found if m.metric == "seconds"] == [0.5, 0.1]


def test_counters_are_what_each_disk_did_between_two_looks(cell: Cell) -> None:
    found = measure.counters(cell, raw())
    assert len(found) == 2 * 2 * 4
    third = next(c for c in found if (c.workload, c.trial, c.serial) == ("write", 1, "disk3"))
    assert third.reads == 3
    assert third.read_bytes == 24 * 512
    assert third.writes == 2
    assert third.written_bytes == 16 * 512
    assert third.flushes == 1


@pytest.mark.parametrize(("words", "flushes"), [(20, 1), (18, 0), (14, 0)])
def test_older_kernels_print_fewer_counters(cell: Cell, words: int, flushes: int) -> None:
    found = measure.counters(cell, raw(words))
    assert {c.flushes for c in found} == {flushes}
    assert {c.writes for c in found} == {2}


def test_a_trial_without_counters_has_none(cell: Cell) -> None:
    texts = raw()
    del texts["write.1.after.txt"]
    assert ("write", 1) not in {(c.workload, c.trial) for c in measure.counters(cell, texts)}
    assert len(measure.counters(cell, texts)) == 12


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\n".join(x for x in text.splitlines() if " vdd " not in x),
        lambda text: "",
        lambda text: text.replace("disk disk2 vdd\n", ""),
        lambda text: text.replace("disk disk2 vdd\n", "disk disk2 virtio-disk2\n"),
        lambda text: text.replace(" vdd 12", " vdd twelve"),
    ],
    ids=["no line", "nothing", "no device", "no such device", "not a number"],
)
def test_a_disk_that_is_missing_is_named(cell: Cell, change: object) -> None:
    texts = raw()
    assert callable(change)
    texts["write.1.after.txt"] = change(texts["write.1.after.txt"])
    assert texts["write.1.after.txt"] != raw()["write.1.after.txt"]
    with pytest.raises(ToolError, match="/proc/diskstats"):
        measure.counters(cell, texts)


def test_the_guest_says_what_it_is() -> None:
    assert measure.environment(raw()) == {
        "kernel": "6.1.0",
        "mdadm": "mdadm - v4.2",
        "os": "Debian = 12",
    }
    assert measure.environment({}) == {}


# --- contention ---------------------------------------------------------------------------------


def pressed(wait: float, copied: float = 0.5) -> dict[str, str]:
    """Return raw output of a cell whose first write waited for ``wait`` of its ten seconds."""
    raw = {
        f"{workload}.{trial}.{name}": text
        for workload in ("write", "read")
        for trial in (1, 2)
        for name, text in (
            ("stderr.txt", stderr(seconds=copied)),
            ("pressure.txt", "cpu=1.0\nwait=0.0\nseconds=10.0\n"),
        )
    }
    raw["write.1.pressure.txt"] = f"cpu=1.0\nwait={wait * 10}\nseconds=10.0\n"
    return raw


def theory(throughput: float) -> list[Prediction]:
    return [Prediction(workload="write", metric="throughput", value=throughput)]


def test_a_guest_that_had_to_wait_too_long_was_contended(cell: Cell) -> None:
    assert all(check.passed for check in measure.contention(cell, pressed(0.39)))
    bad, quiet = measure.contention(cell, pressed(0.41))
    assert not bad.passed
    assert "41.0% of write, trial 1" in bad.detail
    assert quiet.passed  # the other workload had enough CPU
    assert (bad.workload, quiet.workload) == ("write", "read")


def test_a_figure_below_theory_makes_less_waiting_suspicious(cell: Cell) -> None:
    figure = 1966080 / 0.5
    for wait, expected, passed in (
        (0.2, figure * 1.01, True),
        (0.2, figure * 1.03, False),  # 2.9 % short
        (0.05, figure * 1.03, True),  # no waiting explains it: theory or the array is wrong
        (0.2, figure * 0.9, True),  # the host cannot make it faster than theory
    ):
        check, _ = measure.contention(cell, pressed(wait), theory(expected))
        assert check.passed is passed, (wait, expected)
    check, _ = measure.contention(cell, pressed(0.2), theory(figure * 1.03))
    assert "2.9% below theory" in check.detail


def test_output_that_nobody_can_read_is_no_reason_to_repeat(cell: Cell) -> None:
    raw = {**pressed(0.2), "write.1.stderr.txt": "dd: cannot"}
    assert all(check.passed for check in measure.contention(cell, raw, theory(1e12)))
    assert measure.contention(cell, {}) == ()


FIO = """\
title: Percentiles of three trials
question: Which of them do all trials support?
disks: {count: 3, size: 1GiB, throttle: {total_bytes_per_second: 5MiB}}
array: {level: 5, chunk: 64KiB, component_size: 64MiB}
trials: 3
workloads:
  - {name: write, tool: fio, rw: randwrite, bs: 4KiB, runtime: 2s, time_based: true}
"""


def fio_trial(requests: int) -> str:
    clat = {f"{p:.6f}": 1e6 for p in (50, 95, 99, 99.9, 99.99)}
    side = {
        "io_bytes": 4096 * requests,
        "runtime": 2000,
        "total_ios": requests,
        "lat_ns": {"mean": 1e6},
        "clat_ns": {"max": 2e6, "percentile": clat},
    }
    return json.dumps({"jobs": [{"error": 0, "write": side}]}, indent=2)


@pytest.mark.parametrize(("fewest", "kept"), [(368, True), (367, False)])
def test_a_percentile_that_one_trial_does_not_support_has_no_value(
    tmp_path: Path, fewest: int, kept: bool
) -> None:
    """Leaving out the slow trial alone would choose the fast ones."""
    path = tmp_path / "q.yaml"
    path.write_text(FIO)
    cell = compile_scenario(path, overrides=[]).base
    counts = (3688, fewest, 3688)
    raw = {f"write.{n}.stdout.txt": fio_trial(count) for n, count in enumerate(counts, 1)}
    found = {m.metric: m.values for m in measure.measurements(cell, raw)}
    assert ("clat_p99" in found) is kept
    assert "clat_p99_9" not in found
    assert len(found["clat_p95"]) == len(found["clat_max"]) == len(found["iops"]) == 3
    few = {u.metric: (u.requests, u.needed) for u in measure.unsupported(cell, raw)}
    assert few["clat_p99_9"] == (fewest, 3688)
    assert ("clat_p99" not in few) is kept
