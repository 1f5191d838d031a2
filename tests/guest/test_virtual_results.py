"""Virtual time: what cells measure in it, against theory, against real time, and on other hosts.

Minutes each; ``-s`` prints every figure.
"""

from __future__ import annotations

import json
import os
import pwd
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lab.analysis.predict import predictions
from lab.compile.scenario.compiler import compile_scenario
from tests.sealed import DRIVE

from .conftest import LAB, Home

pytestmark = [pytest.mark.guest, pytest.mark.slow, pytest.mark.timeout(5400)]

ROOT = DRIVE.parent
LAYOUTS = str(ROOT / "bench" / "layouts.yaml")
VIRTUAL = ("--clock", "virtual")
SEED = 20261123

Figures = dict[tuple[str, str, str], float]
"""Medians by the cell's axes, workload and metric: its id has the clock in it."""


def figures(document: Any, *metrics: str) -> Figures:
    """Of a result whose cells are all done."""
    assert [(c["id"], c["reason"]) for c in document["cells"] if c["outcome"] != "done"] == []
    return {
        (str(cell["axes"]), found["workload"], found["metric"]): found["median"]
        for cell in document["cells"]
        for found in cell["measurements"]
        if found["metric"] in metrics
    }


def digests(document: Any) -> dict[str, tuple[str, str]]:
    """Of inputs and of results, by cell."""
    return {c["id"]: (c["digest"]["inputs"], c["digest"]["results"]) for c in document["cells"]}


def timed(home: Home, *words: str) -> tuple[Any, float]:
    """A result, and the host's seconds that it took."""
    began = time.monotonic()
    document = home.json("run", "scenario", *words, timeout=3600)
    seconds = time.monotonic() - began
    print(f"{' '.join(words)}: {seconds:.1f} s", flush=True)
    return document, seconds


def compared(title: str, these: Figures, those: Figures) -> list[float]:
    """Parts by which figures differ, each printed."""
    assert these.keys() == those.keys()
    apart = []
    for key, value in these.items():
        apart.append(value / those[key] - 1)
        print(f"{title}: {key[0]} {key[1]} {value:.6g} {those[key]:.6g} {apart[-1]:+.4%}")
    return apart


# --- what is measured ----------------------------------------------------------------------------


def test_the_claims_of_raid5_parity_last_hold(lab_home: Home, image: str) -> None:
    document, _ = timed(lab_home, "raid5-parity-last", *VIRTUAL)
    assert {c["clock"] for c in document["cells"]} == {"sealed"}
    verdicts = {c["id"]: c["verdict"] for c in document["claims"]}
    print(verdicts)
    assert len(verdicts) == 12
    assert set(verdicts.values()) == {"holds"}


LEVELS = {0: (2, 8), 4: (3, 8), 5: (3, 8), 6: (4, 8), 10: (4, 8)}
"""Fewest and most disks."""


def sequential_cell(chance: random.Random) -> dict[str, Any]:
    """A scenario with one cell of any level, as large, and as fast, as chance has it."""
    level = chance.choice(list(LEVELS))
    disks = chance.randint(*LEVELS[level])
    chunk = 2 ** chance.randint(5, 9)
    bs = 2 ** chance.randint(6, 12)
    count = max(1, (chance.randint(24, 64) << 10) // bs)
    array: dict[str, Any] = {"level": level, "chunk": f"{chunk}KiB"}
    if level:  # RAID 0 has neither
        array |= {"component_size": "256MiB", "bitmap": "none"}
    if level in (5, 6):
        array["layout"] = chance.choice(["left-symmetric", "left-asymmetric", "right-symmetric"])
    if level in (4, 5, 6, 10):
        array["initial_sync"] = "assume_clean"
    dd = {"tool": "dd", "bs": f"{bs}KiB", "count": count}
    workloads = [
        {"name": "write", "if": "/dev/zero", "of": "{target}", "oflag": "direct", **dd},
        {"name": "read", "if": "{target}", "of": "/dev/null", "iflag": "direct", **dd},
    ]
    return {
        "title": "A sequential cell",
        "question": "Does theory say what it does?",
        "guest": {"image": "debian-12", "cpus": 1, "memory": "512MiB", "clock": "virtual"},
        "disks": {
            "count": disks,
            "size": "1GiB",
            "throttle": {"total_bytes_per_second": f"{chance.randint(2, 10)}MiB"},
        },
        "array": array,
        "workloads": workloads,
    }


CERTAIN = 0.002
"""Largest doubt of a prediction that is held against a measurement: how the pages of a buffer lie
in memory decides how requests of more than 1 MiB are cut, and theory cannot know it."""


def sequential_cells(directory: Path, count: int) -> list[Path]:
    """Scenarios with one cell each that theory predicts without doubt; others are drawn again."""
    chance, files = random.Random(SEED), []
    while len(files) < count:
        path = directory / f"cell{len(files)}.yaml"
        path.write_text(json.dumps(sequential_cell(chance), indent=1))
        (cell,) = compile_scenario(path).cells
        said = [p for p in predictions(cell) if p.metric == "throughput"]
        if len(said) == len(cell.workloads) and all(p.doubt <= CERTAIN for p in said):
            files.append(path)
    return files


def test_sequential_cells_are_as_theory_says(lab_home: Home, image: str, tmp_path: Path) -> None:
    files = sequential_cells(tmp_path, 60)
    lab_home.json("run", "scenario", str(files[0]), *VIRTUAL, timeout=1800)  # the snapshot

    def run(path: Path) -> Any:
        return lab_home.json("run", "scenario", str(path), *VIRTUAL, "--jobs", "1", timeout=1800)

    with ThreadPoolExecutor(2) as pool:
        documents = list(pool.map(run, files))
    worst: list[tuple[float, str]] = []
    for path, document in zip(files, documents, strict=True):
        (cell,) = document["cells"]
        assert cell["outcome"] == "done", cell["reason"]
        theory = {
            p["workload"]: p["value"] for p in cell["predictions"] if p["metric"] == "throughput"
        }
        assert theory.keys() == {"write", "read"}
        busy = [c["detail"] for c in cell["checks"] if c["name"] == "guest_cpu"]
        array = json.loads(path.read_text())
        for (_, workload, _), value in figures(document, "throughput").items():
            by = value / theory[workload] - 1
            what = (
                f"{path.stem} {workload} {by:+.4%} {array['array']} {array['workloads'][0]['bs']}"
            )
            worst.append((abs(by), f"{what} {array['disks']} {busy}"))
    worst.sort(reverse=True)
    for _, line in worst[:12]:
        print(line)
    parts = [by for by, _ in worst]
    print(f"{len(parts)} figures: median {statistics.median(parts):.4%}, worst {parts[0]:.4%}")
    assert statistics.median(parts) <= 0.001
    assert parts[0] <= 0.005


def test_both_clocks_measure_the_same_layouts(lab_home: Home, image: str) -> None:
    timed(lab_home, LAYOUTS, *VIRTUAL, "--set", "matrix={}")  # the snapshot
    virtual, seconds = timed(lab_home, LAYOUTS, *VIRTUAL)
    real, _ = timed(lab_home, LAYOUTS)
    apart = compared("sealed, real", figures(virtual, "throughput"), figures(real, "throughput"))
    print(f"12 cells, sealed: {seconds:.1f} s; worst {max(map(abs, apart)):.4%}")
    assert max(map(abs, apart)) <= 0.015
    assert seconds <= 45


@pytest.mark.parametrize("name", ["raid5-random-write", "bitmap-external"])
def test_both_clocks_measure_the_same_random_writes(lab_home: Home, image: str, name: str) -> None:
    virtual, _ = timed(lab_home, name, *VIRTUAL)
    real, _ = timed(lab_home, name)
    apart = compared("sealed, real", figures(virtual, "iops"), figures(real, "iops"))
    print(f"worst {max(map(abs, apart)):.4%}")
    assert max(map(abs, apart)) <= 0.03


def test_300_seconds_of_the_guests_time_take_a_minute(
    lab_home: Home, image: str, tmp_path: Path
) -> None:
    path = tmp_path / "long.yaml"
    path.write_text(
        """\
title: Five minutes
question: How long do they take?
guest: {image: debian-12, cpus: 1, memory: 512MiB}
disks: {count: 5, size: 1GiB, throttle: {total_operations_per_second: 100}}
array: {level: 5, chunk: 64KiB, component_size: 256MiB, bitmap: none, initial_sync: assume_clean}
workloads:
  - {name: write, tool: fio, rw: randwrite, bs: 4KiB, direct: true, ioengine: libaio, iodepth: 8,
     time_based: true, runtime: 300s}
"""
    )
    timed(lab_home, str(path), *VIRTUAL, "--set", "workloads.write.runtime=1s")  # the snapshot
    document, seconds = timed(lab_home, str(path), *VIRTUAL)
    assert figures(document, "iops")
    assert seconds <= 60


# --- one digest ----------------------------------------------------------------------------------


def test_one_guest_at_a_time_or_six_have_one_digest(lab_home: Home, image: str) -> None:
    one, _ = timed(lab_home, LAYOUTS, *VIRTUAL, "--jobs", "1")
    six, _ = timed(lab_home, LAYOUTS, *VIRTUAL, "--jobs", "6")
    assert len(digests(one)) == 12
    assert digests(one) == digests(six)


@pytest.fixture
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """An ordinary user, and a directory of their own that they can reach."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    user = pwd.getpwnam("nobody").pw_uid
    directory = Path(f"/tmp/lab-other-{os.getpid()}")
    directory.mkdir()
    os.chown(directory, user, user)
    yield user, directory
    shutil.rmtree(directory)


def test_a_fresh_checkout_of_an_ordinary_user_has_the_same_digests(
    lab_home: Home, image: str, ordinary: tuple[int, Path]
) -> None:
    """Nothing is shared but the image, which comes as a file."""
    cold = ("raid5-parity-last", *VIRTUAL, "--cold")
    first, _ = timed(lab_home, *cold)
    user, directory = ordinary
    archive = directory / "debian-12.tar"
    checksum = lab_home.json("image", "export", image, str(archive))["checksum"]
    checkout = directory / "lab"
    subprocess.run(["git", "clone", "-q", ROOT, checkout], check=True)
    subprocess.run(["chown", "-R", f"{user}:{user}", directory], check=True)
    Path(sys.prefix).parent.chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "LAB_HOME": str(directory / "home"),
        "PYTHONPATH": str(checkout),
    }

    def lab(*words: str) -> str:
        done = subprocess.run(
            [*LAB, *words],
            env=environment,
            cwd=checkout,
            user=user,
            group=user,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=1800,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    lab("image", "import", str(archive), "--checksum", checksum)
    second = json.loads(lab("run", "scenario", *cold, "--json"))
    print(digests(first), digests(second))
    assert digests(first) == digests(second)


def other_qemu(directory: Path) -> Path:
    """A newer QEMU of Debian's with its own libraries, as a program in a directory for PATH."""
    root = directory / "root"
    subprocess.run(
        [
            *("mmdebstrap", "--mode=root", "--variant=extract", "--include=qemu-system-x86"),
            *("trixie", str(root)),
        ],
        check=True,
        timeout=1200,
        capture_output=True,
    )
    program = directory / "bin" / "qemu-system-x86_64"
    program.parent.mkdir()
    parts = [root / at / "x86_64-linux-gnu" for at in ("usr/lib", "lib")]
    libraries = ":".join(str(part) for part in parts if part.exists())
    loader = f"{root}/usr/lib64/ld-linux-x86-64.so.2 --library-path {libraries}"
    data = " ".join(f"-L {root}/usr/share/{name}" for name in ("qemu", "seabios"))
    program.write_text(f'#!/bin/sh\nexec {loader} {root}/usr/bin/qemu-system-x86_64 {data} "$@"\n')
    program.chmod(0o755)
    return program


def test_another_version_of_qemu_measures_the_same(
    lab_home: Home, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can unpack packages without a namespace")
    cold = ("raid5-parity-last", *VIRTUAL, "--cold")  # no snapshot, whose making is an input too
    first, _ = timed(lab_home, *cold)
    program = other_qemu(tmp_path)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    print(said.stdout.splitlines()[0])
    second, _ = timed(lab_home, *cold)
    inputs = {i for i, _ in digests(first).values()} & {i for i, _ in digests(second).values()}
    assert not inputs, "it was not the other QEMU that ran"
    apart = compared("versions", figures(second, "seconds"), figures(first, "seconds"))
    print(f"worst {1e6 * max(map(abs, apart)):.2f} ppm")
    assert max(map(abs, apart)) <= 20e-6
