"""How many guests run side by side: what cells took of the processors is learned and kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab.compile import schedule
from lab.compile.scenario.document import compile_scenario
from lab.core.units import GIB
from lab.host.system import accelerator, load, paths
from lab.run.scheduling.admission import BEARABLE, GUESTS_PER_CPU, TOGETHER, AdmissionControl
from lab.run.task import Task, task_of
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


def side_by_side(crowd: AdmissionControl, tasks: tuple[Task, ...]) -> int:
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
    crowd = AdmissionControl(kind=kind, jobs=None)
    assert side_by_side(crowd, tasks) == crowd.limit == 2 * GUESTS_PER_CPU[kind]


@pytest.mark.usefixtures("two_processors")
def test_cells_whose_steps_cannot_wait_run_with_fewer_beside_them(tasks: tuple[Task, ...]) -> None:
    drives = tuple(replace(task, modelled=True) for task in tasks)
    crowd = AdmissionControl(kind="tcg", jobs=None)
    crowd.learn(drives[0], busy(drives[0], 0.34), drives)
    assert side_by_side(crowd, drives) == 4  # all are taken to be like the one that is known
    crowd.learn(drives[0], busy(drives[0], 0.1), drives)
    assert side_by_side(crowd, drives) == len(drives)  # more than the limit: that is the crew's


@pytest.mark.usefixtures("two_processors")
def test_throttled_cells_run_side_by_side_whatever_their_steps_take(
    tasks: tuple[Task, ...],
) -> None:
    crowd = AdmissionControl(kind="tcg", jobs=None)
    crowd.learn(tasks[0], busy(tasks[0], 0.6), tasks)
    assert side_by_side(crowd, tasks) == crowd.limit
    assert crowd.together == TOGETHER * 2


@pytest.mark.usefixtures("two_processors")
def test_more_than_was_thought(tasks: tuple[Task, ...]) -> None:
    crowd = AdmissionControl(kind="tcg", jobs=None)
    assert crowd.learn(tasks[0], busy(tasks[0], 0.34), tasks)
    assert not crowd.learn(tasks[0], busy(tasks[0], 0.34), tasks)


@pytest.mark.usefixtures("two_processors")
def test_a_step_is_known_by_its_own_cell_else_by_the_limits_of_others_disks(
    tasks: tuple[Task, ...],
) -> None:
    """Eight tasks of three to ten disks, each with the same limit."""
    three, four, five = tasks[:3]
    name = three.cell.workloads[0].name
    crowd = AdmissionControl(kind="tcg", jobs=None)
    assert set(crowd.steps(five, tasks).values()) == {crowd.share}  # nothing is known of any
    crowd.learn(three, busy(three, 0.3), tasks[1:])
    assert crowd.steps(three, ())[name] == pytest.approx(0.3)
    assert crowd.steps(five, ())[name] == pytest.approx(0.5)
    crowd.learn(four, busy(four, 0.8), ())
    assert crowd.steps(five, ())[name] == pytest.approx(1.0)  # four disks are nearer to five
    later = AdmissionControl(kind="tcg", jobs=None)
    assert later.steps(four, tasks)[name] == pytest.approx(0.8)
    assert later.steps(five, tasks)[name] == pytest.approx(1.0)


@pytest.mark.usefixtures("two_processors")
def test_what_one_cell_takes_today_tells_of_the_others(tasks: tuple[Task, ...]) -> None:
    name = tasks[0].cell.workloads[0].name
    yesterday = AdmissionControl(kind="tcg", jobs=None)
    for task in tasks[:3]:
        yesterday.learn(task, busy(task, 0.2), ())
    today = AdmissionControl(kind="tcg", jobs=None)
    today.learn(tasks[0], busy(tasks[0], 0.3), tasks)
    assert today.steps(tasks[1], ())[name] == pytest.approx(0.3)
    today.learn(tasks[1], busy(tasks[1], 0.25), tasks)  # measured: it is what it is
    assert today.steps(tasks[1], ())[name] == pytest.approx(0.25)
    assert today.steps(tasks[2], ())[name] == pytest.approx(0.275)


@pytest.mark.usefixtures("two_processors")
def test_what_is_learned_is_there_in_the_next_run(tasks: tuple[Task, ...]) -> None:
    drives = tuple(replace(task, modelled=True) for task in tasks)
    AdmissionControl(kind="tcg", jobs=None).learn(drives[1], busy(drives[1], 0.7), drives)
    assert side_by_side(AdmissionControl(kind="tcg", jobs=None), drives) == 2
    assert side_by_side(AdmissionControl(kind="kvm", jobs=None), drives) == len(
        drives
    )  # another accelerator
    renamed = replace(drives[1], id=f"other-axes-{drives[1].kind}")
    assert side_by_side(AdmissionControl(kind="tcg", jobs=None), (renamed,) * 8) == 2
    strangers = tuple(t for t in drives if t.id != drives[1].id)
    assert side_by_side(AdmissionControl(kind="tcg", jobs=None), strangers) == 6


@pytest.mark.usefixtures("two_processors")
def test_who_says_how_many_gets_as_many(tasks: tuple[Task, ...]) -> None:
    crowd = AdmissionControl(kind="tcg", jobs=8)
    crowd.learn(tasks[0], busy(tasks[0], 1.0), tasks)
    assert crowd.limit == 8
    assert crowd.together == 0.0
    assert side_by_side(crowd, tasks) == 8


def test_nothing_is_learned_where_nothing_was_written_down(tasks: tuple[Task, ...]) -> None:
    crowd = AdmissionControl(kind="tcg", jobs=None)
    assert not crowd.learn(tasks[0], {}, tasks)
    assert load.busy_cells("tcg") == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"tcg": [1]}', '{"tcg": {"a": 0.5}}', '{"tcg": {"a": {"b": "much"}}}']
)
def test_a_memory_that_cannot_be_read_is_no_memory(text: str) -> None:
    path = paths.host() / "busy.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert load.busy_cells("tcg") == {}
    load.keep_busy_cell("tcg", "a", {"write": 0.5})
    assert load.busy_cells("tcg") == {"a": {"write": 0.5}}


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "REMEMBERED", 3)
    for name in ("a", "b", "c", "a", "d"):
        load.keep_busy_cell("tcg", name, {"write": 0.5})
    assert list(load.busy_cells("tcg")) == ["c", "a", "d"]
    assert json.loads((paths.host() / "busy.json").read_text())["kvm"] == {}


def test_a_host_without_processors_to_spare_runs_one_cell(tasks: tuple[Task, ...]) -> None:
    room = schedule.Room(memory=GIB, space=GIB, rate=1.0, cores=0.1)
    need = replace(tasks[0].need, cores=BEARABLE)
    assert schedule.fits(need, [], room)
    assert not schedule.fits(need, [need], replace(room, memory=100 * GIB, space=10_000 * GIB))
