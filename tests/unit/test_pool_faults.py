"""Faults of ZFS pools: their commands, the wait for a resilver, and the metrics."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lab.analysis.measure import measurements
from lab.compile.cell.procedure import cell_procedure
from lab.compile.scenario.compiler import Compiled
from lab.core.errors import InputError, ToolError
from lab.model.execution.procedure import GuestCommand, Timed
from lab.plugins.faults._pools import pool_values, settle
from lab.plugins.faults._shared import BEGAN
from tests.fakes import SCENARIO, compiled_text

POOL = SCENARIO.replace(
    "  level: 5\n  layout: left-symmetric\n  chunk: 64KiB\n  component_size: 256MiB\n",
    "  kind: zfs\n  level: mirror\n  spares: 2\n",
).replace("count: 4", "count: 6")
FAIL = "  - {name: first, fault: fail, after: write, disk: 2}\n"
AGAIN = "  - {name: second, fault: fail, before: read, disk: 3}\n"
REPLACE = "  - {name: swapped, fault: replace, after: write, disk: 4, with: 5}\n"
STATUS = """\
members=4
  pool: bench
 state: DEGRADED
  scan: resilvered 130M in 00:00:03 with 0 errors on Wed Nov 25 00:00:00 2026
config:

        NAME                                STATE     READ WRITE CKSUM
        bench                               DEGRADED     0     0     0
          mirror-0                          DEGRADED     0     0     0
            /dev/disk/by-id/x-disk1-part1   ONLINE       0     0     0
            spare-1                         DEGRADED     0     0     0
              /dev/disk/by-id/x-disk2-part1 FAULTED      0     0     0  external device fault
              /dev/disk/by-id/x-disk5-part1 ONLINE       0     0     0
          mirror-1                          ONLINE       0     0     0
            /dev/disk/by-id/x-disk3-part1   ONLINE       0     0     0
            /dev/disk/by-id/x-disk4-part1   ONLINE       0     0     0
        spares
          /dev/disk/by-id/x-disk5-part1     INUSE     currently in use
          /dev/disk/by-id/x-disk6-part1     AVAIL

errors: No known data errors
"""
TIMES = "began=100.50\nended=104.00\n"


def compiled(directory: Path, faults: str, *sets: str) -> Compiled:
    return compiled_text(directory, f"{POOL}faults:\n{faults}", *sets)


def scripts(directory: Path, faults: str, *sets: str) -> dict[str, list[str]]:
    """Return the lines of each fault."""
    steps = cell_procedure(compiled(directory, faults, *sets).base, "/state/g1").steps
    timed = [s for s in steps if isinstance(s, Timed) and s.workload not in ("write", "read")]
    return {step.workload: step.script.splitlines() for step in timed}


def test_each_failed_disk_gets_a_spare_of_its_own(tmp_path: Path) -> None:
    found = scripts(tmp_path, FAIL + AGAIN)
    disks = [f"/dev/disk/by-id/virtio-disk{n}" for n in range(7)]
    assert f"zpool offline -f bench {disks[2]} 2>&1" in found["first"]
    assert f"zpool replace bench {disks[2]} {disks[5]} 2>&1" in found["first"]
    assert f"zpool replace bench {disks[3]} {disks[6]} 2>&1" in found["second"]
    for lines in found.values():
        assert not any("mdadm" in line or "/md" in line for line in lines)
        assert any("zpool wait -t replace,resilver bench" in line for line in lines)


def test_a_spare_that_replaced_a_disk_is_not_taken_again(tmp_path: Path) -> None:
    found = scripts(tmp_path, REPLACE + AGAIN)
    disks = [f"/dev/disk/by-id/virtio-disk{n}" for n in range(7)]
    assert f"zpool replace bench {disks[4]} {disks[5]} 2>&1" in found["swapped"]
    assert f"zpool replace bench {disks[3]} {disks[6]} 2>&1" in found["second"]


def test_without_a_spare_nothing_is_replaced(tmp_path: Path) -> None:
    lines = scripts(tmp_path, FAIL, "array.spares=0")["first"]
    assert not any("zpool replace" in line for line in lines)
    assert any("zpool offline" in line for line in lines)


@pytest.mark.parametrize(
    ("faults", "sets", "key"),
    [
        (FAIL, ("array.level=stripe", "array.spares=0"), "fault"),
        (FAIL.replace("disk: 2", "disk: 5"), (), "disk"),
        (FAIL.replace("disk: 2", "disk: 9"), (), "disk"),
        (FAIL.replace("disk: 2", "disk: 2, remove: true"), (), "remove"),
        (FAIL.replace("disk: 2", "disk: 2, check: true"), (), "check"),
        (REPLACE.replace("with: 5", "with: 3"), (), "with"),
        (FAIL.replace("fault: fail", "fault: re_add"), (), "fault"),
    ],
)
def test_what_a_pool_cannot_do_names_the_key(
    tmp_path: Path, faults: str, sets: tuple[str, ...], key: str
) -> None:
    with pytest.raises(InputError) as refused:
        compiled(tmp_path, faults, *sets)
    assert f"faults[0].{key}:" in str(refused.value)


def test_a_spare_in_use_counts_as_a_member(tmp_path: Path) -> None:
    found = pool_values(TIMES, {"state.txt": STATUS})
    expected = {"seconds": 3.5, "degraded": 0, "in_sync": 4, "faulty": 1, "missing": 0}
    assert found == expected
    cell = compiled(
        tmp_path, FAIL, "workloads=[{name: write, tool: dd, of: '{target}', bs: 4KiB, count: 1}]"
    ).base
    raw = {
        "write.1.stderr.txt": "1+0 records in\n1+0 records out\n4096 bytes copied, 1 s, 4 kB/s\n",
        "first.1.stdout.txt": TIMES,
        "first.1.state.txt": STATUS,
    }
    metrics = {m.metric: m.values[0] for m in measurements(cell, raw) if m.workload == "first"}
    assert metrics == expected


@pytest.mark.parametrize(
    ("old", "new", "missing", "faulty"),
    [
        ("disk5-part1 ONLINE       0     0     0", "disk5-part1 ONLINE 0 0 0  (resilvering)", 1, 1),
        ("/dev/disk/by-id/x-disk4-part1   ONLINE ", "12345678901234 UNAVAIL ", 1, 2),
        ("disk1-part1   ONLINE ", "disk1-part1   DEGRADED ", 1, 2),
    ],
)
def test_a_disk_that_is_gone_or_incomplete_is_missing(
    old: str, new: str, missing: int, faulty: int
) -> None:
    assert old in STATUS
    found = pool_values(TIMES, {"state.txt": STATUS.replace(old, new)})
    assert (found["missing"], found["degraded"], found["faulty"]) == (missing, missing, faulty)


@pytest.mark.parametrize("text", ["", "cannot open 'bench': no such pool\n"])
def test_a_pool_without_disks_is_an_error(text: str) -> None:
    with pytest.raises(ToolError):
        pool_values(TIMES, {"state.txt": text})


@pytest.mark.parametrize(("script", "status"), [("sleep 0.3", 0), ("exit 1", 1), ("sleep 9", 1)])
def test_the_wait_ends_with_the_resilver_or_its_limit(
    tmp_path: Path, script: str, status: int
) -> None:
    program = tmp_path / "zpool"
    program.write_text(
        f"#!/bin/sh\n[ \"$*\" = 'wait -t replace,resilver bench' ] || exit 3\n{script}\n"
    )
    program.chmod(0o755)
    done = subprocess.run(
        ["sh", "-ec", BEGAN + settle("bench", 1)],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert done.returncode == status
    if status:
        assert "resilver" in done.stderr
    else:
        seconds = pool_values(done.stdout, {"state.txt": STATUS})["seconds"]
        assert 0.2 < seconds < 1


def test_the_state_of_a_pool_is_kept(tmp_path: Path) -> None:
    steps = cell_procedure(compiled(tmp_path, FAIL).base, "/state/g1").steps
    (kept,) = [s for s in steps if isinstance(s, GuestCommand) and s.capture == "first.1.state"]
    assert kept.script.startswith("echo members=4\nzpool status -P bench\n")
