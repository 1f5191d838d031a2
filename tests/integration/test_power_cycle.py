"""A power cut and a new start of a guest: order of the calls, and received output."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.core.errors import GuestError
from lab.host.guest import registry as guests
from lab.host.guest.backend import LiveBackend
from lab.host.guest.ssh.channels import Running
from lab.model.execution.procedure import PowerCycle


class Wire:
    """An SSH channel that delivers its text piece by piece, and then ends."""

    def __init__(self, *pieces: bytes, err: bytes = b"", status: int = 0) -> None:
        self.pieces, self.err, self.status = list(pieces), err, status
        self.hold = threading.Event()
        """An event for which the end after the last piece waits."""
        self.hold.set()

    def settimeout(self, seconds: float) -> None:
        pass

    def recv_stderr_ready(self) -> bool:
        return False

    def recv_stderr(self, size: int) -> bytes:
        said, self.err = self.err, b""
        return said

    def recv(self, size: int) -> bytes:
        if self.pieces:
            return self.pieces.pop(0)
        if not self.hold.wait(0.01):
            raise TimeoutError
        return b""

    def recv_exit_status(self) -> int:
        return self.status

    def close(self) -> None:
        self.hold.set()


def running(wire: Wire, alive: Any = lambda: None) -> Running:
    return Running(wire, alive)  # type: ignore[arg-type]


def test_a_script_that_ends_has_its_output_and_status() -> None:
    output = running(Wire(b"0\n", b"1\n", err=b"oh\n", status=3)).end(5)
    assert (output.stdout, output.stderr, output.status) == ("0\n1\n", "oh\n", 3)


def test_what_was_heard_before_the_end_of_its_guest_is_kept() -> None:
    wire = Wire(b"0\n1\n", b"2")
    wire.hold.clear()
    threading.Timer(0.1, wire.close).start()  # the connection ends with QEMU
    output = running(wire).over()
    assert (output.stdout, output.status) == ("0\n1\n2", -1)


def test_a_connection_that_is_lost_is_no_end() -> None:
    with pytest.raises(GuestError, match="connection to the guest was lost"):
        running(Wire(b"0\n", status=-1)).end(5)


def test_a_guest_that_dies_under_a_workload_that_should_end_is_told() -> None:
    def dead() -> None:
        raise GuestError("its QEMU is gone")

    wire = Wire(b"0\n")
    wire.hold.clear()
    with pytest.raises(GuestError, match="its QEMU is gone"):
        running(wire, dead).end(60)
    wire.close()


def test_a_workload_that_never_ends_is_given_up() -> None:
    wire = Wire(b"0\n")
    wire.hold.clear()
    with pytest.raises(GuestError, match="within 1 seconds"):
        running(wire).end(1)
    wire.close()


class Libvirt:
    """A fake hypervisor that records calls."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.pid = 4711

    def definition(self) -> str:
        self.log.append("definition")
        return "<domain/>"

    def forget(self) -> None:
        self.log.append("forget")

    def start(self, xml: str) -> None:
        self.log.append(f"start {xml}")

    def port(self) -> int:
        return 4023


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A disk server that replies to one line."""
    path = tmp_path / "control"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as lines:
            lines.write(f"ok 8192 for {lines.readline()}")

    thread = threading.Thread(target=answer)
    thread.start()
    yield str(path)
    thread.join(5)
    listener.close()


def test_power_fails_for_qemu_then_for_the_caches_and_the_guest_starts_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: str
) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "h"))
    record = guests.create(guest="g1", scenario="s", image="i", host_key="ssh-ed25519 A")
    guests.write(replace(record, pid=1, port=4022))
    log: list[str] = []
    monkeypatch.setattr(guests, "kill", lambda directory: log.append("kill"))
    bench = LiveBackend(record, "")
    bench._hypervisor = Libvirt(log)  # type: ignore[assignment]
    wire = Wire(b"0\n")
    wire.hold.clear()
    bench._running["w.1"] = running(wire)
    threading.Timer(0.1, wire.close).start()
    said = bench.power_cycle(PowerCycle(lose=(server,), capture="c"))
    assert said == f"{server} ok 8192 for lose\n"
    assert log == ["definition", "kill", "forget", "start <domain/>"]
    after = guests.read(record.path)
    assert after is not None
    assert (after.pid, after.port) == (4711, 4023)
    assert (after.owner_pid, after.owner_started) == (record.owner_pid, record.owner_started)
    assert bench.end("w.1", 5, cut=True).stdout == "0\n"
