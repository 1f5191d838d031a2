"""Number of concurrent cells on a host's CPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.compile import schedule
from lab.compile.scenario.compiler import compile_scenario
from lab.core.units import GIB
from lab.core.yaml import parse_override
from lab.host.system import accelerator, load
from lab.model.scenario.document import Cell
from lab.model.scenario.fault import Fault
from lab.run.scheduling import admission
from lab.run.task import Task, task_of
from tests.fakes import SCENARIO, compiled_text

pytestmark = pytest.mark.usefixtures("lab_home")


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A throttled cell; the host has two CPUs and enough of all other resources."""
    monkeypatch.setattr(accelerator, "cpus", lambda: 2)
    monkeypatch.setattr(load, "available_memory", lambda: 100 * GIB)
    monkeypatch.setattr(load, "free_space", lambda: 10_000 * GIB)
    monkeypatch.setattr(load, "throughput", lambda: 1e12)
    return task_of(compiled_text(tmp_path, SCENARIO).base)


def concurrent(task: Task, kind: str, jobs: int | None = None) -> int:
    """Return how many equal cells run concurrently."""
    running: list[schedule.Need] = []
    need = admission.need(task, kind)
    while len(running) < 50 and schedule.fits(need, running, admission.room(jobs)):
        running.append(need)
    most = admission.virtual_limit(jobs) if need.virtual else admission.limit(kind, jobs)
    return min(len(running), most)


def test_throttled_cells_share_a_cpu(task: Task) -> None:
    assert concurrent(task, "tcg") == 6
    assert concurrent(task, "kvm") == 8


def test_cells_with_faults_have_more_of_a_cpu(task: Task) -> None:
    assert concurrent(replace(task, cell=with_fault(task.cell)), "tcg") == 4


def with_fault(cell: Cell) -> Cell:
    fault = Fault(name="cut", fault="power_cut", before="write")
    return cell.model_copy(update={"faults": (fault,)})


@pytest.mark.parametrize("faulty", [False, True])
def test_with_jobs_there_are_as_many(task: Task, *, faulty: bool) -> None:
    cell = with_fault(task.cell) if faulty else task.cell
    assert concurrent(replace(task, cell=cell), "tcg", jobs=5) == 5


def test_guests_with_virtual_time_are_as_many_as_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Task
) -> None:
    path = tmp_path / "v.yaml"
    path.write_text(SCENARIO)
    virtual = parse_override("guest.clock=virtual")
    sealed = task_of(compile_scenario(path, overrides=(virtual,)).base)
    monkeypatch.setattr(load, "throughput", lambda: 1.0)
    assert (concurrent(sealed, "tcg"), concurrent(task, "tcg")) == (2, 1)
    assert concurrent(sealed, "tcg", jobs=5) == 5
    monkeypatch.setattr(load, "available_memory", lambda: GIB)
    assert concurrent(sealed, "tcg") == 1
    assert sealed.contention({}) == ()
