"""Processes of other users that look like the lab's: they are none of ours."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host.guest import registry as guests
from lab.host.system import pids

NOBODY = 65534
SLEEPS = "import os, time; print('up', flush=True); time.sleep(60)"
root = pytest.mark.skipif(os.getuid() != 0, reason="only root starts processes of another user")


def named(directory: Path, user: int | None) -> subprocess.Popen[bytes]:
    """Start an idle process that is named as QEMU is, with a guest's path."""
    process = subprocess.Popen(
        ["qemu-system-x86_64", "-c", SLEEPS, f"file={directory}/disk1.raw,format=raw"],
        executable="/usr/bin/python3",
        stdout=subprocess.PIPE,
        user=user,
        cwd="/",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


@pytest.fixture
def directory(lab_home: Path) -> Path:
    """A guest that its worker has left behind."""
    record = guests.create(guest="gaaaaaa", scenario="s", image="i", host_key="ssh-ed25519 AAAA")
    guests.write(guests.own(record, 0))
    return record.path


@pytest.fixture
def stranger(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = named(directory, NOBODY)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


@root
def test_another_users_process_is_neither_waited_for_nor_ended(
    directory: Path, stranger: subprocess.Popen[bytes]
) -> None:
    assert not pids.is_ours(stranger.pid)
    assert guests.qemu_pids(directory) == []
    guests.kill(directory)
    guests.end_processes(directory)
    assert guests.abandoned() == [directory]
    assert guests.collect_garbage() == ["gaaaaaa"]
    assert not directory.exists()
    assert stranger.poll() is None
    assert pids.used_paths(directory.parent) == set()


@root
def test_the_same_process_of_this_user_is_ended(directory: Path) -> None:
    """The control: name and arguments are all that the lab looks for besides the user."""
    own = named(directory, None)
    try:
        assert guests.qemu_pids(directory) == [own.pid]
        assert directory / "disk1.raw" in pids.used_paths(directory.parent)
        guests.end_processes(directory)
        assert own.wait(timeout=20) == -signal.SIGTERM
    finally:
        own.kill()
        own.communicate(timeout=20)


AS_USER = """\
import os, sys
sys.path[:0] = {path!r}
from pathlib import Path
from lab.host.guest import registry as guests
from lab.host.system import pids
if {believing}:
    guests.is_ours = lambda _pid: True
    guests.send = lambda pid, kind: os.kill(pid, kind)
os.setgid({nobody}); os.setgroups([]); os.setuid({nobody})
directory = Path({directory!r})
guests.kill(directory)
guests.end_processes(directory)
print("ended", pids.send({pid}, 15), pids.send_to_group({pid}, 15))
"""


@root
@pytest.mark.parametrize("believing", [False, True])
def test_a_user_is_not_stopped_by_a_process_of_root(directory: Path, believing: bool) -> None:
    stranger = named(directory, None)
    try:
        script = AS_USER.format(
            path=sys.path,
            believing=believing,
            nobody=NOBODY,
            directory=str(directory),
            pid=stranger.pid,
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
        )
        if believing:  # the control: as it was
            assert "PermissionError" in done.stderr
        else:
            assert done.stdout == "ended False False\n", done.stderr
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate(timeout=20)


def test_a_process_that_is_gone_gets_no_signal() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert not pids.send(process.pid, signal.SIGTERM)
    assert not pids.send_to_group(process.pid, signal.SIGTERM)
    assert not pids.is_ours(process.pid)
    assert pids.is_ours(os.getpid())


def test_signals_are_sent_by_one_module() -> None:
    """All others would have to handle processes that are gone, and those of other users."""
    lab = Path(pids.__file__).parents[2]
    found = [
        f"{path.name}: {line.strip()}"
        for path in lab.rglob("*.py")
        if path != Path(pids.__file__) and path.parent.name != "guest_programs"
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\bos\.kill(pg)?\(", line) and "os.kill(os.getpid()," not in line
    ]
    assert found == []
