"""Bare disks against their models: what is measured, what it is held against, what is off."""

from __future__ import annotations

import json
import math
import os
import random
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.analysis.calibration import check_of
from lab.compile.scenario.document import compile_scenario
from lab.core.units import MIB
from lab.core.yaml import parse_override
from lab.host.system import load
from lab.md.theory.drive import figures
from lab.model.result.calibration import Calibration, GuestTimes
from lab.model.scenario.document import Cell
from lab.model.scenario.drive import HardDrive
from lab.plugins import catalog
from lab.plugins.disks import hdd
from lab.plugins.disks._shared import PACE
from lab.run import calibration
from lab.run.options import RunOptions
from lab.run.preparation.platforms import Platform
from lab.run.scheduling.decide import Assign, decide
from lab.run.scheduling.executor import Execution
from lab.run.task import calibration_of
from lab.store import calibrations
from tests.fakes import SCENARIO

PLACES = cast(
    "dict[str, Platform]",
    {
        ("debian-12", None): SimpleNamespace(
            image=SimpleNamespace(digest="0" * 64), accelerator=SimpleNamespace(kind="tcg")
        )
    },
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))


def cell(directory: Path, *sets: str) -> Cell:
    path = directory / "q.yaml"
    path.write_text(SCENARIO)
    return compile_scenario(path, overrides=[parse_override(s) for s in sets]).base


def wish(tmp_path: Path, *sets: str) -> calibration.Wanted:
    (found,), known = calibration.wanted([cell(tmp_path, *sets)], PLACES)
    assert known == []
    return found


def said(wish: calibration.Wanted, share: float, short: int = 0) -> dict[str, str]:
    """What dd prints of disks that are so much faster than their model."""
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
    assert all(rate < value < 1.1 * rate for value in throughput)  # the bucket's bonus
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
        ("debian-12", None): SimpleNamespace(**vars(PLACES["debian-12", None]))
    }
    other_image["debian-12", None].image = SimpleNamespace(digest="1" * 64)
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


# --- modelled disks: the guest's own time is measured first --------------------------------------

GUEST = GuestTimes(
    random_read_1=0.0014,
    random_read_16=0.0009,
    sequential_1=0.0050,
    sequential=0.0040,
    flush=0.0028,
)
HDD = ("disks.model=hdd", "disks.throttle={}", "disks.preset=hdd_7200", "disks.size=4GiB")


def fio(wish: calibration.Wanted, rates: dict[str, float]) -> dict[str, str]:
    """What fio prints of a probe whose metric came to that."""
    raw = {}
    for probe in wish.probes:
        options = probe.workload.parameters
        each = options["bs"] if probe.metric == "throughput" else 1
        done = round(rates[probe.workload.name] / each * 1000)
        side = {
            "total_ios": done,
            "io_bytes": done * options["bs"],
            "runtime": 1_000_000,
            "lat_ns": {"mean": 1.0},
            "clat_ns": {"percentile": {f"{p:.6f}": 1 for p in (50, 95, 99, 99.9)}},
        }
        way = "write" if "write" in options["rw"] else "read"
        raw[f"{probe.workload.name}.1.stdout.txt"] = "{\n" + json.dumps({"jobs": [{way: side}]})[1:]
    return raw


def pair(tmp_path: Path, *sets: str) -> tuple[list[calibration.Wanted], calibration.Wanted]:
    """What measures the guest, in order, and the disk itself."""
    (*own, disk), known = calibration.wanted([cell(tmp_path, *(sets or HDD))], PLACES)
    assert known == []
    return own, disk


COLD = 1.5
"""A guest that did not rest takes so much less."""


def guest_seen(own: list[calibration.Wanted], guest: GuestTimes = GUEST) -> Calibration:
    """The guest's time as it is found: in haste first, then as it is."""
    times = guest.model_dump()
    hasty, *paced = own
    hurried = {k: v / COLD if k in ("random_read_1", "flush") else v for k, v in times.items()}
    found = calibration.conclude(hasty, fio(hasty, {k: 1 / v for k, v in hurried.items()}))
    for wish in paced:
        commands = {"random_read_1": 1, "flush": 2}
        rates = {k: 1 / (times[k] + n * PACE) for k, n in commands.items()}
        found = calibration.conclude(wish, fio(wish, rates))
    return found


def seen(disk: calibration.Wanted, drive: HardDrive, guest: GuestTimes) -> dict[str, str]:
    """What a guest measures of a drive."""
    size = disk.disk.size // drive.zones
    found = figures(drive, guest, span=size)
    return fio(
        disk,
        {
            "random_read_1": found.random_read_1,
            "random_read_16": found.random_read_16,
            "sequential": found.sequential_outer,
            "flush": 1 / found.flush,
            "revolutions": found.revolutions,
        },
    )


DRIVE = hdd.PRESETS["hdd_7200"]


def test_the_guests_own_time_is_measured_first_and_once(tmp_path: Path) -> None:
    (hasty, paced), disk = pair(tmp_path)
    assert hasty.own
    assert paced.own
    assert (hasty.first, paced.first, disk.first) == ("", hasty.key, paced.key)
    assert hasty.expected() == paced.expected() == ()
    assert disk.times() is None
    kept = guest_seen([hasty, paced])
    assert kept.passed
    assert disk.times() == kept.guest
    assert kept.guest is not None
    for name, seconds in GUEST.model_dump().items():
        assert getattr(kept.guest, name) == pytest.approx(seconds, rel=0.01), name
    haste = paced.times()
    assert haste is not None
    assert haste.random_read_1 == pytest.approx(GUEST.random_read_1 / COLD, rel=0.01)
    cells = [
        cell(tmp_path, *HDD, more)
        for more in ("disks.count=3", "disks.preset=hdd_10000", "disks.size=2GiB")
    ]
    missing, known = calibration.wanted(cells, PLACES)
    assert kept in known  # every drive behind such a server, whatever its figures
    assert len(known) == 2
    assert [(w.own, w.first) for w in missing] == [(False, paced.key)] * 3
    (scsi, *_), _ = calibration.wanted([cell(tmp_path, *HDD, "disks.bus=scsi")], PLACES)
    assert scsi.own  # another way through the guest


@pytest.mark.parametrize(
    ("model", "more", "rests"),
    [("hdd", (), True), ("ssd", (), False), ("ssd", ("disks.ssd.slower=100",), True)],
)
def test_the_disk_that_takes_no_time_is_one_that_a_cell_can_have(
    tmp_path: Path, model: str, more: tuple[str, ...], rests: bool
) -> None:
    (own, *paced), _ = pair(tmp_path, f"disks.model={model}", "disks.throttle={}", *more)
    plugin = catalog.disk_model(model)
    assert list(plugin.problems(own.disk)) == []
    drive = plugin.drive(own.disk)
    assert drive is not None
    alone = figures(drive)
    assert alone.random_read_1 > 1e6
    assert alone.flush < 1e-6
    assert figures(drive, GUEST).random_read_1 == pytest.approx(1 / GUEST.random_read_1, rel=0.01)
    assert set(GuestTimes.model_fields) == {p.workload.name for p in own.probes}
    assert len(paced) == rests  # where a guest rests in between
    for wish in paced:
        assert list(plugin.problems(wish.disk)) == []
        slow = plugin.drive(wish.disk)
        assert slow is not None
        assert figures(slow).random_read_1 == pytest.approx(1 / PACE, rel=1e-4)
        assert figures(slow).flush == pytest.approx(2 * PACE, rel=1e-4)


def test_a_modelled_disk_is_held_against_its_drive_as_this_guest_sees_it(tmp_path: Path) -> None:
    own, disk = pair(tmp_path)
    guest_seen(own)
    found = calibration.conclude(disk, seen(disk, DRIVE, GUEST))
    assert found.passed, found.detail
    points = {p.name: p for p in found.points}
    first = points["random_read_1"]
    assert first.model == pytest.approx(80.6, abs=0.1)
    assert first.expected == pytest.approx(1 / (1 / 80.607 + 0.0014), rel=0.001)
    assert first.guest == pytest.approx(0.0014, rel=0.001)
    assert first.guest_share == pytest.approx(0.0014 * 80.6, rel=0.01)
    assert points["random_read_16"].guest_share < 0.05  # beside the drive's other work
    assert points["revolutions"].expected == pytest.approx(120)
    assert "+11.3% of random read 1 (1.40 ms)" in found.detail
    (known,) = [c for c in calibration.wanted([cell(tmp_path, *HDD)], PLACES)[1] if c.points]
    assert known == found
    # Without the guest's time the same figures were off: the model is right, and would be blamed.
    alone = calibration.calibrate(disk, seen(disk, DRIVE, GUEST))
    assert not alone.passed


CONTROLS = {
    "too few revolutions": replace(DRIVE, rpm=7200 * 0.85),
    "too many revolutions": replace(DRIVE, rpm=7200 * 1.15),
    "seeks too long": replace(DRIVE, average_seek=DRIVE.average_seek * 1.2),
    "a slow medium": replace(DRIVE, outer_rate=DRIVE.outer_rate * 0.88),
    "a slow controller": replace(DRIVE, overhead=0.0016),
}


@pytest.mark.parametrize("broken", CONTROLS.values(), ids=CONTROLS)
def test_a_drive_that_is_another_one_is_off_in_a_slow_guest_too(
    tmp_path: Path, broken: HardDrive
) -> None:
    own, disk = pair(tmp_path)
    guest_seen(own)
    found = calibration.conclude(disk, seen(disk, broken, GUEST))
    assert not found.passed
    assert any(abs(p.error) > p.tolerance for p in found.points)


def test_a_server_that_loses_its_rotation_is_off(tmp_path: Path) -> None:
    own, disk = pair(tmp_path)
    guest_seen(own)
    still = figures(replace(DRIVE, rpm=0), GUEST)
    rates = {
        "random_read_1": still.random_read_1,
        "random_read_16": still.random_read_16,
        "sequential": still.sequential_outer,
        "flush": 1 / still.flush,
        "revolutions": 1 / (GUEST.flush + 2 * DRIVE.overhead),
    }
    found = {p.name: p for p in calibration.conclude(disk, fio(disk, rates)).points}
    assert not any(found[n].passed for n in ("random_read_1", "flush", "revolutions"))


def test_a_guest_that_is_too_slow_for_the_disk_is_told_from_a_disk_that_is_off(
    tmp_path: Path,
) -> None:
    own, disk = pair(tmp_path)
    slow = GUEST.model_copy(update={"random_read_1": 0.005})
    guest_seen(own, slow)
    found = calibration.conclude(disk, seen(disk, DRIVE, slow))
    assert all(abs(p.error) <= p.tolerance for p in found.points)
    assert not found.passed
    assert "+40.3% of random read 1 (5.00 ms)" in found.detail
    assert "random read 16" not in found.detail  # of a disk that fails, what does
    assert "this guest is too slow to measure such a disk" in found.detail
    # The same 5 ms where the guest did not take them: the disk is off.
    other = calibration.calibrate(disk, seen(disk, DRIVE, slow), guest=GUEST)
    assert [p.name for p in other.points if abs(p.error) > p.tolerance] == ["random_read_1"]
    assert "too slow" not in other.detail


def test_without_the_guests_own_time_nothing_is_said_of_the_disk(tmp_path: Path) -> None:
    own, disk = pair(tmp_path)
    assert not calibration.conclude(own[0], {}, "the host was too busy").passed
    assert not calibration.conclude(own[1], fio(own[1], {"random_read_1": 90, "flush": 45})).passed
    found = calibration.conclude(disk, seen(disk, DRIVE, GUEST))
    assert "the guest overhead, which is part of it, could not be measured" in found.detail
    assert calibration.wanted([cell(tmp_path, *HDD)], PLACES)[1] == []  # nothing was kept


def test_a_cells_check_carries_the_guests_share(tmp_path: Path) -> None:
    own, disk = pair(tmp_path)
    guest_seen(own)
    found = calibration.conclude(disk, seen(disk, DRIVE, GUEST))
    (check,) = check_of(cell(tmp_path, *HDD), [found])
    assert check.passed
    assert check.guest_share == pytest.approx(0.113, abs=0.001)


@pytest.mark.parametrize("name", hdd.PRESETS)
def test_the_probes_are_long_enough_for_what_they_allow(tmp_path: Path, name: str) -> None:
    """Three standard errors of random requests' mean within three quarters of what is allowed."""
    drive = hdd.PRESETS[name]
    _, disk = pair(tmp_path, *HDD, f"disks.preset={name}")
    draw = random.Random(1).random
    times = [
        drive.overhead + drive.seek_curve(abs(draw() - draw())) + draw() * drive.revolution
        for _ in range(20_000)
    ]
    stray = stdev(times) / mean(times)
    for probe in disk.probes:
        if probe.workload.name in ("random_read_1", "flush"):
            requests = float(probe.workload.parameters["runtime"]) / mean(times)
            assert 3 * stray / math.sqrt(requests) <= 0.75 * max(probe.tolerance, 0.08)


def test_a_disk_waits_until_the_guests_own_time_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, disk = pair(tmp_path)
    monkeypatch.setattr(load, "throughput", lambda: 1e15)
    run = Execution(
        store=cast("Any", SimpleNamespace(directory=tmp_path)),
        compiled=cast("Any", None),
        platforms={},
        watch=print,
        say=print,
        options=RunOptions(),
    )
    first, second, third = (calibration_of(wish) for wish in (*own, disk))
    idle = SimpleNamespace(id="g1", guest=first.cell.guest, up=True, busy=False, reserved=False)
    run._pool.workers = [cast("Any", idle)]
    run._waiting = [third, second, first]
    for task in (first, second, third):
        assert decide(run._state()) == (Assign(task.id, "g1"),)
        run._waiting.remove(task)
        run._running = {"g2": task}
        assert run._waiting == [] or decide(run._state()) == ()
        run._running = {}


def test_a_slow_stream_is_measured_for_as_long_as_it_takes(tmp_path: Path) -> None:
    """2.2 MB/s in 3 s are six requests, and a seventh was called 12.5 % too fast."""

    def seconds(*sets: str) -> float:
        _, disk = pair(tmp_path, *HDD, *sets)
        (stream,) = [p for p in disk.probes if p.workload.name == "sequential"]
        return float(stream.workload.parameters["runtime"])

    assert seconds() == 3
    slow = seconds("disks.hdd.outer_rate=2.2MB", "disks.hdd.inner_rate=2.2MB")
    assert slow * 2.2e6 / MIB >= 40
