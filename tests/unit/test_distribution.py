"""Distribution of tests: every test runs once, a group in one process, the last group alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.cli import capabilities
from tests.distribution import (
    ALONE,
    GUESTS,
    LONG,
    SEALED,
    Scheduling,
    group,
    order,
)

TESTS = [
    *(f"tests/guest/test_trouble.py::test_{n}" for n in range(7)),
    *(f"tests/guest/test_live_guest.py::test_{n}" for n in range(5)),
    *(f"tests/guest/test_reproduce.py::test_{n}" for n in range(2)),
    *(f"tests/integration/test_docs.py::test_{n}" for n in range(6)),
    *(f"tests/unit/test_units.py::test_{n}" for n in range(30)),
    *(f"tests/integration/test_wheel.py::test_{n}" for n in range(1)),
    *(f"tests/integration/test_realdisks_race.py::test_{n}" for n in range(3)),
    *(f"tests/guest/test_real_disks.py::test_{n}" for n in range(4)),
    *(f"tests/guest/test_main_job.py::test_{n}" for n in range(5)),
]


@dataclass(eq=False)
class Process:
    """A process like xdist's: it runs a test when it has the next one, or knows that there is
    none."""

    queue: list[int] = field(default_factory=list)
    shutting_down: bool = False
    gateway: Any = field(default_factory=lambda: SimpleNamespace(id="gw"))

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def ready(self) -> bool:
        return len(self.queue) > (0 if self.shutting_down else 1)


def distribute(tests: list[str], processes: int, draw: random.Random) -> list[list[str]]:
    """Run the tests with random durations; return the tests of each process.

    Assert that no other process runs or has a test when a test of `ALONE` begins.
    """
    tests = sorted(tests, key=order)
    config: Any = SimpleNamespace(
        option=SimpleNamespace(loadscopereorder=False), getvalue=lambda _: [f"{processes}*popen"]
    )
    scheduling = Scheduling(config)
    nodes = [Process() for _ in range(processes)]
    for node in nodes:
        scheduling.add_node(node)
        scheduling.add_node_collection(node, tests)
    scheduling.schedule()
    ran: dict[Process, list[str]] = {node: [] for node in nodes}
    while ready := [node for node in nodes if node.ready]:
        node = draw.choice(ready)
        index = node.queue[0]
        ran[node].append(tests[index])
        if group(tests[index]) == ALONE:
            assert [other for other in nodes if other is not node and other.queue] == []
        node.queue.pop(0)
        scheduling.mark_test_complete(node, index)
    assert all(node.shutting_down and not node.queue for node in nodes)
    assert scheduling.tests_finished
    return list(ran.values())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_test_runs_once_and_some_run_alone(seed: int, processes: int) -> None:
    draw = random.Random(seed)
    tests = draw.sample(TESTS, draw.randrange(4, len(TESTS)))
    ran = distribute(tests, processes, draw)
    assert sorted(test for each in ran for test in each) == sorted(tests)
    for name in {group(test) for test in tests}:
        assert sum(name in map(group, each) for each in ran) == 1
    if {GUESTS, ALONE} <= {group(test) for test in tests}:
        assert any({GUESTS, ALONE} <= set(map(group, each)) for each in ran)


def test_guests_of_each_clock_are_a_group() -> None:
    assert [group(f"tests/guest/{name}.py::t") for name in ("test_trouble", "test_reproduce")] == [
        GUESTS,
        SEALED,
    ]
    assert group("tests/unit/test_reproduce.py::t") == "tests/unit/test_reproduce.py"


def test_long_files_exist() -> None:
    for name in LONG:
        removed = name == "test_cluster.py" and "cluster" not in capabilities.names()
        assert removed or list(Path(__file__).parents[1].rglob(name))
