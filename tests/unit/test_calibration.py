"""Calibration of bare disks: probes, expected values, and failed calibrations."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.analysis.disk_speed import check_of
from lab.model.result.calibration import CALIBRATED, VIRTUAL_DRIVES, Calibration, kind_of
from lab.model.result.document import Outcome
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import Cell, Disk
from lab.results.documents import result_of
from lab.run import calibration
from lab.run.preparation.platforms import Platform
from lab.run.task import task_of
from lab.store import calibrations
from tests.fakes import SCENARIO, compiled_text, stored_run

PLACES = cast(
    "dict[str, Platform]",
    {
        ("debian-12", None, None): SimpleNamespace(
            image=SimpleNamespace(digest="0" * 64), accelerator=SimpleNamespace(kind="tcg")
        )
    },
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))


def cell(directory: Path, *sets: str) -> Cell:
    return compiled_text(directory, SCENARIO, *sets).base


def wish(tmp_path: Path, *sets: str) -> calibration.Wanted:
    (found,), known = calibration.wanted([cell(tmp_path, *sets)], PLACES)
    assert known == []
    return found


def said(wish: calibration.Wanted, share: float, short: int = 0) -> dict[str, str]:
    """Return dd's output for disks that are so much faster than their model."""
    raw = {}
    for probe in wish.probes:
        total = probe.workload.parameters["bs"] * probe.workload.parameters["count"] - short
        (rate,) = [p.value for p in wish.expected() if p.workload == probe.workload.name][:1]
        raw[f"{probe.workload.name}.1.stderr.txt"] = (
            f"{total} bytes (1 MB) copied, {total / (rate * share):.6f} s, 1 MB/s\n"
        )
    return raw


def test_a_limit_on_bytes_is_met_by_a_stream_each_way(tmp_path: Path) -> None:
    found = wish(tmp_path, "disks.throttle={total_bytes_per_second: 5MiB}")
    assert [p.workload.name for p in found.probes] == ["write_bytes", "read_bytes"]
    assert found.cell.array is None
    assert len(found.cell.each_disk) == 4  # those that stay plugged in for the cells
    rate = 5 * 1024**2
    throughput = [p.value for p in found.expected() if p.metric == "throughput"]
    assert len(throughput) == 2
    assert all(rate < value < 1.1 * rate for value in throughput)  # the initial burst
    assert calibration.calibrate(found, said(found, 1.019)).passed
    off = calibration.calibrate(found, said(found, 0.979))
    assert not off.passed
    assert "write bytes -2.1% (2% allowed)" in off.detail


def test_a_limit_on_operations_is_met_page_by_page(tmp_path: Path) -> None:
    found = wish(tmp_path, "disks.throttle={read_operations_per_second: 100}")
    (probe,) = found.probes
    assert probe.workload.parameters["bs"] == 4096
    assert probe.workload.parameters["count"] == 300
    (value,) = [p.value for p in found.expected() if p.metric == "throughput"]
    assert value == pytest.approx(4096 * 100, rel=0.05)


def test_a_burst_is_measured_for_as_long_as_a_limit(tmp_path: Path) -> None:
    """A probe of 0.3 s would measure the guest as much as the disk."""
    burst = "total_operations_per_second_max: 1000, total_operations_per_second_max_seconds: 60"
    found = wish(tmp_path, f"disks.throttle={{total_operations_per_second: 100, {burst}}}")
    assert {p.workload.parameters["count"] for p in found.probes} == {3000}
    expected = [p.value for p in found.expected()]
    assert expected == pytest.approx([4096 * 1000] * 2, rel=0.05)
    short = burst.replace("60", "1")
    found = wish(tmp_path, f"disks.throttle={{total_operations_per_second: 100, {short}}}")
    assert {p.workload.parameters["count"] for p in found.probes} == {1200}
    small = (
        f"disks={{count: 4, size: 4MiB, throttle: {{total_operations_per_second: 100, {burst}}}}}"
    )
    found = wish(tmp_path, small, "array.component_size=1MiB")
    assert {p.workload.parameters["count"] for p in found.probes} == {300}


def test_disks_that_promise_nothing_are_not_measured(tmp_path: Path) -> None:
    for sets in (("disks.model=none", "disks.throttle={}"), ("disks.throttle={}",)):
        assert calibration.wanted([cell(tmp_path, *sets)], PLACES) == ([], [])
    assert calibration.wanted([cell(tmp_path, "workloads=[]", "claims=[]")], PLACES) == ([], [])


def test_a_kind_of_disk_is_measured_once(tmp_path: Path) -> None:
    one, other = cell(tmp_path), cell(tmp_path, "disks.count=3", "array.level=5")
    (missing,), known = calibration.wanted([one, other], PLACES)
    assert known == []
    calibrations.keep(missing.key, calibration.calibrate(missing, said(missing, 1.0)))
    nothing, (remembered,) = calibration.wanted([one, other], PLACES)
    assert nothing == []
    assert remembered.passed
    faster = cell(tmp_path, "disks.throttle={total_bytes_per_second: 6MiB}")
    assert len(calibration.wanted([faster], PLACES)[0]) == 1
    other_image: dict[Any, Any] = {
        ("debian-12", None, None): SimpleNamespace(**vars(PLACES["debian-12", None, None]))
    }
    other_image["debian-12", None, None].image = SimpleNamespace(digest="1" * 64)
    assert len(calibration.wanted([one], other_image)[0]) == 1


def test_a_disk_that_was_off_is_measured_again_after_a_day(tmp_path: Path) -> None:
    again = wish(tmp_path)
    calibrations.keep(again.key, calibration.calibrate(again, said(again, 0.9)))
    missing, (known,) = calibration.wanted([cell(tmp_path)], PLACES)
    assert missing == []
    assert not known.passed
    (kept,) = (tmp_path / "home").rglob(f"{again.key}.json")
    old = kept.stat().st_mtime - calibrations.DOUBTED - 1
    os.utime(kept, (old, old))
    assert [w.key for w in calibration.wanted([cell(tmp_path)], PLACES)[0]] == [again.key]


def test_a_run_that_goes_on_keeps_what_it_knows_of_disks_that_are_done(tmp_path: Path) -> None:
    again = wish(tmp_path)
    old = calibration.calibrate(again, {}, "the host was too busy")
    other = old.model_copy(update={"disk": {"model": "hdd"}})
    assert calibration.standing([old, other], [], []) == (old, other)
    assert calibration.standing([old, other], [again], []) == (other,)
    good = calibration.calibrate(again, said(again, 1.0))
    assert calibration.standing([old, other], [], [good]) == (other, good)


def test_what_could_not_be_measured_says_why(tmp_path: Path) -> None:
    found = wish(tmp_path)
    assert not calibration.calibrate(found, {}, "the guest died").passed
    unread = calibration.calibrate(found, {})
    assert "cannot be read" in unread.detail
    assert not calibration.calibrate(found, said(found, 1.0, short=4096)).passed


def test_a_cell_is_marked_by_its_worst_disks(tmp_path: Path) -> None:
    subject = cell(tmp_path)
    good = calibration.calibrate(wish(tmp_path), said(wish(tmp_path), 1.0))
    (check,) = check_of(subject, [good])
    assert check.passed
    bad = good.model_copy(update={"problem": "no"})
    (check,) = check_of(subject, [good, bad])
    assert not check.passed
    other = Calibration(disk={"model": "throttle"}, problem="of other disks")
    assert check_of(subject, [other]) == ()


# --- modelled drives -----------------------------------------------------------------------------

HDD = ("disks.model=hdd", "disks.throttle={}", "disks.preset=hdd_7200", "disks.size=4GiB")
MIXED = """\
title: A modelled drive and a throttled disk
question: Which of them is calibrated?
disks:
  - {model: hdd, size: 1GiB}
  - {size: 1GiB, throttle: {total_bytes_per_second: 5MiB}}
array: {level: 1, component_size: 64MiB}
workloads:
  - {name: read, tool: dd, if: '{target}', bs: 1MiB, count: 8, iflag: direct}
"""


@pytest.mark.parametrize("sets", [HDD, ("disks.model=ssd", "disks.throttle={}")])
def test_modelled_drives_are_not_calibrated_and_in_real_time_not_judged(
    tmp_path: Path, sets: tuple[str, ...]
) -> None:
    real = cell(tmp_path, *sets)
    assert calibration.wanted([real], PLACES) == ([], [])
    (check,) = check_of(real, [])
    assert (check.name, check.passed) == (VIRTUAL_DRIVES, False)
    assert "run it with --clock virtual" in check.detail
    task = task_of(real)
    busy = "cpu=1\nwait=9\nseconds=10\n"
    raw = {f"{w.name}.1.pressure.txt": busy for w in real.workloads}
    assert task.contention(raw) == ()  # a repetition would not be judged either
    virtual = cell(tmp_path, *sets, "guest.clock=virtual")
    assert check_of(virtual, []) == ()


def test_one_modelled_drive_is_enough_and_other_disks_are_calibrated(tmp_path: Path) -> None:
    mixed = compiled_text(tmp_path, MIXED, name="mixed").base
    (throttled,), known = calibration.wanted([mixed], PLACES)
    assert (throttled.disk.model, known) == ("throttle", [])
    found = calibration.calibrate(throttled, said(throttled, 1.0))
    assert found.passed
    assert [c.passed for c in check_of(mixed, [found])] == [True, False]
    assert [c.name for c in check_of(mixed, [])] == [VIRTUAL_DRIVES]


def test_a_throttled_cell_that_lacked_cpu_is_still_contended(tmp_path: Path) -> None:
    task = task_of(cell(tmp_path))
    busy = "cpu=1\nwait=9\nseconds=10\n"
    raw = {f"{w.name}.1.pressure.txt": busy for w in task.cell.workloads}
    assert not any(c.passed for c in task.contention(raw))
    assert {c.workload for c in task.contention(raw)} == {w.name for w in task.cell.workloads}
    assert check_of(task.cell, []) == ()


def test_a_run_of_an_earlier_version_is_judged_by_its_own_calibration(tmp_path: Path) -> None:
    """Earlier versions stored a time by the model alone, and the guest overhead."""
    real = cell(tmp_path, *HDD)
    point = {
        "name": "random_read_1",
        "metric": "iops",
        "unit": "1/s",
        "measured": 72.0,
        "expected": 72.4,
        "model": 80.6,
        "guest": 0.0014,
        "tolerance": 0.08,
    }
    stored = {
        "disk": kind_of(real.disks[0]),
        "points": [point],
        "guest": {"random_read_1": 0.0014, "flush": 0.0028},
    }
    (check,) = check_of(real, [Calibration.model_validate(stored)])
    assert (check.name, check.passed) == (CALIBRATED, True)
    assert check.guest_share == pytest.approx(0.113, abs=0.001)
    slow = {**stored, "points": [point | {"measured": 57.4, "expected": 57.4, "guest": 0.005}]}
    (check,) = check_of(real, [Calibration.model_validate(slow)])
    assert not check.passed
    assert "the guest overhead is up to 40.4% of a request" in check.detail


def test_a_run_on_modelled_drives_in_real_time_says_how_to_get_a_verdict(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    before = {c.id: c.verdict for c in result_of(run).claims}
    assert Verdict.HOLDS in before.values()
    stored = run.load_run()
    drive = {"model": "hdd", "size": "1GiB"}
    cells = []
    for each in stored.cells:
        disks = tuple(
            Disk.model_validate({**drive, "count": d.count, "serial": d.serial})
            for d in each.cell.disks
        )
        cells.append(
            each.model_copy(update={"cell": each.cell.model_copy(update={"disks": disks})})
        )
    run.save_run(stored.model_copy(update={"cells": tuple(cells)}))
    result = result_of(run)
    for claim in result.claims:
        assert claim.verdict is Verdict.INCONCLUSIVE
        if before[claim.id] is not Verdict.INCONCLUSIVE:  # a lost cell's comes first
            assert "has modelled drives in real time" in claim.reason
            assert "run it with --clock virtual, or set guest.clock to virtual" in claim.reason
    assert all(cell.measurements for cell in result.cells if cell.outcome is Outcome.DONE)
