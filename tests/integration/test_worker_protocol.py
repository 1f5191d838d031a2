"""A worker without a job or without a main process ends; events survive the encoding."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from lab.model.execution.events import (
    CellAgain,
    CellFinished,
    CellStarted,
    Checked,
    Event,
    GuestGone,
    GuestKept,
    GuestStarted,
    GuestTime,
    Notice,
    Sample,
    StepStarted,
    TestStarted,
    Trouble,
)
from lab.model.execution.job import CellJob, End, GuestJob, Keep, Order
from lab.model.execution.procedure import HostCommand, MakeDirectory, Procedure
from lab.model.result.document import Outcome, PhaseSeconds
from lab.model.result.measurement import Check

JOB = GuestJob(
    guest="g1",
    scenario="q",
    image="i",
    host_key="ssh-ed25519 AAAA",
    private_key="/nowhere/key",
    procedure=Procedure(name="g1", steps=(MakeDirectory(path="/nowhere/at/all"),)),
)
ORDERS: list[Order] = [
    CellJob(id="c1", procedure=Procedure(name="q", steps=()), directory="/d", target="/t"),
    Keep(),
    End(),
]


def worker(home: Path, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "lab.run.worker"],
        input=stdin,
        env=os.environ | {"LAB_HOME": str(home)},
        capture_output=True,
        timeout=30,
        check=False,
    )


def test_a_worker_without_a_job_ends_and_leaves_nothing(tmp_path: Path) -> None:
    began = time.monotonic()
    for text in (b"half a line", b"\xff garbage\n", b"{}\n"):
        ended = worker(tmp_path / "h", text)
        assert ended.stdout == b""
        assert not (tmp_path / "h").exists()
        assert (ended.returncode == 0) is (not text.endswith(b"\n"))
    assert time.monotonic() - began < 10


def test_a_worker_whose_lab_has_gone_leaves_no_guest(tmp_path: Path) -> None:
    """The lifeline closes while the worker makes the guest's files."""
    home, key = tmp_path / "h", tmp_path / "key"
    key.write_text("no key, but nobody connects")
    made = tmp_path / "made"
    steps = (
        MakeDirectory(path=str(made)),
        HostCommand(label="long", argv=("sleep", "30"), creates=()),
    )
    job = JOB.model_copy(
        update={"private_key": str(key), "procedure": Procedure(name="g1", steps=steps)}
    )
    began = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-m", "lab.run.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"LAB_HOME": str(home)},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(job.model_dump_json().encode() + b"\n")
    child.stdin.flush()
    for line in child.stdout:
        if b"long" in line:
            break
    assert made.is_dir()
    assert [p.name for p in (home / "state" / "guests").iterdir()] == ["g1"]
    told, _ = child.communicate(timeout=20)  # closes the lifeline
    assert time.monotonic() - began < 20
    assert b'"kind":"guest_gone"' in told
    assert list((home / "state" / "guests").iterdir()) == []
    assert not made.exists()


def test_a_worker_without_a_key_makes_no_guest(tmp_path: Path) -> None:
    ended = worker(tmp_path / "h", JOB.model_dump_json().encode() + b"\n")
    assert ended.returncode != 0
    assert not (tmp_path / "h").exists()


EVENTS: list[Event] = [
    GuestStarted(guest="g1", seconds=1.5),
    CellStarted(cell="c1"),
    StepStarted(cell="c1", label="write", expected_seconds=2),
    Sample(seconds=2.0, processor=0.7, read_bytes=1, written_bytes=2),
    GuestTime(seconds=20.0, host_seconds=8.0),
    TestStarted(test="00raid5", number=7, of=23),
    Notice(cell="c", message="é\n"),
    Checked(cell=None, check=Check(name="array", passed=False, detail="é\n")),
    CellFinished(cell="c1", outcome=Outcome.LOST, reason="gone", seconds=PhaseSeconds(total=3)),
    CellAgain(cell="c1"),
    TestStarted(test="00raid0", number=1, of=2),
    GuestKept(guest="g1"),
    GuestGone(guest="g1", left="a file"),
    Trouble(message="no", hint="do", exit_status=3),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.kind)
def test_an_event_is_one_line_and_comes_out_as_it_went_in(event: Event) -> None:
    adapter: TypeAdapter[Event] = TypeAdapter(Event)
    line = adapter.dump_json(event)
    assert b"\n" not in line
    assert adapter.validate_json(line) == event


def test_every_kind_of_event_is_tried() -> None:
    adapter: TypeAdapter[Event] = TypeAdapter(Event)
    kinds = set(adapter.json_schema()["discriminator"]["mapping"])
    assert {e.kind for e in EVENTS} == kinds


def test_a_job_survives_the_wire() -> None:
    line = JOB.model_dump_json()
    assert "\n" not in line
    assert GuestJob.model_validate_json(line) == JOB


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: o.kind)
def test_an_order_survives_the_wire(order: Order) -> None:
    line = order.model_dump_json()
    assert "\n" not in line
    adapter: TypeAdapter[Order] = TypeAdapter(Order)
    assert adapter.validate_json(line) == order
