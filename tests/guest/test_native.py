"""Native guests: the same results in each run, also of fio, which reads the processor's counter.

The control is the same kernel with the host's clock.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import pytest

from drive import region
from drive.native import command
from lab.host.images import kits, store
from lab.host.images.virtual_time import native_guest_of, root_disk
from lab.model.execution.job import SealedKit
from lab.model.scenario.guest import Clock, Engine, Guest

from .conftest import LAB, Home

pytestmark = [pytest.mark.guest, pytest.mark.slow, pytest.mark.timeout(7200)]  # builds a kernel

QUESTION = """\
title: A native guest
question: Is it as fast as theory says, and the same each time?
guest: {image: debian-12, memory: 512MiB, clock: virtual, engine: auto}
disks: {count: 3, size: 512MiB, throttle: {total_bytes_per_second: 5MiB}}
array: {level: 5, layout: left-symmetric, chunk: 512KiB, bitmap: none,
  component_size: 128MiB, consistency_policy: resync, initial_sync: assume_clean}
workloads:
  - {name: write, tool: dd, of: '{target}', bs: 1MiB, count: 100, oflag: direct}
  - {name: read, tool: fio, rw: randread, bs: 4KiB, direct: true, ioengine: libaio,
     iodepth: 8, runtime: 5, time_based: true}
  - {name: burst, tool: fio, rw: randread, bs: 4KiB, size: 64MiB, io_size: 512KiB, direct: true,
     ioengine: libaio, iodepth: 8}
"""


@pytest.mark.usefixtures("image")
def test_two_runs_are_identical_and_as_fast_as_theory(lab_home: Home, tmp_path: Path) -> None:
    path = tmp_path / "question.yaml"
    path.write_text(QUESTION)
    results = [
        lab_home.json("run", "scenario", str(path), "--fresh", timeout=7200) for _ in range(2)
    ]
    cells = [cell for result in results for cell in result["cells"]]
    assert [cell["outcome"] for cell in cells] == ["done", "done"]
    assert cells[0]["digest"] == cells[1]["digest"]
    assert results[0]["environment"]["engine"] == ["virtual time runs natively"]
    # Each disk writes 50 MiB at 5 MiB/s, but for the burst of a tenth of a second and the last
    # request, which does not wait for itself.
    found = {(m["workload"], m["metric"]): m["median"] for m in cells[0]["measurements"]}
    assert 9.7 < found["write", "seconds"] < 10
    # Within the burst no request waits. fio does not sleep, and reads the processor's counter for
    # each: it does not wait for the counter (lab_counter), which took 200 µs for each request.
    assert found["burst", "latency"] < 20e-6
    assert lab_home.left() == []


FORKS = """\
cat >/tmp/forks.py <<'END'
import mmap, os
own, shared = bytearray(b"a" * (1 << 20)), mmap.mmap(-1, 1 << 20)
open("/tmp/file", "wb").write(b"a" * (1 << 20))
with open("/tmp/file", "r+b") as file:
    private = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
for page in range(0, 1 << 20, 4096):
    if os.fork() == 0:
        own[page] = shared[page] = private[page] = 98
        os._exit(own[page] - 98)
    assert os.wait()[1] == 0
    assert (own[page], shared[page], private[page]) == (97, 98, 97), page
assert open("/tmp/file", "rb").read(1) == b"a"
print("each process has its own pages")
END
python3 /tmp/forks.py
sleep 0.3
cat /proc/uptime
head -c 16 /dev/random | od -An -tx1
exit 0
"""


def region_after(kit: SealedKit, path: Path, but: Sequence[str] = ()) -> tuple[str, str]:
    """Return output and digest of a guest's region, without these arguments of its kernel."""
    disks, blocks = [root_disk(kit)], 4096
    size = region.size_for(disks, blocks)
    own = region.create(path, disks, size=size, commands=FORKS.encode(), blocks=blocks)
    words = [w for w in command.command(native_guest_of(kit, path)) if w not in but]
    subprocess.run(words, stdin=subprocess.DEVNULL, check=False, timeout=300, capture_output=True)
    state = region.read(own)
    assert state.phase is region.Phase.POWERED_OFF, state.log
    return state.output.decode(), region.digest(path)


@pytest.mark.usefixtures("image")
def test_nothing_of_the_host_gets_in_and_the_test_would_see_it(tmp_path: Path) -> None:
    image = store.find_newest("debian-12")
    assert image is not None
    kit = kits.prepare(Guest(clock=Clock.VIRTUAL, engine=Engine.NATIVE), image)
    one, other = (region_after(kit, tmp_path / name) for name in ("one", "other"))
    assert one == other
    assert one[0].startswith("each process has its own pages\n")
    late = "time-travel=inf-cpu"
    hosts = [region_after(kit, tmp_path / f"host{n}", but=[late]) for n in range(2)]
    assert hosts[0][1] != hosts[1][1]


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep the host's processors busy."""
    with ExitStack() as ends:
        for _ in range(processes):
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            ends.callback(loop.wait)
            ends.callback(loop.kill)
        yield


NATIVELY: Final = ("--clock", "virtual", "--set", "guest.engine=native")


def run_of(home: Home, scenario: str, *words: str) -> Any:
    return home.json("run", "scenario", scenario, *NATIVELY, "--fresh", *words, timeout=1800)


def digests_of(result: Any) -> dict[str, tuple[str, str]]:
    """Return digests of inputs and results by cell."""
    assert {cell["outcome"] for cell in result["cells"]} == {"done"}
    return {
        cell["id"]: (cell["digest"]["inputs"], cell["digest"]["results"])
        for cell in result["cells"]
    }


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("raid5-parity-last", ["--set", "array.layout=parity-last", "--set", "disks.count=5"]),
        ("faults-modelled", []),
        ("reshape", ["--set", "matrix={}"]),
    ],
)
@pytest.mark.usefixtures("image")
def test_ten_runs_have_one_digest_and_another_seed_has_another(
    lab_home: Home, scenario: str, words: Sequence[str]
) -> None:
    runs = []
    for number in range(10):
        with busy(4 if number % 2 else 0):
            runs.append(digests_of(run_of(lab_home, scenario, *words)))
    assert all(run == runs[0] for run in runs)
    other = digests_of(run_of(lab_home, scenario, *words, "--seed", "2"))
    assert all(other[cell][1] != found[1] for cell, found in runs[0].items() if cell in other)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.usefixtures("image")
def test_another_user_home_and_checkout_have_the_same_digest(
    lab_home: Home, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The other user's home has a copy of the kit, as an imported one would be."""
    mine = digests_of(run_of(lab_home, "raid5-parity-last"))
    place = Path("/var/tmp/lab-native-user")
    shutil.rmtree(place, ignore_errors=True)
    try:
        root = Path(__file__).resolve().parents[2]
        tracked = subprocess.run(
            ["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True
        ).stdout.split("\0")
        for name in filter(None, tracked):
            if (root / name).is_file():
                (place / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, place / "checkout" / name)
        # Copies of sparse files, which would be whole with shutil.
        for name in ("data/images/debian-12-*", "cache/sealed/[bni]*-*"):
            (place / "home" / name).parent.mkdir(parents=True, exist_ok=True)
            for source in sorted(lab_home.path.glob(name)):
                words = ["cp", "-rL", "--sparse=always", source, (place / "home" / name).parent]
                subprocess.run(words, check=True)
        subprocess.run(["chown", "-R", "65534:65534", place], check=True)
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        found = subprocess.run(
            [*user, *LAB, "run", "scenario", "raid5-parity-last", *NATIVELY, "--fresh", "--json"],
            cwd=place / "checkout",
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(place),
                "LAB_HOME": str(place / "home"),
                "PYTHONPATH": str(place / "checkout"),
                "LANG": "de_DE.UTF-8",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        assert found.returncode in (0, 1), found.stderr
        assert digests_of(json.loads(found.stdout)) == mine
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.mark.usefixtures("image")
def test_the_twelve_cells_are_as_fast_as_theory_says(lab_home: Home) -> None:
    cells = run_of(lab_home, str(Path(__file__).parents[2] / "bench/layouts.yaml"))["cells"]
    errors = []
    for cell in cells:
        measured = {(m["workload"], m["metric"]): m["median"] for m in cell["measurements"]}
        for predicted in cell["predictions"]:
            if predicted["metric"] == "seconds":
                value = measured[predicted["workload"], "seconds"]
                errors.append(abs(value / predicted["value"] - 1))
    assert len(errors) == 24
    assert median(errors) <= 0.001
    assert max(errors) <= 0.005
