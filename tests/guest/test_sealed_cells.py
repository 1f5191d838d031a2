"""Arrays, file systems and faults in sealed guests: each is built, read back and used."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lab.analysis import measure
from lab.compile.cell.procedure import EMPTY_FLUSHES, cell_procedure
from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import LabError
from lab.core.yaml import parse_override
from lab.host import images
from lab.host.guest.virtual import limits, region_file
from lab.host.guest.virtual.sealed import SealedBackend
from lab.host.images import virtual_time
from lab.model.execution.job import CellJob, SealedKit
from lab.model.execution.procedure import GuestCommand, Procedure, Timed, Verify
from lab.model.result.measurement import Check
from lab.model.scenario.document import Cell
from lab.plugins import catalog
from lab.run.steps import CheckFailedError, Undo, run_procedure
from tests import sealed
from tests.fakes import PLUGIN, compiled_text

from .conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.timeout(3600)]
pytest_plugins = ["pytester"]

GUEST = "guest: {image: debian-12, cpus: 1, memory: 512MiB, clock: virtual}\n"

SEGMENTS = f"""\
title: Segments
question: Is a volume over four arrays built, and as fast as theory says?
{GUEST}disks: {{count: 4, size: 512MiB, throttle: {{total_bytes_per_second: 5MiB}}}}
array: {{kind: segments, segments: 4, level: 5, chunk: 64KiB, bitmap: none}}
workloads:
  - {{name: write, tool: dd, of: '{{target}}', bs: 768KiB, count: 20, oflag: direct}}
  - {{name: read, tool: dd, if: '{{target}}', bs: 768KiB, count: 20, iflag: direct}}
matrix:
  array.kind: [segments, md]
  array.volume: [linear, striped]
  exclude: [{{array.kind: md, array.volume: striped}}]
"""

EXTERNAL = f"""\
title: A bitmap's file
question: Is it where it should be, and are its bits those that were asked for?
{GUEST}disks:
  - {{count: 3, size: 256MiB, throttle: {{total_operations_per_second: 200}}}}
  - {{count: 1, size: 64MiB, serial: fast, model: none}}
array: {{level: 5, chunk: 64KiB, bitmap: external, bitmap_disk: 4}}
workloads:
  - {{name: write, tool: fio, rw: randwrite, bs: 4KiB, direct: true, ioengine: libaio,
     iodepth: 8, number_ios: 400}}
matrix:
  array.bitmap: [external, none]
  array.bitmap_chunk: [null, 64KiB]
  exclude: [{{array.bitmap: none, array.bitmap_chunk: 64KiB}}]
"""

FILESYSTEMS = f"""\
title: File systems
question: Are all of them made and mounted, on an array and on a volume?
{GUEST}disks: {{count: 4, size: 512MiB, throttle: {{total_bytes_per_second: 60MiB}}}}
array: {{kind: md, segments: 2, level: 5, chunk: 64KiB, bitmap: none}}
filesystem: {{type: ext4}}
workloads:
  - {{name: tree, tool: file_tree, files: 100}}
matrix:
  filesystem.type: [ext3, ext4, xfs]
  array.kind: [md, segments]
  exclude:
    - {{filesystem.type: ext3, array.kind: segments}}
    - {{filesystem.type: ext4, array.kind: md}}
    - {{filesystem.type: xfs, array.kind: md}}
"""

DISKS = 64
SIXTY_FOUR = f"""\
title: Sixty-four disks
question: Does one guest build a RAID 6 over all of them?
{GUEST}disks: {{count: {DISKS}, size: 64MiB, model: none}}
array:
  level: 6
  layout: left-symmetric
  chunk: 64KiB
  component_size: 16MiB
  bitmap: none
  consistency_policy: resync
  initial_sync: assume_clean
workloads:
  - {{name: write, tool: dd, of: '{{target}}', bs: 3968KiB, count: 20, oflag: direct,
     iflag: fullblock}}
  - {{name: read, tool: dd, if: '{{target}}', bs: 3968KiB, count: 20, iflag: direct}}
"""


def run(home: Home, text: str, tmp_path: Path) -> list[dict[str, Any]]:
    """The cells of the result, which are all done."""
    path = tmp_path / "question.yaml"
    path.write_text(text)
    result = home.json("run", "scenario", str(path), timeout=3600)
    cells: list[dict[str, Any]] = result["cells"]
    assert [(c["outcome"], c["reason"]) for c in cells] == [("done", "")] * len(cells)
    assert home.left() == []
    return cells


def checks(cell: dict[str, Any]) -> dict[str, str]:
    return {c["name"]: c["detail"] for c in cell["checks"] if c["passed"]}


def moved(cell: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Bytes that each disk moved in each workload."""
    return {
        (c["serial"], c["workload"]): c["written_bytes"] + c["read_bytes"] for c in cell["counters"]
    }


@pytest.mark.usefixtures("image")
def test_segments_are_built_and_read_back(lab_home: Home, tmp_path: Path) -> None:
    linear, striped, whole = run(lab_home, SEGMENTS, tmp_path)
    assert {"array1", "array2", "array3", "array4", "volume"} <= checks(linear).keys()
    assert "kinds=linear linear linear linear" in checks(linear)["volume"]
    assert "kinds=striped," in checks(striped)["volume"]
    assert "volume" not in checks(whole)
    assert moved(linear) == pytest.approx(moved(whole), rel=0.01)
    assert linear["predictions"]
    assert not striped["predictions"]


@pytest.mark.usefixtures("image")
def test_a_bitmap_in_a_file_is_on_its_own_disk(lab_home: Home, tmp_path: Path) -> None:
    default, given, without = run(lab_home, EXTERNAL, tmp_path)
    for cell, chunk in ((default, 4096), (given, 65536)):
        assert "on_its_disk=yes" in checks(cell)["bitmap_disk"]
        assert "bitmap=external" in checks(cell)["array"]
        assert f"bitmap_chunk={chunk}" in checks(cell)["array"]
        fast = next(c for c in cell["counters"] if c["serial"] == "fast")
        assert fast["writes"] > 100
    assert "bitmap_disk" not in checks(without)
    assert all(c["writes"] == 0 for c in without["counters"] if c["serial"] == "fast")


@pytest.mark.slow
@pytest.mark.usefixtures("image")
def test_no_thread_of_a_file_system_runs_when_it_is_used(lab_home: Home, tmp_path: Path) -> None:
    cells = run(lab_home, FILESYSTEMS, tmp_path)
    for cell in cells:
        kind = cell["axes"]["filesystem.type"]
        assert f"type={kind}" in checks(cell)["filesystem"]
        assert ("threads=0" in checks(cell)["filesystem"]) is (kind != "xfs")


@pytest.mark.usefixtures("image")
def test_one_guest_builds_a_raid_6_over_64_disks(lab_home: Home, tmp_path: Path) -> None:
    (cell,) = run(lab_home, SIXTY_FOUR, tmp_path)
    found = checks(cell)
    assert {"disks", "array"} <= found.keys()
    assert f"raid_disks={DISKS}" in found["array"]
    assert "level=raid6" in found["array"]
    for number in range(1, DISKS + 1):
        assert f"disk{number}.slot={number - 1}" in found["array"]
    assert {m["workload"] for m in cell["measurements"]} == {"write", "read"}


FAULTS = f"""\
title: Faults of a small array
question: What becomes of it?
{GUEST}disks: {{count: 5, size: 64MiB, format: raw, cache: writeback, model: none}}
array:
  level: 5
  layout: left-symmetric
  chunk: 64KiB
  component_size: 32MiB
  spares: 1
  bitmap: internal
  bitmap_chunk: 64KiB
workloads:
  - {{name: dense, tool: ledger, bs: 64KiB, size: 1536KiB, count: 24}}
  - {{name: more, tool: ledger, offset: 4MiB, size: 64MiB, count: 40}}
faults:
  - {{name: replaced, fault: replace, after: dense, disk: 1, with: 5}}
  - {{name: failed, fault: fail, before: more, disk: 2, remove: true}}
  - {{name: returned, fault: re_add, after: more, disk: 2, check: true}}
  - {{name: parity_rot, fault: rot, after: more, disk: 4, check: true}}
  - {{name: repaired, fault: sync_action, after: more, action: repair, check: true}}
  - {{name: data_rot, fault: rot, after: more, disk: 3, check: true}}
"""


@pytest.mark.usefixtures("image")
def test_md_does_what_it_says_of_members_that_go_come_and_rot(
    lab_home: Home, tmp_path: Path
) -> None:
    (cell,) = run(lab_home, FAULTS, tmp_path)
    found: dict[str, dict[str, float]] = {}
    for m in cell["measurements"]:
        found.setdefault(m["workload"], {})[m["metric"]] = m["median"]
    assert found["replaced"]["degraded_most"] == 0
    assert found["replaced"]["written_bytes"] == pytest.approx(32 * 1024**2, rel=0.05)
    assert (found["failed"]["degraded"], found["failed"]["in_sync"]) == (1, 3)
    assert found["failed"]["intact"] == 1
    assert (found["returned"]["re_added"], found["returned"]["degraded"]) == (1, 0)
    assert found["returned"]["written_bytes"] < 8 * 1024**2
    assert found["returned"]["acknowledged"] == 64
    assert (found["parity_rot"]["mismatch_cnt"], found["parity_rot"]["lost"]) == (8, 0)
    assert found["repaired"]["mismatch_cnt"] == 0
    assert (found["data_rot"]["mismatch_cnt"], found["data_rot"]["lost"]) == (8, 1)


LEVELS = f"""\
title: A change of level
question: How long does md take?
{GUEST}disks: {{count: 4, size: 64MiB, throttle: 20MiB/s}}
array: {{level: 5, component_size: 16MiB, bitmap: none}}
workloads:
  - {{name: fill, tool: dd, if: /dev/zero, of: '{{target}}', bs: 64KiB, count: 4, oflag: direct}}
faults:
  - {{name: grown, fault: grow, after: fill, level: 0}}
"""
MOVED = 2 * 16 / 20 - 0.1
"""Seconds: md reads and writes the component of each disk, of which 0.1 s is the throttle's."""
CHANGES = [  # array, change, raid_disks, level or None, seconds
    *(("level: 5", "level: 0, raid_devices: 3", 3, MOVED),),
    *(("level: 5, members: 3, spares: 1", "level: 6, raid_devices: 4", 4, MOVED),),
    *(("level: 6", "level: 5", 3, MOVED),),
    *(("level: 5", "level: 4", 4, MOVED),),
    *((f"level: {old}", "level: 0", left, 0) for old, left in ((4, 3), (10, 2))),
    *(("level: 1, members: 2", f"level: {new}", left, 0) for new, left in ((0, 1), (5, 2))),
    *(("level: 5, members: 2", "level: 1", 2, 0),),
]


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize(
    ("array", "change", "disks", "seconds"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] if number else [])
        for number, case in enumerate(CHANGES)
    ],
)
def test_a_change_of_level_takes_as_long_as_md_moves_data(
    lab_home: Home, tmp_path: Path, array: str, change: str, disks: int, seconds: float
) -> None:
    """``sync_action`` vanishes at the end of the first one: a RAID 0 has none."""
    text = LEVELS.replace("level: 5,", f"{array},", 1).replace("level: 0", change)
    text = text.replace("component_size: 16MiB, ", "") if "level: 10" in array else text
    (cell,) = run(lab_home, text, tmp_path)
    found = {m["metric"]: m["median"] for m in cell["measurements"] if m["workload"] == "grown"}
    assert found["raid_disks"] == disks
    assert found["seconds"] == pytest.approx(seconds, abs=0.25)
    assert found["reshaped"] == (seconds > 0)


DEGRADED = f"""\
title: A check of a degraded array
question: Does md compare what is left?
{GUEST}disks: {{count: 5, size: 64MiB, model: none}}
array: {{level: 6, component_size: 16MiB, missing: 2, initial_sync: assume_clean, bitmap: none}}
workloads:
  - {{name: fill, tool: dd, if: /dev/zero, of: '{{target}}', bs: 64KiB, count: 64, oflag: direct}}
faults:
  - {{name: repaired, fault: sync_action, after: fill, action: repair, check: true}}
  - {{name: rotten, fault: rot, after: fill, disk: 3, check: true}}
  - {{name: checked, fault: sync_action, after: fill, action: check}}
  - {{name: fewer, fault: fail, after: fill, disk: 4, check: true}}
  - {{name: again, fault: sync_action, after: fill, action: check}}
"""


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize(
    ("array", "count", "wrong"),
    [
        ("level: 6", 5, 8),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("level: 1", 3, 128),
                ("level: 10, layout: n2, chunk: 64KiB", 4, 128),
                ("level: 10, layout: f2, chunk: 64KiB", 4, 128),
                ("level: 10, layout: o2, chunk: 64KiB", 4, 128),
            )
        ),
    ],
)
def test_a_check_of_a_degraded_array_compares_what_is_left(
    lab_home: Home, tmp_path: Path, array: str, count: int, wrong: int
) -> None:
    """A wrong page is 8 sectors of a stripe, or 128 of a mirror (``RESYNC_BLOCK_SIZE``). With one
    copy or parity less there is nothing to compare, and so no number."""
    text = DEGRADED.replace("level: 6", array).replace("count: 5", f"count: {count}")
    text = text.replace("disk: 4", f"disk: {1 if count == 3 else 4}")
    (cell,) = run(lab_home, text, tmp_path)
    found = {(m["workload"], m["metric"]): m["median"] for m in cell["measurements"]}
    assert [found[name, "degraded"] for name in ("repaired", "rotten", "fewer")] == [1, 1, 2]
    assert found["repaired", "mismatch_cnt"] == found["repaired", "action_mismatch_cnt"] == 0
    assert found["rotten", "mismatch_cnt"] == found["checked", "action_mismatch_cnt"] == wrong
    assert ("fewer", "mismatch_cnt") not in found
    assert ("again", "action_mismatch_cnt") not in found


ASKED = f"""\
title: A small question
question: Do three disks write?
{GUEST}disks: {{count: 3, size: 256MiB, throttle: {{total_bytes_per_second: 4MiB}}}}
array: {{level: 5, chunk: 64KiB, component_size: 64MiB}}
workloads:
  - {{name: write, tool: dd, of: '{{target}}', bs: 128KiB, count: 120, oflag: direct}}
claims:
  - {{id: Q-1, says: They do, expect: {{kind: bound, value: {{workload: write}},
     at_least: 1MB/s}}}}
  - {{id: Q-2, says: Far too much, expect: {{kind: bound, value: {{workload: write}},
     at_least: 1GB/s}}}}
"""


def test_a_scenario_is_run_once_by_two_processes_and_each_claim_is_a_test(
    lab_home: Home, image: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("CI", raising=False)  # pytest's summary has every line there
    (pytester.path / "asked.yaml").write_text(ASKED)
    found = pytester.runpytest_subprocess(*PLUGIN, "-n", "2", "-rs", "asked.yaml")
    assert len(list(lab_home.path.glob("data/runs/asked-*"))) == 1
    assert lab_home.left() == []
    found.assert_outcomes(passed=2, failed=1)
    found.stdout.fnmatch_lines(
        ["refuted: Far too much", "  * was measured*", "  expected: at least*"]
    )
    found.stdout.no_fnmatch_line("*Traceback*")


# --- kinds of arrays -----------------------------------------------------------------------------

SMALL = (
    "disks.size=256MiB",
    "array.component_size=32MiB",
    "array.consistency_policy=null",
    "disks.throttle={total_bytes_per_second: 200MiB}",
    "workloads=[{name: write, tool: dd, if: /dev/urandom, of: '{target}', bs: 1MiB, count: 16,"
    " oflag: direct, iflag: fullblock}]",
)

KINDS = {
    "raid0": (
        *("array.level=0", "array.layout=null", "disks.count=3", "array.data_offset=null"),
        "array.component_size=null",
    ),
    "raid1, waited for": (
        *("array.level=1", "array.layout=null", "array.chunk=null", "disks.count=2"),
        *("array.initial_sync=wait", "array.data_offset=null"),
    ),
    "raid5 with a spare, bitmap": (
        *("array.level=5", "array.layout=right-asymmetric", "disks.count=5", "array.spares=1"),
        *("array.bitmap=internal", "array.bitmap_chunk=64KiB", "array.data_offset=1MiB"),
        "array.component_size=64MiB",
    ),
    "raid5, sync left running": (
        *("array.level=5", "array.layout=left-symmetric", "disks.count=3"),
        *("array.initial_sync=none", "disks.throttle={total_bytes_per_second: 20MiB}"),
    ),
    "raid5, sync waited for, defaults": (
        *("array.level=5", "array.layout=null", "array.chunk=null", "disks.count=3"),
        *("array.initial_sync=wait", "array.data_offset=null", "array.component_size=null"),
        "disks.size=96MiB",
    ),
    "raid10, far": ("array.level=10", "array.layout=f2", "disks.count=4", "array.data_offset=null"),
    "raid10, near and failfast": (
        *("array.level=10", "array.layout=n2", "disks.count=3", "array.failfast=true"),
        "array.data_offset=null",
    ),
    "raid1, one member to be read last": (
        *("array.level=1", "array.layout=null", "array.chunk=null", "disks.count=2"),
        *("array.write_mostly=[2]", "array.bitmap=internal", "array.write_behind=64"),
        "array.data_offset=null",
    ),
}


def cell_of(*sets: str) -> Cell:
    overrides = [parse_override(s) for s in ("matrix={}", "guest.clock=virtual", *sets)]
    path = catalog.scenario_path("raid5-parity-last")
    return compile_scenario(path, overrides=overrides).cells[0]


@pytest.fixture(scope="module")
def kit(lab_home: Home, image: str) -> SealedKit:
    found = images.find(image)
    assert found is not None
    return virtual_time.prepare(cell_of().guest, found)


@pytest.fixture
def bench(kit: SealedKit, tmp_path: Path) -> Iterator[SealedBackend]:
    """One guest at a time, as a worker has it."""
    live = sealed.backend(kit, tmp_path, notice=pytest.fail)
    yield live
    live.destroy_guest()


def run_cell(bench: SealedBackend, procedure: Procedure) -> tuple[dict[str, str], list[Check]]:
    """Raw output and checks of a cell."""
    raw: dict[str, str] = {}
    checks: list[Check] = []
    bench.take(CellJob(id="c", procedure=procedure, directory="", target="", space=1 << 30))
    run_procedure(procedure, bench, Undo(), raw.__setitem__, lambda _s: None, checks.append)
    return raw, checks


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_array_is_built_and_read_back(bench: SealedBackend, kind: str) -> None:
    raw, checks = run_cell(
        bench, cell_procedure(cell_of(*SMALL, *KINDS[kind]), bench.record.directory)
    )
    assert {c.name for c in checks} >= {"disks", "array"}
    assert all(c.passed for c in checks)
    assert "16 MiB" in raw["write.1.stderr.txt"]


def test_an_array_that_is_not_what_was_asked_for_is_caught_before_it_is_measured(
    bench: SealedBackend,
) -> None:
    """The negative control of the read-back: the real array, and expectations that are wrong."""
    procedure = cell_procedure(cell_of(*SMALL, "disks.count=3"), bench.record.directory)
    wrong = {"layout": "2", "chunk_size": "65536", "raid_disks": "4", "disk1.slot": "1"}
    steps = tuple(
        s.model_copy(update={"expect": {**s.expect, **wrong}})
        if isinstance(s, Verify) and s.name == "array"
        else s
        for s in procedure.steps
    )
    changed = procedure.model_copy(update={"steps": steps})
    with pytest.raises(CheckFailedError, match="the check 'array' failed") as caught:
        run_cell(bench, changed)
    for said in (
        "layout is '5', not '2'",
        "chunk_size is '524288', not '65536'",
        "raid_disks is '3', not '4'",
        "disk1.slot is '0', not '1'",
    ):
        assert said in caught.value.message


def test_a_region_in_memory_and_one_on_the_disk_have_one_digest(
    kit: SealedKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = "dd if=/dev/urandom of=/dev/lab1 bs=64k count=400 oflag=direct; sha256sum /etc/passwd"
    command = GuestCommand(label="write", script=write, capture="write", timeout=60)
    cell = Procedure(name="cell", steps=(sealed.SEALED, command))
    runs = []
    for share in (10.0, 0.0):
        monkeypatch.setattr(region_file, "SHARE", share)
        runs.append(sealed.benched(kit, tmp_path, cell))
    assert all(answer.status == 0 for run in runs for answer in run.answers)
    assert runs[0].digest == runs[1].digest


READS = r"""
reads() {
  echo 3 > /proc/sys/vm/drop_caches
  read -r _ _ before _ < /sys/block/lab0/stat
  fio --version > /dev/null
  read -r _ _ after _ < /sys/block/lab0/stat
  echo $((after - before))
}
fio --version > /dev/null
reads
pkill -x lab_keep
reads
"""


ENGINES = """
program=$(command -v fio)
ldd "$program" | wc -l
fio --name=far --ioengine=rbd --rbdname=image --pool=pool --rw=read --size=1M 2>&1 |
  grep left || true
umount $(grep -o '/[^ ]*/lib[^ ]*' /proc/mounts)
ldd "$program" | wc -l
"""


def test_fio_starts_without_reading_programs_and_the_libraries_of_engines(
    kit: SealedKit, tmp_path: Path
) -> None:
    """Negative controls: without the process that keeps programs; with the image's libraries."""
    steps = [
        GuestCommand(label=script[1:4], script=script, capture=script[1:4], timeout=60)
        for script in (READS, ENGINES)
    ]
    *_, reads, engines = sealed.benched(
        kit, tmp_path, Procedure(name="cell", steps=(sealed.SEALED, *steps))
    ).answers
    kept, dropped = map(int, reads.stdout.split())
    assert 2 * kept < 5000 < dropped
    loaded, said, usual = engines.stdout.splitlines()
    assert int(loaded) < 12
    assert "rados_create" in said
    assert int(usual) > 40


# --- counters ------------------------------------------------------------------------------------

REQUESTS = f"""\
title: Requests of every kind
question: Is each counted as what it is?
{GUEST}disks: {{count: 1, size: 256MiB, throttle: {{total_operations_per_second: 5000}}}}
array: none
workloads:
  - {{name: plain, tool: fio, rw: write, size: 256KiB, direct: 1}}
  - {{name: synced, tool: fio, rw: write, size: 256KiB, direct: 1, fsync: 1}}
  - {{name: jobs, tool: fio, rw: write, size: 128KiB, direct: 1, fsync: 1, numjobs: 4}}
  - {{name: fua, tool: fio, rw: write, size: 256KiB, direct: 1, sync: 1}}
  - {{name: read, tool: fio, rw: randread, size: 256KiB, direct: 1}}
  - {{name: trim, tool: fio, rw: trim, bs: 64KiB, size: 4MiB, direct: 1}}
  - {{name: randtrim, tool: fio, rw: randtrim, bs: 64KiB, size: 4MiB, direct: 1}}
  - {{name: trimwrite, tool: fio, rw: trimwrite, bs: 64KiB, size: 2MiB, direct: 1}}
"""
MIRROR = (
    "disks.count=2",
    "array={level: 1, component_size: 32MiB, bitmap: none, consistency_policy: resync}",
)


@pytest.mark.parametrize("sets", [(), MIRROR], ids=["one disk", "a mirror"])
def test_each_request_is_counted_as_what_it_is(
    bench: SealedBackend, tmp_path: Path, sets: Sequence[str]
) -> None:
    """By the disks' driver, by the kernel's tracing as in real time, and by arithmetic."""
    (cell,) = compiled_text(tmp_path, REQUESTS, *sets, name="requests").cells
    whole = cell_procedure(cell, bench.record.directory)
    steps = tuple(
        step.model_copy(
            update={"before": EMPTY_FLUSHES + step.before, "after": EMPTY_FLUSHES + step.after}
        )
        if isinstance(step, Timed)
        else step
        for step in whole.steps
    )
    raw, _ = run_cell(bench, whole.model_copy(update={"steps": steps}))
    lines = {name: text.splitlines(keepends=True) for name, text in raw.items()}
    traced = {
        name: "".join(line for line in text if not line.startswith("requests "))
        for name, text in lines.items()
    }
    found = measure.counters(cell, raw)
    assert found == measure.counters(cell, traced)
    each = {c.workload: c for c in found if c.serial == "disk1"}
    assert len(found) == len(cell.each_disk) * len(cell.workloads)
    for name, number in {"plain": 64, "synced": 64, "jobs": 128, "fua": 64}.items():
        superblocks = each[name].writes - number  # md writes them when the array is written first
        assert superblocks == 0 or (sets and 0 < superblocks <= 4), name
    assert sum(c.reads for c in found if c.workload == "read") == 64
    assert each["plain"].flushes == 0 or sets
    empty = {name: counts.empty_flushes or 0 for name, counts in each.items()}
    assert empty["synced"] == 63  # fio does not flush after the last write
    assert empty["fua"] == 64  # O_SYNC: a write with FUA, and an fsync (generic_write_sync)
    assert empty["plain"] == empty["read"] == empty["trim"] == 0
    assert 1 <= each["jobs"].flushes <= empty["jobs"] + (4 if sets else 0)
    discards = {"trim": 4, "randtrim": 4, "trimwrite": 2}
    for name, size in discards.items():
        assert each[name].discarded_bytes == size << 20
    for name, counts in each.items():
        assert bool(counts.discards) is (name in discards)


# --- a scenario whose commands attack the host ----------------------------------------------------


OUTSIDE = """\
modprobe nfit
modprobe nd_pmem
dd if=/dev/zero of=/dev/pmem0 bs=1M seek=30000 count=1500 oflag=direct 2>/dev/null
"""
"""The driver for NVDIMMs makes a disk of the whole memory region."""


def slow(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


class Attack:
    """A command in a sealed guest, what it led to, and the memory that it took."""

    def __init__(self, kit: SealedKit, work: Path, script: str) -> None:
        self.error = self.status = ""
        self.region = 0
        """Bytes of the region's file at its peak."""
        bench = sealed.backend(kit, work, notice=pytest.fail)
        bench._tell = lambda _step: self._look(bench)
        command = GuestCommand(label="c", script=script, capture="c", timeout=60)
        procedure = Procedure(name="c", steps=(sealed.SEALED, command))
        bench.take(CellJob(id="c", procedure=procedure, directory="", target="", space=192 << 20))
        Path("/proc/self/clear_refs").write_text("5")
        before = sealed.memory("VmRSS")
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(bench, over))
        thread.start()
        try:
            bench.seal_disks(sealed.SEALED)
            bench.guest(script, 60)
        except LabError as error:
            self.error = error.message
        finally:
            over.set()
            thread.join()
            bench.destroy_guest()
        self.own = sealed.memory("VmHWM") - before
        """Growth of this process's memory at its peak, in bytes."""
        self.allowed = limits.allowed(bench._own_region)

    def _look(self, bench: SealedBackend) -> None:
        if bench.record.pid:
            self.status = Path(f"/proc/{bench.record.pid}/status").read_text()

    def _watch(self, bench: SealedBackend, over: threading.Event) -> None:
        while not over.wait(0.02):
            with suppress(OSError, AssertionError):
                held = bench._own_region.path.stat().st_blocks * 512
                self.region = max(self.region, held)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (OUTSIDE, "parts of its memory region that belong to no disk"),
        ("printf '@lab end 0 0 1 5 -100\\n' >/dev/lab_io", "only the lab's program may print"),
        slow("head -c 30M /dev/urandom", r"printed \S+, at most 8MiB are read"),
        slow(
            "cat /dev/urandom | head -c 70M >/dev/lab_io",
            "the sealed guest printed too much output",
        ),
        slow(
            OUTSIDE.partition("dd")[0] + "dd if=/dev/zero of=/dev/pmem0 bs=4k count=1 oflag=direct",
            "has overwritten the lab's memory region: its header differs",
        ),
    ],
)
def test_an_attack_on_the_host_is_a_sentence_and_takes_little_memory(
    kit: SealedKit, tmp_path: Path, script: str, said: str
) -> None:
    attack = Attack(kit, tmp_path, script)
    assert re.search(said, attack.error), attack.error
    assert attack.own < 250 << 20
    assert attack.region < attack.allowed + (200 << 20)
    if attack.status:
        for line in ("NoNewPrivs:\t1", "Seccomp:\t2", f"CapEff:\t{0:016x}", f"CapBnd:\t{0:016x}"):
            assert line in attack.status or os.getuid()


@pytest.mark.slow
def test_without_the_limit_a_guest_fills_the_host(
    kit: SealedKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(limits, "exceeded", lambda _region: "")
    attack = Attack(kit, tmp_path, OUTSIDE)
    assert attack.error == ""
    assert attack.region > attack.allowed + (500 << 20)
    assert f"CapEff:\t{0:016x}" in attack.status
