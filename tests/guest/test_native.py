"""Native guests: the same results in each run, and a fio that takes its time from the guest's clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.slow, pytest.mark.timeout(7200)]  # builds a kernel

QUESTION = """\
title: A native guest
question: Is it as fast as theory says, and the same each time?
guest: {image: debian-12, memory: 512MiB, clock: virtual, engine: native}
disks: {count: 3, size: 512MiB, throttle: {total_operations_per_second: 100}}
array: {level: 5, layout: left-symmetric, chunk: 64KiB, bitmap: none,
  component_size: 128MiB, consistency_policy: resync, initial_sync: assume_clean}
workloads:
  - {name: read, tool: fio, rw: randread, bs: 4KiB, direct: true, ioengine: libaio,
     iodepth: 1, runtime: 20, time_based: true}
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
    # One request at a time to a disk of 100 operations per second takes 10 ms.
    rate = next(m["value"] for m in cells[0]["measurements"] if m["metric"] == "iops")
    assert rate == pytest.approx(100, rel=0.001)
    assert lab_home.left() == []
