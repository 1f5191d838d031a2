"""Trials have seeds: fields that a seed changes, and fields that it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.analysis import measure
from lab.analysis.predict import predictions
from lab.compile.cell.procedure import cell_procedure
from lab.compile.guest.program import programs, trials
from lab.compile.guest.seeds import draws, of_trial
from lab.compile.guest.virtual_time import seal
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.compile.scenario.identity import cell_id
from lab.core.errors import InputError, ToolError
from lab.core.yaml import parse_override
from lab.model.execution.procedure import GuestCommand, SealDisks, StartServer, Timed
from lab.model.result.document import CellMeasurement
from lab.model.result.measurement import Measurement
from lab.model.scenario.document import Disk
from lab.plugins import catalog
from lab.run.task import need_of
from tests.fakes import SCENARIO, compiled_text

VIRTUAL = "guest.clock=virtual"
WORKLOADS: dict[str, dict[str, Any]] = {
    "fio": {"rw": "randwrite", "bs": 4096, "size": 1 << 20},
    "seek": {"number_ios": 10},
    "ledger": {"count": 10, "size": 1 << 20},
    "file_tree": {"directory": "{target}/tree"},
    "bonnie": {"s": 0, "d": "{target}/b"},
}


def compiled(tmp_path: Path, *sets: str, text: str = SCENARIO) -> Compiled:
    return compiled_text(tmp_path, text, *sets)


def test_a_first_seed_leaves_ids_alone(tmp_path: Path) -> None:
    plain, first, second = (
        compiled(tmp_path, *sets).base for sets in ((), ("seed=1",), ("seed=2",))
    )
    assert "seed" not in plain.model_dump(mode="json")
    assert cell_id(plain) == cell_id(first) != cell_id(second)
    with pytest.raises(InputError, match=r"seed"):
        compiled(tmp_path, "seed=0")


def test_in_virtual_time_each_trial_has_a_guest_and_a_seed(tmp_path: Path) -> None:
    cell = compiled(tmp_path, VIRTUAL, "trials=3", "seed=5").base
    parts = trials(cell_procedure(cell, "/guest"))
    first = [part.steps[0] for part in parts]
    assert [step.seed for step in first if isinstance(step, SealDisks)] == [5, 6, 7]
    assert [{s.trial for s in part.steps if isinstance(s, Timed)} for part in parts] == [
        {1},
        {2},
        {3},
    ]
    captured = [
        [s.capture for s in part.steps if isinstance(s, GuestCommand) and s.capture]
        for part in parts
    ]
    assert captured[1] == [f"{name}.2" for name in captured[0]]


def test_the_first_trial_is_what_runs_without_trials(tmp_path: Path) -> None:
    one, three = (compiled(tmp_path, VIRTUAL, f"trials={n}").base for n in (1, 3))
    alone = cell_procedure(one, "/guest")
    assert trials(cell_procedure(three, "/guest"))[0].steps == alone.steps
    assert need_of(one).space == need_of(three).space
    assert "ulimit" not in programs(alone).boots[0]


def test_a_seed_moves_addresses_for_all_programs_of_a_trial(tmp_path: Path) -> None:
    def lines(seed: int) -> set[str]:
        cell = compiled(tmp_path, VIRTUAL, f"seed={seed}").base
        return set(programs(cell_procedure(cell, "/guest")).boots[0].splitlines())

    second, third = lines(2) - lines(1), lines(3) - lines(1)
    assert {line.split()[0] for line in second} == {"ulimit", "export", "echo", "head", "rm"}
    assert not second & third
    assert second == lines(2) - lines(1)


def test_every_seed_but_the_first_decides_which_pages_are_free(tmp_path: Path) -> None:
    def lines(seed: int) -> list[str]:
        cell = compiled(tmp_path, VIRTUAL, f"seed={seed}").base
        text = programs(cell_procedure(cell, "/guest")).boots[0]
        return [line for line in text.splitlines() if "/tmp/.stir" in line]

    assert lines(1) == []
    second = lines(2)
    assert second == lines(2) != lines(3)
    removed = next(line for line in second if line.startswith("rm "))
    assert 0 < removed.count("/tmp/") < second.index(removed)


def test_in_real_time_all_trials_have_one_seed(tmp_path: Path) -> None:
    cell = compiled(tmp_path, "trials=2", "seed=4").base
    assert [cell.seed_of(trial) for trial in (1, 2)] == [4, 4]
    steps = cell_procedure(cell, "/guest").steps
    assert [s.trial for s in steps if isinstance(s, Timed)] == [1, 1, 2, 2]


def hdd(tmp_path: Path, seed: int) -> Any:
    sets = ("disks.model=hdd", "disks.throttle={}", f"seed={seed}", "disks.count=3")
    return compiled(tmp_path, *sets).base


def test_an_angle_follows_the_seed_and_the_serial(tmp_path: Path) -> None:
    def angles(seed: int) -> list[str]:
        steps = cell_procedure(hdd(tmp_path, seed), "/guest").steps
        servers = [s for s in steps if isinstance(s, StartServer)]
        return [next(w for w in s.argv if w.startswith("seed=")) for s in servers]

    every = [angle for seed in (1, 2, 3) for angle in angles(seed)]
    assert len(every) == len(set(every)) == 9
    assert angles(2) == angles(2)


def test_a_sealed_drive_has_a_seed_and_a_throttled_disk_has_none(tmp_path: Path) -> None:
    def seeds(seed: int) -> list[int]:
        cell = of_trial(hdd(tmp_path, seed), 1)
        return [disk.drive["seed"] for disk in seal(cell, seed).disks]

    assert len({*seeds(1), *seeds(2)}) == 6
    assert [d.drive for d in seal(compiled(tmp_path, VIRTUAL).base, 7).disks] == [{}] * 4


def test_seeds_reach_requests_that_are_random_or_longer_than_a_bio(tmp_path: Path) -> None:
    first = compile_scenario(catalog.scenario_path("raid5-parity-last")).cells[0]
    assert draws(first) == {"write_stripe"}
    shorter = compile_scenario(
        catalog.scenario_path("raid5-parity-last"),
        overrides=[parse_override("workloads.2.bs=1MiB")],
    )
    assert draws(shorter.cells[0]) == frozenset()
    ordered = compile_scenario(catalog.scenario_path("raid5-layouts")).cells
    assert {draws(cell) for cell in ordered} == {frozenset()}
    cell = compile_scenario(catalog.scenario_path("degraded")).cells[0]
    assert draws(cell) == {workload.name for workload in cell.workloads}
    cell = compile_scenario(catalog.scenario_path("bitmap-resync")).cells[0]
    assert draws(cell) == {"write", "cut"}
    cell = compile_scenario(catalog.scenario_path("raid1-write-mostly")).cells[0]
    assert "failed" in draws(cell)
    cell = compile_scenario(catalog.scenario_path("mirrors-or-raidz2")).cells[0]
    assert draws(cell) >= {"busy", "rebuild", "rebuild_busy"}


@pytest.mark.parametrize("tool", sorted(WORKLOADS))
def test_a_workload_draws_other_places_with_another_seed(tool: str) -> None:
    found = catalog.workload(tool)
    parameters = found.parameters.model_validate(WORKLOADS[tool])

    def script(seed: int) -> str:
        return found.script(found.seeded(parameters, seed), "/dev/md0")

    assert len({script(seed) for seed in (2, 3, 4)}) == 3
    assert script(2) == script(2) != found.script(parameters, "/dev/md0")


@pytest.mark.parametrize("tool", ["dd", "mkfs", "space"])
def test_a_workload_that_draws_nothing_is_left_alone(tool: str) -> None:
    found = catalog.workload(tool)
    given = {"dd": {"of": "{target}", "bs": 4096, "count": 1}, "mkfs": {"type": "ext4"}}
    parameters = found.parameters.model_validate(given.get(tool, {}))
    assert found.seeded(parameters, 3) is parameters


def test_fio_gets_the_seed_that_it_uses() -> None:
    fio = catalog.workload("fio")
    parameters = fio.parameters.model_validate({"rw": "randread", "randrepeat": 0, "randseed": 9})
    script = fio.script(fio.seeded(parameters, 3), "/dev/md0")
    assert "--randseed=11" in script
    assert "--randrepeat=0" in script


def test_output_is_read_with_the_parameters_of_its_trial(tmp_path: Path) -> None:
    text = SCENARIO.replace("workloads:", "workloads:\n  - {name: b, tool: bonnie, s: 0}\nold:")
    text = text.partition("old:")[0] + "filesystem: {type: ext4}\n"
    cell = compiled(tmp_path, VIRTUAL, "seed=3", text=text).base
    golden = Path(__file__).parents[1] / "golden" / "workloads" / "bonnie"
    case = next(
        p for p in sorted(golden.iterdir()) if "metrics" in (p / "expected.json").read_text()
    )
    about = json.loads((case / "expected.json").read_text())
    first = about["parameters"].get("z", 1)
    workload = cell.workloads[0].model_copy(
        update={"parameters": {**about["parameters"], "z": first}}
    )
    cell = cell.model_copy(update={"workloads": (workload,), "seed": 1})
    raw = {"b.1.stdout.txt": (case / "stdout").read_text()}
    assert measure.measurements(cell, raw)
    with pytest.raises(ToolError, match=r"seed"):  # bonnie++ reports the seed that it had
        measure.measurements(cell.model_copy(update={"seed": 3}), raw)


def test_a_faulty_cell_has_trials_in_virtual_time_only(tmp_path: Path) -> None:
    fault = (
        'faults=[{"name": "f", "fault": "fail", "during": "write", "at": 1, "disk": 1}]',
        "trials=2",
    )
    with pytest.raises(InputError, match=r"one trial"):
        compiled(tmp_path, *fault)
    cell = compiled(tmp_path, *fault, VIRTUAL).base
    assert len(trials(cell_procedure(cell, "/guest"))) == 2


@pytest.mark.parametrize(
    ("values", "low", "high", "same"),
    [
        ((5.0,), None, None, False),
        ((5.0, 5.0, 5.0), None, None, True),
        ((5.0, 5.00005), None, None, True),
        ((5.0, 5.01, 4.9), 4.9, 5.01, False),
    ],
)
def test_the_spread_over_seeds_is_the_interval(
    values: tuple[float, ...], low: float | None, high: float | None, same: bool
) -> None:
    found = CellMeasurement.of_seeds(
        Measurement(workload="w", metric="iops", unit="1/s", values=values)
    )
    assert (found.low, found.high, found.no_seed_changes_it) == (low, high, same)


def test_a_drive_without_a_seed_of_its_own_is_not_changed() -> None:
    assert "seed" not in type(Disk().ssd).model_fields


DRIVE = """\
title: Reads
question: How many?
guest: {image: debian-12, clock: virtual}
disks: {count: 1, size: 4GiB, model: hdd}
workloads: [{name: read, tool: fio, rw: randread, bs: 4KiB, direct: true, io_size: 1MiB}]
"""


def test_theory_follows_the_requests_of_each_trial(tmp_path: Path) -> None:
    def iops(*sets: str) -> float:
        cell = compiled(tmp_path, *sets, text=DRIVE).base
        (value,) = [p.value for p in predictions(cell) if p.metric == "iops"]
        return value

    first, second = iops("seed=4"), iops("seed=5")
    assert first != pytest.approx(second, rel=1e-3)
    assert iops("seed=4", "trials=2") == pytest.approx((first + second) / 2)
    assert iops("guest.clock=real", "trials=2") == iops("guest.clock=real")
