"""How many guests run side by side: what cells took of the processors is learned and kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab.app.crowd import BEARABLE, GUESTS_PER_CPU, Crowd
from lab.app.task import Task, task_of
from lab.compile import schedule
from lab.compile.scenario import compile_scenario
from lab.host import accelerator, load, paths
from lab.units import GIB
from tests.fakes import SCENARIO

pytestmark = pytest.mark.usefixtures("lab_home")
MATRIX = "matrix:\n  disks.count: [3, 4, 5, 6, 7, 8, 9, 10]\n"


@pytest.fixture
def tasks(tmp_path: Path) -> tuple[Task, ...]:
    path = tmp_path / "q.yaml"
    path.write_text(SCENARIO + MATRIX)
    return tuple(task_of(cell) for cell in compile_scenario(path).cells)


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "cpus", lambda: 2)
    monkeypatch.setattr(load, "available_memory", lambda: 100 * GIB)
    monkeypatch.setattr(load, "free_space", lambda: 10_000 * GIB)
    monkeypatch.setattr(load, "throughput", lambda: 1e12)


def side_by_side(crowd: Crowd, tasks: tuple[Task, ...]) -> int:
    """How many of them start, one after the other, before the host is full."""
    running: list[schedule.Need] = []
    usual = crowd.usual(tasks)
    for task in tasks:
        if not schedule.fits(crowd.need(task, usual), running, crowd.room()):
            break
        running.append(crowd.need(task, usual))
    return len(running)


def busy(task: Task, cores: float) -> dict[str, str]:
    """What a worker wrote down of a step of ten seconds."""
    name = task.cell.workloads[0].name
    return {f"{name}.1.pressure.txt": f"cpu={cores * 10}\nwait=0\nseconds=10\n"}


@pytest.mark.usefixtures("two_processors")
@pytest.mark.parametrize("kind", ["tcg", "kvm"])
def test_where_nothing_is_known_the_usual_number_runs(tasks: tuple[Task, ...], kind: str) -> None:
    crowd = Crowd(kind=kind, jobs=None)
    assert side_by_side(crowd, tasks) == crowd.limit == 2 * GUESTS_PER_CPU[kind]


@pytest.mark.usefixtures("two_processors")
def test_what_throttled_cells_bore_says_nothing_of_modelled_drives(
    tasks: tuple[Task, ...],
) -> None:
    crowd = Crowd(kind="tcg", jobs=None)
    for n, task in enumerate(tasks):
        crowd.learn(task, busy(task, 0.35), tasks[:n] + tasks[n + 1 :], usual=0.25, quiet=True)
    assert crowd.room().cores > 2
    assert crowd.room(modelled=True).cores == BEARABLE * 2
    other = Crowd(kind="tcg", jobs=None)
    before = other.room().cores
    drive = replace(tasks[0], modelled=True)
    other.learn(drive, busy(drive, 0.9), tasks[1:], usual=0.25, quiet=True)
    other.learn(drive, busy(drive, 0.9), tasks[1:3], usual=0.25, quiet=False)
    assert other.room().cores == before


@pytest.mark.usefixtures("two_processors")
def test_cells_that_took_more_run_with_fewer_beside_them(tasks: tuple[Task, ...]) -> None:
    crowd = Crowd(kind="tcg", jobs=None)
    assert crowd.learn(
        tasks[0], busy(tasks[0], 0.34), usual=0.25, quiet=False
    )  # more than was thought: it was crowded
    assert side_by_side(crowd, tasks) == 4  # all are taken to be like the one that is known
    assert not crowd.learn(
        tasks[0], busy(tasks[0], 0.34), usual=0.25, quiet=True
    )  # it was thought so
    crowd.learn(tasks[0], busy(tasks[0], 0.1), usual=0.25, quiet=True)
    assert side_by_side(crowd, tasks) == len(tasks)  # more than the limit: that is the crew's


@pytest.mark.usefixtures("two_processors")
def test_what_is_learned_is_there_in_the_next_run(tasks: tuple[Task, ...]) -> None:
    Crowd(kind="tcg", jobs=None).learn(tasks[1], busy(tasks[1], 0.7), usual=0.25, quiet=True)
    assert side_by_side(Crowd(kind="tcg", jobs=None), tasks) == 2
    assert side_by_side(Crowd(kind="kvm", jobs=None), tasks) == len(tasks)  # another accelerator
    strangers = tuple(t for t in tasks if t.id != tasks[1].id)
    assert side_by_side(Crowd(kind="tcg", jobs=None), strangers) == 6


@pytest.mark.usefixtures("two_processors")
def test_what_the_host_has_borne_it_bears_again(tasks: tuple[Task, ...]) -> None:
    crowd = Crowd(kind="tcg", jobs=None)
    first = tasks[:6]
    for n, task in enumerate(first):
        crowd.learn(
            task, busy(task, 0.32 + n / 100), first[:n] + first[n + 1 :], usual=0.25, quiet=True
        )
    again = Crowd(kind="tcg", jobs=None)
    assert side_by_side(again, first) == 6  # 2.07 processors of two, and nobody suffered
    assert side_by_side(Crowd(kind="kvm", jobs=None), first) == len(first)
    again.learn(first[0], busy(first[0], 0.32), first[1:], usual=0.25, quiet=False)
    assert side_by_side(again, first) == 5
    again.learn(
        first[0], busy(first[0], 0.32), usual=0.25, quiet=False
    )  # alone: that says nothing of others
    assert side_by_side(again, first) == 5
    again.learn(first[0], busy(first[0], 0.32), first[1:5], usual=0.25, quiet=False)
    assert side_by_side(Crowd(kind="tcg", jobs=None), first) == 4
    again.learn(first[0], busy(first[0], 0.32), first[1:2], usual=0.25, quiet=False)
    assert side_by_side(again, first) == 4  # never fewer than by the rule of thumb


@pytest.mark.usefixtures("two_processors")
def test_who_says_how_many_gets_as_many(tasks: tuple[Task, ...]) -> None:
    crowd = Crowd(kind="tcg", jobs=8)
    crowd.learn(tasks[0], busy(tasks[0], 1.0), usual=0.25, quiet=True)
    assert crowd.limit == 8
    assert side_by_side(crowd, tasks) == 8


def test_nothing_is_learned_where_nothing_was_written_down(tasks: tuple[Task, ...]) -> None:
    crowd = Crowd(kind="tcg", jobs=None)
    assert not crowd.learn(tasks[0], {}, usual=0.25, quiet=True)
    assert load.busy_cells("tcg") == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tcg": [1]}', '{"tcg": {"a": "much"}}'])
def test_a_memory_that_cannot_be_read_is_no_memory(text: str) -> None:
    path = paths.host() / "busy.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert load.busy_cells("tcg") == {}
    load.keep_busy_cell("tcg", "a", 0.5)
    assert load.busy_cells("tcg") == {"a": 0.5}


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "REMEMBERED", 3)
    for name in ("a", "b", "c", "a", "d"):
        load.keep_busy_cell("tcg", name, 0.5)
    assert list(load.busy_cells("tcg")) == ["c", "a", "d"]
    assert json.loads((paths.host() / "busy.json").read_text())["kvm"] == {}


def test_a_host_without_processors_to_spare_runs_one_cell(tasks: tuple[Task, ...]) -> None:
    room = schedule.Room(memory=GIB, space=GIB, rate=1.0, cores=0.1)
    need = replace(tasks[0].need, cores=BEARABLE)
    assert schedule.fits(need, [], room)
    assert not schedule.fits(need, [need], replace(room, memory=100 * GIB, space=10_000 * GIB))
