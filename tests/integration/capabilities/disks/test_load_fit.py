"""``lab disk fit``: loads of a known drive give it back, at points that were not fitted."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from drive.loop import Core, Loop
from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import InputError
from lab.core.yaml import parse_override
from lab.host.real_disks import timing
from lab.host.system import paths
from lab.md.theory.certificate import certificate, errors
from lab.md.theory.load_fit import fit_loads
from lab.model.scenario.drive import HardDrive, SolidStateDrive, integers
from lab.model.scenario.profile import Load, Profile
from lab.plugins import catalog
from lab.plugins.disks.hdd import PRESETS as HDD
from lab.plugins.disks.hdd import drive_of
from lab.plugins.disks.ssd import PRESETS as SSD
from tests.fakes import SCENARIO, Cli
from tests.unit.capabilities.disks.test_fio_results import report

DEPTHS = (1, 2, 4, 8, 16, 32)
OTHER = replace(
    HDD["hdd_7200"],
    track_to_track=0.0015,
    average_seek=0.0105,
    full_stroke=0.0195,
    write_settle=0.0008,
    ageing=0.0,
    lead=2,
    oldest_share=0.04,
    seek_only=1,
    write_places=64,
    write_choice=8,
)
SOLID = replace(
    SSD["ssd_samsung_860pro"], overhead=15e-6, read_latency=95e-6, channels=24, link_command=9e-6
)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_HOME", str(tmp_path_factory.mktemp("h")))
        return timing.core()


def loads_of(core: Core, drive: HardDrive | SolidStateDrive, *, seed: int = 5) -> list[Load]:
    """Return loads as fio would measure them on that drive, with other random positions."""
    found = []
    for number, (share, depth) in enumerate((s, d) for s in (1.0, 0.0) for d in DEPTHS):
        think = 0.0 if isinstance(drive, HardDrive) else 8e-6
        warm = 0 if share or isinstance(drive, SolidStateDrive) else 2000
        loop = Loop(depth=depth, read_share=share, think=think, seed=seed, warm=warm, count=8000)
        answers = core.closed(integers(drive, "other"), 10**12, loop)
        times = sorted(answers.reads or answers.writes)
        found.append(
            Load(
                read_share=share,
                depth=depth,
                rate=answers.rate,
                mean=sum(times) / len(times),
                percentiles={p: times[int(len(times) * p / 100)] for p in (50.0, 99.0)},
                begins=61.0 * number,
            )
        )
    return found


@pytest.mark.parametrize("truth", [OTHER, SOLID], ids=["hdd", "ssd"])
def test_a_drive_is_found_again_at_depths_that_were_not_fitted(
    core: Core, truth: HardDrive | SolidStateDrive
) -> None:
    begun = time.monotonic()
    profile = fit_loads(core, loads_of(core, truth), hdd=HDD["hdd_7200"], ssd=SSD["ssd_sata"])
    assert time.monotonic() - begun < 60
    assert profile.kind == ("hdd" if isinstance(truth, HardDrive) else "ssd")
    lines = {line.group: line for line in certificate(profile.points)}
    assert lines["reads: rate"].tested.count == 3
    assert lines["reads: rate"].tested.rms < 0.04
    assert lines["writes: rate"].tested.rms < 0.06
    assert lines["reads: median"].tested.rms < 0.10


def test_another_drives_results_do_not_pass_for_it(core: Core) -> None:
    """Negative control: the certificate sees results that no drive of the model has."""
    loads = loads_of(core, OTHER)
    crooked = [
        x.model_copy(update={"rate": x.rate * (1.6 if x.depth in (2, 8, 32) else 1.0)})
        for x in loads
    ]
    profile = fit_loads(core, crooked, hdd=HDD["hdd_7200"], ssd=SSD["ssd_sata"])
    tested = errors([p for p in profile.points if p.group == "reads: rate" and not p.fitted])
    assert tested.rms > 0.25


def tree(place: Path, loads: list[Load]) -> None:
    for load in loads:
        mode = "randread" if load.read_share else "randwrite"
        document = report(mode, load.depth)
        side = document["jobs"][0]["read" if load.read_share else "write"]
        side["total_ios"] = round(load.rate * 60)
        assert load.mean
        side["clat_ns"]["mean"] = load.mean * 1e9
        side["clat_ns"]["percentile"] = {f"{p:.6f}": t * 1e9 for p, t in load.percentiles.items()}
        assert load.begins is not None
        document["timestamp"] = 1_700_000_000 + load.begins
        file = place / "4k" / f"{mode}-{load.depth}-1.json"
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(json.dumps(document))


def test_the_command_stores_a_profile_that_scenarios_use_by_name(
    cli: Cli, core: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path / "sdq", loads_of(core, SOLID))
    done = cli("disk", "fit", str(tmp_path / "sdq"), "--name", "mine", "--json")
    assert done.status == 0, done.stderr
    found = json.loads(done.stdout)
    groups = {line["group"] for line in found["certificate"]}
    assert {"reads: rate", "writes: rate", "reads: 99th percentile"} <= groups
    monkeypatch.setenv("LAB_HOME", str(Path(found["file"]).parents[2]))
    assert Path(found["file"]) == paths.profiles() / "mine.yaml" == catalog.profiles()["mine"]
    assert Profile.model_validate(found["profile"]).disk["name"] == "/dev/sdq"
    shown = cli("disk", "fit", str(tmp_path / "sdq"))
    assert "Values that were not fitted:" in shown.stdout
    assert "In a scenario: disks: {model: 'profile:sdq'}" in shown.stdout
    scenario = tmp_path / "s.yaml"
    scenario.write_text(SCENARIO.replace("  throttle:\n    total_bytes_per_second: 5MiB\n", ""))
    (disk,) = compile_scenario(
        scenario, overrides=[parse_override("disks.model=profile:mine")]
    ).base.disks
    assert (disk.model, disk.ssd.read_latency) == ("ssd", found["profile"]["ssd"]["read_latency"])
    with pytest.raises(InputError, match=r"no profile 'mien' .*did you mean 'mine'"):
        compile_scenario(scenario, overrides=[parse_override("disks.model=profile:mien")])
    file = next((tmp_path / "sdq").rglob("randread-4-1.json"))
    file.write_text(file.read_text()[:400])
    cut = cli("disk", "fit", str(tmp_path / "sdq"))
    assert cut.status == 2
    assert "randread-4-1.json is cut off" in cut.stderr


def test_the_paths_of_profiles_are_the_same_in_all_layers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("LAB_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv("LAB_HOME", raising=False)
        monkeypatch.setenv(variable, str(tmp_path / variable))
        kept = paths.profiles() / "one.yaml"
        kept.parent.mkdir(parents=True)
        kept.write_text("")
        assert catalog.profiles() == {"one": kept}


def test_hard_disk_values_reach_the_scenario(core: Core, tmp_path: Path) -> None:
    profile = fit_loads(core, loads_of(core, OTHER), hdd=HDD["hdd_7200"], ssd=SSD["ssd_sata"])
    text = SCENARIO.replace("  throttle:\n    total_bytes_per_second: 5MiB\n", "  model: hdd\n")
    scenario = tmp_path / "s.yaml"
    scenario.write_text(text)
    values = profile.hdd.model_dump(exclude_none=True)
    overrides = [parse_override(f"disks.hdd.{k}={v}") for k, v in values.items()]
    assert (
        drive_of(compile_scenario(scenario, overrides=overrides).base.disks[0]).lead
        == values["lead"]
    )
