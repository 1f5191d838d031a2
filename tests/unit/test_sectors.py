"""Block sizes of disks: those that QEMU and the driver get, and requests that are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lab.compile.guest.virtual_time import seal
from lab.core.errors import InputError
from lab.host.guest.virtual.sealed import disk_of
from lab.md.theory.bucket import Direction
from lab.md.theory.cell import UnknownError, setting_of
from lab.md.theory.paths import SequentialLoad
from lab.model.scenario.document import Cell, Disk
from lab.plugins import catalog
from tests.fakes import SCENARIO, compiled_text

SIZES = {"512n": (512, 512), "512e": (512, 4096), "4Kn": (4096, 4096)}


def cell(directory: Path, *sets: str) -> Cell:
    return compiled_text(directory, SCENARIO, *sets).base


@pytest.mark.parametrize("sectors", SIZES)
@pytest.mark.parametrize("model", ["throttle", "hdd", "ssd", "none"])
def test_both_drivers_get_the_sizes(tmp_path: Path, sectors: str, model: str) -> None:
    logical, physical = SIZES[sectors]
    disk = Disk.model_validate({"sectors": sectors, "model": model})
    xml = catalog.disk_model(model).xml(disk, serial="disk1", path="/x/disk1.img", index=1)
    element = f'<blockio logical_block_size="{logical}" physical_block_size="{physical}" />'
    assert (element in xml) == (sectors != "512n")
    sealed = cell(tmp_path, "guest.clock=virtual", f"disks.sectors={sectors}")
    regions = [disk_of(each) for each in seal(sealed).disks]
    assert {(each.logical, each.physical) for each in regions} == {(logical, physical)}


@pytest.mark.parametrize(
    ("sectors", "block", "refused"),
    [("512n", 512, False), ("512e", 512, False), ("4Kn", 512, True), ("4Kn", 4096, False)],
)
def test_direct_requests_are_whole_logical_blocks(
    tmp_path: Path, sectors: str, block: int, *, refused: bool
) -> None:
    sets = (f"disks.sectors={sectors}", f"workloads.write.bs={block}")
    if not refused:
        cell(tmp_path, *sets)
        return
    with pytest.raises(InputError, match="logical blocks have 4096: give a multiple of 4KiB"):
        cell(tmp_path, *sets)


def test_a_real_disk_has_sizes_of_its_own() -> None:
    disk = Disk.model_construct(device="/dev/disk/by-id/x", sectors=Disk(sectors="4Kn").sectors)
    problems = {p.key: p.message for p in catalog.disk_model("throttle").problems(disk)}
    assert problems["sectors"] == "a real disk has block sizes of its own: remove it"


def test_theory_knows_no_bitmap_of_different_blocks(tmp_path: Path) -> None:
    load = SequentialLoad(direction=Direction.WRITE, block=1 << 20, total=1 << 24)
    found = cell(tmp_path, "array.bitmap=internal", "disks.sectors=4Kn")
    bitmap = setting_of(found, load).bitmap
    assert bitmap is not None
    assert bitmap.sector == 4096
    (disks,) = found.disks
    mixed = [
        disks.model_copy(update={"count": 1}),
        *[Disk(size=disks.size, throttle=disks.throttle)] * 3,
    ]
    other = found.model_copy(update={"disks": tuple(mixed)})
    with pytest.raises(UnknownError, match="different logical block sizes"):
        setting_of(other, load)
    assert setting_of(other, dataclasses.replace(load, direction=Direction.READ)).bitmap is None
