"""A guest whose root has replaced sshd: it sends without end, and answers with rubbish."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.core.errors import GuestError, LabError, LimitError, ToolError
from lab.host.guest.ssh import channels, shell
from lab.host.guest.ssh.shell import Shell, reach
from lab.host.system import clock, keys

MIB = 1 << 20
FLOOD = 96
"""MiB that a flood has."""
SERVER = f"""\
import re, socket, sys, threading, time
import paramiko
mode = sys.argv[1]
listening = socket.create_server(("127.0.0.1", 0))
key = paramiko.ECDSAKey.generate()
print(listening.getsockname()[1], key.get_name(), key.get_base64(), flush=True)
connection, _ = listening.accept()
if mode == "banner":
    for _ in range({FLOOD}):
        connection.sendall(b"x" * {MIB})
    sys.exit()

class Server(paramiko.ServerInterface):
    def check_auth_publickey(self, user, key): return paramiko.AUTH_SUCCESSFUL
    def get_allowed_auths(self, user): return "publickey"
    def check_channel_request(self, kind, number): return paramiko.OPEN_SUCCEEDED
    def check_channel_exec_request(self, channel, command):
        threading.Thread(target=answer, args=(channel,), daemon=True).start()
        return True

flooded = threading.Event()

def send(channel):
    # whatever window the client has announced
    message = paramiko.Message()
    message.add_byte(paramiko.common.cMSG_CHANNEL_DATA)
    message.add_int(channel.remote_chanid)
    message.add_string(b"x" * 32000)
    transport._send_user_message(message)

def answer(channel):
    text = b""
    while True:
        while not (marks := re.findall(rb"printf '..([0-9a-f]{{16}}) %d", text)):
            text += channel.recv(65536)
            if b"exit $?" in text:  # a script of its own channel
                marks = [b""]
                break
        mark, text = marks[0], b""
        if mode == "stdout":
            for _ in range({FLOOD}):
                channel.sendall(b"x" * {MIB})
        elif mode == "stderr":
            for _ in range({FLOOD}):
                channel.sendall_stderr(b"x" * {MIB})
        elif mode == "ignore":
            for _ in range({FLOOD} * 32):
                transport.send_ignore(32000)
        elif mode == "idle" and mark == b"0" * 16:
            for _ in range({FLOOD} * 32):
                send(channel)
            flooded.set()
            continue
        elif mode == "idle":
            flooded.wait(60)
        elif mode == "window":
            for _ in range({FLOOD} * 32):
                send(channel)
        elif mode == "late":  # between two commands, to a channel that nobody reads
            channel.sendall(b"out\\n" + mark + b" 0\\n")
            channel.sendall_stderr(b"\\n" + mark + b"\\n")
            channel.sendall(b"a process of the command before")
            continue
        status = {{"rubbish": b"\\x1b[2J", "large": b"256", "minus": b"-1"}}.get(mode, b"0")
        channel.sendall(b"out\\n" + mark + b" " + status + b"\\n")
        channel.sendall_stderr(b"err\\n" + mark + b"\\n")

class Handle(paramiko.SFTPHandle):
    def read(self, offset, length):
        if mode == "stuck":
            time.sleep(600)
        if mode == "slow":
            time.sleep(0.3)
            return b"x" * length
        return b"x" * (length if mode == "endless" else min(length, max(0, 100_000 - offset)))

class Files(paramiko.SFTPServerInterface):
    def open(self, path, flags, attributes): return Handle(flags)
    def stat(self, path):
        found = paramiko.SFTPAttributes()
        found.st_size = 1 << 40 if mode == "endless" else 100_000
        return found

transport = paramiko.Transport(connection)
transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Files)
transport.add_server_key(key)
transport.start_server(server=Server())
while transport.is_active():
    time.sleep(0.1)
"""


MARK = b"printf '\\n" + b"0" * 16 + b" %d"


@contextmanager
def connected(mode: str) -> Iterator[Shell]:
    """Yield a shell in a guest with such a server."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, mode], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            port, kind, blob = server.stdout.readline().split()
            connection = reach(int(port), 30) if mode != "banner" else _connection(int(port))
            assert connection is not None
            made = Shell.connect(
                connection,
                private_key=keys.make().private,
                host_key=f"{kind} {blob}",
                alive=lambda: None,
                timeout=30 if mode != "banner" else 3,
            )
            try:
                yield made
            finally:
                made.close()
        finally:
            server.kill()


def _connection(port: int):  # type: ignore[no-untyped-def]
    import socket

    return socket.create_connection(("127.0.0.1", port), timeout=30)


@contextmanager
def most_memory() -> Iterator[list[int]]:
    """Yield a list that has this process's growth in bytes, at its peak, afterwards."""
    found: list[int] = []
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    yield found
    found.append(_memory("VmHWM") - before)


def _memory(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) * 1024


def test_an_honest_server_is_understood() -> None:
    with connected("honest") as guest:
        for _ in range(3):
            output = guest.run("true", 30)
            assert (output.status, output.stdout, output.stderr) == (0, "out", "err")


@pytest.mark.parametrize("mode", ["stdout", "stderr", "window"])
def test_a_flood_ends_with_a_sentence_and_takes_little_memory(mode: str) -> None:
    said = pytest.raises(LimitError, match=r"printed more than 8MiB|sent 16MiB over SSH")
    with connected(mode) as guest, most_memory() as growth, said:
        guest.run("cat /dev/zero", 60)
    assert growth[0] < 80 * MIB


def test_a_flood_of_a_workload_ends_with_a_sentence_too() -> None:
    with connected("stdout") as guest, most_memory() as growth:
        running = guest.start("cat /dev/zero")
        with pytest.raises(LimitError, match="a workload printed more than 8MiB"):
            running.end(60)
    assert growth[0] < 80 * MIB


def test_a_greeting_without_end_is_not_read() -> None:
    said = pytest.raises(GuestError, match=r"SSH connection to the guest|SSH login")
    with most_memory() as growth, said, connected("banner"):
        pytest.fail("it logged in")
    assert growth[0] < 80 * MIB


def test_messages_that_mean_nothing_take_no_memory() -> None:
    """paramiko drops them; the lab closes the connection if they come faster than it reads."""
    said = ""
    with connected("ignore") as guest, most_memory() as growth:
        try:
            assert guest.run("true", 60).stdout == "out"
        except LimitError as error:
            said = error.message
    assert not said or "sent 16MiB over SSH" in said
    assert growth[0] < 80 * MIB


def test_what_the_guest_sends_to_a_channel_of_an_earlier_command_is_not_kept() -> None:
    with connected("idle") as guest, most_memory() as growth:
        idle, used = (guest._open(lambda: None) for _ in range(2))
        guest._idle.append(idle)
        channels.send(
            idle, MARK, lambda: None, channels.Limit(30)
        )  # the server floods it from now on
        with contextlib.suppress(LimitError, OSError, EOFError):
            guest._ask(used, "slow", lambda: None, lambda _: None, stop=True)
    assert growth[0] < 80 * MIB


def test_a_file_is_copied_whole(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"old")
    with connected("file") as guest:
        guest.get("/file", place)
        with pytest.raises(ToolError, match="is no file"):
            guest.get("/file", tmp_path)
    assert place.read_bytes() == b"x" * 100_000
    assert list(tmp_path.iterdir()) == [place]


def test_a_file_without_end_takes_neither_memory_nor_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "COPY_SIZE", 8 * MIB)
    said = pytest.raises(LimitError, match="'/file' in the guest has more than the 8MiB")
    with connected("endless") as guest, most_memory() as growth, said:
        guest.get("/file", tmp_path / "file")
    assert growth[0] < 80 * MIB
    assert not list(tmp_path.iterdir())


def test_a_copy_leaves_a_part_of_the_disk_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(free=(1 << 30) + MIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    said = pytest.raises(LimitError, match="has more than the 1MiB that")
    with connected("endless") as guest, said:
        guest.get("/file", tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_a_copy_that_was_given_up_goes_on_in_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "COPY_SECONDS", 1.5)
    with connected("stuck") as guest:
        with pytest.raises(GuestError, match=r"gave up after .* progress of a file copy"):
            guest.get("/file", tmp_path / "file")
        clock.wait_until(
            lambda: not list(tmp_path.iterdir()) or None, timeout=10, reason="the copy to end"
        )


def test_a_piece_now_and_then_is_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "COPY_SECONDS", 2.0)
    with connected("slow") as guest, pytest.raises(GuestError, match="gave up after 2 s"):
        guest.get("/file", tmp_path / "file")
    monkeypatch.setattr(shell, "COPY_STEP", 1)
    monkeypatch.setattr(shell, "COPY_LONGEST", 4.0)
    with connected("slow") as guest, pytest.raises(LimitError, match="more than 4 seconds"):
        guest.get("/file", tmp_path / "second")  # the control: twice as long as the other limit
    clock.wait_until(
        lambda: not list(tmp_path.iterdir()) or None, timeout=10, reason="the copies to end"
    )


def test_without_the_limits_the_guest_decides_about_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control."""
    for module, name in ((shell, "OUTPUT"), (channels, "OUTPUT"), (channels, "UNREAD")):
        monkeypatch.setattr(module, name, 1 << 40)
    with connected("stdout") as guest, most_memory() as growth:
        output = guest.run("cat /dev/zero", 60)
    assert len(output.stdout) > FLOOD * MIB
    assert growth[0] > 1.5 * FLOOD * MIB
    monkeypatch.setattr(Shell, "_drain", lambda *_: None)
    with connected("idle") as guest, most_memory() as growth:
        idle, used = (guest._open(lambda: None) for _ in range(2))
        guest._idle.append(idle)
        channels.send(idle, MARK, lambda: None, channels.Limit(30))
        guest._ask(used, "slow", lambda: None, lambda _: None, stop=True)
    assert growth[0] > 0.8 * FLOOD * MIB


@pytest.mark.parametrize("mode", ["rubbish", "large", "minus"])
def test_a_wrong_end_of_a_command_is_a_sentence(mode: str) -> None:
    with connected(mode) as guest, pytest.raises(ToolError) as error:
        guest.run("true", 30)
    assert isinstance(error.value, LabError)
    assert "a program in the guest has written to it" in error.value.message
    assert "\x1b" not in error.value.message


def test_what_comes_between_two_commands_is_not_the_next_ones_output() -> None:
    with connected("late") as guest:
        for _ in range(3):
            assert guest.run("true", 30).stdout == "out"
            time.sleep(0.3)
