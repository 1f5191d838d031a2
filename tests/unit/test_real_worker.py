"""A worker returns its resources: blanked real disks, and its CPU slot.

Disks are not blanked if the guest does not respond.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from lab.core.errors import GuestError, LabError, ToolError
from lab.host.system import wire
from lab.model.execution.job import CellJob, End, GuestJob, Keep, Order
from lab.model.execution.procedure import (
    GuestCommand,
    MakeDirectory,
    Output,
    PassDisk,
    Procedure,
    Step,
)
from lab.run import worker
from lab.run.steps import Undo
from lab.run.worker import StopWorker, Worker
from tests.fakes import FakeBench

DEVICE = "/dev/disk/by-id/a"
PASS = PassDisk(serial="disk1", device=DEVICE, size=1, device_serial="S1", xml="<disk/>")
BLANK = GuestCommand(label="blank", script="blank", undo="blank again")
BROKEN = GuestCommand(label="broken", script="broken")
BACK = [("guest", "blank again"), ("return", DEVICE)]


class Bench(FakeBench):
    def __init__(self) -> None:
        super().__init__()
        self.record = SimpleNamespace(pid=0, path=Path("/nowhere"))
        self.dead = False

    def expect_io_within(self, patience: float) -> None:
        pass

    def cause(self, error: LabError) -> GuestError | None:
        return GuestError("it has ended") if self.dead else None

    def evidence(self) -> dict[str, str]:
        assert not self.dead
        return {"superblocks.txt": "of all disks"}

    def close(self) -> None:
        pass

    def release(self) -> None:
        pass


class Stopped(SimpleQueue[Order]):
    """Orders, followed by the end of the main process."""

    def get(self, block: bool = True, timeout: float | None = None) -> Order:
        if self.empty():
            raise StopWorker
        return super().get(block, timeout)


def job_of(*paths: str) -> GuestJob:
    """Return a job for a guest whose start makes directories."""
    steps = tuple(MakeDirectory(path=path) for path in paths)
    return GuestJob(
        guest="g1",
        scenario="q",
        image="i",
        host_key="k",
        private_key="/nowhere",
        procedure=Procedure(name="g1", steps=steps),
    )


def ended(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bench: Bench,
    *steps: Step,
    last: Order | None,
    asked: Mapping[str, Any] = {},
) -> list[tuple[str, ...]]:
    """Return the backend's calls when the worker had finished."""
    monkeypatch.setattr(worker.wire, "ignore_signals", lambda: None)
    slot = SimpleNamespace(acquire=lambda *_: 0, cover=lambda *_: 0, release=lambda *_: 0)
    monkeypatch.setattr(worker, "CpuSlot", lambda: slot)
    monkeypatch.setattr(worker.guests, "remove", lambda _: bench.log.append(("gone",)))
    monkeypatch.setattr(worker.guests, "console_tail", lambda *_, **__: "")
    monkeypatch.setattr(Worker, "_move_in", lambda _: bench)
    monkeypatch.setattr(Worker, "_keep", lambda *_: None)
    orders = Stopped()
    orders.put(
        CellJob(
            id="c1",
            procedure=Procedure(name="q", steps=steps),
            directory=str(tmp_path),
            target="/t",
            **asked,
        )
    )
    if last is not None:
        orders.put(last)
    job = job_of("/nowhere/g1")
    out = os.open(tmp_path / "told", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    teller = wire.Teller(out, b"", b"")
    Worker(job, teller, orders).work()
    teller.close()
    os.close(out)
    return bench.log[bench.log.index(("pass", DEVICE)) + 1 :] if PASS in steps else bench.log


@pytest.mark.parametrize("last", [End(), None])
def test_a_worker_that_ends_blanks_real_disks_before_the_guest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: Order | None
) -> None:
    """It was ordered to end, or the main process has exited."""
    log = ended(tmp_path, monkeypatch, Bench(), PASS, BLANK, last=last)
    assert [e for e in log if e in BACK] == BACK
    assert log.index(BACK[-1]) < log.index(("gone",))


def test_a_cell_that_failed_gives_its_disks_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    bench.answers["broken"] = Output(status=1, stdout="", stderr="no", seconds=0.0)
    log = ended(tmp_path, monkeypatch, bench, PASS, BLANK, BROKEN, last=None)
    assert [e for e in log if e in BACK] == BACK
    assert [f.read_text() for f in tmp_path.rglob("superblocks.txt")] == ["of all disks"]


def test_a_dead_guest_is_not_asked_and_a_kept_one_keeps_its_disks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    bench.dead = True
    bench.failures["guest", "broken"] = ToolError("no answer")
    log = ended(tmp_path, monkeypatch, bench, PASS, BLANK, BROKEN, last=None)
    assert not [e for e in log if e in BACK]
    kept = ended(tmp_path, monkeypatch, Bench(), PASS, BLANK, last=Keep())
    assert not [e for e in kept if e in BACK]


def test_a_guest_without_real_disks_is_not_taken_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ended(tmp_path, monkeypatch, Bench(), BLANK, last=End())
    assert ("guest", "blank") in log
    assert ("guest", "blank again") not in log


def test_a_guest_that_comes_up_steps_back_as_soon_as_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU starts its own session while the worker holds a slot."""

    class Started(Bench):
        def make_directory(self, path: str) -> None:
            super().make_directory(path)
            if path == "/start":
                self.record.pid = 7

    bench = Started()
    slot = SimpleNamespace(cover=lambda pid: bench.log.append(("cover", str(pid))))
    monkeypatch.setattr(worker, "CpuSlot", lambda: slot)
    job = job_of("/before", "/start", "/after")
    out = os.open(tmp_path / "told", os.O_WRONLY | os.O_CREAT)
    teller = wire.Teller(out, b"", b"")
    bring_up: Any = Worker(job, teller, SimpleQueue())._bring_up
    bring_up(bench, Undo())
    teller.close()
    os.close(out)
    assert bench.log == [
        *(("cover", "0"), ("mkdir", "/before")),
        *(("cover", "0"), ("mkdir", "/start")),
        *(("cover", "7"), ("mkdir", "/after")),
    ]


def test_nothing_waits_to_end_the_process_once_all_is_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(tmp_path, monkeypatch, Bench(), last=End())
    waiting = [t for t in threading.enumerate() if "_end_by_force" in t.name]
    for thread in waiting:
        thread.join(timeout=5)
    assert not any(thread.is_alive() for thread in waiting)
