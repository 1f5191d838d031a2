"""What `lab ps` and `lab ssh` say of a guest that was left running: its state is true."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.core.errors import GuestError, InputError
from lab.host.guest import registry
from lab.host.guest.registry import GuestRecord
from lab.run import guests

pytestmark = pytest.mark.usefixtures("lab_home")


def record(**changes: object) -> GuestRecord:
    """A guest that was left running."""
    made = registry.create(guest="g1", scenario="q", image="i", host_key="ssh-ed25519 AAAA")
    kept = dataclasses.replace(made, **{"pid": 4194305, **changes})  # type: ignore[arg-type]
    registry.write(kept)
    return registry.own(kept, 0)


@pytest.fixture
def qemu() -> Iterator[GuestRecord]:
    """A process that looks like the guest's QEMU."""
    made = record()
    program = made.path / "qemu-system-x86_64"
    program.symlink_to(sys.executable)
    sleeps = "import time; time.sleep(100)"
    process = subprocess.Popen([program, "-c", sleeps, f"{made.path}/root.qcow2"])
    yield registry.own(dataclasses.replace(made, pid=process.pid), 0)
    process.kill()
    process.wait()


@contextlib.contextmanager
def listening(*, banner: bool) -> Iterator[int]:
    """QEMU's forwarded port: it accepts connections long before sshd runs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    held.append(connection)
                    if banner:
                        connection.sendall(b"SSH-2.0-x\r\n")

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for connection in held:
            connection.close()


@pytest.mark.parametrize(("banner", "state"), [(True, "up"), (False, "no answer")])
def test_a_guest_is_up_if_it_answers(
    qemu: GuestRecord, banner: bool, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "ANSWERS", 0.3)
    with listening(banner=banner) as port:
        registry.write(dataclasses.replace(qemu, port=port))
        (row,) = guests.live()
    assert row["state"] == state
    assert bool(row["hint"]) is (state != "up")


@pytest.mark.parametrize("unsealed", [False, True])
def test_a_guest_that_was_powered_off_is_off_and_the_commands_are_named(unsealed: bool) -> None:
    record(unsealed=unsealed)
    (row,) = guests.live()
    assert row["state"] == "off"
    assert "lab down g1" in row["hint"]
    for name in ("g1", "q", None):
        with pytest.raises(InputError, match="'g1' is off") as error:
            guests.ssh(name, (), user="lab")
        assert "lab down g1" in error.value.hint
        assert "lab up scenario q" in error.value.hint
        assert ("virtual time cannot boot" in error.value.message) is unsealed
    assert guests.take_down(["g1"]) == ["g1"]
    assert guests.live() == []


def test_a_guest_whose_qemu_was_not_started_is_not_off() -> None:
    record(pid=0)
    (row,) = guests.live()
    assert row["state"] == "gone"


def test_ssh_waits_for_a_guest_that_boots(
    qemu: GuestRecord, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "ANSWERS", 0.1)
    answered: list[bool] = []

    def banner(_port: int, _seconds: float, *, pid: int) -> bool:
        answered.append(True)
        return len(answered) > 2

    monkeypatch.setattr(guests, "banner", banner)
    monkeypatch.setattr(guests.process, "replace_with", lambda *_: (_ for _ in ()).throw(EOFError))
    with pytest.raises(EOFError):
        guests.ssh("g1", ("true",), user="lab")
    assert "'g1' boots: waiting for its SSH server" in capfd.readouterr().err


def test_ssh_ends_when_the_guest_that_it_waits_for_is_powered_off(
    qemu: GuestRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def banner(_port: int, _seconds: float, *, pid: int) -> bool:
        os.kill(qemu.pid, 9)
        os.waitpid(qemu.pid, 0)
        return False

    monkeypatch.setattr(guests, "banner", banner)
    with pytest.raises(InputError, match="is off"):
        guests.ssh("g1", ("true",), user="lab")


def test_a_guest_that_never_answers_has_a_limit(
    qemu: GuestRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "BOOTS", 0.2)
    monkeypatch.setattr(guests, "banner", lambda *_, **__: False)
    (qemu.path / "console.log").write_text("Begin: Running /scripts/local-block ...\n")
    with pytest.raises(GuestError, match="did not answer on SSH") as error:
        guests.ssh("g1", ("true",), user="lab")
    assert "local-block" in error.value.hint


def test_the_files_of_a_guest_that_is_off_are_there(tmp_path: Path) -> None:
    made = record()
    (made.path / "console.log").write_text("reboot: Power down\n")
    assert "Power down" in "".join(guests.console_text("g1", follow=False))
