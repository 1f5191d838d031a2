"""Profiles in scenarios and on the command line, and how far a model repeats a disk."""

from __future__ import annotations

import hashlib
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from lab.capabilities.disks.page import profile_page
from lab.capabilities.disks.run import calibrate
from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import InputError
from lab.core.units import MIB
from lab.core.yaml import parse_override
from lab.host.real_disks import profiles
from lab.host.real_disks.device import Device
from lab.md.theory.profile import fit
from lab.model.scenario.document import Cell
from lab.plugins.disks.hdd import PRESETS, drive_of
from lab.plugins.disks.ssd import PRESETS as SOLID
from tests import loops
from tests.fakes import Cli
from tests.integration.test_profile import samples_of

SCENARIO = """\
title: A disk like mine
question: Is it?
disks: {count: 3, size: 1GiB, model: 'profile:mine.yaml'}
array: {level: 5, chunk: 64KiB, component_size: 256MiB}
workloads:
  - {name: read, tool: dd, if: '{target}', bs: 128KiB, count: 10, iflag: direct}
"""
TRUTH = PRESETS["hdd_5400_usb"]


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    profile = fit(samples_of(TRUTH, 1), PRESETS["hdd_7200"], SOLID["ssd_sata"])
    profiles.keep(tmp_path / "mine.yaml", profile)
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    return path


def cell_of(path: Path, *sets: str) -> Cell:
    return compile_scenario(path, overrides=[parse_override(s) for s in sets]).base


def test_a_scenario_takes_the_profiles_figures_and_its_own_stand(scenario: Path) -> None:
    (disk,) = cell_of(scenario).disks
    assert disk.model == "hdd"
    drive = drive_of(disk)
    assert drive.rpm == 5400
    assert drive.average_seek == pytest.approx(TRUTH.average_seek, rel=0.06)
    assert drive.queue_depth == 1
    (other,) = cell_of(scenario, "disks.hdd.rpm=10000").disks
    assert drive_of(other).rpm == 10_000
    absolute = f"disks.model=profile:{scenario.with_name('mine.yaml')}"
    assert cell_of(scenario, absolute) == cell_of(scenario)


def test_a_profile_that_is_none_is_named(scenario: Path) -> None:
    with pytest.raises(InputError, match=r"other\.yaml: cannot be read"):
        cell_of(scenario, "disks.model=profile:other.yaml")
    file = scenario.with_name("mine.yaml")
    file.write_text(file.read_text().replace("rpm:", "rmp:", 1))
    with pytest.raises(InputError, match=r"mine\.yaml:\d+: hdd\.rmp: unknown key 'rmp'"):
        cell_of(scenario)


def test_calibrating_keeps_a_profile_and_says_how_good_it_is(
    lab_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts = Device(
        number=(8, 0),
        name="sda",
        whole=(8, 0),
        size=10**12,
        serial="S1",
        wwn="",
        model="M",
        rotational=True,
        read_only=False,
    )
    samples = samples_of(PRESETS["hdd_7200"], 1).model_dump(mode="json")
    monkeypatch.setattr(profiles, "read_samples", lambda *_: (facts, samples))
    kept, profile = calibrate("/dev/sda", name="mine", jumps=60, seed=1)
    assert kept == lab_home / "data" / "profiles" / "mine.yaml"
    assert profile.disk["serial"] == "S1"
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("mine.yaml", str(kept)))
    assert drive_of(cell_of(path).disks[0]).rpm == 7200
    console = Console(width=80, file=(text := StringIO()))
    console.print(profile_page(profile))
    assert "read after a jump over 10.0%" in text.getvalue()
    assert "The model is off by" in text.getvalue()
    with pytest.raises(InputError, match="is not a file name"):
        calibrate("/dev/sda", name="../mine", jumps=60, seed=1)


def test_a_real_device_is_measured_through_the_command(cli: Cli, tmp_path: Path) -> None:
    """A loop device turns as little as it is slow: whether a model fits is not for a test."""
    for bay in loops.bay(tmp_path / "bay"):
        disk = bay.loop("disk", size=128 * MIB)
        disk.file.write_bytes(bytes(range(256)) * (128 * MIB // 256))
        before = hashlib.sha256(disk.file.read_bytes()).digest()
        done = cli("disk", "calibrate", disk.device, "--name", "mine", "--jumps", "20")
        assert (done.status, bool(done.stdout)) in ((0, True), (3, False)), done.stderr
        assert hashlib.sha256(disk.file.read_bytes()).digest() == before
    for wrong in (str(tmp_path), "/dev/null"):
        refused = cli("disk", "calibrate", wrong)
        assert refused.status == 2
        assert f"'{wrong}' is not a block device" in refused.stderr
