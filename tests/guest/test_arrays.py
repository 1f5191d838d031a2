"""Array kinds and file systems in one guest: each is built, read back, used and taken apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import Home

pytestmark = pytest.mark.guest

GUEST = "guest: {image: debian-12, cpus: 1, memory: 512MiB}\n"

SEGMENTS = f"""\
title: Segments
question: Is a volume over four arrays built, and as fast as theory says?
{GUEST}disks: {{count: 4, size: 512MiB, throttle: {{total_bytes_per_second: 5MiB}}}}
array: {{kind: segments, segments: 4, level: 5, chunk: 64KiB, bitmap: none}}
workloads:
  - {{name: write, tool: dd, of: '{{target}}', bs: 768KiB, count: 20, oflag: direct}}
  - {{name: read, tool: dd, if: '{{target}}', bs: 768KiB, count: 20, iflag: direct}}
matrix:
  array.kind: [segments, md]
  array.volume: [linear, striped]
  exclude: [{{array.kind: md, array.volume: striped}}]
"""

EXTERNAL = f"""\
title: A bitmap's file
question: Is it where it should be, and are its bits those that were asked for?
{GUEST}disks:
  - {{count: 3, size: 256MiB, throttle: {{total_operations_per_second: 200}}}}
  - {{count: 1, size: 64MiB, serial: fast, model: none}}
array: {{level: 5, chunk: 64KiB, bitmap: external, bitmap_disk: 4}}
workloads:
  - {{name: write, tool: fio, rw: randwrite, bs: 4KiB, direct: true, ioengine: libaio,
     iodepth: 8, number_ios: 400}}
matrix:
  array.bitmap: [external, none]
  array.bitmap_chunk: [null, 64KiB]
  exclude: [{{array.bitmap: none, array.bitmap_chunk: 64KiB}}]
"""

FILESYSTEMS = f"""\
title: File systems
question: Are all of them made, mounted and unmounted, on an array and on a volume?
{GUEST}disks: {{count: 4, size: 512MiB, throttle: {{total_bytes_per_second: 60MiB}}}}
array: {{kind: md, segments: 2, level: 5, chunk: 64KiB, bitmap: none}}
filesystem: {{type: ext4}}
workloads:
  - {{name: tree, tool: file_tree, files: 100}}
matrix:
  filesystem.type: [ext3, ext4, xfs]
  array.kind: [md, segments]
  exclude:
    - {{filesystem.type: ext3, array.kind: segments}}
    - {{filesystem.type: ext4, array.kind: md}}
    - {{filesystem.type: xfs, array.kind: md}}
"""


def run(home: Home, text: str, tmp_path: Path) -> list[dict[str, Any]]:
    """The cells of the result; they share one guest, so that each finds what the last one left."""
    path = tmp_path / "question.yaml"
    path.write_text(text)
    result = home.json("run", "scenario", str(path), "--jobs", "1", timeout=900)
    cells: list[dict[str, Any]] = result["cells"]
    assert [(c["outcome"], c["reason"]) for c in cells] == [("done", "")] * len(cells)
    assert home.left() == []
    return cells


def checks(cell: dict[str, Any]) -> dict[str, str]:
    return {c["name"]: c["detail"] for c in cell["checks"] if c["passed"]}


def moved(cell: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Bytes that each disk moved in each workload."""
    return {
        (c["serial"], c["workload"]): c["written_bytes"] + c["read_bytes"] for c in cell["counters"]
    }


@pytest.mark.slow
@pytest.mark.usefixtures("image")
def test_segments_are_built_read_back_and_taken_apart(lab_home: Home, tmp_path: Path) -> None:
    linear, striped, whole = run(lab_home, SEGMENTS, tmp_path)
    assert {"array1", "array2", "array3", "array4", "volume"} <= checks(linear).keys()
    assert "kinds=linear linear linear linear" in checks(linear)["volume"]
    assert "kinds=striped," in checks(striped)["volume"]
    assert "volume" not in checks(whole)
    assert moved(linear) == pytest.approx(moved(whole), rel=0.01)
    assert linear["predictions"]
    assert not striped["predictions"]


@pytest.mark.slow
@pytest.mark.usefixtures("image")
def test_a_bitmap_in_a_file_is_on_its_own_disk(lab_home: Home, tmp_path: Path) -> None:
    default, given, without = run(lab_home, EXTERNAL, tmp_path)
    for cell, chunk in ((default, 4096), (given, 65536)):
        assert "on_its_disk=yes" in checks(cell)["bitmap_disk"]
        assert "bitmap=external" in checks(cell)["array"]
        assert f"bitmap_chunk={chunk}" in checks(cell)["array"]
        fast = next(c for c in cell["counters"] if c["serial"] == "fast")
        assert fast["writes"] > 100
    assert "bitmap_disk" not in checks(without)
    assert all(c["writes"] == 0 for c in without["counters"] if c["serial"] == "fast")


@pytest.mark.slow
@pytest.mark.usefixtures("image")
def test_file_systems_are_whole_before_they_are_used(lab_home: Home, tmp_path: Path) -> None:
    cells = run(lab_home, FILESYSTEMS, tmp_path)
    for cell in cells:
        kind = cell["axes"]["filesystem.type"]
        assert f"type={kind}" in checks(cell)["filesystem"]
        assert ("left_to_zero=0" in checks(cell)["filesystem"]) is (kind != "xfs")
