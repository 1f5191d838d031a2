"""The other images: each built, booted and used once. Minutes, and the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.md.facts.support import version_of

from .conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.slow]

ARRAY = """\
title: An array on another image
question: Is it what was asked for?
guest: {image: IMAGE, memory: 768MiB}
disks: {count: 4, size: 512MiB, throttle: {total_bytes_per_second: 5MiB}}
array: {level: 5, bitmap: BITMAP, chunk: 64KiB}
workloads:
  - {name: write, tool: dd, of: '{target}', bs: 1MiB, count: 20, oflag: direct}
"""
POOL = """\
title: A pool
question: Is it what was asked for?
guest: {image: debian-12-zfs, memory: 768MiB}
disks: {count: 4, size: 512MiB, throttle: {total_bytes_per_second: 20MiB}}
array: {kind: zfs, level: raidz2, zfs: {recordsize: 64KiB, arc_max: 64MiB}}
filesystem: {type: zfs}
workloads:
  - {name: tree, tool: file_tree, files: 50}
  - {name: again, tool: file_tree, files: 50, phases: [write, remove]}
matrix:
  array.level: [raidz2, mirror, stripe]
"""
CLOCK = ("uncontended", "calibrated")
"""Checks of the host's and the disks' time, which these tests do not ask for."""
IMAGES = {"debian-13": (6, 12), "debian-sid": (7, 0), "debian-sid-lockless": (7, 0)}


def built(lab_home: Home, name: str) -> dict[str, Any]:
    """The image's row; sid's archive may be an old copy, which is accepted here."""
    done = lab_home.run("image", "build", name, "--accept-expired", timeout=1800)
    assert done.returncode == 0, done.stderr
    rows = lab_home.json("image", "list")["images"]
    (row,) = [r for r in rows if r["name"] == name][:1]
    return dict(row)


def scenario(directory: Path, text: str) -> str:
    path = directory / "q.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def cells(lab_home: Home, *words: str) -> list[dict[str, Any]]:
    found = lab_home.json("run", "scenario", *words, timeout=1200)["cells"]
    assert [(c["id"], c["outcome"]) for c in found if c["outcome"] != "done"] == []
    for cell in found:
        failed = [c for c in cell["checks"] if not c["passed"] and c["name"] not in CLOCK]
        assert cell["checks"]
        assert failed == []
    return list(found)


@pytest.mark.parametrize("name", IMAGES)
def test_an_array_is_built_and_measured_on_each(lab_home: Home, tmp_path: Path, name: str) -> None:
    row = built(lab_home, name)
    version = version_of(row["kernel"])
    assert version is not None
    assert version >= IMAGES[name]
    bitmap = "lockless" if name.endswith("lockless") else "internal"
    path = scenario(tmp_path, ARRAY.replace("IMAGE", name).replace("BITMAP", bitmap))
    (cell,) = cells(lab_home, path)
    assert cell["measurements"]


def test_what_an_image_lacks_is_refused_before_a_guest_starts(
    lab_home: Home, tmp_path: Path
) -> None:
    built(lab_home, "debian-13")
    path = scenario(tmp_path, ARRAY.replace("IMAGE", "debian-13").replace("BITMAP", "lockless"))
    for words in (("scenario", "check", path), ("run", "scenario", path)):
        done = lab_home.run(*words)
        assert done.returncode == 2, done.stderr
        assert "the image 'debian-13' cannot do this: Linux knows lockless" in done.stderr
        assert "debian-sid-lockless" in done.stderr
    assert lab_home.left() == []


def test_pools_of_each_kind_carry_datasets_and_volumes(lab_home: Home, tmp_path: Path) -> None:
    built(lab_home, "debian-12-zfs")
    path = scenario(tmp_path, POOL)
    assert len(cells(lab_home, path)) == 3
    (cell,) = cells(lab_home, path, "--set", "matrix={}", "--set", "filesystem.type=xfs")
    assert cell["measurements"]


def test_md_runs_on_the_disks_that_a_pool_had(lab_home: Home, tmp_path: Path) -> None:
    """Both on one image: partitions and labels of the pool are gone when md comes."""
    built(lab_home, "debian-12-zfs")
    text = (
        POOL.replace("raidz2, mirror, stripe", "raidz2, raid6")
        .replace(
            "matrix:\n",
            "matrix:\n"
            "  array.kind: [zfs, md]\n"
            "  filesystem.type: [zfs, ext4]\n"
            "  exclude:\n"
            "    - {array.kind: zfs, array.level: raid6}\n"
            "    - {array.kind: md, array.level: raidz2}\n"
            "    - {array.kind: zfs, filesystem.type: ext4}\n"
            "    - {array.kind: md, filesystem.type: zfs}\n",
        )
        .replace(", zfs: {recordsize: 64KiB, arc_max: 64MiB}", "")
    )
    found = cells(lab_home, scenario(tmp_path, text), "--jobs", "1")
    assert {c["axes"]["array.kind"] for c in found} == {"zfs", "md"}


def test_a_kernel_of_ones_own_is_booted(lab_home: Home, tmp_path: Path, image: str) -> None:
    """The image's own kernel as a file: its modules are those of the initrd and the image."""
    (row,) = [r for r in lab_home.json("image", "list")["images"] if r["name"] == image][:1]
    path = scenario(tmp_path, ARRAY.replace("IMAGE", image).replace("BITMAP", "none"))
    kernel = Path(row["directory"]) / "kernel"
    cells(lab_home, path, "--set", f"guest.kernel={kernel}")
