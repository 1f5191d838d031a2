"""Disks cut into segments: refused fields, steps, verification, and theory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.core.units import GIB, KIB, MIB
from lab.md.facts.segments import data_start, segment_geometry, segment_size, volume_bytes
from lab.md.theory.bucket import Direction
from lab.md.theory.cell import why_not
from lab.md.theory.cells import predict
from lab.md.theory.paths import Load, SequentialLoad
from lab.model.execution.procedure import GuestCommand, Step, Verify
from lab.model.image.manifest import ImageFacts
from lab.model.scenario.document import Array, Cell, Disk, Throttle, Workload
from lab.plugins.arrays.md import ARRAY as MD
from lab.plugins.arrays.segments import ARRAY
from lab.run.steps import compare, read_pairs

SEGMENTS = {"kind": "segments", "segments": 4, "level": 5, "chunk": "64KiB"}


def array(**fields: Any) -> Array:
    return Array.model_validate({**SEGMENTS, **fields})


def refusals(count: int = 4, size: int = GIB, **fields: Any) -> list[str]:
    disks = [Disk(size=size)] * count
    return [problem.key for problem in ARRAY.problems(array(**fields), disks)]


def steps(count: int = 4, **fields: Any) -> tuple[Step, ...]:
    paths = [f"/dev/disk/by-id/virtio-disk{n}" for n in range(1, count + 1)]
    return ARRAY.assemble(array(**fields), paths, [GIB] * count, None)


def volume(**fields: Any) -> Verify:
    last = steps(**fields)[-1]
    assert isinstance(last, Verify)
    return last


# --- refused fields -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"segments": 1},
        {"volume": "striped", "stripe_size": "128KiB"},
        {"level": 10, "bitmap": "internal"},
        {"spares": 1},
    ],
)
def test_segments_that_can_be_built(fields: dict[str, Any]) -> None:
    assert refusals(**fields) == []


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        ("array.segments", {"segments": None}),
        ("array.segments", {"segments": 16, "size": 16 * MIB}),
        ("array.volume", {"segments": 1, "volume": "striped"}),
        ("array.stripe_size", {"stripe_size": "64KiB"}),
        ("array.stripe_size", {"volume": "striped", "stripe_size": "48KiB"}),
        ("array.stripe_size", {"volume": "striped", "stripe_size": "8MiB"}),
        ("array.name", {"name": "d"}),
        ("array.name", {"name": "a" * 31}),
        ("array.bitmap", {"bitmap": "external", "bitmap_file": "/var/b"}),
        ("array.bitmap_disk", {"bitmap_disk": 1}),
        ("array.journal_disk", {"journal_disk": 1}),
        ("array.component_size", {"component_size": "512MiB"}),
        ("array.level", {"level": 3}),
        ("disks.count", {"level": 6, "count": 3}),
    ],
)
def test_each_refusal_names_its_field(key: str, fields: dict[str, Any]) -> None:
    assert key in refusals(**fields)


def test_whole_disks_are_not_cut() -> None:
    (problem,) = MD.problems(Array(segments=2), [Disk(size=GIB)] * 4)
    assert (problem.key, problem.idle_by) == ("array.segments", "array.kind")


# --- the steps ----------------------------------------------------------------------------------


def test_what_is_made_last_is_undone_first_and_the_kernel_forgets_the_partitions() -> None:
    undone = [s.undo for s in reversed(steps()) if isinstance(s, GuestCommand)]
    assert "vgremove" in undone[0]
    assert [f"--stop /dev/md/bench{n}" in undone[5 - n] for n in (1, 2, 3, 4)] == [True] * 4
    assert undone[-1].count("partx --delete") == 4
    assert len(undone) == 6


def test_each_array_has_one_partition_of_each_disk() -> None:
    made = [s for s in steps() if isinstance(s, GuestCommand) and "mdadm --create" in s.script]
    for number, step in enumerate(made, 1):
        for disk in range(1, 5):
            assert f"virtio-disk{disk}-part{number}" in step.script
        assert "-part" not in step.script.replace(f"-part{number}", "")
    assert len({s.capture for s in made}) == 4
    names = [s.name for s in steps() if isinstance(s, Verify)]
    assert names == ["array1", "array2", "array3", "array4", "volume"]


def test_every_script_is_posix_shell() -> None:
    for fields in ({}, {"volume": "striped"}, {"bitmap": "internal", "initial_sync": "wait"}):
        for step in steps(**fields):
            for script in (getattr(step, "script", ""), getattr(step, "undo", "")):
                subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def test_partitions_fit_on_the_disk() -> None:
    for count in (1, 3, 4, 16):
        size = segment_size(GIB, count)
        assert MIB + count * size + 33 * 512 <= GIB
        assert GIB - count * (size + MIB) < 2 * MIB
    assert segment_size(GIB, 4) == 255 * MIB


def test_the_volume_begins_at_a_whole_stripe() -> None:
    shape = segment_geometry(array(), [GIB] * 4)
    assert data_start(shape) == 1152 * KIB  # six stripes of 3 × 64 KiB
    assert data_start(segment_geometry(array(level=10), [GIB] * 4)) == MIB
    assert data_start(segment_geometry(array(chunk="512KiB"), [GIB] * 4)) == 1536 * KIB
    assert volume_bytes(10 * MIB, MIB) == 8 * MIB
    assert volume_bytes(MIB, 2 * MIB) == 0


# --- verification by device-mapper --------------------------------------------------------------

LINEAR = "".join(f"{n * 100} 100 linear 9:{127 - n} 2304\n" for n in range(4))
STRIPED = "0 400 striped 4 128 " + " ".join(f"9:{127 - n} 2304" for n in range(4)) + "\n"


def read_volume(tmp_path: Path, table: str, **fields: Any) -> list[str]:
    """Return the keys that differ if ``dmsetup`` prints this."""
    root = tmp_path / "root"
    for n in range(4):
        (root / f"sys/block/md{127 - n}").mkdir(parents=True, exist_ok=True)
        (root / f"sys/block/md{127 - n}/dev").write_text(f"9:{127 - n}\n")
        (root / "dev/md").mkdir(parents=True, exist_ok=True)
        (root / f"dev/md{127 - n}").touch()
        link = root / f"dev/md/bench{n + 1}"
        link.unlink(missing_ok=True)
        link.symlink_to(f"../md{127 - n}")
    (root / "run").mkdir(exist_ok=True)
    (tmp_path / "table").write_text(table)
    program = tmp_path / "dmsetup"
    program.write_text(f'#!/bin/sh\n[ "$2" = lab-bench ] && cat {tmp_path}/table\n')
    program.chmod(0o755)
    step = volume(**fields)
    script = step.script
    for part in ("/sys/block", "/dev/md/", "/run/"):
        script = script.replace(part, f"{root}{part}")
    path = f"{tmp_path}:{os.environ['PATH']}"
    said = subprocess.run(
        ["sh", "-e"], input=script, capture_output=True, text=True, env={"PATH": path}, check=True
    )
    expect = {k: v for k, v in step.expect.items() if k != "block_device"}
    check = compare("volume", read_pairs(said.stdout), expect)
    return [] if check.passed else sorted(p.split()[0] for p in check.detail.split("; "))


def test_a_linear_and_a_striped_volume_are_read_back(tmp_path: Path) -> None:
    assert read_volume(tmp_path, LINEAR) == []
    assert read_volume(tmp_path, STRIPED, volume="striped", stripe_size="64KiB") == []


@pytest.mark.parametrize(
    ("table", "wrong"),
    [
        (STRIPED, ["kinds", "stripe_size"]),
        (LINEAR.replace("9:126", "9:999"), ["order"]),
        (LINEAR.replace(" 2304\n", " 2048\n", 1), ["starts"]),
        ("".join(LINEAR.splitlines(keepends=True)[:3]), ["kinds", "order", "starts"]),
        ("".join(reversed(LINEAR.splitlines(keepends=True))), ["order"]),
    ],
)
def test_another_volume_is_noticed(tmp_path: Path, table: str, wrong: list[str]) -> None:
    assert read_volume(tmp_path, table) == wrong


def test_another_stripe_is_noticed(tmp_path: Path) -> None:
    asked = {"volume": "striped", "stripe_size": "128KiB"}
    assert read_volume(tmp_path, STRIPED, **asked) == ["stripe_size"]


# --- theory -------------------------------------------------------------------------------------


def cell(**fields: Any) -> Cell:
    return Cell.model_validate(
        {
            "scenario": "segments",
            "axes": {},
            "guest": {},
            "disks": (Disk(count=4, size=GIB, throttle=Throttle(total_bytes_per_second=5 * MIB)),),
            "array": array(**fields),
            "workloads": (Workload(name="write", tool="dd"),),
        }
    )


def stream(total: int, offset: int = 0) -> SequentialLoad:
    return SequentialLoad(direction=Direction.WRITE, block=192 * KIB, total=total, offset=offset)


def test_a_stream_in_the_first_segment_is_its_arrays_own() -> None:
    work = {"write": stream(60 * MIB)}
    alone = predict(cell(kind="md", segments=None), work)
    cut = predict(cell(), work)
    assert [p.value for p in cut] == [p.value for p in alone]
    assert cut


def test_a_volume_that_began_within_a_stripe_would_be_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: the volume's start on the array matters."""
    work = {"write": stream(60 * MIB)}
    whole = {p.metric: p.value for p in predict(cell(), work)}
    monkeypatch.setattr("lab.md.theory.volume.data_start", lambda shape: MIB + 4 * KIB)
    off = {p.metric: p.value for p in predict(cell(), work)}
    assert off["throughput"] < 0.9 * whole["throughput"]


def test_what_leaves_the_first_segment_is_not_predicted() -> None:
    room = volume_bytes(3 * 254 * MIB, 1152 * KIB)
    assert why_not(cell(), stream(room)) is None
    assert "another array" in (why_not(cell(), stream(192 * KIB, offset=room)) or "")
    everywhere = Load(block=4096, read_share=0.0, depth=8, seconds=5.0)
    assert "another array" in (why_not(cell(), everywhere) or "")
    assert (
        why_not(cell(), Load(block=4096, read_share=0.0, depth=8, seconds=5.0, span=room)) is None
    )
    assert why_not(cell(segments=1), everywhere) is None
    assert "striped" in (why_not(cell(volume="striped"), stream(MIB)) or "")


# --- on an image --------------------------------------------------------------------------------


def test_an_image_without_lvm_is_named() -> None:
    packages = frozenset({"mdadm", "lvm2"})
    assert list(ARRAY.lacks(array(), ImageFacts(packages=packages))) == []
    (found,) = ARRAY.lacks(array(), ImageFacts(packages=packages - {"lvm2"}))
    assert (found.key, found.message) == ("array.kind", "it has no LVM")
    (found,) = ARRAY.lacks(array(), ImageFacts(packages=packages - {"mdadm"}))
    assert "no mdadm" in found.message
