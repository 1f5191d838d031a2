"""Arrays that use a part of modelled drives: check, plan and report say how much that changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.compile.cell.stroke import short_stroke
from lab.compile.scenario.compiler import Compiled
from lab.md.theory.drive import access_within, random_read_rate
from lab.model.result.document import CellResult, Outcome, Result, Run
from lab.model.result.measurement import Check
from lab.model.scenario.drive import HardDrive
from lab.plugins import catalog
from lab.report.content.reliability import reliability
from lab.results.documents import _stroke
from tests.fakes import compiled_text

TEXT = """\
title: t
question: q
disks: {count: 4, size: 16GiB, model: hdd, preset: hdd_7200}
array: {level: 10, chunk: 64KiB}
workloads:
  - {name: read, tool: fio, rw: randread, bs: 4KiB, direct: 1, ioengine: libaio, iodepth: 4,
     runtime: 6s, time_based: 1}
"""


def compiled(directory: Path, *sets: str, text: str = TEXT) -> Compiled:
    return compiled_text(directory, text, *sets)


def drive_of(found: Compiled) -> HardDrive:
    disk = found.base.disks[0]
    drive = catalog.disk_model(disk.model).drive(disk)
    assert isinstance(drive, HardDrive)
    return drive


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ((), False),
        (("array.component_size=256MiB",), True),
        (("array.component_size=8GiB",), True),
        (("array.component_size=15GiB",), False),
        (("array.component_size=256MiB", "disks.size=260MiB"), False),
        (("array.component_size=256MiB", "disks.preset=hdd_10000"), True),
        (("array.component_size=256MiB", "disks.model=ssd", "disks.preset=ssd_sata"), False),
        (("array.component_size=256MiB", "disks.model=throttle", "disks.preset=null"), False),
    ],
)
def test_a_part_of_a_hard_disk_is_said(tmp_path: Path, sets: tuple[str, ...], said: bool) -> None:
    found = compiled(tmp_path, *sets)
    assert (short_stroke(found.base) is not None) is said
    assert bool(found.warnings) is said
    assert bool(list(_stroke(found.base))) is said
    if said:
        assert "array.component_size" in found.warnings[0]


def test_the_line_and_the_factor_are_named(tmp_path: Path) -> None:
    text = TEXT.replace("chunk: 64KiB", "chunk: 64KiB, component_size: 256MiB")
    (warning,) = compiled(tmp_path, text=text).warnings
    assert f"{tmp_path / 'q.yaml'}:4" in warning
    assert "disks.size" in warning
    part, whole, times = re.findall(r"([\d.]+) (?:ms|times)", warning)
    assert float(whole) / float(part) == pytest.approx(float(times), rel=0.03)


def test_each_value_of_an_axis_is_named(tmp_path: Path) -> None:
    text = TEXT + "matrix:\n  array.component_size:\n    - 256MiB\n    - 1GiB\n    - 15GiB\n"
    found = compiled(tmp_path, text=text).warnings
    assert [re.findall(r"size is (\w+) of", warning) for warning in found] == [["256MiB"], ["1GiB"]]
    assert all(f"{tmp_path / 'q.yaml'}:9: " in warning for warning in found)


def test_access_times_are_those_of_random_reads(tmp_path: Path) -> None:
    """Of the whole stroke the data sheet's own; of a part by a sum over places."""
    drive = drive_of(compiled(tmp_path))
    assert 1 / access_within(drive, 1.0) == pytest.approx(random_read_rate(drive, 1), rel=0.01)
    places = [(step + 0.5) / 300 * 0.1 for step in range(300)]
    seek = sum(drive.seek_curve(abs(a - b)) for a in places for b in places) / 300**2
    whole = access_within(drive, 1.0) - access_within(drive, 0.1)
    full = [place * 10 for place in places]
    all_of_it = sum(drive.seek_curve(abs(a - b)) for a in full for b in full) / 300**2
    assert whole == pytest.approx(all_of_it - seek, rel=0.02)


def test_the_report_says_it_once(tmp_path: Path) -> None:
    cell = compiled(tmp_path, "array.component_size=256MiB").base
    checks = tuple(_stroke(cell))
    cells = tuple(
        CellResult(id=name, axes={}, outcome=Outcome.DONE, checks=checks) for name in "ab"
    )
    run = Run(id="r", scenario="q", started="2026-01-01T00:00:00+00:00")
    said = dict(reliability(Result(run=run, environment={}, cells=cells, claims=())))
    assert said["seeks"].count("component_size is 256MiB") == 1
    assert "verification" not in said
    other = cells[0].model_copy(update={"checks": (Check(name="array", passed=True),)})
    said = dict(reliability(Result(run=run, environment={}, cells=(other,), claims=())))
    assert "seeks" not in said
