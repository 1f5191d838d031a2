"""Native guests: the same results in each run, also of fio, which reads the processor's counter."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.slow, pytest.mark.timeout(7200)]  # builds a kernel

QUESTION = """\
title: A native guest
question: Is it as fast as theory says, and the same each time?
guest: {image: debian-12, memory: 512MiB, clock: virtual, engine: native}
disks: {count: 3, size: 512MiB, throttle: {total_bytes_per_second: 5MiB}}
array: {level: 5, layout: left-symmetric, chunk: 512KiB, bitmap: none,
  component_size: 128MiB, consistency_policy: resync, initial_sync: assume_clean}
workloads:
  - {name: write, tool: dd, of: '{target}', bs: 1MiB, count: 100, oflag: direct}
  - {name: read, tool: fio, rw: randread, bs: 4KiB, direct: true, ioengine: libaio,
     iodepth: 8, runtime: 5, time_based: true}
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
    # Each disk writes 50 MiB at 5 MiB/s, but for the burst of a tenth of a second and the last
    # request, which does not wait for itself.
    seconds = next(
        m["median"]
        for m in cells[0]["measurements"]
        if (m["workload"], m["metric"]) == ("write", "seconds")
    )
    assert 9.7 < seconds < 10
    assert lab_home.left() == []
