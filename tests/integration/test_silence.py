"""Stopped processes and unreadable lines: both sides of the connection detect them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.core.errors import ToolError
from lab.host.guest import registry as guests
from lab.host.guest.backend import LiveBackend
from lab.host.system import paths
from lab.host.system.process import Child
from lab.model.execution.events import Event, GuestStarted, Trouble
from lab.model.execution.job import GuestJob
from lab.model.execution.procedure import HostCommand, MakeDirectory, Procedure, StartServer
from lab.model.scenario.guest import Guest
from lab.run import worker_pool
from lab.run.worker_pool import PooledWorker, WorkerPool

pytestmark = pytest.mark.usefixtures("lab_home")
UP = GuestStarted(guest="g1", seconds=1.0).model_dump_json()
BEATS = "import sys, time\nwhile True:\n    print(flush=True)\n    time.sleep(0.2)\n"


@pytest.fixture
def job(tmp_path: Path) -> GuestJob:
    """A guest that takes long to make."""
    key = tmp_path / "key"
    key.write_text("no key, but nobody connects")
    steps = (
        MakeDirectory(path=str(tmp_path / "made")),
        HostCommand(label="long", argv=("sleep", "60"), creates=()),
    )
    return GuestJob(
        guest="g1",
        scenario="q",
        image="i",
        host_key="ssh-ed25519 AAAA",
        private_key=str(key),
        procedure=Procedure(name="g1", steps=steps),
    )


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[WorkerPool]:
    made = WorkerPool(directory=tmp_path)
    yield made
    made.stop()


def heard(pool: WorkerPool, seconds: float) -> list[Event]:
    """Return the only worker's events until it ends, as an execution receives them."""
    found: list[Event] = []
    while True:
        worker, event = pool.events.get(timeout=seconds)
        pool.note(worker, event)
        if event is None:
            return found
        found.append(event)


def start(
    pool: WorkerPool, job: GuestJob, program: str, monkeypatch: pytest.MonkeyPatch
) -> PooledWorker:
    """Start another program as worker."""

    def child(_argv: object, **words: Any) -> Child:
        return Child([sys.executable, "-c", program], **words)

    monkeypatch.setattr(worker_pool, "Child", child)
    return pool.start(job, Guest())


@pytest.mark.parametrize("line", ["not JSON", '{"kind": "cake"}', '{"kind": "guest_started"}'])
def test_a_line_that_cannot_be_read_ends_the_worker_with_a_sentence(
    line: str, pool: WorkerPool, job: GuestJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker reads its lifeline, and has more lines to send."""
    program = f"print('''{UP}\n{line}\n{UP}''', flush=True)\nimport sys; sys.stdin.read()"
    worker = start(pool, job, program, monkeypatch)
    assert [e.kind for e in heard(pool, 30)] == ["guest_started"]
    assert pool.workers == []
    assert worker.trouble is not None
    assert "printed a line that the lab cannot read, and was ended" in worker.trouble.message
    assert line in worker.trouble.message


def test_one_that_then_does_not_end_is_killed(
    pool: WorkerPool, job: GuestJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "STOP_SECONDS", 1.0)
    worker = start(pool, job, f"print('garbage', flush=True)\n{BEATS}", monkeypatch)
    began = time.monotonic()
    assert heard(pool, 30) == []
    assert time.monotonic() - began < 20
    assert worker.trouble is not None
    assert "'garbage'" in worker.trouble.message


def test_half_a_line_of_a_killed_worker_is_no_garbage(
    pool: WorkerPool, job: GuestJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        f"import os; print('{UP}'); print('{UP[:9]}', end='', flush=True); os.kill(os.getpid(), 9)"
    )
    worker = start(pool, job, program, monkeypatch)
    assert len(heard(pool, 30)) == 1
    assert worker.trouble is not None
    assert "ended with status -9" in worker.trouble.message


def test_a_stopped_worker_is_killed_and_its_guest_is_swept(
    pool: WorkerPool, job: GuestJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real worker, stopped while it makes its guest."""
    monkeypatch.setenv("LAB_LIMITS", "0.2")
    worker = pool.start(job, Guest())
    while not guests.directory_of("g1").exists():
        time.sleep(0.05)
    os.kill(worker.child.pid, signal.SIGSTOP)
    began = time.monotonic()
    heard(pool, 100)
    assert 6 < time.monotonic() - began < 90
    assert worker.trouble is not None
    assert re.search("'g1' .*nothing for 12 s", worker.trouble.message)
    assert not guests.directory_of("g1").exists()


SPINS = """\
import time
from lab.host.system import wire
wire.COMPUTES = {most}
class Stop(BaseException): pass
wire.stop_with(Stop)
out, _, _ = wire.opened()
teller = wire.Teller(out, b"", {trouble!r})
end = time.monotonic() + 8
try:
    while time.monotonic() < end:
        {work}
except Stop:
    pass
teller.close()
"""
STUCK = Trouble(message="it computes for ever", exit_status=3).model_dump_json().encode()


@pytest.mark.parametrize(
    ("most", "work", "ends"),
    [(1.0, "pass", True), (1.0, "time.sleep(0.01)", False), (1e9, "pass", False)],
)
def test_a_worker_that_only_computes_is_ended_although_it_beats(
    *,
    pool: WorkerPool,
    job: GuestJob,
    monkeypatch: pytest.MonkeyPatch,
    most: float,
    work: str,
    ends: bool,
) -> None:
    """The controls: one that waits, and a worker without the limit beats to its end."""
    worker = start(pool, job, SPINS.format(most=most, work=work, trouble=STUCK), monkeypatch)
    began = time.monotonic()
    events = heard(pool, 60)
    assert [e.kind for e in events] == (["trouble"] if ends else [])
    if ends:
        assert worker.trouble is not None
        assert worker.trouble.message == "it computes for ever"
    else:
        assert time.monotonic() - began > 7


def test_a_worker_that_only_beats_is_not_silent(
    pool: WorkerPool, job: GuestJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_LIMITS", "0.02")
    program = BEATS.replace("while True", "for _ in range(20)")
    worker = start(pool, job, program, monkeypatch)
    assert heard(pool, 30) == []  # heartbeats are no events
    assert worker.trouble is None


def test_workers_that_are_stopped_hold_up_the_end_of_a_run_once(
    pool: WorkerPool, job: GuestJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "STOP_SECONDS", 2.0)
    for number in range(4):
        named = job.model_copy(update={"guest": f"g{number}"})
        start(pool, named, "import time; time.sleep(60)", monkeypatch)
    began = time.monotonic()
    assert pool.stop() == []
    assert time.monotonic() - began < 20
    assert pool.workers == []


def test_an_order_that_nobody_takes_ends_whoever_should_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_LIMITS", "0.02")
    began = time.monotonic()
    child = Child(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        first_line="x" * 1_000_000,
        log=tmp_path / "log",
        env={},
    )
    assert child.fate == "read no command for 1 s and was killed"
    assert list(child.lines()) == []
    assert child.end(10) == -9
    assert time.monotonic() - began < 20


# -- the worker's side


def worker(job: GuestJob, limits: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "lab.run.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"LAB_LIMITS": limits},
        bufsize=0,
    )
    assert process.stdin is not None
    process.stdin.write(job.model_dump_json().encode() + b"\n")
    return process


def wait_for_guest(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while not guests.directory_of("g1").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_worker_whose_lab_is_stopped_takes_its_guest_down_and_says_why(job: GuestJob) -> None:
    """No process reads its events; the lifeline stays open."""
    process = worker(job, "0.005")
    wait_for_guest(process)
    process.wait(timeout=40)
    assert list(paths.guests().iterdir()) == []
    assert process.stdout is not None
    told = process.stdout.read()
    assert b"the lab has not read what the worker of the guest 'g1' tells for 3 s" in told
    assert b'"unread":true' in told
    assert b"guest_gone" in told
    process.communicate()


def test_a_worker_whose_lab_reads_goes_on(job: GuestJob) -> None:
    process = worker(job, "0.005")
    wait_for_guest(process)
    assert process.stdout is not None
    until = time.monotonic() + 8
    lines = []
    while time.monotonic() < until:
        lines.append(process.stdout.readline())
    assert process.poll() is None
    assert lines.count(b"\n") >= 2  # heartbeats
    process.communicate(timeout=30)  # closes the lifeline
    assert list(paths.guests().iterdir()) == []


@pytest.mark.parametrize("order", [b"not JSON\n", b'{"kind": "cake"}\n', b"\xff\n"])
def test_a_lifeline_is_read_after_an_order_that_is_none(order: bytes, job: GuestJob) -> None:
    process = worker(job, "1")
    wait_for_guest(process)
    assert process.stdin is not None
    process.stdin.write(order)
    time.sleep(0.5)
    assert process.poll() is None  # it is in a step, and does not leave it for this
    told, _ = process.communicate(timeout=30)
    assert b"guest_gone" in told
    assert list(paths.guests().iterdir()) == []


def test_an_order_that_is_none_ends_a_worker_that_waits_for_one(job: GuestJob) -> None:
    idle = job.model_copy(update={"procedure": Procedure(name="g1", steps=())})
    process = worker(idle, "1")
    assert process.stdin is not None
    assert process.stdout is not None
    while b"guest_started" not in process.stdout.readline():
        pass
    process.stdin.write(b'{"kind": "cake"}\n')
    told = process.stdout.read()
    assert b"invalid command" in told
    assert b"cake" in told
    assert b"guest_gone" in told
    assert process.wait(10) == 3
    process.communicate()


def test_cleaning_up_that_hangs_is_left(job: GuestJob, tmp_path: Path) -> None:
    """An undo that never returns: the worker exits by itself, and the guest's directory is
    removed."""
    program = (
        "import time, sys; from lab.host.guest.backend import LiveBackend;"
        "LiveBackend.remove = lambda *_: time.sleep(600);"
        "from lab.run import worker; from lab.host.system import wire; wire.leave(worker.main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"LAB_LIMITS": "0.03"},
    )
    assert process.stdin is not None
    process.stdin.write(job.model_dump_json().encode() + b"\n")
    process.stdin.flush()
    wait_for_guest(process)
    deadline = time.monotonic() + 10
    while not (tmp_path / "made").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    told, _ = process.communicate(timeout=40)
    assert b"cleaning up had not ended after 3 s" in told
    assert list(paths.guests().iterdir()) == []


# -- a disk's server

LISTEN = (
    "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen();"
    " time.sleep(60)"
)


@pytest.mark.parametrize(
    ("kind", "words"),
    [(signal.SIGSTOP, "is stopped"), (signal.SIGKILL, "ended by SIGKILL")],
    ids=["stopped", "killed"],
)
def test_a_disks_server_is_named_as_the_cause_of_what_fails(
    kind: signal.Signals, words: str, tmp_path: Path
) -> None:
    record = guests.create(guest="g1", scenario="q", image="i", host_key="ssh-ed25519 AAAA")
    bench = LiveBackend(record, "no key")
    socket = str(tmp_path / "s")
    step = StartServer(
        label="disk1",
        argv=(sys.executable, "-c", LISTEN, socket),
        socket=socket,
        log=str(tmp_path / "log"),
        timeout=20,
    )
    bench.start_server(step)
    try:
        server = bench._servers[socket]
        failed = ToolError("'write' ended with status 1 in the guest: Input/output error")
        assert server.trouble() == ""
        os.kill(server.pid, kind)
        deadline = time.monotonic() + 10
        while not server.trouble():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        cause = bench.cause(failed)
        assert cause is not None
        assert cause.message == (
            f"the server of the disk 'disk1' (process {server.pid}) {words}; {failed.message}"
        )
    finally:
        began = time.monotonic()
        bench.stop_server(step)
        assert time.monotonic() - began < 10
    # The cell was undone before its error is explained.
    later = bench.cause(failed)
    assert later is not None
    assert words in later.message


def test_a_stopped_server_counts_as_a_request_that_waits(tmp_path: Path) -> None:
    """The guest's kernel does not count flushes: with only a flush in flight it reports 0."""
    record = guests.create(guest="g1", scenario="q", image="i", host_key="ssh-ed25519 AAAA")
    bench = LiveBackend(record, "no key")
    bench._shell = SimpleNamespace(run=lambda *_: SimpleNamespace(stdout="disk1=0\n"))  # type: ignore[assignment]
    socket = str(tmp_path / "s")
    step = StartServer(
        label="disk1",
        argv=(sys.executable, "-c", LISTEN, socket),
        socket=socket,
        log=str(tmp_path / "log"),
        timeout=20,
    )
    bench.start_server(step)
    try:
        assert bench._in_flight() == {"disk1": 0}
        os.kill(bench._servers[socket].pid, signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while bench._in_flight() != {"disk1": 0, socket: 1}:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        bench.stop_server(step)
