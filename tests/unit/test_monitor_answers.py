"""Each answer of QEMU, libvirt and a disk server is checked, and limits are put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.core.errors import GuestError, LabError, ToolError
from lab.host.guest import backend, servers
from lab.host.guest.backend import LiveBackend
from lab.host.guest.libvirt import drives
from lab.host.guest.libvirt.hypervisor import Hypervisor
from lab.model.execution.procedure import AskServer, LimitDisk, PowerCycle, SpoilDisk, WipeDisk
from lab.run.steps import Undo, run_step

libvirt = pytest.importorskip("libvirt")
pytest.importorskip("libvirt_qemu")

BEFORE = {
    "total_bytes_sec": 1000000,
    "read_bytes_sec": 0,
    "total_iops_sec": 100,
    "size_iops_sec": 4096,
}
XML = """<domain><devices><disk><driver type='raw'/><source file='/d/a1.raw'/>
<target dev='vda' bus='virtio'/><serial>a1</serial><iotune>GROUP</iotune>
<alias name='virtio-disk0'/></disk></devices></domain>"""


class Domain:
    """libvirt's domain with one limited disk; its call number ``fails`` does not work."""

    def __init__(self, fails: int = 0, says: str = "", group: str = "cable") -> None:
        self.fails, self.says, self.group = fails, says, group
        self.made = 0
        self.limits: dict[str, Any] = {**BEFORE, "group_name": group}
        self.unlimited: list[str] = []

    def _call(self) -> None:
        self.made += 1
        if self.made == self.fails:
            raise libvirt.libvirtError("the monitor is gone")

    def XMLDesc(self, _flags: int) -> str:  # noqa: N802
        group = f"<group_name>{self.group}</group_name>" if self.group else ""
        return XML.replace("GROUP", group)

    def blockIoTune(self, _name: str, _flags: int) -> dict[str, Any]:  # noqa: N802
        self._call()
        return dict(self.limits)

    def setBlockIoTune(self, _name: str, limits: dict[str, Any], _flags: int) -> None:  # noqa: N802
        self._call()
        self.limits |= limits
        if not any(v for v in self.limits.values() if isinstance(v, int)):
            self.limits["group_name"] = ""  # QEMU takes it out of its group
        elif "group_name" not in limits and not self.limits["group_name"]:
            self.limits["group_name"] = "virtio-disk0"

    def monitor(self, command: str, _flags: int) -> str:
        self._call()
        assert not any(v for v in self.limits.values() if isinstance(v, int))
        self.unlimited.append(command)
        return self.says


def wipe(domain: Domain) -> None:
    drives.wipe(domain, "a1", 4096)


def spoil(domain: Domain) -> None:
    drives.spoil(domain, "a1", 0, 4096, 0xA5)


def limit(domain: Domain) -> None:
    drives.limit(domain, "a1", {"total_bytes_sec": 5})


@pytest.mark.parametrize("group", ["cable", ""])
@pytest.mark.parametrize("do", [wipe, spoil])
def test_a_disk_is_written_without_its_limits_and_has_them_and_its_group_again(
    do: Callable[[Domain], None], group: str
) -> None:
    domain = Domain(group=group)
    do(domain)
    assert len(domain.unlimited) == 2  # the write, and the flush
    assert domain.limits == {**BEFORE, "group_name": group or "virtio-disk0"}


def test_other_limits_are_exactly_those_that_were_asked_for() -> None:
    domain = Domain()
    limit(domain)
    none = dict.fromkeys(BEFORE, 0)
    assert domain.limits == {**none, "total_bytes_sec": 5, "group_name": "cable"}


@pytest.mark.parametrize("do", [wipe, spoil, limit])
@pytest.mark.parametrize("fails", range(1, 7))
def test_limits_are_put_back_whichever_call_fails(do: Callable[[Domain], None], fails: int) -> None:
    """The last call of ``limit`` is its third, and a call that puts limits back may fail too."""
    domain = Domain(fails)
    if do is limit and fails > 3:
        do(domain)
        return
    with pytest.raises(GuestError) as error:
        do(domain)
    lost = "has lost its limits" in error.value.message
    assert (domain.limits == {**BEFORE, "group_name": "cable"}) is not lost
    assert not lost or fails > 4  # the fifth and the sixth call put them back


@pytest.mark.parametrize("do", [wipe, spoil])
def test_what_the_monitor_answers_is_an_error_and_limits_are_put_back(
    do: Callable[[Domain], None],
) -> None:
    domain = Domain(says="Error: Device 'x' not found\r\n")
    with pytest.raises(GuestError, match=r"'a1' could not be .*: Error: Device 'x' not found"):
        do(domain)
    assert domain.limits == {**BEFORE, "group_name": "cable"}


def test_a_command_that_qemus_monitor_refuses_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("libvirt_qemu")
    hypervisor = Hypervisor(tmp_path / "g1")
    hypervisor._domain = SimpleNamespace(monitor=lambda *_: "Error: unknown command\r\n")
    for call in (hypervisor.require_answer, hypervisor.port):
        with pytest.raises(GuestError, match="QEMU refused 'info"):
            call()


# --- the steps of all faults that speak to QEMU or to a disk server -------------------------------


class Hands:
    """A hypervisor that does nothing, and so writes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def spoil(self, *_: object) -> None:
        pass

    wipe = limit = spoil

    def limits(self, _serial: str) -> dict[str, int]:
        return {"total_bytes_sec": 7}

    def file_of(self, _serial: str) -> tuple[str, str]:
        return str(self.path), "raw"

    def definition(self) -> str:
        return "<domain/>"

    forget = close = spoil


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveBackend]:
    disk = tmp_path / "a1.raw"
    disk.write_bytes(b"\1" * 8192)
    found = object.__new__(LiveBackend)
    found._hypervisor = Hands(disk)  # type: ignore[assignment]
    found._running = {}
    found._shell = None
    found.record = SimpleNamespace(path=tmp_path)  # type: ignore[assignment]
    monkeypatch.setattr(backend.guests, "kill", lambda _path: None)
    monkeypatch.setattr(found, "_start", lambda _xml: None)
    return found


SPOIL = SpoilDisk(serial="a1", offset=4096, length=4096, pattern=0xA5)
STEPS = {
    "rot of a plain disk": SPOIL,
    "rot beyond the end": SPOIL.model_copy(update={"offset": 1 << 20}),
    "slow": LimitDisk(serial="a1", limits={"total_bytes_sec": 5}),
    "wipe": WipeDisk(serial="a1", path="PATH", size=8192),
}
ANSWERS = ("error no room", "", "okay", "err", "nonsense")
ASKED = {"rot": "rot 0 512 165", "error": "error read 0 512", "stall": "stall 2", "stats": "stats"}


@pytest.mark.parametrize("name", STEPS)
def test_what_a_fault_did_to_a_disk_is_verified(
    name: str, bench: LiveBackend, tmp_path: Path
) -> None:
    step = STEPS[name]
    if isinstance(step, WipeDisk):
        step = step.model_copy(update={"path": str(tmp_path / "a1.raw")})
    with pytest.raises(LabError, match="'a1'"):
        run_step(step, bench, Undo(), lambda *_: None)


def test_a_disk_that_was_corrupted_is_found_so(bench: LiveBackend, tmp_path: Path) -> None:
    (tmp_path / "a1.raw").write_bytes(b"\1" * 4096 + b"\xa5" * 4096)
    run_step(SPOIL, bench, Undo(), lambda *_: None)


@pytest.mark.parametrize("line", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("answer", ANSWERS)
def test_each_answer_of_a_disk_server_but_ok_is_an_error(
    line: str, answer: str, bench: LiveBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = AskServer(label="it", socket="/d/a1.control", line=line, capture="x")
    monkeypatch.setattr(servers, "ask_line", lambda _socket, _line: answer)
    with pytest.raises(ToolError, match="'it' was refused"):
        run_step(step, bench, Undo(), lambda *_: None)
    monkeypatch.setattr(servers, "ask_line", lambda _socket, _line: "ok 3")
    run_step(step, bench, Undo(), lambda *_: None)


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_power_cut_whose_caches_were_not_lost_is_an_error(
    answer: str, bench: LiveBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = PowerCycle(lose=("/d/a1.control",), capture="cut.1.power")
    monkeypatch.setattr(servers, "ask_line", lambda _socket, _line: answer)
    with pytest.raises(ToolError, match="refused 'lose'"):
        run_step(step, bench, Undo(), lambda *_: None)
    monkeypatch.setattr(servers, "ask_line", lambda _socket, _line: "ok 4096")
    saved: list[str] = []
    run_step(step, bench, Undo(), lambda _name, text: saved.append(text))
    assert saved == ["/d/a1.control ok 4096\n"]
