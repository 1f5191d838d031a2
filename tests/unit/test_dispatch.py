"""Which cell runs where: what a run does with the guests that it has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.compile.scenario.document import compile_scenario
from lab.host.system import load
from lab.model.execution.events import CellFinished
from lab.model.execution.job import End
from lab.model.result.document import Outcome
from lab.model.scenario.guest import Guest
from lab.run.options import RunOptions
from lab.run.scheduling.admission import AdmissionControl
from lab.run.scheduling.dispatch import Dispatch
from lab.run.task import task_of
from lab.run.worker_pool import WorkerPool

TWO_KINDS = """\
title: Two kinds of guest
question: Who goes first?
disks: {count: 3, size: 1GiB}
array: {level: 5, component_size: 64MiB}
workloads:
  - {name: read, tool: dd, if: '{target}', bs: 1MiB, count: 8}
matrix:
  guest.memory: [512MiB, 640MiB]
  array.layout: [left-symmetric, parity-last]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dispatch:
    """Four cells of two kinds of guest, and room for one."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(load, "throughput", lambda: 1e15)
    path = tmp_path / "q.yaml"
    path.write_text(TWO_KINDS)
    made = Dispatch(
        store=cast("Any", None),
        compiled=compile_scenario(path),
        platforms={},
        watch=print,
        say=print,
        how=RunOptions(jobs=1),
    )
    made._crew = WorkerPool(directory=tmp_path)
    made._crowd = AdmissionControl(kind="tcg", jobs=1)
    made._pending = [task_of(cell) for cell in made.compiled.cells]
    return made


def idle(kind: Guest) -> Any:
    told: list[Any] = []
    worker = SimpleNamespace(kind=kind, up=True, busy=False, free=True, reserved=False, told=told)
    worker.order = told.append
    return worker


def test_an_idle_guest_makes_room_for_one_of_another_kind(run: Dispatch) -> None:
    """The longest cell wants another guest, and a later one wants the guest that is there: nobody
    worked, and the run waited for ever."""
    wanted, other = (run._pending[n].cell.guest for n in (0, -1))
    assert wanted != other
    there = idle(other)
    run._crew.workers = [there]
    run._fill()
    assert [type(order) for order in there.told] == [End]
    assert len(run._pending) == 4


def test_a_guest_that_comes_up_is_waited_for(run: Dispatch) -> None:
    there, coming = idle(run._pending[-1].cell.guest), idle(run._pending[0].cell.guest)
    coming.up = coming.free = False
    run._crew.workers = [there, coming]
    run._fill()
    assert there.told == []


def test_a_guest_that_works_is_waited_for(run: Dispatch) -> None:
    there = idle(run._pending[-1].cell.guest)
    run._crew.workers = [there]
    run._running = {"g1": run._pending.pop(1)}
    run._fill()
    assert there.told == []


@pytest.mark.parametrize(("unread", "lost_for_good"), [(True, False), (False, True)])
def test_guests_that_a_stopped_lab_has_lost_are_no_try_of_their_cell(
    run: Dispatch, unread: bool, lost_for_good: bool
) -> None:
    """Two guests had ended while the lab was stopped: the second got the cell of the first before
    the lab had read of its end, and the cell was lost for good."""
    finished: list[str] = []
    run.store = cast(
        "Any",
        SimpleNamespace(
            keep_attempt=lambda *_: None, finish_cell=lambda cell, *_: finished.append(cell)
        ),
    )
    run.watch = lambda *_: None
    task = run._pending.pop()
    worker: Any = SimpleNamespace(unread=unread, job=SimpleNamespace(guest="g1"))
    lost = CellFinished(cell=task.id, outcome=Outcome.LOST, reason="nobody read")
    run._finished(worker, task, lost)
    assert run._pending[-1] is task
    run._pending.remove(task)
    run._finished(worker, task, lost)
    assert (finished == [task.id]) is lost_for_good
    assert (task in run._pending) is not lost_for_good
    if unread:  # its own try is still to come
        worker.unread = False
        run._finished(worker, task, lost)
        assert finished == []
