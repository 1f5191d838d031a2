"""How many cells fit on a host's CPUs at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.compile import schedule
from lab.compile.scenario.document import compile_scenario
from lab.core.units import GIB
from lab.host.system import accelerator, load
from lab.run.scheduling import admission
from lab.run.task import Task, task_of
from tests.fakes import SCENARIO

pytestmark = pytest.mark.usefixtures("lab_home")


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A throttled cell; the host has two CPUs and much of all else."""
    monkeypatch.setattr(accelerator, "cpus", lambda: 2)
    monkeypatch.setattr(load, "available_memory", lambda: 100 * GIB)
    monkeypatch.setattr(load, "free_space", lambda: 10_000 * GIB)
    monkeypatch.setattr(load, "throughput", lambda: 1e12)
    path = tmp_path / "q.yaml"
    path.write_text(SCENARIO)
    return task_of(compile_scenario(path).base)


def concurrent(task: Task, kind: str, jobs: int | None = None) -> int:
    """How many of the same cell run at once."""
    running: list[schedule.Need] = []
    need = admission.need(task, kind)
    while len(running) < 50 and schedule.fits(need, running, admission.room(jobs)):
        running.append(need)
    return min(len(running), admission.limit(kind, jobs))


def test_throttled_cells_share_a_cpu(task: Task) -> None:
    assert concurrent(task, "tcg") == 6
    assert concurrent(task, "kvm") == 8


def test_modelled_drives_and_sealed_guests_have_more_of_a_cpu(task: Task) -> None:
    assert concurrent(replace(task, modelled=True), "tcg") == 4
    assert concurrent(replace(task, sealed=True), "tcg") == 2


@pytest.mark.parametrize("changes", [{}, {"modelled": True}, {"sealed": True}])
def test_with_jobs_there_are_as_many(task: Task, changes: dict[str, bool]) -> None:
    assert concurrent(replace(task, **changes), "tcg", jobs=5) == 5
