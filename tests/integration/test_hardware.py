"""Presets of measured drives against their measurements, and docs/hardware.md."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import hardware, traced
from drive.loop import Core
from lab.md.theory.certificate import errors, in_words
from lab.md.theory.load_fit import halves, points_of
from lab.model.scenario.drive import HardDrive
from lab.model.scenario.profile import Load, Point
from lab.plugins.disks.hdd import PRESETS as HDD
from lab.plugins.disks.ssd import PRESETS as SSD

READS = {"hdd": 0.08, "ssd": 0.055}
"""Largest error by RMS over all depths."""
WORST = 0.15
WRITES = 0.10


@pytest.fixture(scope="module")
def core() -> Core:
    return hardware.library()


@pytest.fixture(scope="module")
def loads() -> dict[str, list[Load]]:
    return hardware.stored()


def rates(points: tuple[Point, ...], kind: str) -> list[Point]:
    return [p for p in points if p.group == f"{kind}: rate"]


@pytest.mark.parametrize("drive", hardware.DRIVES, ids=lambda d: d.preset)
def test_a_preset_is_as_near_to_its_drive_as_its_certificate_says(
    core: Core, loads: dict[str, list[Load]], drive: hardware.Measured
) -> None:
    points = hardware.points(core, drive, loads[drive.preset])
    model = hardware.drive_of(drive.preset)
    assert model.certificate == in_words(points)
    reads = errors(rates(points, "reads"))
    assert reads.rms <= READS[drive.preset[:3]]
    assert abs(reads.worst) <= WORST
    if isinstance(model, HardDrive):
        assert errors(rates(points, "writes")).rms <= WRITES
        flushes = [p for p in points if p.group == "flushes: median"]
        assert abs(errors(flushes).worst) <= WORST


def test_a_drive_that_got_worse_is_noticed(core: Core, loads: dict[str, list[Load]]) -> None:
    """Negative control."""
    (drive,) = (d for d in hardware.DRIVES if d.preset == "hdd_samsung_f1")
    own = loads[drive.preset]
    worse = replace(HDD[drive.preset], average_seek=0.0107)
    points = points_of(core, worse, own, halves(own), drive.size)
    assert in_words(points) != worse.certificate
    assert (
        errors(rates(points, "reads")).rms
        > 2 * errors(rates(hardware.points(core, drive, own), "reads")).rms
    )


def test_the_page_says_what_the_drives_do(core: Core, tmp_path: Path) -> None:
    hardware.write_page(core, tmp_path / "hardware.md")
    text = (tmp_path / "hardware.md").read_text()
    assert text == hardware.PAGE.read_text(), "run: python -m bench.hardware --page"
    assert (tmp_path / "hardware.svg").stat().st_size > 10_000


def test_presets_without_a_measurement_have_no_certificate() -> None:
    measured = {d.preset for d in hardware.DRIVES}
    for name, drive in (*HDD.items(), *SSD.items()):
        assert bool(drive.certificate) is (name in measured), name


def test_traced_drives_are_within_their_bars() -> None:
    """The traces are no part of the project: the table has what they gave."""
    rows = hardware.table()["traced"]
    assert len(rows) >= 7
    for row in rows:
        young = row["years"] != "older"
        assert abs(row["modelled"] / row["measured"] - 1) <= (0.05 if young else 0.10), row
        assert row["demerit"] <= 2 * row["disksim"], row


def test_demerit_is_the_distance_of_two_distributions() -> None:
    assert traced.demerit([1.0, 2.0, 3.0], [3.0, 1.0, 2.0]) == 0
    assert traced.demerit([1.0, 2.0], [1.5, 2.5]) == pytest.approx(0.5)
