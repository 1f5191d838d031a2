"""Virtual time in a scenario: refused fields, ids of cells, and disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from drive import region
from drive.drive import Kind, Parameters
from lab.analysis import measure
from lab.compile.cell.procedure import cell_procedure
from lab.compile.guest.program import POSSIBLE, programs
from lab.compile.guest.virtual_time import needs_network, seal
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.compile.scenario.identity import cell_id, identity
from lab.core.errors import InputError
from lab.core.yaml import parse_override
from lab.host.guest.virtual.sealed import disk_of
from lab.model.execution.procedure import DiskLimit, SealDisks
from lab.model.scenario.drive import integers
from lab.plugins import catalog
from lab.run.options import RunOptions
from tests.fakes import compiled_text

VIRTUAL = "guest.clock=virtual"


def compiled(*sets: str, name: str = "raid5-parity-last") -> Compiled:
    path = catalog.scenario_path(name)
    return compile_scenario(path, overrides=[parse_override(s) for s in sets])


def test_a_cell_with_virtual_time_has_a_name_and_an_identity_that_claims_know() -> None:
    real, virtual = compiled().cells[0], compiled(VIRTUAL).cells[0]
    assert cell_id(real) != cell_id(virtual)
    assert identity(real) == identity(virtual)
    assert identity(virtual) in compiled(VIRTUAL).published


def test_real_cells_do_not_mention_the_clock() -> None:
    assert "clock" not in compiled().cells[0].model_dump(mode="json")["guest"]
    assert compiled(VIRTUAL).cells[0].model_dump(mode="json")["guest"]["clock"] == "virtual"


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (("guest.cpus=2",), r"guest\.cpus: .*not 2: set it to 1"),
        (("disks.bus=scsi",), r"disks\.bus: SCSI .*guest\.clock is virtual"),
        (("disks.size=13TiB",), r"disks\.size: .*12TiB at most"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_booted(
    sets: tuple[str, ...], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        compiled(*sets, VIRTUAL)


def test_the_labs_bus_is_of_virtual_time_alone() -> None:
    with pytest.raises(InputError, match=r"disks\.bus: .*'lab' needs virtual time"):
        compiled("disks.bus=lab")


def test_each_limit_gets_to_the_driver_under_its_name() -> None:
    limits = (
        "disks.throttle={total_bytes_per_second: 5MiB, total_bytes_per_second_max: 10MiB,"
        " total_bytes_per_second_max_seconds: 3, read_operations_per_second: 100,"
        " operation_size: 4KiB, group: cable}"
    )
    step = seal(compiled(limits, "disks.cache=writethrough", VIRTUAL).cells[0])
    disk = step.disks[0]
    assert disk.limits == {
        "bytes_total": DiskLimit(average=5 << 20, burst=10 << 20, seconds=3),
        "operations_read": DiskLimit(average=100),
    }
    assert (disk.operation_size, disk.group, disk.write_back) == (4096, 1, False)
    assert [d.group for d in step.disks] == [1] * len(step.disks)


def test_a_modelled_drive_gets_to_the_driver_as_the_server_has_it() -> None:
    for model, kind in (("hdd", Kind.HDD), ("ssd", Kind.SSD)):
        sets = (f"disks.model={model}", "disks.preset=null", "disks.hdd={}", VIRTUAL)
        cell = compiled(*sets, name="faults-modelled").cells[0]
        step = seal(cell)
        (serial, disk), sealed = cell.each_disk[0], step.disks[0]
        drive = catalog.disk_model(model).drive(disk)
        assert drive is not None
        assert Parameters(**sealed.drive) == integers(drive, serial)
        assert (sealed.drive["kind"], sealed.rotational) == (kind, model == "hdd")
        assert disk_of(sealed).slots == drive.write_cache // 4096


@pytest.mark.parametrize("name", sorted(catalog.scenarios()))
def test_every_scenario_is_sealed_or_says_why_not(name: str) -> None:
    try:
        cells = compiled(VIRTUAL, name=name).cells
    except InputError as error:
        assert "guest.clock" in error.message or "virtual time" in error.message  # noqa: PT017
        return
    for cell in cells[:3]:
        procedure = cell_procedure(cell, "/guest")
        if needs_network(cell):
            assert not all(isinstance(step, POSSIBLE) for step in procedure.steps)
            continue
        assert all(isinstance(step, POSSIBLE) for step in procedure.steps)
        assert isinstance(procedure.steps[0], SealDisks)
        assert programs(procedure).boots


def test_the_guests_processor_is_read_around_each_workload() -> None:
    cell = compiled(VIRTUAL).cells[0]
    name = cell.workloads[0].name

    def stat(user: int, idle: int) -> str:
        return f"cpu  {user} 0 0 {idle} 0 0 0 0 0 0\nmore\n"

    raw = {f"{name}.1.before.txt": stat(100, 100), f"{name}.1.after.txt": stat(180, 120)}
    (check,) = measure.guest_cpu(cell, raw)
    assert (check.workload, check.passed) == (name, False)
    assert "busy for 80.0%" in check.detail
    raw[f"{name}.1.after.txt"] = stat(130, 170)
    (check,) = measure.guest_cpu(cell, raw)
    assert check.passed
    assert measure.guest_cpu(cell, {}) == ()


@pytest.mark.parametrize(
    ("seconds", "passed", "said"),
    [(0.029, False, "up to 100.0%"), (0.12, False, "up to 100.0%"), (0.14, True, "busy for 46.2%")],
)
def test_a_short_measurement_may_all_have_waited_for_the_processor(
    seconds: float, passed: bool, said: str
) -> None:
    cell = compiled(VIRTUAL).cells[0]
    name = cell.workloads[0].name
    raw = {
        f"{name}.1.before.txt": "cpu  28 0 138 1081 0 0 0 0 0 0\n",
        f"{name}.1.after.txt": "cpu  34 0 144 1095 0 0 0 0 0 0\n",
        f"{name}.1.stderr.txt": (
            f"104857600 bytes (105 MB, 100 MiB) copied, {seconds} s, 1.7 GB/s\n"
        ),
    }
    (check,) = measure.guest_cpu(cell, raw)
    assert (check.workload, check.passed) == (name, passed)
    assert said in check.detail
    assert measure.busy_shares(cell, raw) == {name: pytest.approx(12 / 26)}


def test_a_native_guests_processor_takes_no_time() -> None:
    """Its ticks find a program that wakes at a tick, as if it had run since the last one."""
    cell = compiled(VIRTUAL, "guest.engine=native").cells[0]
    name = cell.workloads[0].name
    ticks = {
        f"{name}.1.before.txt": "cpu  0 0 0 0 0 0 0 0 0 0\n",
        f"{name}.1.after.txt": "cpu  90 0 0 10 0 0 0 0 0 0\n",
    }
    assert measure.busy_shares(compiled(VIRTUAL).cells[0], ticks) == {name: 0.9}
    assert (measure.guest_cpu(cell, ticks), measure.busy_shares(cell, ticks)) == ((), {})


def test_a_scenario_may_say_so_itself(tmp_path: Path) -> None:
    text = catalog.scenario_path("raid5-parity-last").read_text()
    assert (
        compiled_text(tmp_path, text.replace("\nguest:\n", "\nguest:\n  clock: virtual\n", 1))
        .cells[0]
        .guest.clock
        == "virtual"
    )


def test_what_lab_up_leaves_and_what_needs_the_network_is_not_sealed() -> None:
    virtual, real = compiled(VIRTUAL).base, compiled().base
    assert [
        RunOptions(**how).unseals(virtual) for how in ({}, {"keep": True}, {"unsealed": True})
    ] == [*(False, True, True)]
    assert not RunOptions(keep=True).unseals(real)
    suite = compiled(VIRTUAL, name="mdadm-tests").base
    assert RunOptions().unseals(suite)


@pytest.mark.parametrize(("kind", "partitions"), [("segments", True), ("md", False)])
def test_only_disks_that_are_partitioned_are_searched_for_a_table(
    kind: str, partitions: bool
) -> None:
    (cell,) = compiled("matrix={}", f"array.kind={kind}", "array.segments=2", VIRTUAL).cells
    (step,) = (s for s in cell_procedure(cell, "/g").steps if isinstance(s, SealDisks))
    assert {disk.partitions for disk in step.disks} == {partitions}
    flags = {disk_of(disk).flags & region.PARTITIONS for disk in step.disks}
    assert flags == ({region.PARTITIONS} if partitions else {0})
