"""Real disks in scenarios: facts from the host, refused fields, and steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.analysis import predict
from lab.compile.cell.procedure import cell_procedure
from lab.compile.guest.disks import NO_DISKS, lasting
from lab.compile.scenario.compiler import compile_scenario
from lab.compile.scenario.identity import cell_id
from lab.core.base import Model
from lab.core.errors import HostError, InputError
from lab.core.yaml import parse_override
from lab.host.guest import registry as guests
from lab.host.guest.libvirt import passthrough
from lab.host.real_disks import refusals as real
from lab.model.execution.procedure import (
    AttachDisk,
    GuestCommand,
    HostCommand,
    PassDisk,
    Procedure,
    Step,
    Verify,
    WipeDisk,
)
from lab.model.scenario.document import Cell
from lab.model.scenario.real import RealDisk
from lab.plugins import catalog
from lab.report.export.shell import cell_script
from lab.run.preparation import real as use
from lab.run.steps import Undo, run_procedure
from tests import loops
from tests.fakes import FakeBench
from tests.loops import Bay, Loop

A, B = "/dev/disk/by-id/ata-A_S1", "/dev/disk/by-id/ata-B_S2"
REAL = {
    A: RealDisk(size=2**30, serial="S1", rotational=True),
    B: RealDisk(size=2**30, serial="S2", rotational=False),
}
SCENARIO = f"""\
title: Real and virtual
question: Does it answer?
disks:
  - device: {A}
  - device: {B}
    throttle: {{total_bytes_per_second: 5MiB}}
  - {{size: 1GiB}}
array: {{level: 5, chunk: 64KiB, component_size: 256MiB}}
workloads:
  - {{name: write, tool: dd, of: '{{target}}', bs: 128KiB, count: 10, oflag: direct}}
"""


def cell_of(tmp_path: Path, *sets: str, text: str = SCENARIO) -> Cell:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    overrides = [parse_override(s) for s in sets]
    return compile_scenario(path, overrides=overrides, known=REAL.get).base


def test_size_serial_and_rotation_are_the_hosts(tmp_path: Path) -> None:
    first, second, third = cell_of(tmp_path).disks
    assert (first.size, first.device_serial, first.device_rotational) == (2**30, "S1", True)
    assert (second.device_serial, second.device_rotational) == ("S2", False)
    assert (first.format, first.cache) == ("raw", "none")
    assert "device" not in third.model_dump()


def test_what_stands_in_the_file_is_what_the_disk_must_be(tmp_path: Path) -> None:
    sets = ("disks.0.size=512MiB", "disks.0.device_serial=S9")
    disk = cell_of(tmp_path, *sets).disks[0]
    assert (disk.size, disk.device_serial) == (2**29, "S9")


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["disks.0.device=/dev/disk/by-id/other"], "is not on this host"),
        (["disks.0.device=/dev/sda"], "'/dev/sda' is not a stable name"),
        (["disks.0.device=/dev/disk/by-id/a/b"], "is not a stable name"),
        (["disks.0.device=/dev/disk/by-id/.."], "is not a stable name"),
        (["disks.0.count=2"], "disks[0].count: a real disk"),
        (["disks.0.format=qcow2"], "no qcow2"),
        (["disks.0.cache=unsafe"], "disks[0].cache: unsafe"),
        (["disks.0.model=hdd"], "disks[0].model: a real disk cannot have the model 'hdd'"),
        (["disks.2.device_serial=S1"], "disks[2].device_serial: it needs a real disk"),
    ],
)
def test_what_cannot_be_said_of_a_real_disk(tmp_path: Path, sets: list[str], words: str) -> None:
    with pytest.raises(InputError) as error:
        cell_of(tmp_path, *sets)
    assert words in error.value.message
    cell_of(tmp_path)


def steps_of(cell: Cell, *erase: str) -> tuple[Step, ...]:
    return cell_procedure(cell, "/g", None, NO_DISKS, erase).steps


def test_each_is_claimed_and_handed_over_in_every_cell_and_blanked_around_it(
    tmp_path: Path,
) -> None:
    steps = steps_of(cell_of(tmp_path), "S1", "S2")
    passed = [s for s in steps if isinstance(s, PassDisk)]
    assert [(s.device, s.size, s.device_serial, s.erase) for s in passed] == [
        (A, 2**30, "S1", ("S1",)),
        (B, 2**30, "S2", ("S2",)),
    ]
    assert "<total_bytes_sec>5242880<" in passed[1].xml
    (blank,) = (s for s in steps if isinstance(s, GuestCommand) and s.undo == s.script)
    assert "virtio-disk1 " in blank.script
    assert "virtio-disk3" not in blank.script
    order = [type(s) for s in steps]
    assert order.index(GuestCommand) > max(i for i, t in enumerate(order) if t is PassDisk)
    read_back = next(s for s in steps if isinstance(s, Verify))
    assert steps.index(blank) < steps.index(read_back)
    assert (read_back.expect["disk1.rotational"], read_back.expect["disk2.rotational"]) == (
        "1",
        "0",
    )
    again = cell_procedure(cell_of(tmp_path), "/g", None, lasting(cell_of(tmp_path)), ("S1", "S2"))
    assert [s.device for s in again.steps if isinstance(s, PassDisk)] == [A, B]
    assert [s.serial for s in again.steps if isinstance(s, WipeDisk)] == ["disk3"]


def test_without_its_serial_a_disk_is_not_blanked_and_not_looked_at(tmp_path: Path) -> None:
    steps = steps_of(cell_of(tmp_path), "S2")
    assert [s.erase for s in steps if isinstance(s, PassDisk)] == [(), ("S2",)]
    (blank,) = (s for s in steps if isinstance(s, GuestCommand) and s.undo == s.script)
    assert "virtio-disk1" not in blank.script
    read_back = next(s for s in steps if isinstance(s, Verify))
    leftovers = read_back.script.partition("ends() {")[2].partition("leftovers=")[0]
    assert "virtio-disk1" not in leftovers
    assert "virtio-disk2" in leftovers


def strings(data: object) -> Iterator[str]:
    if isinstance(data, Model):
        data = data.model_dump()
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, list | tuple):
        for item in data:
            yield from strings(item)
    elif isinstance(data, str):
        yield data


def test_no_list_of_what_is_removed_has_a_device_in_it(tmp_path: Path) -> None:
    """The step loop returns a real disk to the host and removes no device."""
    whole = cell_procedure(cell_of(tmp_path), "/g", None, None, ("S1", "S2"))
    procedure = Procedure(
        name="x", steps=tuple(s for s in whole.steps if not isinstance(s, Verify))
    )
    for step in procedure.steps:
        if isinstance(step, HostCommand):
            assert not any("/dev/" in text for text in (*step.argv, *step.creates))
        if isinstance(step, AttachDisk | WipeDisk):
            assert not any("/dev/" in text for text in strings(step))
    bench, undo = FakeBench(), Undo()
    run_procedure(procedure, bench, undo, lambda *_: None, lambda _: None, lambda _: None)
    before = len(bench.log)
    assert undo.unwind() == []
    taken_back = bench.log[before:]
    assert [entry for entry in taken_back if any(A in word for word in entry)] == [("return", A)]
    removed = [entry[1] for entry in bench.log if entry[0] == "remove"]
    assert removed
    assert not [path for path in removed if path.startswith("/dev/")]
    # Code without a procedure knows only a guest's directory.
    assert set(guests.GuestRecord.__dataclass_fields__) == {
        *("id", "directory", "scenario", "image", "created", "owner_pid", "owner_started"),
        *("pid", "port", "host_key", "target", "cell", "warm", "unsealed"),
    }


def test_a_saved_guest_has_no_real_disk_and_nothing_is_measured_on_one(tmp_path: Path) -> None:
    cell = cell_of(tmp_path)
    assert [serial for _, serial, _ in lasting(cell).disks] == ["disk3"]
    assert not catalog.disk_model("throttle").probes(cell.disks[1])
    throttled = cell_of(tmp_path, "disks.2.throttle.total_bytes_per_second=5MiB").disks[2]
    assert catalog.disk_model("throttle").probes(throttled)
    assert not predict.predictions(cell)


def test_faults_of_qemus_disks_leave_real_ones_alone(tmp_path: Path) -> None:
    fault = "faults:\n  - {name: f, fault: KIND, after: write, disk: 1}\n"
    for kind in ("pull", "rot"):
        with pytest.raises(InputError, match="has a real one"):
            cell_of(tmp_path, text=SCENARIO + fault.replace("KIND", kind))
    cell_of(tmp_path, text=SCENARIO + fault.replace("KIND", "fail"))


def test_the_plan_opens_no_real_disk(tmp_path: Path) -> None:
    cell = cell_of(tmp_path)
    script = cell_script(cell_procedure(cell, "/g", None, None, ("S1", "S2")))
    lines = [line for line in script.splitlines() if A in line]
    assert lines
    assert all(line.startswith("# the lab's guard claims") for line in lines)


def test_the_cell_is_another_with_another_disk(tmp_path: Path) -> None:
    one = cell_id(cell_of(tmp_path))
    assert one == cell_id(cell_of(tmp_path))
    assert one != cell_id(cell_of(tmp_path, "disks.0.device_serial=S7"))


# --- before a boot ---


@pytest.fixture
def bay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bay]:
    for made in loops.bay(tmp_path / "bay"):
        ground = made.ground
        monkeypatch.setattr(real, "ground", lambda ground=ground: ground)
        monkeypatch.setattr(real, "NAMES", ground.names)
        yield made


@pytest.fixture
def disk(bay: Bay) -> Loop:
    return bay.loop("disk")


def loop_cell(tmp_path: Path, disk: Loop, *, reads: bool) -> Cell:
    cell = cell_of(tmp_path)
    one = cell.disks[0].model_copy(
        update={"device": str(disk.name), "size": loops.SIZE, "device_serial": str(disk.file)}
    )
    update: dict[str, object] = {"disks": (one,)}
    return cell.model_copy(update={**update, "array": None, "workloads": ()} if reads else update)


def test_writing_needs_the_serial_and_a_refusal_comes_before_the_boot(
    tmp_path: Path, disk: Loop
) -> None:
    cell = loop_cell(tmp_path, disk, reads=False)
    serial = str(disk.file)
    with pytest.raises(InputError, match="may only be read") as error:
        use.check_real((cell,), ())
    assert error.value.hint.endswith(f"--erase {serial}")
    with pytest.raises(InputError, match="no real disk of this scenario has that serial"):
        use.check_real((cell,), (serial[:-1],))
    use.check_real((cell,), (serial,))
    use.check_real((loop_cell(tmp_path, disk, reads=True),), ())
    loops.gpt(disk.device)
    with pytest.raises(InputError, match="signature: gpt") as error:
        use.check_real((cell,), (serial,))
    assert "wipefs --all" in error.value.hint


def test_a_disk_is_offered_to_a_cluster_only_as_it_could_be_passed(disk: Loop) -> None:
    use.check_offer([str(disk.name)])
    with pytest.raises(InputError, match="this host has no such disk"):
        use.check_offer([str(disk.name), f"{disk.name}-0"])
    with pytest.raises(InputError, match="name"):
        use.check_offer([disk.device])
    loops.gpt(disk.device)
    with pytest.raises(InputError, match="signature: gpt"):
        use.check_offer([str(disk.name)])


def test_a_disk_that_is_not_as_it_was_named(tmp_path: Path, disk: Loop) -> None:
    cell = loop_cell(tmp_path, disk, reads=True)
    (one,) = cell.disks
    smaller = cell.model_copy(update={"disks": (one.model_copy(update={"size": 2**20}),)})
    with pytest.raises(InputError, match="its size was 1048576 and is 16777216"):
        use.check_real((smaller,), ())
    twice = cell.model_copy(update={"disks": (one, one)})
    with pytest.raises(InputError, match="twice in one cell"):
        use.check_real((twice,), ())


# --- passing a disk ---


class Monitor:
    """A fake of QEMU's monitor, for plugging and unplugging a disk."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.device = self.node = self.set = False

    def ask(
        self, _domain: object, command: str, arguments: object = None, fds: object = ()
    ) -> object:
        self.log.append(command)
        match command:
            case "add-fd":
                self.set = True
            case "blockdev-add":
                self.node = True
            case "device_add":
                self.device = True
            case "device_del":
                self.device = False
            case "blockdev-del":
                self.node = False
            case "remove-fd":
                self.set = False
            case "qom-list":
                return [{"name": "real-disk1"}] if self.device else []
            case "query-named-block-nodes":
                return [{"node-name": "real-disk1"}] if self.node else []
            case "query-fdsets":
                return [{"fdset-id": 4353}] if self.set else []
        return {}


def test_what_speaks_up_at_the_last_look_takes_the_disk_from_qemu_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = next(s for s in steps_of(cell_of(tmp_path), "S1") if isinstance(s, PassDisk))
    monitor = Monitor()
    monkeypatch.setattr(passthrough, "_ask", monitor.ask)
    seen: list[list[str]] = []

    def refuse() -> None:
        seen.append(list(monitor.log))
        raise HostError("mounted")

    with pytest.raises(HostError, match="mounted"):
        passthrough.plug(None, step.xml, [7, 8], writable=False, last_look=refuse)
    assert seen == [["add-fd", "add-fd", "blockdev-add"]]  # QEMU has it, the guest does not
    assert "device_add" not in monitor.log
    assert (monitor.device, monitor.node, monitor.set) == (False, False, False)
    passthrough.plug(None, step.xml, [7, 8], writable=True, last_look=lambda: None)
    assert (monitor.device, monitor.node, monitor.set) == (True, True, True)
    passthrough.unplug(None, step.xml)
    assert (monitor.device, monitor.node, monitor.set) == (False, False, False)
