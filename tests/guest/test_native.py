"""Native guests: the same results in each run, also of fio, which reads the processor's counter.

The control is the same kernel with the host's clock.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from drive import region
from drive.native import command
from lab.host.images import kits, store
from lab.host.images.virtual_time import native_guest_of, root_disk
from lab.model.execution.job import SealedKit
from lab.model.scenario.guest import Clock, Engine, Guest

from .conftest import Home

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
