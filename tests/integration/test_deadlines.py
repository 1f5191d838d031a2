"""Hanging calls end with an error after a timeout; errors about locks name the holder."""

from __future__ import annotations

import importlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.core.errors import GuestError, HostError, InputError, LabError
from lab.host.guest import snapshots
from lab.host.guest.libvirt.hypervisor import Hypervisor
from lab.host.guest.libvirt.limited import LIMITS, Limited, Limiter
from lab.host.guest.ssh.channels import Meter, Running
from lab.host.guest.ssh.shell import Shell
from lab.host.images import workspace as image_workspace
from lab.host.system import clock, cpu_slots, deadline, locks, once, paths, pids

pytest.importorskip("libvirt")


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """An event that hanging calls wait for; it is set after the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce a limit of a minute to 0.3 s."""
    monkeypatch.setenv("LAB_LIMITS", "0.005")


# -- the helper


def test_a_call_that_hangs_is_given_up_and_the_next_one_is_made(never: threading.Event) -> None:
    began = time.monotonic()
    with pytest.raises(GuestError, match=r"^gave up after 0 s waiting for the moon$"):
        deadline.call(lambda: never.wait(30), seconds=0.2, what="the moon")
    assert time.monotonic() - began < 5
    assert deadline.call(lambda: 7, seconds=5, what="a number") == 7


def test_an_error_comes_out_where_the_call_was_made() -> None:
    with pytest.raises(ZeroDivisionError):
        deadline.call(lambda: 1 / 0, seconds=5, what="a number")


def test_whoever_waits_may_give_up_before_the_limit(never: threading.Event) -> None:
    def dead() -> None:
        raise GuestError("its QEMU is gone")

    with pytest.raises(GuestError, match="its QEMU is gone"):
        deadline.call(lambda: never.wait(30), seconds=60, what="it", glance=dead)


def test_what_moves_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "LOOK", 0.05)
    passed = [0]

    def slow() -> str:
        for _ in range(12):
            time.sleep(0.1)
            passed[0] += 1
        return "all of it"

    told = deadline.call(slow, seconds=0.4, what="bytes", moved=lambda: passed[0])
    assert told == "all of it"


def test_a_call_costs_less_than_a_tenth_of_a_millisecond() -> None:
    def batch() -> float:
        began = time.thread_time()
        for _ in range(500):
            deadline.call(int, seconds=5, what="nothing")
        return (time.thread_time() - began) / 500

    assert min(batch() for _ in range(5)) < 0.0001


def test_time_for_which_the_process_was_stopped_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A suspended laptop stops all processes at once: none of them was silent."""
    moment = [100.0]
    monkeypatch.setattr(clock, "now", lambda: moment[0])
    countdown = clock.Countdown(10.0)
    moment[0] += 3600.0
    assert countdown.left() == 8.0
    for _ in range(8):
        moment[0] += 1.0
        left = countdown.left()
    assert left == 0.0


@pytest.mark.parametrize("text", ["a", "0", "-1", "inf", "nan"])
def test_a_factor_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_LIMITS", text)
    with pytest.raises(InputError, match=f"LAB_LIMITS={text}: expected a positive number"):
        clock.limit(60)


# -- libvirt

XML = "<disk><serial>disk1</serial></disk>"
CALLS: list[tuple[str, str, Callable[[Hypervisor], object]]] = [
    ("saveFlags", "save the guest", lambda h: h.save(Path("/nowhere"))),
    ("createXML", "start the guest", lambda h: h.start("<domain/>")),
    ("restoreFlags", "restore the guest", lambda h: h.restore(Path("/nowhere"), "/a", "/b")),
    ("attachDeviceFlags", "plug a device into the guest", lambda h: h.plug(XML)),
    ("detachDeviceFlags", "unplug a device from the guest", lambda h: h.unplug(XML, "disk1")),
    ("XMLDesc", "describe the guest", lambda h: h.definition()),
    ("XMLDesc", "describe the guest", lambda h: h.completed()),
    ("XMLDesc", "describe the guest", lambda h: h.limit("disk1", {})),
    ("XMLDesc", "describe the guest", lambda h: h.wipe("disk1", 1)),
    ("state", "tell the state of the guest", lambda h: h.stopped()),
    ("lookupByName", "find the guest", lambda h: h.attach()),
    ("destroy", "end the guest", lambda h: h.destroy()),
]


class Stuck:
    """A connection and a domain of libvirt; one of its calls hangs."""

    def __init__(self, name: str, never: threading.Event) -> None:
        self._name, self._never = name, never

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*_arguments: Any) -> Any:
            if name == self._name:
                self._never.wait(30)
            return "<domain/>" if "XML" in name and name != "createXML" else self

        return call


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("name", "words", "do"), CALLS, ids=[f"{c[0]}-{n}" for n, c in enumerate(CALLS)]
)
def test_a_call_into_libvirt_that_hangs_names_itself_and_the_guest(
    name: str,
    words: str,
    do: Callable[[Hypervisor], object],
    never: threading.Event,
    tmp_path: Path,
) -> None:
    hypervisor = Hypervisor(tmp_path / "g123456")
    stuck = Stuck(name, never)
    hypervisor._connection = hypervisor._domain = Limited(stuck, hypervisor._limiter)
    began = time.monotonic()
    with pytest.raises(
        GuestError, match=rf"gave up after \d s waiting for libvirt to {words} g123"
    ):
        do(hypervisor)
    assert time.monotonic() - began < 10
    began = time.monotonic()
    with pytest.raises(LabError, match="gave up after"):
        hypervisor.definition()  # no call waits again for a hanging guest
    assert time.monotonic() - began < 0.2


@pytest.mark.usefixtures("short")
def test_a_monitor_that_hangs_is_given_up(
    never: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    libvirt_qemu = pytest.importorskip("libvirt_qemu")
    monkeypatch.setattr(libvirt_qemu, "qemuMonitorCommand", lambda *_: never.wait(30))
    hypervisor = Hypervisor(tmp_path / "g123456")
    hypervisor._domain = Limited(object(), hypervisor._limiter)
    with pytest.raises(GuestError, match="QEMU's monitor of the guest g123456"):
        hypervisor.port()


def test_limits_grow_with_the_guests_scale_and_a_call_without_one_cannot_be_made() -> None:
    assert all(seconds > 0 for seconds, _ in LIMITS.values())
    with pytest.raises(AttributeError, match="'suspend' has no limit"):
        Limited(object(), Limiter("g1", 1.0)).suspend()


# -- SSH


class Client:
    """An SSH connection on which every operation hangs."""

    def __init__(self, never: threading.Event) -> None:
        self._never = never

    def open_sftp(self) -> object:
        self._never.wait(30)
        raise OSError

    def close(self) -> None:
        self._never.wait(30)

    def get_transport(self) -> Any:
        return self

    def is_active(self) -> bool:
        return True

    def open_session(self, timeout: float) -> object:
        self._never.wait(30)
        raise OSError


@pytest.mark.usefixtures("short")
def test_ssh_that_hangs_is_given_up(never: threading.Event, tmp_path: Path) -> None:
    with socket.socket() as connection:
        meter = Meter(connection)
    shell = Shell(Client(never), meter, lambda: None)  # type: ignore[arg-type]
    began = time.monotonic()
    (tmp_path / "file").touch()
    with pytest.raises(GuestError, match="progress of a file copy over SFTP"):
        shell.put(tmp_path / "file", "/target")
    with pytest.raises(GuestError, match="progress of a file copy over SFTP"):
        shell.get("/source", tmp_path / "file")
    with pytest.raises(GuestError, match="the guest to open a channel over SSH"):
        shell.run("true", 60)
    with pytest.raises(GuestError, match="the guest to open a channel over SSH"):
        shell.start("true")
    shell.close()
    assert time.monotonic() - began < 20


@pytest.mark.usefixtures("short")
def test_an_exit_status_that_never_comes_is_given_up(never: threading.Event) -> None:
    class Channel:
        def settimeout(self, seconds: float) -> None: ...

        def recv_stderr_ready(self) -> bool:
            return False

        def recv(self, size: int) -> bytes:
            return b""

        recv_stderr = recv

        def recv_exit_status(self) -> int:
            never.wait(30)
            return 0

    with pytest.raises(GuestError, match="the exit status of a workload"):
        Running(Channel(), lambda: None).end(60)  # type: ignore[arg-type]


# -- locks

HOLDER = """\
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold() -> Iterator[Callable[[Path], int]]:
    """Make another process lock a file; return its process id."""
    started: list[subprocess.Popen[bytes]] = []

    def lock(path: Path) -> int:
        path.parent.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        return process.pid

    yield lock
    for process in started:
        process.kill()
        process.communicate()


def baked() -> None:
    with snapshots.exclusive("key"):
        pass


def built() -> None:
    with image_workspace.exclusive("build-x", waiting=lambda: None):
        pass


@pytest.mark.usefixtures("lab_home")
@pytest.mark.parametrize(
    ("module", "name", "work", "path"),
    [
        (snapshots, "MAKING", baked, lambda: paths.warm() / ".key.lock"),
        (image_workspace, "MAKING", built, lambda: paths.images() / ".lock-build-x"),
        (
            once,
            "WORKING",
            lambda: once.once(paths.host(), "work", lambda: "done"),
            lambda: paths.host() / ".work.lock",
        ),
    ],
    ids=["baking", "exclusive", "once"],
)
def test_a_lock_that_is_never_given_back_names_the_file_and_its_holder(
    module: Any,
    name: str,
    work: Callable[[], object],
    path: Callable[[], Path],
    hold: Callable[[Path], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, name, 0.3)
    pid = hold(path())
    with pytest.raises(HostError, match="gave up after 0 s waiting for") as caught:
        work()
    assert f"'{path()}' is locked by process {pid} (" in caught.value.message
    assert isinstance(caught.value, locks.LockedError)


@pytest.mark.usefixtures("lab_home")
def test_cpu_slots_that_another_process_holds_for_ever_keep_nobody(
    hold: Callable[[Path], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_slots, "PATIENCE", 0.2)
    for number in range(cpu_slots.at_once()):
        hold(paths.host() / "cpu-slots" / str(number))
    began = time.monotonic()
    slot = cpu_slots.CpuSlot()
    slot.acquire()
    slot.release()
    assert time.monotonic() - began < 10


def test_a_stopped_process_is_told_from_one_that_runs() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert not pids.is_stopped(process.pid)
        process.send_signal(19)
        clock.wait_until(
            lambda: pids.is_stopped(process.pid) or None, timeout=10, reason="it to stop"
        )
    finally:
        process.kill()
        process.wait()
    assert not pids.is_stopped(process.pid)


ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (Path(__file__).parents[2] / "docs/howto/limits.md").read_text().splitlines()
    if line.startswith("| ") and line.endswith("` |")
]


def test_the_table_of_limits_says_what_the_code_does() -> None:
    listed: dict[str, set[float]] = {}
    for _what, limit, _then, constant in ROWS:
        module, _, name = constant.strip("`").partition(":")
        value = getattr(importlib.import_module(f"lab.{module}"), name)
        seconds = float(limit.split()[0])
        listed.setdefault(name, set()).add(seconds)
        if isinstance(value, float):
            assert value == seconds, constant
    assert listed["LIMITS"] == {seconds for seconds, _ in LIMITS.values()}
    assert len(ROWS) > 20
