"""A guest's console log: escaped for a terminal, and limited."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.core.errors import GuestError
from lab.host.guest import console
from lab.host.guest import registry as guests
from lab.host.system import clock

MIB = 1 << 20


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "console.log").write_bytes(
        b"[    1.0] Linux\r\n\x1b[2J\x1b]0;title\x07\x9b2J\nlast" + b"x" * 100_000
    )
    found = "".join(console.text(tmp_path, follow=False))
    assert found.startswith("[    1.0] Linux\n\\u001b[2J\\u001b]0;title\\u0007")
    assert found.endswith("x")
    assert not any(c < " " and c != "\n" for c in found)


def test_a_guest_without_a_log_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(GuestError, match="has no console log"):
        list(console.text(tmp_path, follow=False))


@pytest.fixture
def flooded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(console, "LARGEST", 2 * MIB)
    monkeypatch.setattr(console, "_KEPT", MIB)
    (tmp_path / "console.log").write_bytes(b"old\n" * MIB + b"the end\n")
    return tmp_path


def test_a_log_without_end_ends_a_guest_of_a_run(
    flooded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[Path] = []
    monkeypatch.setattr(guests, "kill", killed.append)
    watch = console.Watch(flooded)
    clock.wait_until(lambda: killed or None, timeout=20, reason="the guest to be ended")
    assert killed == [flooded]
    assert watch.sentence == "the guest printed more than 2MiB to its console; it was ended"


def test_a_short_log_ends_no_guest(flooded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(console, "LARGEST", 64 * MIB)
    monkeypatch.setattr(guests, "kill", lambda _: pytest.fail("it was ended"))
    watch = console.Watch(flooded)
    clock.pause(1.5)
    watch.end()
    assert watch.sentence == ""


def test_the_log_of_a_guest_that_stays_up_is_shortened_while_qemu_writes(flooded: Path) -> None:
    path = flooded / "console.log"
    with path.open("r+b") as qemu:
        qemu.seek(0, os.SEEK_END)
        console.shorten(flooded)
        assert path.stat().st_blocks * 512 <= MIB + 8192
        qemu.write(b"and on\n")
    found = "".join(console.text(flooded, follow=False))
    assert found.endswith("the end\nand on\n")
    assert "\0" not in found.replace("\\u0000", "")[-1000:]
    assert len(found) < 2 * MIB
    assert guests.console_tail(flooded).endswith("the end\nand on")


@pytest.mark.parametrize(("most", "ended"), [(MIB, True), (4 * MIB, False), (0, False)])
def test_a_guest_that_stays_up_and_fills_its_region_is_ended_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, ended: bool
) -> None:
    (tmp_path / "console.log").write_bytes(b"login:")
    (tmp_path / "region").write_bytes(b"x" * 2 * MIB)
    killed: list[Path] = []
    looks = [[1], [1], []]
    monkeypatch.setattr(guests, "kill", killed.append)
    monkeypatch.setattr(guests, "qemu_pids", lambda _: looks.pop(0))
    monkeypatch.setattr(clock, "pause", lambda _: None)
    console.watch(tmp_path, most)
    assert killed == [tmp_path] * ended
    said = (tmp_path / "console.log").read_text(encoding="utf-8")
    assert said.startswith("login:")
    assert ("parts of its memory region that belong to no disk: 2MiB are" in said) == ended
