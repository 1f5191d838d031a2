"""A cluster on this machine: whole runs over two hosts, one of which is killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import intruder
from tests.guest.conftest import Home, six_short_cells

pytest.importorskip("distributed")
pytestmark = [pytest.mark.guest, pytest.mark.slow]  # two minutes

SCENARIO = six_short_cells("a host", blocks=20)
CELLS = 6
NIGHT = """\
title: Two parts of three cells
scenarios: [first.yaml, second.yaml]
images: [debian-12]
"""


def processes(*words: str) -> list[int]:
    """Processes whose command line has all of these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if all(word.encode() in line for word in words):
                found.append(int(entry.name))
    return found


def wait_for(what: Callable[[], Any], seconds: float, why: str) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{why}: not within {seconds} s")


def kill_in_the_middle(homes: Path, run: subprocess.Popen[str]) -> None:
    """Kill the first host while it is writing to an array."""

    def under_way() -> bool:
        events = homes.glob("1/state/outposts/.*/*/cells/.*/events.jsonl")
        return any('"label":"write"' in path.read_text() for path in events)

    wait_for(lambda: under_way() or run.poll() is not None, 900, "a cell on the first host")
    assert run.poll() is None, run.communicate(timeout=5)
    (victim,) = processes("worker", "host1")
    os.kill(victim, signal.SIGKILL)


@pytest.fixture
def cluster(
    lab_home: Home, lab_process: Callable[..., subprocess.Popen[str]]
) -> Iterator[subprocess.Popen[str]]:
    process = lab_process("cluster", "local", "2")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "A cluster of 2 workers is up" in line, process.communicate(timeout=5)
    yield process
    lab_home.run("cluster", "down")
    process.wait(timeout=60)


def test_a_run_survives_a_killed_host_and_nothing_runs_twice(
    lab_home: Home,
    image: str,
    tmp_path: Path,
    cluster: subprocess.Popen[str],
    lab_process: Callable[..., subprocess.Popen[str]],
) -> None:
    path = tmp_path / "six.yaml"
    path.write_text(SCENARIO)
    out = tmp_path / "out"
    run = lab_process(
        *("run", "scenario", str(path), "--cluster", "local", "--out", str(out), "-v", "--json")
    )

    (homes,) = lab_home.path.glob("state/c/.l.*")
    kill_in_the_middle(homes, run)
    assert set(intruder.listening(cluster.pid).values()) == {"127.0.0.1"}  # guests' SSH too
    before = [p.parent.name for p in out.glob("*/cells/[!.]*/outcome.json")]
    assert len(before) < CELLS
    text, told = run.communicate(timeout=900)
    assert run.returncode == 0, told
    result = json.loads(text)
    cells = result["cells"]
    assert [c["outcome"] for c in cells] == ["done"] * CELLS
    assert len({c["id"] for c in cells}) == CELLS
    directories = Counter(p.name for p in out.glob("*/cells/[!.]*"))
    assert directories == dict.fromkeys((c["id"] for c in cells), 1)
    hosts = Counter(c["host"] for c in cells)
    assert set(hosts) <= {"host1", "host2"}
    assert hosts["host2"] >= CELLS - len(before)
    for cell in cells:
        (events,) = out.glob(f"*/cells/{cell['id']}/events.jsonl")
        kinds = Counter(json.loads(line)["kind"] for line in events.read_text().splitlines())
        assert kinds["cell_started"] == kinds["cell_finished"] == 1
        assert cell["measurements"]
    # A snapshot holds its guest's private host key: each host has made its own.
    states = {p: json.loads(p.read_text()) for p in homes.glob("*/cache/warm/*/warm.json")}
    found: dict[str, set[str]] = {"1": set(), "2": set()}
    for path, state in states.items():
        host = path.relative_to(homes).parts[0]
        assert Path(state["saved_directory"]).is_relative_to(homes / host)
        found[host].add(state["host_key"])
    assert found["2"]
    assert not found["1"] & found["2"]
    # What the killed worker had up is gone, although nobody was left to end it.
    wait_for(
        lambda: not [*homes.glob("1/state/guests/*")], 60, "the killed host's guests to be gone"
    )
    assert lab_home.run("cluster", "down").returncode == 0
    assert cluster.wait(timeout=60) == 0
    assert [*lab_home.path.glob("state/c/.*")] == []
    assert lab_home.left() == []


def test_a_night_on_a_cluster_is_whole_though_a_host_is_killed(
    lab_home: Home,
    image: str,
    tmp_path: Path,
    cluster: subprocess.Popen[str],
    lab_process: Callable[..., subprocess.Popen[str]],
) -> None:
    for part in ("first", "second"):
        lines = SCENARIO.splitlines(keepends=True)
        (tmp_path / f"{part}.yaml").write_text("".join(x for x in lines if "[3, 4]" not in x))
    (tmp_path / "two.yaml").write_text(NIGHT)
    out = tmp_path / "out"
    words = ("--cluster", "local", "--out", str(out), "--junit", str(tmp_path / "junit.xml"))
    run = lab_process("run", "matrix", str(tmp_path / "two.yaml"), *words, "-v", "--json")
    (homes,) = lab_home.path.glob("state/c/.l.*")
    kill_in_the_middle(homes, run)
    text, told = run.communicate(timeout=900)
    assert run.returncode == 0, told
    parts = json.loads(text)["parts"]
    assert [p["part"]["state"] for p in parts] == ["done", "done"]
    for part in parts:
        directory = Path(part["part"]["run"])
        cells = json.loads((directory / "result.json").read_text())["cells"]
        assert [c["outcome"] for c in cells] == ["done"] * 3
        found = Counter(p.name for p in directory.glob("cells/[!.]*"))
        assert found == dict.fromkeys((c["id"] for c in cells), 1)
        assert all(c["measurements"] for c in cells)
        assert {c["host"] for c in cells} <= {"host1", "host2"}
    assert {c["host"] for c in cells} == {"host2"}  # the other one was dead by then
    assert 'errors="0"' in (tmp_path / "junit.xml").read_text()
    assert lab_home.run("cluster", "down").returncode == 0
    assert cluster.wait(timeout=60) == 0
    assert lab_home.left() == []
