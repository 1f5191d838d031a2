"""Other users of the host do not reach the forwarded port of a guest's SSH."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from lab.host.guest import registry
from lab.host.guest.ssh.shell import banner
from lab.host.system import network, process
from lab.run import guests

NOBODY = 65534
USERS = [NOBODY, 0] if os.geteuid() == 0 else [os.geteuid()]
STARTUPS = 16
"""Connections that the server below serves at once, as sshd's ``MaxStartups``."""
_PR_SET_DUMPABLE = 4
SERVER = f"""
import ctypes, os, socket, sys, time
sys.path.insert(0, "")
from lab.host.system import network
user, apart = map(int, sys.argv[1:])
if user != os.geteuid():
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    ctypes.CDLL(None).prctl({_PR_SET_DUMPABLE}, 1)  # as after exec: /proc/PID is the user's
made = network.leave() if apart else False
server = socket.create_server(("127.0.0.1", 0), backlog=1000)
capabilities = next(l for l in open("/proc/self/status") if l.startswith("CapEff")).split()[1]
print(server.getsockname()[1], made, int(capabilities, 16), os.geteuid(), flush=True)
held = []
while True:
    connection, _ = server.accept()
    if len(held) < {STARTUPS}:
        held.append(connection)  # it waits for a login
        connection.sendall(b"SSH-2.0-x\\r\\n")
    else:
        connection.close()
"""


class Served:
    """A server as a guest's QEMU is one: in a network of its own, or not."""

    def __init__(self, user: int, *, apart: bool) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(user), str(int(apart))],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        with self.process.stdout as out:
            port, made, capabilities, runs_as = out.readline().split()
        self.pid, self.port, self.apart = self.process.pid, int(port), apart
        self.made, self.capabilities = made == "True", int(capabilities)
        assert int(runs_as) == user


@pytest.fixture(params=USERS)
def user(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture
def served(user: int, request: pytest.FixtureRequest) -> Iterator[Served]:
    found = Served(user, apart=getattr(request, "param", True))
    yield found
    found.process.kill()
    found.process.wait()


def flood(port: int, count: int) -> list[socket.socket]:
    """Open connections as a stranger does, and keep them."""
    held = []
    for _ in range(count):
        with suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
    time.sleep(0.2)
    return held


@pytest.mark.parametrize("served", [True, False], indirect=True)
def test_a_stranger_cannot_use_up_the_logins(served: Served) -> None:
    """500 idle connections; the control, without a network of its own, is locked out."""
    assert network.is_other(served.pid) is served.made is served.apart
    held = flood(served.port, 500)
    try:
        assert (len(held) == 0) is served.made
        assert banner(served.port, 5.0, pid=served.pid) is served.made
    finally:
        for one in held:
            one.close()


def test_its_processes_get_no_capability_by_it(served: Served, user: int) -> None:
    """Those of a new user namespace would override the modes of the user's own files."""
    assert network.is_other(served.pid)
    assert bool(served.capabilities) is (user == 0)


def test_ssh_gets_the_connection_from_a_program(served: Served, lab_home: object) -> None:
    made = registry.create(guest="g1", scenario="q", image="i", host_key="ssh-ed25519 AAAA")
    there = dataclasses.replace(made, pid=served.pid, port=served.port)
    argv = guests.ssh_argv(there, (), user="root")
    (way,) = [word for word in argv if word.startswith("ProxyCommand=")]
    environment = {**os.environ, **guests.ssh_environment(there)}
    command = way.partition("=")[2]
    found = process.passed_socket(
        ["env", *(f"{k}={v}" for k, v in environment.items()), "sh", "-c", f"exec {command}"], 20
    )
    assert found is not None
    with found:
        assert found.getpeername() == ("127.0.0.1", served.port)
        assert found.recv(4) == b"SSH-"
    here = dataclasses.replace(there, pid=os.getpid())
    assert not any("ProxyCommand" in word for word in guests.ssh_argv(here, (), user="root"))


@pytest.mark.parametrize("command", [("true",), ("sleep", "60"), ("false",)])
def test_a_program_that_passes_nothing(command: Sequence[str]) -> None:
    assert process.passed_socket(command, 0.3) is None


def test_a_host_without_namespaces_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, *_arguments: object) -> None:
        raise PermissionError(1, name)

    monkeypatch.setattr(network, "_call", refused)
    before = Path("/proc/self/ns/net").readlink()
    assert network.leave() is False
    assert Path("/proc/self/ns/net").readlink() == before
