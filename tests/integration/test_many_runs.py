"""Two hundred stored runs: lists and results by CPU time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import clean_environment
from tests.many import many_runs
from tests.speed import reference, scale

RUNS = 200
SMALL = ("bitmap-chunk-raid10", "bitmap-random-write", "raid5-parity-last")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred runs, of which every tenth has no stored result; all were listed once."""
    base = tmp_path_factory.mktemp("many")
    runs = many_runs(base / "h" / "data" / "runs", RUNS, aside=base / "aside", names=SMALL)
    for run in runs[::10]:
        (run.directory / "result.json").unlink()
    lab(base, "results", "list")
    return base


def lab(base: Path, *words: str) -> tuple[str, float]:
    """What a new process of the lab prints, and its CPU seconds; imports and start included."""
    program = [sys.executable, "-m", "lab", *words]
    before = os.times()
    environment = clean_environment(base) | {"PYTHONPATH": str(Path(__file__).parents[2])}
    del environment["PYTHONDONTWRITEBYTECODE"]
    ended = subprocess.run(
        program, check=True, capture_output=True, text=True, timeout=300, cwd=base, env=environment
    )
    after = os.times()
    spent = after.children_user + after.children_system
    return ended.stdout, spent - before.children_user - before.children_system


def least(base: Path, *words: str) -> tuple[str, float]:
    """The same with the least CPU time of three, scaled: caches are shared with others."""
    said = [lab(base, *words) for _ in range(3)]
    return said[0][0], min(cpu for _, cpu in said) * scale(reference())


def test_two_hundred_runs_are_listed_within_a_second(home: Path) -> None:
    said, cpu = least(home, "results", "list")
    assert len([line for line in said.splitlines() if "-2026" in line]) == RUNS
    assert cpu < 1.0


def test_a_result_of_two_hundred_runs_is_shown_within_two_seconds(home: Path) -> None:
    first, _ = lab(home, "results", "show", "last", "--whole")
    said, cpu = least(home, "results", "show", "last", "--whole")
    assert said == first
    assert cpu < 2.0
    said, cpu = least(home, "scenario", "explain", "raid5-parity-last", "--run", "last")
    assert "write" in said
    assert cpu < 2.0


def test_a_list_without_what_is_kept_is_the_same(home: Path) -> None:
    """The control: the same list, made anew, takes longer."""
    said, cpu = lab(home, "results", "list")
    (home / "h" / "cache" / "judged").rename(home / "h" / "cache" / "aside")
    again, anew = lab(home, "results", "list")
    assert again.splitlines()[: RUNS + 1] == said.splitlines()[: RUNS + 1]
    assert anew > 2 * cpu
