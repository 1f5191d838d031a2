"""Raw output to measurements and counters: recorded lines, and unreadable ones."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from lab.analysis import measure
from lab.compile.cell import procedure
from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import ToolError
from lab.core.yaml import parse_override
from lab.model.result.measurement import Prediction
from lab.model.scenario.document import Cell
from tests.fakes import SCENARIO, compiled_text

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
    return compiled_text(directory, SCENARIO, *sets).base


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
    cell = compiled_text(tmp_path, SCENARIO.replace("name: read", "name: write_read")).base
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


COLUMNS = {
    # Fields of /proc/diskstats in the kernel's order (iostats.rst): what one more of each adds.
    "reads": {"reads": 1},
    "reads merged": {},
    "sectors read": {"read_bytes": 512},
    "milliseconds of reads": {},
    "writes": {"writes": 1},
    "writes merged": {},
    "sectors written": {"written_bytes": 512},
    "milliseconds of writes": {},
    "in flight": {},
    "milliseconds of I/O": {},
    "weighted milliseconds": {},
    "discards": {"discards": 1},
    "discards merged": {},
    "sectors discarded": {"discarded_bytes": 512},
    "milliseconds of discards": {},
    "flushes": {"flushes": 1},
    "milliseconds of flushes": {},
}


def looked(*kernel: int, minor: int = 16, own: str = "") -> str:
    """A reading of one disk: its line of /proc/diskstats, and what else was counted."""
    numbers = " ".join(str(n) for n in kernel)
    return f"{own}disk disk1 vdb\n 253 {minor} vdb {numbers}\n"


def change(cell: Cell, before: str, after: str) -> dict[str, object]:
    """What one disk did between two readings."""
    alone = cell.model_copy(update={"disks": (cell.disks[0].model_copy(update={"count": 1}),)})
    texts = {"write.1.before.txt": before, "write.1.after.txt": after}
    (found,) = measure.counters(alone, texts)
    return found.model_dump(exclude={"workload", "trial", "serial"}, exclude_defaults=True)


@pytest.mark.parametrize("column", COLUMNS)
def test_each_column_of_diskstats_is_the_counter_that_it_is_called(cell: Cell, column: str) -> None:
    place = list(COLUMNS).index(column)
    before = [7] * len(COLUMNS)
    after = [n + (i == place) for i, n in enumerate(before)]
    nothing = dict.fromkeys(("reads", "read_bytes", "writes", "written_bytes", "flushes"), 0)
    empty = {} if column == "flushes" else {"empty_flushes": 0}
    found = change(cell, looked(*before), looked(*after))
    assert found == nothing | empty | COLUMNS[column]


def traced(**counts: int) -> str:
    """The kernel's histogram of requests without data, by device."""
    lines = "".join(f"{{ dev: {name[1:]:>10} }} hitcount: {n:>10}\n" for name, n in counts.items())
    return (
        "# event histogram\n#\n# trigger info: hist:keys=dev:vals=hitcount:sort=hitcount:size=2048"
        f" if nr_sector == 0 [active]\n#\n\n{lines}\nTotals:\n    Hits: 9\n    Entries: 1\n"
    )


DEVICE = (253 << 20) + 16


@pytest.mark.parametrize(
    ("before", "after", "writes", "empty"),
    [
        # 10 counted writes and 6 flush commands between the readings: 4 of the 10 are empty.
        (traced(), traced(**{f"d{DEVICE}": 4}), 6, 4),
        (traced(**{f"d{DEVICE}": 3}), traced(**{f"d{DEVICE}": 7, "d8": 100}), 6, 4),
        (traced(d8=5), traced(d8=9), 10, 0),  # flushes of writes with data: REQ_FUA
        (traced(), traced(**{f"d{DEVICE}": 8}), 2, 8),  # more than commands: they shared some
        ("requests vdb 0 5 0 0 1\n", "requests vdb 9 10 6 2 2\n", 6, 4),  # a sealed guest's driver
        ("", traced(**{f"d{DEVICE}": 4}), 10, None),  # not counted from the beginning on
        ("", "", 10, None),
    ],
)
def test_an_empty_flush_is_no_write(
    cell: Cell, before: str, after: str, writes: int, empty: int | None
) -> None:
    zeros = [0] * 17
    after_ = [0, 0, 0, 0, 10, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0]
    found = change(cell, looked(*zeros, own=before), looked(*after_, own=after))
    assert (found["writes"], found.get("empty_flushes")) == (writes, empty)
    assert (found["flushes"], found["written_bytes"]) == (6, 80 * 512)


def test_flushes_of_a_partition_are_those_of_its_disk(cell: Cell) -> None:
    """ZFS makes partitions, and flushes these."""
    part = " 253 17 vdb1 0 0 0 0 0 0 0 0 0 0 0\n 253 33 vdc1 0 0 0 0 0 0 0 0 0 0 0\n"
    own = traced(**{f"d{DEVICE + 1}": 2, f"d{DEVICE + 17}": 5})
    before = looked(*[0] * 17, own=traced()) + part
    after = looked(0, 0, 0, 0, 3, *[0] * 10, 2, 0, own=own) + part
    assert change(cell, before, after)["writes"] == 1


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
    cell = compiled_text(tmp_path, FIO).base
    counts = (3688, fewest, 3688)
    raw = {f"write.{n}.stdout.txt": fio_trial(count) for n, count in enumerate(counts, 1)}
    found = {m.metric: m.values for m in measure.measurements(cell, raw)}
    assert ("clat_p99" in found) is kept
    assert "clat_p99_9" not in found
    assert len(found["clat_p95"]) == len(found["clat_max"]) == len(found["iops"]) == 3
    few = {u.metric: (u.requests, u.needed) for u in measure.unsupported(cell, raw)}
    assert few["clat_p99_9"] == (fewest, 3688)
    assert ("clat_p99" not in few) is kept


def test_a_disk_that_was_pulled_has_no_counters_of_its_driver(tmp_path: Path) -> None:
    overrides = [parse_override("guest.clock=virtual")]
    path = tmp_path / "question.yaml"
    path.write_text(SCENARIO)
    cell = compile_scenario(path, overrides=overrides).base
    script = procedure._counters(cell).replace("/dev/disk/by-id", str(tmp_path))
    assert "/requests" in script  # of a sealed guest
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "disk disk1 " in done.stdout
