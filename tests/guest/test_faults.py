"""Faults in real guests: md's own words for each, power that fails, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.host.guest import registry as guests
from lab.host.guest import servers
from lab.host.guest.registry import GuestRecord

from .conftest import Home

pytestmark = pytest.mark.guest

SCENARIO = """\
title: Faults of a small array
question: What becomes of it?
disks:
  count: 5
  size: 64MiB
  format: raw
  cache: writeback
  model: none
array:
  level: 5
  layout: left-symmetric
  chunk: 64KiB
  component_size: 32MiB
  spares: 1
  bitmap: internal
  bitmap_chunk: 64KiB
workloads:
  - {name: dense, tool: ledger, bs: 64KiB, size: 1536KiB, count: 24}
  - {name: more, tool: ledger, offset: 4MiB, size: 64MiB, count: MORE}
faults:
"""
CUT = "  - {name: cut, fault: power_cut, during: more, at: 3s, check: true}\n"


def scenario(directory: Path, faults: str, *, more: int = 40) -> str:
    path = directory / "small.yaml"
    path.write_text(SCENARIO.replace("MORE", str(more)) + faults)
    return str(path)


def figures(document: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Workload or fault, metric, value, of the one cell that is done."""
    (cell,) = document["cells"]
    assert cell["outcome"] == "done", cell
    found: dict[str, dict[str, float]] = {}
    for m in cell["measurements"]:
        found.setdefault(m["workload"], {})[m["metric"]] = m["median"]
    return found


def attempts(home: Home, document: dict[str, Any]) -> list[Path]:
    """Cells of a run that were tried and did not end, and were tried once more.

    One that was done on a busy host is repeated too.
    """
    directory = home.path / "data" / "runs" / document["run"]["id"]
    assert directory.is_dir()
    found = {p.parent: json.loads(p.read_text()) for p in directory.glob("cells/.*/outcome.json")}
    return [
        path
        for path, ended in found.items()
        if "calibration" not in path.name and ended["outcome"] != "done"
    ]


@pytest.fixture(scope="module")
def cut(
    lab_home: Home, image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GuestRecord, dict[str, Any]]]:
    """A guest that is left up after its power was cut, and its run."""
    known = {r.id for r in guests.every()}
    path = scenario(tmp_path_factory.mktemp("s"), CUT, more=4000)
    done = lab_home.run("up", "scenario", path, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = [r for r in guests.every() if r.id not in known]
    yield record, json.loads(done.stdout)
    lab_home.run("down", record.id)
    assert lab_home.left() == []


def test_what_was_acknowledged_is_there_after_a_power_cut(
    lab_home: Home, cut: tuple[GuestRecord, dict[str, Any]]
) -> None:
    _, document = cut
    found = figures(document)
    print(json.dumps(found, indent=1))
    assert "more" not in found  # it was cut short, and has no figures
    assert (found["cut"]["assembled"], found["cut"]["synced"]) == (1, 1)
    assert 24 < found["cut"]["acknowledged"] < 24 + 4000
    assert (found["cut"]["lost"], found["cut"]["intact"]) == (0, 1)
    assert found["cut"]["mismatch_cnt"] == 0
    assert found["cut"]["dirty_bits"] > 0
    assert attempts(lab_home, document) == [], "a power cut is not a lost guest"


def test_a_guest_whose_power_was_cut_is_a_live_guest_as_others(
    lab_home: Home, cut: tuple[GuestRecord, dict[str, Any]]
) -> None:
    record, _ = cut
    assert guests.is_alive(record)
    (row,) = [r for r in lab_home.json("ps")["guests"] if r["id"] == record.id]
    assert row["state"] == "up"
    said = lab_home.run("ssh", record.id, "--root", "--", "cat /proc/uptime; ls /dev/md")
    assert said.returncode == 0, said.stderr
    assert "bench" in said.stdout
    assert record.id not in lab_home.json("gc")["removed"]
    assert guests.is_alive(record)


def wait(what: Callable[[], object], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not what():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker", "lab"])
def test_who_is_killed_while_a_guest_boots_again_leaves_nothing(
    lab_home: Home,
    image: str,
    tmp_path: Path,
    lab_process: Callable[..., subprocess.Popen[str]],
    victim: str,
) -> None:
    known = {r.id for r in guests.every()}
    path = scenario(tmp_path, CUT, more=4000)
    process = lab_process("run", "scenario", path, "--jobs", "1")
    first: dict[str, int] = {}

    def again() -> bool:
        for r in guests.every():
            if r.id not in known and r.pid and (r.path / "disks").is_dir():
                if r.id in first and r.pid != first[r.id]:
                    return True
                if list((r.path / "disks").glob("*.raw")):
                    first.setdefault(r.id, r.pid)
        return False

    wait(again, 200)
    (record,) = [r for r in guests.every() if r.id in first and r.pid != first[r.id]]
    if victim == "lab":
        process.kill()
    else:
        os.kill(process.pid, signal.SIGSTOP)  # it would try the cell again
        os.kill(record.owner_pid, signal.SIGKILL)
        process.kill()
    process.wait()
    if victim == "worker":
        wait(lambda: record.id in lab_home.json("gc")["removed"], 30)
    lab_home.wait_until_nothing_is_left(30)
    assert lab_home.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["faults", "faults-degraded", "faults-modelled", "bitmap-resync"])
def test_mds_documented_behaviour_holds(lab_home: Home, image: str, name: str) -> None:
    if name == "faults-modelled" and servers.missing_programs():
        pytest.skip(f"needs {servers.PACKAGES}")
    document = lab_home.json("run", "scenario", name, timeout=1200)
    timed = {
        c["id"]
        for c in document["claims"]
        if "noise of such values on this host is not known" in c["reason"]
    }
    assert timed <= {"FD-slow"}
    assert {c["id"]: (c["verdict"], c["reason"]) for c in document["claims"]} == {
        c["id"]: ("inconclusive" if c["id"] in timed else "holds", c["reason"])
        for c in document["claims"]
    }
    assert attempts(lab_home, document) == []
    assert lab_home.left() == []
