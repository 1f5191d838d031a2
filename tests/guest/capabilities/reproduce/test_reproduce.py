"""Sealed cells are taken from earlier runs, reproduced byte for byte, and drawn by seeds."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.core.errors import EXIT_DIFFERENT, EXIT_DONE
from lab.host.system import paths
from tests.guest.conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.timeout(1800)]

ONE = ("raid5-parity-last", "--clock", "virtual", "--set", "matrix={}")
SHORT = (
    *(*ONE, "--set", "workloads.write.count=10", "--set", "workloads.read.count=10"),
    *("--set", "workloads.write_stripe.count=5"),
)
RANDOM = """\
title: Random writes
question: Does a seed draw other places?
guest: {image: debian-12, cpus: 1, memory: 512MiB, clock: virtual}
disks: {count: 3, size: 256MiB, throttle: {total_operations_per_second: 100}}
array: {level: 5, chunk: 64KiB, component_size: 64MiB, bitmap: none, initial_sync: assume_clean}
workloads:
  - {name: write, tool: fio, rw: randwrite, bs: 4KiB, direct: true, ioengine: libaio, iodepth: 8,
     time_based: true, runtime: 2s}
"""


def run(home: Home, *words: str) -> Any:
    document = home.json("run", "scenario", *words, timeout=1800)
    assert [c["reason"] for c in document["cells"] if c["outcome"] != "done"] == []
    return document


def reproduced(home: Home, run_: str) -> tuple[int, Any]:
    done = home.run("reproduce", run_, "--json", timeout=1800)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def directory(document: Any) -> Path:
    return Path(document["run"]["directory"])


Digests = dict[str, dict[str, str]]


def snapshots() -> Digests:
    """Return the digests of each snapshot's files, by the snapshot's name."""
    stored = paths.sealed().glob("snapshot-*/snapshot.json")
    return {path.parent.name: json.loads(path.read_bytes())["digests"] for path in stored}


@contextmanager
def other_snapshots() -> Iterator[tuple[Digests, Callable[[], Digests]]]:
    """Hide the snapshots, so that others are made; yield their digests, and those of the others."""
    before, aside = snapshots(), paths.sealed() / "aside"
    aside.mkdir()
    for name in before:
        (paths.sealed() / name).rename(aside / name)
    try:
        yield before, snapshots
    finally:
        for name in before:
            shutil.rmtree(paths.sealed() / name, ignore_errors=True)
            (aside / name).rename(paths.sealed() / name)
        aside.rmdir()


def raw(document: Any) -> Path:
    return directory(document) / "cells" / document["cells"][0]["id"] / "raw"


@pytest.mark.filterwarnings("default:two snapshots differ")
def test_a_run_is_reused_reproduced_and_compared(lab_home: Home, image: str) -> None:
    first = run(lab_home, *SHORT, "--fresh")
    (cell,) = first["cells"]
    assert cell["reused_from"] is None
    # The same inputs: taken from the first run, with its raw output.
    again = run(lab_home, *SHORT)
    assert again["cells"][0]["reused_from"] == first["run"]["id"]
    for one in raw(first).iterdir():
        assert (raw(again) / one.name).read_bytes() == one.read_bytes()
    # Run again, from another snapshot: the same results.
    with other_snapshots() as (saved, made):
        fresh = run(lab_home, *SHORT, "--fresh")
        for name, digests in made().items():
            # QEMU's state differs now and then, with the same memory and region; no result did.
            if parts := [part for part in digests if digests[part] != saved[name][part]]:
                warnings.warn(f"two snapshots differ in {', '.join(parts)}", stacklevel=1)
    assert fresh["cells"][0]["reused_from"] is None
    for one in raw(first).iterdir():
        assert (raw(fresh) / one.name).read_bytes() == one.read_bytes()
    # A run from elsewhere: nothing is known of it here until it was reproduced.
    shutil.rmtree(paths.reuse())
    known = lab_home.run("results", "list", "--json").stdout.count('"id"')
    status, found = reproduced(lab_home, first["run"]["id"])
    assert (status, found["identical"], found["kept"]) == (EXIT_DONE, True, None)
    assert [c["state"] for c in found["cells"]] == ["identical"]
    assert found["inputs"] == []
    assert lab_home.run("results", "list", "--json").stdout.count('"id"') == known
    third = run(lab_home, *SHORT)
    assert third["cells"][0]["reused_from"] == first["run"]["id"]
    # One byte of what is stored.
    path = raw(first) / "write.1.stderr.txt"
    data = bytearray(path.read_bytes())
    at = data.index(b"copied")
    data[at + 1] = ord("0")
    path.write_bytes(data)
    status, found = reproduced(lab_home, first["run"]["id"])
    assert (status, found["identical"]) == (EXIT_DIFFERENT, False)
    difference = found["cells"][0]["difference"]
    assert (difference["label"], difference["file"]) == ("write", "raw/write.1.stderr.txt")
    assert difference["byte"] == at + 1
    assert "c0pied" in difference["stored"]
    assert "copied" in difference["here"]
    assert (paths.runs() / found["kept"] / "run.json").is_file()
    assert not list(paths.runs().glob(".*"))


def test_a_seed_is_a_result(lab_home: Home, image: str, tmp_path: Path) -> None:
    path = tmp_path / "random.yaml"
    path.write_text(RANDOM)
    found = [
        run(lab_home, str(path), "--fresh", "--seed", str(seed))["cells"][0] for seed in (1, 2, 1)
    ]
    results = [cell["digest"]["results"] for cell in found]
    assert results[0] == results[2] != results[1]
    # Trials are the same seeds, each in a guest of its own.
    document = run(lab_home, str(path), "--trials", "2")
    (cell,) = document["cells"]
    assert [t["seed"] for t in cell["digest"]["seeds"]] == [1, 2]
    assert [t["results"] for t in cell["digest"]["seeds"]] == results[:2]
    assert [t["inputs"] for t in cell["digest"]["seeds"]] == [
        one["digest"]["inputs"] for one in found[:2]
    ]
    (iops,) = (m for m in cell["measurements"] if m["metric"] == "iops")
    assert iops["low"] < iops["high"]
    assert not iops["no_seed_changes_it"]


@pytest.mark.slow
def test_a_seed_moves_addresses_and_leaves_throttled_streams_alone(
    lab_home: Home, image: str
) -> None:
    words = ("--set", "workloads.write.count=100", "--trials", "3")
    document = run(lab_home, *ONE, *words)
    (cell,) = document["cells"]
    assert len({t["results"] for t in cell["digest"]["seeds"]}) == 3
    throughput = {m["workload"]: m for m in cell["measurements"] if m["metric"] == "throughput"}
    assert {name: m["no_seed_changes_it"] for name, m in throughput.items()} == dict.fromkeys(
        throughput, True
    )
    assert {m["low"] for m in throughput.values()} == {None}
