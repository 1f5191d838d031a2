"""A workload has the same value alone and after another one: random pairs on random arrays.

A pair runs in both orders, so that each workload is once alone and once after the other. Where a
value differs, more seeds tell whether it differs by more than they do. ``-s`` shows each pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml

from lab.analysis import measure
from lab.compile.cell import procedure as compiling
from lab.compile.cell.procedure import cell_procedure
from lab.compile.cell.rest import Rest
from lab.compile.guest import seeds
from lab.host import images
from lab.host.guest.virtual.sealed import SealedBackend
from lab.host.images import virtual_time
from lab.model.execution.job import CellJob, SealedKit
from lab.model.execution.procedure import UNREST
from lab.model.scenario.document import Cell, Workload
from lab.run.steps import Undo, run_procedure
from tests import sealed
from tests.fakes import compiled_text

from .conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.timeout(1800)]

PAIRS = 100
QUICK = (13, 17)
"""Pairs that run with the other tests."""
ALIKE = 0.03
"""Relative difference that no seed is asked about."""
SEEDS = 5
SURE = 5.6
"""Student's t of 0.05 % with the freedom of two groups of five."""
BYTES, SLOW = "total_bytes_per_second", "total_operations_per_second"


def disks_of(draw: Random, count: int) -> dict[str, Any]:
    """Return random disks: limits on operations or bytes, bursts, modelled drives."""
    found: dict[str, Any] = {"count": count, "size": "256MiB"}
    match draw.randrange(8):
        case 0 | 1 | 2:
            found["throttle"] = {SLOW: draw.choice([150, 300, 600])}
        case 3:
            found["throttle"] = {SLOW: 200, "operation_size": "16KiB"}
        case 4:
            found["throttle"] = {BYTES: draw.choice(["6MiB", "20MiB"])}
        case 5:
            rate, length = 100, draw.choice([2, 30])
            found["throttle"] = {SLOW: rate, f"{SLOW}_max": 8 * rate}
            found["throttle"][f"{SLOW}_max_seconds"] = length
        case 6:
            found |= {"model": "hdd", "preset": "hdd_7200"}
        case _:
            found |= {"model": "ssd", "preset": "ssd_sata"}  # slow, so that fio's milliseconds do
            found["ssd"] = {"channels": 2, "read_latency": "2ms", "write_latency": "2ms"}
    return found


def array_of(draw: Random) -> tuple[int, dict[str, Any]]:
    """Return a random array, and its number of disks."""
    level = draw.choice([0, 1, 4, 5, 5, 6, 6, 10, 10, 10])
    count = {0: 3, 1: 2, 4: 4, 5: draw.choice([3, 5]), 6: 5, 10: draw.choice([3, 4])}[level]
    array: dict[str, Any] = {"level": level}
    if level != 1:
        array["chunk"] = draw.choice(["16KiB", "64KiB", "256KiB"])
    if level == 0:
        return count, array
    array["component_size"] = "64MiB"
    if level == 10:
        array["layout"] = draw.choice(["n2", "f2", "o2"])
    match draw.randrange(5) if level in (4, 5, 6) else draw.randrange(3):
        case 0 | 1:
            array |= {"bitmap": "internal", "bitmap_chunk": draw.choice(["64KiB", "1MiB"])}
        case 3 if level == 5:
            array["consistency_policy"] = "ppl"
        case 4:
            array["journal_disk"] = count + 1
            count += 1
    if level in (4, 5, 6) and draw.random() < 0.3:
        array["sysfs"] = {"stripe_cache_size": draw.choice([64, 1024])}
    if level == 1 and array.get("bitmap") == "internal":
        array |= {"write_mostly": 2, "write_behind": 64}
    return count, array


def workload_of(draw: Random, name: str) -> dict[str, Any]:
    """Return a random workload of a few seconds."""
    fio = {"name": name, "tool": "fio", "direct": 1, "size": "48MiB"}
    timed = {"runtime": "2s", "number_ios": 800, "ioengine": "libaio"}
    depth, small = draw.choice([1, 4, 16]), draw.choice(["4KiB", "16KiB", "64KiB"])
    match draw.randrange(9):
        case 0 | 1 | 2:
            return {**fio, **timed, "rw": "randwrite", "bs": small, "iodepth": depth}
        case 3:
            return {**fio, **timed, "rw": "randread", "bs": small, "iodepth": depth}
        case 4:
            return {**fio, **timed, "rw": "randrw", "bs": small, "iodepth": depth}
        case 5:
            way, size = draw.choice(["read", "write"]), draw.choice(["256KiB", "1MiB"])
            return {**fio, **timed, "rw": way, "bs": size, "iodepth": depth}
        case 6:
            return {**fio, "direct": 0, "rw": "randwrite", "bs": small, "io_size": "4MiB",
                    "end_fsync": 1}  # fmt: skip
        case 7:
            return {"name": name, "tool": "seek", "rw": draw.choice(["randread", "randwrite"]),
                    "bs": small, "number_ios": 300, "size": "48MiB"}  # fmt: skip
        case _:
            way = draw.choice([("of", "oflag"), ("if", "iflag")])
            return {"name": name, "tool": "dd", way[0]: "{target}", way[1]: "direct",
                    "bs": draw.choice(["64KiB", "512KiB"]), "count": 60}  # fmt: skip


def pair(number: int) -> dict[str, Any]:
    """Return the scenario of a pair."""
    draw = Random(number)
    count, array = array_of(draw)
    return {
        "title": f"Pair {number}",
        "question": "Are both the same alone and after each other?",
        "guest": {"image": "debian-12", "cpus": 1, "memory": "512MiB", "clock": "virtual"},
        "disks": disks_of(draw, count),
        "array": array,
        "workloads": [workload_of(draw, "a"), workload_of(draw, "b")],
    }


def cells(data: dict[str, Any], directory: Path) -> tuple[Cell, Cell]:
    """Return the cells with the workloads in both orders; each draws the same places in both.

    Other places are another value: 183 to 366 a second with eight seeds of pair 35, and 198 to 200
    with one of them alone and after four other workloads.
    """
    cell = seeds.own_places(
        compiled_text(directory, yaml.safe_dump(data, sort_keys=False), name="pair").cells[0]
    )
    return cell, cell.model_copy(update={"workloads": cell.workloads[::-1]})


@pytest.fixture(scope="module")
def kit(lab_home: Home, image: str, tmp_path_factory: pytest.TempPathFactory) -> SealedKit:
    found = images.find(image)
    assert found is not None
    return virtual_time.prepare(cells(pair(1), tmp_path_factory.mktemp("kit"))[0].guest, found)


Measure = Callable[[Cell], dict[str, float]]


@pytest.fixture
def values(kit: SealedKit, tmp_path: Path) -> Iterator[Measure]:
    """Run a cell; return the main value of each workload."""
    bench: SealedBackend = sealed.backend(kit, tmp_path, notice=pytest.fail)

    def run(cell: Cell) -> dict[str, float]:
        raw: dict[str, str] = {}
        procedure = cell_procedure(cell, bench.record.directory)
        bench.take(CellJob(id="c", procedure=procedure, directory="", target="", space=1 << 30))
        run_procedure(procedure, bench, Undo(), raw.__setitem__, lambda _s: None, lambda _c: None)
        assert not [text for text in raw.values() if f"\n{UNREST} " in text]
        found = {(m.workload, m.metric): m.values[0] for m in measure.measurements(cell, raw)}
        marked = {check.workload for check in measure.guest_cpu(cell, raw) if not check.passed}
        return {
            w.name: found[w.name, "throughput" if w.tool == "dd" else "iops"]
            for w in cell.workloads
            if w.name not in marked  # the guest decides it, and the lab says so
        }

    yield run
    bench.destroy_guest()


def differences(orders: tuple[Cell, Cell], run: Measure) -> dict[str, str]:
    """Return the workloads whose values differ by more than seeds, with the values."""
    alone: dict[str, list[float]] = {"a": [], "b": []}
    after: dict[str, list[float]] = {"a": [], "b": []}
    for seed in range(1, SEEDS + 1):
        for cell, (first, second) in zip(orders, (("a", "b"), ("b", "a")), strict=True):
            found = run(cell.model_copy(update={"seed": seed}))
            alone[first] += [found[first]] if first in found else []
            after[second] += [found[second]] if second in found else []
        decided = [w for w in "ab" if len(alone[w]) == len(after[w]) == seed]
        if all(abs(fmean(after[w]) / fmean(alone[w]) - 1) <= ALIKE for w in decided):
            break
    for w in decided:
        print(
            f"  {w} alone",
            *map("{:.5g}".format, alone[w]),
            "after",
            *map("{:.5g}".format, after[w]),
        )
    found = {}
    for name in decided:
        off = fmean(after[name]) / fmean(alone[name]) - 1
        if abs(off) <= ALIKE or len(alone[name]) < SEEDS:
            continue
        spread = ((stdev(alone[name]) ** 2 + stdev(after[name]) ** 2) / SEEDS) ** 0.5
        if abs(fmean(after[name]) - fmean(alone[name])) > SURE * spread:
            found[name] = f"{off:+.1%}: alone {alone[name]}, after the other {after[name]}"
    return found


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in range(1, PAIRS + 1)],
)
def test_both_of_a_pair_are_the_same_alone_and_after_each_other(
    values: Measure, tmp_path: Path, number: int
) -> None:
    data = pair(number)
    print(f"\n{number}: {data['disks']} {data['array']}", *data["workloads"], sep="\n  ")
    assert differences(cells(data, tmp_path), values) == {}


def former(cell: Cell, workload: Workload, target: str, *, later: bool) -> Rest:
    """What came before a workload: a short pause, and nothing about md."""
    del cell, workload, later
    drop = f"sync; blockdev --flushbufs {target}; echo 2 > /proc/sys/vm/drop_caches; "
    return Rest(script=f"{drop}sleep 0.20", pause=0.2, seconds=0.2)


def test_without_rest_and_own_places_a_second_workload_is_faster(
    values: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fio = {"tool": "fio", "rw": "randwrite", "bs": "4KiB", "direct": 1, "ioengine": "libaio",
           "iodepth": 8, "size": "100MiB", "runtime": "3s", "time_based": 1}  # fmt: skip
    data = pair(1) | {
        "disks": {"count": 4, "size": "256MiB", "throttle": {SLOW: 150}},
        "array": {"level": 10, "chunk": "64KiB", "component_size": "64MiB", "bitmap": "internal",
                  "bitmap_chunk": "64KiB"},
        "workloads": [{"name": "a", **fio}, {"name": "b", **fio}],
    }  # fmt: skip
    cell, _ = cells(data, tmp_path)
    rested = values(cell)
    assert rested["b"] == pytest.approx(rested["a"], rel=0.05)
    monkeypatch.setattr(compiling, "rest_before", former)
    monkeypatch.setattr(seeds, "own_places", lambda cell: cell)
    same_places, _ = cells(data, tmp_path)
    at_once = values(same_places)
    assert at_once["a"] == pytest.approx(rested["a"], rel=1e-3)
    assert at_once["b"] > 1.2 * at_once["a"]
