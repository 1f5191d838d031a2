"""The main scenario, the ids of its cells, and the cells of published values."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.analysis.judge import JudgedCell, judge
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.compile.scenario.fields import fields_of, look_up
from lab.compile.scenario.identity import cell_id, identity
from lab.core.errors import InputError
from lab.core.yaml import parse_override
from lab.model.result.document import CellMeasurement, CellResult, Outcome
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import Cell
from lab.plugins import catalog
from tests.fakes import SCENARIO, compiled_text

MAIN = "raid5-parity-last"


def main(*sets: str) -> Compiled:
    overrides = [parse_override(s) for s in sets]
    return compile_scenario(catalog.scenario_path(MAIN), overrides=overrides)


@pytest.fixture(scope="module")
def plain() -> Compiled:
    return main()


def test_the_main_job_has_three_cells(plain: Compiled) -> None:
    assert [c.axes for c in plain.cells] == [
        {"array.layout": "parity-last", "disks.count": 5},
        {"array.layout": "parity-last", "disks.count": 3},
        {"array.layout": "left-symmetric", "disks.count": 5},
    ]
    assert len(plain.scenario.claims) == 12


def test_ids_are_readable_distinct_and_the_same_in_another_process(plain: Compiled) -> None:
    ids = [cell_id(c) for c in plain.cells]
    assert [i.rpartition("-")[0] for i in ids] == [
        "parity-last-5",
        "parity-last-3",
        "left-symmetric-5",
    ]
    assert len({i[-8:] for i in ids}) == 3
    code = (
        "from lab.plugins import catalog; import json;"
        "from lab.compile.scenario.identity import cell_id;"
        "from lab.compile.scenario.compiler import compile_scenario;"
        f"c = compile_scenario(catalog.scenario_path('{MAIN}'));"
        "print(json.dumps([cell_id(x) for x in c.cells]))"
    )
    again = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "7", "PATH": "/usr/bin", "HOME": "/nowhere"},
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert json.loads(again.stdout) == ids


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "memory": lambda c: c["guest"].update(memory=2**30),
    "image": lambda c: c["guest"].update(image="other"),
    "kernel arguments": lambda c: c["guest"].update(kernel_arguments=["nosmt"]),
    "disk size": lambda c: c["disks"][0].update(size=2**31),
    "cache": lambda c: c["disks"][0].update(cache="none"),
    "throttle": lambda c: c["disks"][0]["throttle"].update(total_bytes_per_second=1),
    "scheduler": lambda c: c["disks"][0].update(scheduler="bfq"),
    "serial": lambda c: c["disks"][0].update(serial="d{index}"),
    "chunk": lambda c: c["array"].update(chunk=65536),
    "sysfs": lambda c: c["array"]["sysfs"].update(stripe_cache_size="1024"),
    "file system": lambda c: c.update(filesystem={"type": "xfs"}),
    "workload": lambda c: c["workloads"][0]["parameters"].update(bs=4096),
    "order of workloads": lambda c: c["workloads"].reverse(),
    "trials": lambda c: c.update(trials=2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_a_number_changes_the_id(plain: Compiled, change: str) -> None:
    data = plain.base.model_dump(mode="json")
    assert cell_id(Cell.model_validate(data)) == cell_id(plain.base)
    CHANGES[change](data)
    assert cell_id(Cell.model_validate(data)) != cell_id(plain.base)


def test_patience_changes_no_number(plain: Compiled) -> None:
    patient = plain.base.model_copy(update={"timeout": 9000.0})
    assert cell_id(patient) == cell_id(plain.base)


def test_an_identity_is_the_same_in_every_guest(plain: Compiled) -> None:
    large = plain.base.model_copy(
        update={"guest": plain.base.guest.model_copy(update={"memory": 2**30}), "trials": 9}
    )
    assert identity(large) == identity(plain.base)
    assert cell_id(large) != cell_id(plain.base)


def test_defaults_are_part_of_the_cell_and_not_hidden(plain: Compiled) -> None:
    parameters = plain.base.workloads[0].parameters
    assert parameters["bs"] == 1024**2
    assert "seek" in parameters
    assert plain.base.array is not None
    assert plain.base.array.metadata == "1.2"


def measured(compiled: Compiled) -> list[JudgedCell]:
    """Return every cell with all workloads at 10.7 MB/s."""
    found = []
    for cell in compiled.cells:
        values = [
            CellMeasurement(
                workload=w.name, metric="throughput", unit="B/s", values=(10.7e6,), median=10.7e6
            )
            for w in cell.workloads
        ]
        result = CellResult(
            id=cell_id(cell), axes=cell.axes, outcome=Outcome.DONE, measurements=tuple(values)
        )
        found.append(
            JudgedCell(
                result=result,
                fields=fields_of(cell, compiled.scenario.claims),
                published=identity(cell) in compiled.published,
                seeds=(1,),
            )
        )
    return found


def verdicts(*sets: str) -> dict[str, Verdict]:
    compiled = main(*sets)
    return {c.id: c.verdict for c in judge(compiled.scenario.claims, measured(compiled))}


def test_every_claim_of_the_file_as_it_stands_is_tested() -> None:
    found = verdicts()
    assert Verdict.NOT_TESTED not in found.values()
    assert found["S004-1"] == found["S004-5"] == found["S004-7"] == Verdict.HOLDS
    assert found["S004-3"] == Verdict.REFUTED


def test_what_the_guest_is_like_leaves_the_claims_standing() -> None:
    assert verdicts("guest.memory=1GiB", "trials=2") == verdicts()


def test_a_collapsed_axis_leaves_the_claims_of_its_cell() -> None:
    found = verdicts("array.layout=parity-last", "disks.count=3")
    tested = {claim for claim, verdict in found.items() if verdict is not Verdict.NOT_TESTED}
    assert tested == {"S004-5", "S004-6"}


def test_a_claim_does_not_speak_of_a_cell_that_was_changed() -> None:
    assert set(verdicts("array.chunk=256KiB").values()) == {Verdict.NOT_TESTED}
    assert set(verdicts("workloads.write.bs=2MiB").values()) == {Verdict.NOT_TESTED}
    other = verdicts(
        *("matrix={}", "array.layout=left-asymmetric", "disks.count=6", "array.chunk=256KiB"),
        *("disks.throttle.total_bytes_per_second=4MiB", "workloads.write.bs=512KiB"),
    )
    assert set(other.values()) == {Verdict.NOT_TESTED}


def test_the_command_line_of_the_contract_makes_one_cell() -> None:
    found = main(
        *("matrix={}", "array.layout=left-asymmetric", "disks.count=6", "array.chunk=256KiB"),
        *("disks.throttle.total_bytes_per_second=4MiB", "workloads.write.bs=512KiB"),
    )
    (cell,) = found.cells
    assert cell.axes == {}
    assert cell.array is not None
    assert (cell.array.layout, cell.array.chunk, len(cell.each_disk)) == (
        *("left-asymmetric", 262144, 6),
    )
    assert cell.disks[0].throttle.total_bytes_per_second == 4 * 1024**2
    assert cell.workloads[0].parameters["bs"] == 524288
    assert cell.workloads[1].parameters["bs"] == 1024**2


def test_fields_are_looked_up_by_their_dotted_names(plain: Compiled) -> None:
    parts = {
        "guest": plain.base.guest,
        "disks": plain.base.disks,
        "array": plain.base.array,
        "workloads": plain.base.workloads,
        "filesystem": None,
    }
    known = {
        "array.chunk": 524288,
        "disks.count": 5,
        "disks.0.count": 5,
        "disks.format": "qcow2",
        "disks.throttle.total_bytes_per_second": 5 * 1024**2,
        "workloads.write.bs": 1024**2,
        "workloads.write.tool": "dd",
        "filesystem.type": None,
        "disks.9.count": None,
        "workloads.nobody.bs": None,
        "guest.image": "debian-12",
    }
    assert {name: look_up(parts, name) for name in known} == known


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "count: 4",
            "count: 4\n  serial: same",
            "q.yaml:5: disks.serial: 4 disks would have the same serial",
        ),
        ("  size: 1GiB", "  model: throtle", "q.yaml:5: disks.model: there is no 'throtle' in lab"),
        (
            "  level: 5",
            "  kind: zsf",
            "q.yaml:9: array.kind: there is no 'zsf' in lab/plugins/arrays",
        ),
        ("  component_size: 256MiB", "  component_size: 2GiB", "q.yaml:12: array.component_size: "),
    ],
)
def test_what_no_mdadm_would_take_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        compiled_text(tmp_path, SCENARIO.replace(old, new, 1))
    assert error.value.message.startswith(f"{tmp_path}/{says}"), error.value.message


def test_bare_disk_workloads_want_one_disk(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    a, b = SCENARIO.index("array:"), SCENARIO.index("workloads:")
    bare = SCENARIO[:a] + "array: none\n" + SCENARIO[b:]
    path.write_text(bare)
    with pytest.raises(InputError, match=r"q\.yaml:4: disks\.count: .*there are 4$"):
        compile_scenario(path)
    path.write_text(bare.replace("count: 4", "count: 1"))
    assert compile_scenario(path).base.array is None


def test_two_lists_of_disks_with_one_serial_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    a, b = SCENARIO.index("disks:"), SCENARIO.index("array:")
    two = "disks:\n  - {size: 1GiB, serial: a}\n  - {size: 1GiB, serial: a}\n  - {size: 1GiB}\n"
    path.write_text(SCENARIO[:a] + two + SCENARIO[b:])
    with pytest.raises(InputError, match=r"q\.yaml:3: disks\.serial: .*'a'"):
        compile_scenario(path)
    path.write_text(SCENARIO[:a] + two.replace("serial: a", "serial: b", 1) + SCENARIO[b:])
    assert [s for s, _ in compile_scenario(path).base.each_disk] == ["b", "a", "disk3"]
