"""Predictions for a scenario's cell, or the reason why theory does not cover it."""

from __future__ import annotations

from typing import Any

import pytest

from lab.analysis.predict import named_kernel
from lab.md.facts.kernels import marks_whole_rows, plugs_writes
from lab.md.theory.bucket import Direction
from lab.md.theory.cell import setting_of, why_not
from lab.md.theory.cells import explain, predict
from lab.md.theory.paths import SequentialLoad
from lab.model.scenario.document import Array, Cell, Disk, Filesystem, Throttle, Workload

MIB = 1024**2

WRITE = SequentialLoad(direction=Direction.WRITE, block=MIB, total=100 * MIB)
READ = SequentialLoad(direction=Direction.READ, block=MIB, total=100 * MIB)
STREAMS = {"write": WRITE, "read": READ}


def disk(**more: Any) -> Disk:
    known = {"count": 5, "throttle": Throttle(total_bytes_per_second=5 * MIB)}
    return Disk.model_validate({**known, **more})


def cell(*, disks: tuple[Disk, ...] | None = None, **more: Any) -> Cell:
    array = {"layout": "parity-last", "component_size": 1024 * MIB, **more.pop("array", {})}
    known = {
        "scenario": "layouts",
        "axes": {},
        "guest": {},
        "disks": disks or (disk(),),
        "array": Array.model_validate(array),
        "workloads": tuple(Workload(name=name, tool="dd") for name in ("write", "read", "other")),
    }
    return Cell.model_validate({**known, **more})


def test_the_cell_of_seed_004() -> None:
    found = {(p.workload, p.metric): p for p in predict(cell(), STREAMS)}
    assert found.keys() == {
        (workload, metric)
        for workload in ("write", "read")
        for metric in ("throughput", "iops", "seconds", "disk_read_bytes", "disk_written_bytes")
    }
    moved = {key: p.value for key, p in found.items() if key[1].startswith("disk_")}
    assert moved["read", "disk_read_bytes"] == 100 * MIB
    assert moved["read", "disk_written_bytes"] == 0
    assert moved["write", "disk_written_bytes"] == 150 * MIB
    assert moved["write", "disk_read_bytes"] == 50 * MIB
    assert found["read", "iops"].value == found["read", "throughput"].value / MIB
    assert found["write", "throughput"].value == pytest.approx(10.70e6, rel=0.01)
    assert found["write", "seconds"].value == pytest.approx(9.8, rel=0.01)
    assert found["read", "throughput"].value == pytest.approx(21.85e6, rel=0.01)
    assert found["read", "throughput"].reason


def test_the_level_named_four_is_parity_last() -> None:
    four = predict(cell(array={"level": 4, "layout": None}), STREAMS)
    five = predict(cell(), STREAMS)
    assert [p.value for p in four] == [p.value for p in five]


def test_spares_and_members_choose_the_disks() -> None:
    spare = cell(disks=(disk(count=3), disk(count=1, model="hdd")), array={"spares": 1})
    chosen = cell(disks=(disk(count=3), disk(count=1, model="hdd")), array={"members": 3})
    three = cell(disks=(disk(count=3),))
    values = [[p.value for p in predict(each, STREAMS)] for each in (spare, chosen, three)]
    assert values[0] == values[1] == values[2]
    assert values[0][0] == pytest.approx(10.70e6, rel=0.01)


def test_a_bare_disk() -> None:
    found = predict(cell(disks=(disk(count=1),), array={}, axes={}), STREAMS)
    assert found == []
    bare = Cell.model_validate({**cell(disks=(disk(count=1),)).model_dump(), "array": None})
    values = {(p.workload, p.metric): p.value for p in predict(bare, STREAMS)}
    assert values["read", "seconds"] == pytest.approx((100 - 0.5 - 1) / 5)


def test_the_stripe_cache_can_be_set() -> None:
    small = cell(array={"layout": "left-symmetric", "sysfs": {"stripe_cache_size": 17}})
    usual = cell(array={"layout": "left-symmetric"})
    assert predict(small, STREAMS)[0].value < predict(usual, STREAMS)[0].value * 0.95


def test_bitmaps_do_not_matter_to_reads() -> None:
    marked = cell(array={"bitmap": "internal"})
    found = {(p.workload, p.metric): p.value for p in predict(marked, STREAMS)}
    plain = {(p.workload, p.metric): p.value for p in predict(cell(), STREAMS)}
    assert found["read", "seconds"] == plain["read", "seconds"]
    assert found["write", "seconds"] > plain["write", "seconds"]


def test_write_mostly_members_are_not_read() -> None:
    fast = disk(count=1, throttle=Throttle(total_bytes_per_second=50 * MIB))
    slow = disk(count=1)
    mirror = cell(
        disks=(slow, fast), array={"level": "raid1", "layout": None, "write_mostly": (1,)}
    )
    values = {(p.workload, p.metric): p.value for p in predict(mirror, STREAMS)}
    assert values["read", "seconds"] == pytest.approx((100 - 5 - 1) / 50)
    assert values["write", "seconds"] == pytest.approx((100 - 0.5 - 1) / 5)


@pytest.mark.parametrize(
    ("case", "stream", "words"),
    [
        (cell(disks=(disk(throttle=Throttle()),)), READ, "no limit on its reads"),
        (
            cell(disks=(disk(throttle=Throttle(write_bytes_per_second=5 * MIB)),)),
            WRITE,
            "no limit on its reads",
        ),
        (cell(array={"bitmap": "lockless"}), WRITE, "lockless bitmap"),
        (cell(array={"consistency_policy": "ppl"}), WRITE, "partial parity log"),
        (cell(array={"journal_disk": 5}), WRITE, "writes of a journal"),
        (cell(array={"level": "linear"}), READ, "'linear'"),
        (cell(array={"level": "raid5", "layout": "n2"}), READ, "no layout 'n2'"),
        (cell(array={"kind": "zfs"}), READ, "'zfs'"),
        (cell(array={"initial_sync": "none"}), READ, "initial sync"),
        (cell(array={"sysfs": {"skip_copy": "1"}}), WRITE, "skip_copy"),
        (cell(array={"sysfs": {"rmw_level": "often"}}), WRITE, "whole numbers"),
        (cell(array={"component_size": 10 * MIB}), READ, "has about 41943040"),
        (cell(array={"members": 9}), READ, "9 members"),
        (cell(filesystem=Filesystem(type="ext4")), READ, "file system"),
        (cell(disks=(disk(model="hdd"),)), READ, "'hdd'"),
        (cell(disks=(disk(scheduler="bfq"),)), READ, "'bfq'"),
        (cell(array={"chunk": MIB}), WRITE, "cuts and merges"),
        (
            cell(disks=(disk(throttle=Throttle(total_operations_per_second=20)),)),
            WRITE,
            "cuts and merges",
        ),
        (
            cell(disks=(disk(throttle=Throttle(total_bytes_per_second=5000 * MIB)),)),
            READ,
            "before the throttles",
        ),
        (
            cell(),
            SequentialLoad(direction=Direction.READ, block=MIB, total=MIB, depth=4),
            "one request",
        ),
        (
            cell(),
            SequentialLoad(direction=Direction.WRITE, block=1000, total=10**6),
            "multiples of 4096",
        ),
    ],
)
def test_where_theory_has_nothing_to_say_it_says_why(
    case: Cell, stream: SequentialLoad, words: str
) -> None:
    reason = why_not(case, stream)
    assert reason is not None
    assert words in reason
    assert predict(case, {"write": stream}) == []


def test_an_operations_limit_out_of_reach_leaves_no_doubt() -> None:
    loose = Throttle(total_bytes_per_second=5 * MIB, total_operations_per_second=10**6)
    assert why_not(cell(disks=(disk(throttle=loose),)), WRITE) is None


def test_a_shared_cable() -> None:
    usb = Throttle(total_bytes_per_second=5 * MIB, group="usb")
    (rate, *_) = predict(cell(disks=(disk(throttle=usb),)), {"read": READ})
    assert rate.value == pytest.approx(5 * MIB, rel=0.02)


def test_a_missing_member_is_not_read_from_and_the_others_are_read_more() -> None:
    """A long read on five rotating disks: a row that lacks one of its data reads the others."""
    array = {"layout": "left-symmetric", "chunk": 64 * 1024}
    whole, short = (
        {
            p.workload: p.value
            for p in predict(cell(array={**array, **more}), STREAMS)
            if p.metric == "seconds"
        }
        for more in ({}, {"missing": 2})
    )
    assert short["read"] == pytest.approx(whole["read"] * 5 / 4, rel=0.03)
    assert short["write"] == pytest.approx(whole["write"], rel=0.03)


BESIDE = Disk(serial="fast", size=64 * MIB, model="none")


def aside(**throttle: int) -> Cell:
    """Return a cell with four members, a bitmap in a file, and the disk of the file."""
    fast = BESIDE
    if throttle:
        fast = Disk(serial="fast", size=64 * MIB, throttle=Throttle(**throttle))
    array = {"bitmap": "external", "bitmap_disk": 1, "bitmap_chunk": 65536}
    return cell(disks=(fast, disk(count=4)), array=array)


def test_a_bitmap_on_a_fast_disk_costs_nothing_and_its_disk_is_no_member() -> None:
    with_file = {(p.workload, p.metric): p.value for p in predict(aside(), STREAMS)}
    without = {
        (p.workload, p.metric): p.value for p in predict(cell(disks=(disk(count=4),)), STREAMS)
    }
    assert with_file == without
    assert with_file
    explained = explain(aside(), "write", WRITE)
    assert [m.serial for m in explained.members] == ["disk2", "disk3", "disk4", "disk5"]


def test_a_bitmap_on_a_slow_disk_may_cost_something() -> None:
    assert why_not(aside(total_operations_per_second=100), WRITE) is None
    assert "total_operations_per_second is 5" in (
        why_not(aside(total_operations_per_second=5), WRITE) or ""
    )
    assert why_not(aside(read_bytes_per_second=1), WRITE) is None
    assert "write_bytes_per_second is 4096" in (
        why_not(aside(write_bytes_per_second=4096), WRITE) or ""
    )
    assert why_not(aside(write_bytes_per_second=4096), READ) is None


KERNELS = {
    # version: whether it plugs each write, and marks whole rows of chunks
    "6.1.0-56-cloud-amd64": (True, False),
    "6.4.16": (True, False),
    "6.5.13": (False, False),
    "6.6.30": (False, False),
    "6.6.90": (False, None),
    "6.12.12": (False, False),
    "6.12.57+deb13-cloud-amd64": (False, True),
    "6.13.1": (False, False),
    "6.13.2": (False, True),
    "6.14-rc7": (False, True),
    "7.2.1-amd64": (False, True),
    "next": (None, None),
    None: (None, None),
}


@pytest.mark.parametrize("version", KERNELS)
def test_rules_follow_the_kernel_and_not_the_images_name(version: str | None) -> None:
    assert (plugs_writes(version), marks_whole_rows(version)) == KERNELS[version]
    for image in ("debian-12", "debian-13", "mine"):
        guest = {"image": image}
        array = {"bitmap": "internal", "bitmap_chunk": 16 * 1024}
        setting = setting_of(cell(guest=guest, array=array), WRITE, None, version)
        assert setting.bitmap is not None
        assert (setting.plugged, setting.bitmap.whole_rows) == KERNELS[version]


@pytest.mark.parametrize(
    ("kernel", "version"),
    [
        ("linux-image-6.12.57+deb13-cloud-amd64", "6.12.57+deb13-cloud-amd64"),
        ("linux-image-cloud-amd64", None),
        ("./bzImage", None),
        (None, None),
    ],
)
def test_a_kernels_package_says_its_version(kernel: str | None, version: str | None) -> None:
    assert named_kernel(cell(guest={"kernel": kernel})) == version
