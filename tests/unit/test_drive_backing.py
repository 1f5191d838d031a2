"""Modelled drives that no measurement backs are called so where they are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.compile.scenario.compiler import compile_scenario
from lab.core.yaml import parse_override
from lab.model.scenario.document import Cell
from lab.model.scenario.drive import HddParameters
from lab.plugins.disks.hdd import PRESETS
from lab.report.content.drives import NOT_MEASURED, backing, unmeasured
from lab.report.content.reliability import reliability
from lab.run.plan import prediction_of
from tests.fakes import SCENARIO, Cli


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("  throttle:\n    total_bytes_per_second: 5MiB\n", ""))
    return path


def cell(path: Path, *sets: str) -> Cell:
    return compile_scenario(path, overrides=[parse_override(s) for s in sets]).base


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["disks.model=throttle"], ""),
        (["disks.model=hdd"], NOT_MEASURED),
        (["disks.model=hdd", "disks.preset=hdd_7200"], NOT_MEASURED),
        (["disks.model=hdd", "disks.preset=hdd_samsung_f1"], "measured"),
        (["disks.model=hdd", "disks.preset=hdd_samsung_f1", "disks.hdd.rpm=5400"], NOT_MEASURED),
        (["disks.model=ssd", "disks.preset=ssd_intel_s4610"], "measured"),
        (["disks.model=ssd"], NOT_MEASURED),
    ],
)
def test_only_an_unchanged_measured_drive_is_measured(
    scenario: Path, sets: list[str], said: str
) -> None:
    found = cell(scenario, *sets)
    assert backing(found.disks[0]) == said
    assert (NOT_MEASURED in unmeasured([found])) is (said == NOT_MEASURED)


def test_a_profile_is_a_measured_drive(scenario: Path) -> None:
    drive = PRESETS["hdd_samsung_f1"]
    names = set(HddParameters.model_fields) - {"slower"}
    values = "".join(f"  {name}: {getattr(drive, name)}\n" for name in sorted(names))
    (scenario.parent / "mine.yaml").write_text(f"kind: hdd\nhdd:\n{values}")
    assert backing(cell(scenario, "disks.model=profile:mine.yaml").disks[0]) == "a profile"


def test_the_report_and_the_scenario_say_it(cli: Cli, scenario: Path) -> None:
    compiled = compile_scenario(scenario, overrides=[parse_override("disks.model=hdd")])
    said = unmeasured(compiled.cells)
    assert said.startswith("the preset of hdd is not measured on a drive")
    points = dict(reliability(prediction_of(compiled), drives=said))
    assert points["drives"] == said
    assert "drives" not in dict(reliability(prediction_of(compiled)))
    shown = cli("scenario", "show", str(scenario), "--set", "disks.model=hdd")
    assert f"({NOT_MEASURED})" in " ".join(shown.stdout.split())
    shown = cli("scenario", "predict", str(scenario), "--set", "disks.model=hdd")
    assert f"drives: {said}" in shown.stdout
    other = cli("scenario", "show", str(scenario))
    assert "measured" not in other.stdout
