"""Sessions in a guest in virtual time: it is suspended when the last one has ended or died."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from lab.core.errors import GuestError
from lab.host.guest.virtual import suspend


class Qemu:
    """Answers QMP and records the commands that it received."""

    def __init__(self, path: Path) -> None:
        self.told: list[str] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection, connection.makefile("rw") as file:
                file.write('{"QMP": {}}\n')
                file.flush()
                for line in file:
                    command = json.loads(line)["execute"]
                    if command != "qmp_capabilities":
                        self.told.append(command)
                    running = {"running": self.told[-1:] != ["stop"]}
                    file.write(json.dumps({"return": running}) + "\n")
                    file.flush()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def heard(self, *commands: str) -> bool:
        """Return whether it receives exactly these commands within some seconds."""
        until = time.monotonic() + 10
        while len(self.told) < len(commands) and time.monotonic() < until:
            time.sleep(0.02)
        return self.told == list(commands)


@pytest.fixture
def guest() -> Iterator[Path]:
    with TemporaryDirectory(prefix="lab-") as directory:  # a socket's path must be short
        yield Path(directory)


@pytest.fixture
def qemu(guest: Path) -> Iterator[Qemu]:
    made = Qemu(guest / suspend.SOCKET)
    yield made
    made.close()


SESSION = """
import sys
from pathlib import Path
from lab.host.guest.virtual import sessions
from lab.host.guest.registry import GuestRecord
record = GuestRecord(id="g1", directory=sys.argv[1], scenario="", image="", created="",
                     owner_pid=0, owner_started=0, unsealed=True)
sys.exit(sessions.run(record, sys.argv[2:]))
"""


def session(guest: Path, *argv: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", SESSION, str(guest), *argv]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def gone(pid: int) -> bool:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_a_session_resumes_the_guest_and_its_end_suspends_it(guest: Path, qemu: Qemu) -> None:
    with session(guest, "sh", "-c", "exit 7") as one:
        assert one.wait(timeout=20) == 7
    assert qemu.heard("cont", "stop")


def test_the_guest_goes_on_until_the_last_session_ends(guest: Path, qemu: Qemu) -> None:
    with (
        session(guest, "sh", "-c", "echo first; sleep 60") as first,
        session(guest, "sh", "-c", "echo second; sleep 60") as second,
    ):
        assert (line(first), line(second)) == ("first", "second")
        first.terminate()
        first.wait(timeout=20)
        time.sleep(0.3)
        assert qemu.told == ["cont", "cont"]
        second.terminate()
        second.wait(timeout=20)
    assert qemu.heard("cont", "cont", "stop", "stop")


def test_a_killed_session_leaves_no_client_and_a_suspended_guest(guest: Path, qemu: Qemu) -> None:
    with session(guest, "sh", "-c", "echo $$; exec sleep 60") as one:
        client = int(line(one))
        os.kill(one.pid, signal.SIGKILL)
        one.wait(timeout=20)
    assert gone(client)
    assert qemu.heard("cont", "stop")


def test_ctrl_c_is_the_clients(guest: Path, qemu: Qemu) -> None:
    script = "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.1; done"
    words = [sys.executable, "-c", SESSION, str(guest), "sh", "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as one:
        assert line(one) == "ready"
        os.killpg(one.pid, signal.SIGINT)
        assert line(one) == "caught"
        assert one.wait(timeout=20) == 3
    assert qemu.heard("cont", "stop")


def test_who_is_suspended_is_asked_of_qemu(guest: Path, qemu: Qemu) -> None:
    assert not suspend.is_suspended(guest)
    suspend.stop(guest)
    assert qemu.told[-1] == "stop"
    qemu.told[:] = ["stop"]
    with pytest.raises(GuestError, match="QEMU of the guest 'nobody' does not answer"):
        suspend.go_on(guest / "nobody")
    assert not suspend.is_suspended(guest / "nobody")
