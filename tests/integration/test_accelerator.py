"""KVM is used only if guest code has run under it; otherwise the reason is reported."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from lab.host.system import accelerator, paths
from lab.host.system.accelerator import Accelerator

needs_qemu = pytest.mark.skipif(
    shutil.which(accelerator.EMULATOR) is None, reason="QEMU is not installed"
)


@needs_qemu
def test_the_guest_code_runs_under_emulation() -> None:
    assert accelerator.try_code("tcg") is None


@needs_qemu
def test_guest_code_that_never_prints_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = bytearray(b"\xf4" * 65536)  # hlt: a guest whose first instruction never completes
    monkeypatch.setattr(accelerator, "rom", lambda: bytes(silent))
    monkeypatch.setattr(accelerator, "SECONDS", 1.0)
    said = accelerator.try_code("tcg")
    assert said == "16 bytes of guest code printed nothing for 1 seconds"


@needs_qemu
def test_an_accelerator_that_does_not_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(accelerator.CPU, "tcg", "no-such-cpu")
    said = accelerator.try_code("tcg")
    assert said is not None
    assert said.startswith("16 bytes of guest code ")
    assert "printed nothing" not in said
    assert "\n" not in said


class Probe:
    """A fake of the probe that counts its calls."""

    def __init__(self, answer: Accelerator) -> None:
        self.answer = answer
        self.asked: list[Path | None] = []

    def __call__(self, kernel: Path | None) -> Accelerator:
        self.asked.append(kernel)
        return self.answer


LIES = Accelerator(kind="tcg", reason="TCG, because under KVM 16 bytes of guest code did nothing")


@pytest.fixture
def probe(lab_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Probe:
    """A host with a KVM device, a QEMU of a known version, and a probe that returns at once."""
    device = tmp_path / "kvm"
    device.write_text("")
    monkeypatch.setattr(accelerator, "DEVICE", device)
    monkeypatch.setattr(accelerator, "qemu_version", lambda: "9.9.9")
    found = Probe(LIES)
    monkeypatch.setattr(accelerator, "_probe", found)
    return found


def test_the_answer_is_remembered_until_the_host_boots_again(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert accelerator.find() == accelerator.find() == LIES
    assert probe.asked == [None]
    kernel = Path("/images/kernel")
    accelerator.find(kernel)
    assert probe.asked == [None, kernel]
    accelerator.find(fresh=True)
    assert len(probe.asked) == 3
    monkeypatch.setattr(accelerator, "boot_id", lambda: "another boot")
    accelerator.find()
    assert len(probe.asked) == 4
    memory = json.loads((paths.host() / "accelerator.json").read_text())
    assert [k.split(" 9.9.9")[0] for k in memory] == ["another boot"]


def test_a_memory_that_cannot_be_read_is_made_again(probe: Probe) -> None:
    paths.host().mkdir(parents=True)
    for text in ("", "[]", '{"x": 1}', "\0"):
        (paths.host() / "accelerator.json").write_text(text)
        assert accelerator.find() == LIES
    assert len(probe.asked) == 4


def test_a_host_without_kvm_says_so(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "DEVICE", Path("/nowhere/kvm"))
    found = accelerator.find()
    assert (found.kind, found.reason) == ("tcg", "TCG, because there is no /nowhere/kvm")
    assert probe.asked == []


@needs_qemu
def test_on_this_host_the_answer_is_a_sentence(lab_home: Path) -> None:
    found = accelerator.find()
    assert found.kind in ("kvm", "tcg")
    assert re.match(r"KVM: guest code ran under it$|TCG, because .{10,}", found.reason)
    assert "\n" not in found.reason
