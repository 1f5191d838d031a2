"""Random loads on modelled drives in virtual time, against theory.

Minutes but for the first test; ``-s`` prints every value.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from lab.analysis.predict import predictions
from lab.compile.scenario.compiler import compile_scenario

from .conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.timeout(5400)]

SEED = 20261124
GUEST = {"image": "debian-12", "cpus": 1, "memory": "512MiB", "clock": "virtual"}
LEVELS = {0: (2, 6), 1: (2, 3), 10: (4, 8), 5: (3, 8), 6: (4, 8)}
"""Fewest and most disks."""
MEDIAN, WORST = 0.01, 0.03


def scenario(workload: dict[str, Any], disks: dict[str, Any], **more: Any) -> dict[str, Any]:
    load = {"tool": "fio", "bs": "4KiB", "direct": True, "ioengine": "libaio"}
    return {
        "title": "A random load",
        "question": "Is it as fast as theory says?",
        "guest": GUEST,
        "disks": {"model": "hdd", **disks},
        "workloads": [load | workload],
        **more,
    }


def array_cell(chance: random.Random, level: int, *, bitmap: bool) -> dict[str, Any]:
    """Random writes to an array of any level, at any depth."""
    disks = chance.randint(*LEVELS[level])
    array: dict[str, Any] = {"level": level}
    if level != 1:
        array["chunk"] = f"{2 ** chance.randint(4, 9)}KiB"
    if level:
        array |= {"component_size": "512MiB", "initial_sync": "assume_clean", "bitmap": "none"}
    if bitmap:
        array |= {"bitmap": "internal", "bitmap_chunk": f"{2 ** chance.randint(8, 12)}KiB"}
    depth = 2 ** chance.randint(0, 5)
    return scenario(
        {"name": "load", "rw": "randwrite", "iodepth": depth, "time_based": True, "runtime": "10s"},
        {
            "count": disks - disks % 2 if level == 10 else disks,
            "size": "1GiB",
            "preset": chance.choice(["hdd_7200", "hdd_10000"]),
        },
        array=array,
        trials=3,
    )


def array_cells(directory: Path, count: int) -> list[Path]:
    """Every other one with a bitmap. What theory has no prediction for is drawn again."""
    chance, files = random.Random(SEED), []
    while len(files) < count:
        bitmap = len(files) % 2 == 1
        level = chance.choice([level for level in LEVELS if level or not bitmap])
        path = directory / f"cell{len(files):02}.yaml"
        path.write_text(json.dumps(array_cell(chance, level, bitmap=bitmap), indent=1))
        (cell,) = compile_scenario(path).cells
        if predictions(cell):
            files.append(path)
    return files


def errors(home: Home, path: Path) -> list[float]:
    """Theory's error of each cell's mean IOPS, as a part of it."""
    found = []
    for cell in home.json("run", "scenario", str(path), timeout=5000)["cells"]:
        assert cell["outcome"] == "done", cell["reason"]
        (trials,) = (m["values"] for m in cell["measurements"] if m["metric"] == "iops")
        (theory,) = (p["value"] for p in cell["predictions"] if p["metric"] == "iops")
        found.append(theory / fmean(trials) - 1)
        document = json.loads(path.read_text())
        what = (cell["axes"], document["disks"], document.get("array"), document["workloads"][0])
        print(f"{found[-1]:+.3%} {theory:.2f} {trials} {what}", flush=True)
    return found


def test_a_bare_drive_and_an_array_are_as_fast_as_theory_says(
    lab_home: Home, image: str, tmp_path: Path
) -> None:
    read = {"name": "load", "rw": "randread", "iodepth": 4, "io_size": "4MiB"}
    write = {"name": "load", "rw": "randwrite", "iodepth": 1, "time_based": True, "runtime": "5s"}
    array = {"level": 5, "chunk": "64KiB", "component_size": "1GiB", "bitmap": "internal"}
    array |= {"bitmap_chunk": "1MiB", "initial_sync": "assume_clean"}
    found = []
    for number, document in enumerate(
        (
            scenario(read, {"count": 1, "size": "500GiB"}),
            scenario(write, {"count": 4, "size": "2GiB"}, array=array),
        )
    ):
        path = tmp_path / f"fast{number}.yaml"
        path.write_text(json.dumps(document))
        found += errors(lab_home, path)
    assert abs(found[0]) <= MEDIAN
    assert abs(found[1]) <= WORST


@pytest.mark.slow
@pytest.mark.parametrize("rw", ["randread", "randwrite"])
def test_bare_drives_are_as_fast_as_theory_says(
    lab_home: Home, image: str, tmp_path: Path, rw: str
) -> None:
    """10,240 requests of each of five seeds."""
    load = {"name": "load", "rw": rw, "iodepth": 1, "io_size": "40MiB"}
    document = scenario(load, {"count": 1, "size": "500GiB"}, trials=5)
    document["matrix"] = {"workloads.load.iodepth": [1, 4, 32]}
    path = tmp_path / "bare.yaml"
    path.write_text(json.dumps(document))
    found = errors(lab_home, path)
    assert len(found) == 3
    assert max(map(abs, found)) <= MEDIAN


@pytest.mark.slow
def test_twenty_arrays_are_as_fast_as_theory_says(
    lab_home: Home, image: str, tmp_path: Path
) -> None:
    found = [abs(e) for path in array_cells(tmp_path, 20) for e in errors(lab_home, path)]
    print(f"{len(found)} cells: median {median(found):.3%}, worst {max(found):.3%}")
    assert median(found) <= MEDIAN
    assert max(found) <= WORST
