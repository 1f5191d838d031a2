"""``hdd`` and ``ssd`` as plug-ins: refused parameters, and the steps of a cell."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from lab.analysis.predict import drives_of, predictions
from lab.compile.cell.procedure import cell_procedure
from lab.compile.scenario.compiler import Compiled
from lab.compile.schedule import rate_of
from lab.core.base import KEPT
from lab.core.errors import InputError, ToolError
from lab.core.units import KIB, MIB
from lab.host.system import paths
from lab.model.execution.procedure import AskServer, AttachDisk, StartServer, Verify
from lab.model.scenario.document import Cell, Disk
from lab.model.scenario.drive import integers
from lab.plugins import catalog
from lab.plugins.disks import hdd, ssd
from lab.plugins.disks._drives import LARGEST_INDEX, SERIAL_BYTES, control_path, socket_path
from lab.report.export.shell import as_script
from lab.results.schema import scenario_schema
from lab.run.steps import Undo, run_step
from tests.fakes import SCENARIO, FakeBench, compiled_text
from tests.unit.test_plan import planned, unreadable

HDD = SCENARIO.replace(
    "  throttle:\n    total_bytes_per_second: 5MiB\n", "  model: hdd\n  preset: hdd_7200\n"
)


def compiled(directory: Path, *sets: str, text: str = HDD) -> Cell:
    return compiled_text(directory, text, *sets).base


def problems(**fields: Any) -> list[tuple[str, str]]:
    disk = Disk.model_validate({"model": "hdd", **fields})
    return [(p.key, p.message) for p in catalog.disk_model(disk.model).problems(disk)]


@pytest.mark.parametrize("model", ["hdd", "ssd"])
def test_a_modelled_disk_is_raw_and_writes_back_where_nothing_else_is_said(model: str) -> None:
    disk = Disk.model_validate({"model": model})
    assert (disk.format, disk.cache) == ("raw", "writeback")
    assert problems(model=model) == []
    assert Disk.model_validate(disk.model_dump(mode="json")) == disk
    throttled = Disk.model_validate({})
    assert (throttled.format, throttled.cache) == ("qcow2", "unsafe")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "format": ({"format": "qcow2"}, "uses a raw file"),
    "cache": ({"cache": "unsafe"}, "unsafe ignores flushes"),
    "aio": ({"aio": "io_uring"}, "over a socket"),
    "throttle.total_bytes_per_second": (
        {"throttle": {"total_bytes_per_second": 5}},
        "has its own speed",
    ),
    "preset": ({"preset": "hdd_7300"}, "did you mean 'hdd_7200'"),
    "hdd.average_seek": ({"hdd": {"average_seek": "30ms"}}, "not between"),
    "hdd.inner_rate": ({"hdd": {"inner_rate": "200MB"}}, "outer_rate (142000000)"),
    "hdd.link_rate": ({"hdd": {"link_rate": 0}}, "expected 1 byte per second"),
    "hdd.write_cache": ({"hdd": {"write_cache": "4KiB"}}, "64KiB or more"),
    "ssd": ({"ssd": {"channels": 2}}, "'hdd' does not use it"),
    "ssd.page": ({"model": "ssd", "ssd": {"page": 1000}}, "multiple of 512"),
    "hdd": ({"model": "ssd", "hdd": {"rpm": 5400}}, "'ssd' does not use it"),
}


@pytest.mark.parametrize("key", WRONG)
def test_what_makes_no_sense_is_refused_at_its_key(key: str) -> None:
    fields, said = WRONG[key]
    found = dict(problems(**fields))
    assert list(found) == [key]
    assert said in found[key]


@pytest.mark.parametrize("model", ["throttle", "none"])
def test_models_that_have_no_presets_say_so(model: str) -> None:
    found = problems(model=model, preset="hdd_7200", hdd={"rpm": 1})
    assert [key for key, _ in found] == ["hdd", "preset"]
    assert "set model to hdd or ssd" in found[1][1]


def test_a_seek_that_no_curve_has_is_refused() -> None:
    found = problems(hdd={"track_to_track": "1ms", "average_seek": "17ms", "full_stroke": "17.5ms"})
    assert found[0][0] == "hdd.average_seek"
    assert "no seek curve" in found[0][1]


def test_an_unknown_figure_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"disks\.hdd\.rpms.*did you mean 'rpm'"):
        compiled(tmp_path, text=HDD.replace("preset: hdd_7200", "hdd: {rpms: 7200}"))


@pytest.mark.parametrize("name", hdd.PRESETS)
def test_every_preset_is_a_disk_that_names_its_source(name: str) -> None:
    assert problems(preset=name) == []
    assert len(hdd.PRESETS[name].source) > 40


def test_single_figures_change_a_preset() -> None:
    disk = Disk.model_validate({"model": "hdd", "preset": "hdd_10000", "hdd": {"write_cache": 0}})
    drive = hdd.drive_of(disk)
    assert (drive.rpm, drive.write_cache) == (10_000, 0)
    flash = Disk.model_validate({"model": "ssd", "ssd": {"gc_after": "1MiB"}})
    assert ssd.drive_of(flash).gc_after == 1 << 20


def test_each_disk_stands_at_another_angle() -> None:
    drive = hdd.PRESETS["hdd_7200"]
    seeds = {integers(drive, f"disk{n}").seed for n in range(1, 65)}
    assert len(seeds) == 64


def test_a_cell_has_a_server_before_each_disk_and_its_counters_at_the_end(tmp_path: Path) -> None:
    steps = cell_procedure(compiled(tmp_path), "/state/g1").steps
    order = [s.kind for s in steps]
    first = order.index("host_command")
    assert order[first : first + 4] == [
        "host_command",
        "build_plugin",
        "start_server",
        "attach_disk",
    ]
    assert order[-4:] == ["ask_server"] * 4
    servers = [s for s in steps if isinstance(s, StartServer)]
    assert len(servers) == 4
    for step in servers:
        assert any(word.startswith("file=/state/g1/") for word in step.argv)
    asked = [s for s in steps if isinstance(s, AskServer)]
    assert [s.capture for s in asked] == [f"disk{n}.server" for n in range(1, 5)]


def test_the_guest_reaches_the_socket_that_the_server_makes(tmp_path: Path) -> None:
    steps = cell_procedure(compiled(tmp_path), "/state/g1").steps
    sockets = [s.socket for s in steps if isinstance(s, StartServer)]
    for step, socket in zip([s for s in steps if isinstance(s, AttachDisk)], sockets, strict=True):
        element = ET.fromstring(step.xml)
        host = element.find("source/host")
        driver = element.find("driver")
        assert element.get("type") == "network"
        assert host is not None
        assert host.attrib == {"transport": "unix", "socket": socket}
        assert driver is not None
        assert (driver.get("cache"), driver.get("type")) == ("writeback", "raw")
        assert driver.get("io") is None


def test_the_longest_serials_sockets_fit_where_qemus_own_do() -> None:
    """QEMU's monitor limits the length of a guest's directory; a disk's sockets are shorter."""
    longest = f"/disks/{'x' * SERIAL_BYTES}.raw"
    assert len(control_path(longest)) <= len(paths.MONITOR) + 1
    assert len(socket_path(longest)) <= len(paths.MONITOR)
    assert paths.SOCKET == 107
    assert LARGEST_INDEX < 100


@pytest.mark.parametrize(("model", "rotational"), [("hdd", "1"), ("ssd", "0")])
def test_what_the_guest_thinks_of_the_disk_is_set_and_read_back(
    tmp_path: Path, model: str, rotational: str
) -> None:
    text = HDD.replace("model: hdd\n  preset: hdd_7200", f"model: {model}")
    steps = cell_procedure(compiled(tmp_path, text=text), "/state/g1").steps
    check = next(s for s in steps if isinstance(s, Verify) and s.name == "disks")
    assert check.expect["disk4.rotational"] == rotational
    assert check.expect["disk4.write_cache"] == "write back"
    assert f'echo {rotational} > "$queue/rotational"' in check.script


def test_throttled_disks_are_left_as_the_bus_makes_them(tmp_path: Path) -> None:
    steps = cell_procedure(compiled(tmp_path, text=SCENARIO), "/state/g1").steps
    check = next(s for s in steps if isinstance(s, Verify) and s.name == "disks")
    assert not [k for k in check.expect if k.endswith(("rotational", "write_cache"))]


def test_a_scsi_disk_says_how_fast_it_turns() -> None:
    for model, rate in (("hdd", "7200"), ("ssd", "1")):
        disk = Disk.model_validate({"model": model, "bus": "scsi"})
        text = catalog.disk_model(model).xml(disk, serial="d1", path="/d/d1.raw", index=1)
        target = ET.fromstring(text).find("target")
        assert target is not None
        assert target.get("rotation_rate") == rate


def test_a_modelled_disks_rate_is_known_to_the_schedule() -> None:
    assert rate_of(Disk.model_validate({"model": "hdd"})) == 142_000_000
    assert rate_of(Disk.model_validate({"model": "ssd"})) == 470_000_000
    assert rate_of(Disk.model_validate({"model": "none"})) == 0


@pytest.mark.parametrize(
    ("limits", "rate"),
    [
        ({"total_bytes_per_second": 5 * MIB}, 5 * MIB),
        ({"read_bytes_per_second": MIB, "write_bytes_per_second": 2 * MIB}, 3 * MIB),
        ({"read_bytes_per_second": MIB}, 0),  # writes have no limit
        ({"total_operations_per_second": 50}, 50 * 1280 * KIB),
        ({"total_operations_per_second": 50, "total_bytes_per_second": MIB}, MIB),
        ({"read_operations_per_second": 10, "write_bytes_per_second": MIB}, 12800 * KIB + MIB),
        ({}, 0),
    ],
)
def test_what_a_throttle_lets_through_is_known_to_the_schedule(
    limits: dict[str, int], rate: int
) -> None:
    """Limits on operations count too: cells of such disks ran one after the other."""
    assert rate_of(Disk.model_validate({"model": "throttle", "throttle": limits})) == rate


def test_a_server_ends_after_its_disk_is_unplugged_and_before_its_file_goes(
    tmp_path: Path,
) -> None:
    bench, undo = FakeBench(), Undo()
    steps = cell_procedure(compiled(tmp_path), "/state/g1").steps
    for step in steps[:4]:
        assert step.progress
        run_step(step, bench, undo, lambda _name, _text: None)
    bench.log.clear()
    assert undo.unwind() == []
    assert [entry[0] for entry in bench.log] == ["detach", "remove", "stop", "remove", "remove"]
    assert bench.log[3][1].endswith(".so")
    assert bench.log[4][1].endswith(".raw")


def test_a_server_that_does_not_come_up_is_still_taken_back(tmp_path: Path) -> None:
    bench, undo = FakeBench(), Undo()
    (step, *_) = [
        s
        for s in cell_procedure(compiled(tmp_path), "/state/g1").steps
        if isinstance(s, StartServer)
    ]
    bench.failures[("serve", step.socket)] = ToolError("no")
    with pytest.raises(ToolError):
        run_step(step, bench, undo, lambda _name, _text: None)
    undo.unwind()
    assert bench.log[-1] == ("stop", step.socket)


def test_an_answer_is_kept_and_a_refusal_fails_the_cell() -> None:
    bench, saved = FakeBench(), dict[str, str]()
    step = AskServer(label="statistics of disk1", socket="/s", line="stats", capture="disk1.server")
    run_step(step, bench, Undo(), saved.__setitem__)
    assert saved == {"disk1.server.txt": "ok {}\n"}
    bench.server_answer = "error unknown command"
    with pytest.raises(ToolError, match="'statistics of disk1' was refused"):
        run_step(step, bench, Undo(), saved.__setitem__)


def test_the_plan_prints_servers_as_shell(tmp_path: Path, lab_home: Path) -> None:
    plan = planned(tmp_path, HDD)
    script = as_script(plan)
    assert unreadable(script) == ""
    steps = [s for g in plan.guests for c in g.cells for s in c.procedure.steps]
    started = [s for s in steps if isinstance(s, StartServer)]
    assert len(started) == 4
    for step in started:
        assert f"\nnohup {shlex.join(step.argv)} > " in script
        assert script.index("nohup") < script.index("attach-device") < script.index("and back:")
    assert script.count('kill "$PID"') == 4 + 1


def test_a_stream_fills_a_flash_disks_cable() -> None:
    """The rate is the data sheet's; too small pages would leave channels idle."""
    drive = ssd.PRESETS["ssd_sata"]
    assert drive.channels * drive.page / drive.read_latency > drive.link_rate


# --- time scales of earlier versions -------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (
            ("preset: hdd_7200", "hdd: {slower: 10}"),
            r"\.yaml:7: disks\.hdd\.slower: .* 10 is",
        ),
        (("preset: hdd_7200", "hdd: {slower: 0.5}"), r"\.yaml:7: disks\.hdd\.slower: .* 0\.5 is "),
        (("model: hdd", "model: ssd\n  ssd: {slower: 100}"), r"\.yaml:7: disks\.ssd\.slower: "),
    ],
)
def test_a_time_scale_is_refused_with_what_to_do(
    tmp_path: Path, change: tuple[str, str], place: str
) -> None:
    text = HDD.replace(*change)
    if "ssd" in change[1]:
        text = text.replace("  preset: hdd_7200\n", "")
    with pytest.raises(InputError, match=place) as error:
        compiled(tmp_path, text=text)
    assert "remove it, and set guest.clock to virtual" in error.value.message


def test_a_time_scale_of_an_axis_is_refused_at_the_axis(tmp_path: Path) -> None:
    text = HDD + "matrix:\n  disks.hdd.slower: [null, 4]\n"
    with pytest.raises(InputError, match=r"matrix\.disks\.hdd\.slower: 4(\.0)?: drives have no"):
        compiled(tmp_path, text=text)


def scaled(directory: Path, text: str) -> Compiled:
    return compiled_text(directory, text, name="scaled")


@pytest.mark.parametrize("value", ["null", "1", "1.0"])
def test_a_time_scale_that_changes_nothing_is_read_with_a_warning(
    tmp_path: Path, value: str
) -> None:
    assert not any("disks.hdd.slower" in warning for warning in scaled(tmp_path, HDD).warnings)
    found = scaled(tmp_path, HDD.replace("preset: hdd_7200", f"hdd: {{slower: {value}}}"))
    (sentence,) = (warning for warning in found.warnings if "disks.hdd.slower" in warning)
    assert "disks.hdd.slower: a drive has its own speed: remove this key" in sentence
    assert hdd.drive_of(found.base.disks[0]) == hdd.PRESETS["hdd_7200"]
    axis = scaled(tmp_path, HDD + f"matrix:\n  disks.hdd.slower: [{value}]\n")
    (sentence,) = (warning for warning in axis.warnings if "disks.hdd.slower" in warning)
    assert "matrix.disks.hdd.slower: " in sentence


def test_nothing_is_predicted_of_a_stored_drive_with_a_time_scale(tmp_path: Path) -> None:
    read = (
        "{name: read, tool: fio, rw: randread, bs: 4KiB, direct: 1, ioengine: libaio, iodepth: 1,"
        " size: 1GiB, runtime: 5s, time_based: 1, filename: '{target}'}"
    )
    sets = ("disks.count=1", "array=none", f"workloads=[{read}]", "claims=[]")
    cell = compiled(tmp_path, *sets)
    assert drives_of(cell)
    assert predictions(cell)
    data = cell.model_dump(mode="json")
    data["disks"][0]["hdd"]["slower"] = 10.0
    stored = Cell.model_validate(data, context=KEPT)
    assert drives_of(stored) == {}
    assert predictions(stored) == ()


def test_no_editor_offers_a_time_scale() -> None:
    assert "slower" not in json.dumps(scenario_schema())
