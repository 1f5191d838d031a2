"""How long commands take that people type all day: measured while nothing else runs."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.fakes import clean_environment
from tests.unit.test_cli import lab_argv


def quickest(args: list[str], base: Path, *, enough: float) -> float:
    """The quickest of several: the others had to share the machine. No more than are needed."""
    best = float("inf")
    for _ in range(12):
        began = time.monotonic()
        subprocess.run(
            [*lab_argv(), *args], env=clean_environment(base), capture_output=True, check=True
        )
        best = min(best, time.monotonic() - began)
        if best < enough:
            break
    return best


def test_help_is_there_at_once(tmp_path: Path) -> None:
    assert quickest(["--help"], tmp_path, enough=0.25) < 0.25


def test_all_scenarios_are_checked_in_a_second(tmp_path: Path) -> None:
    assert quickest(["scenario", "check"], tmp_path, enough=1) < 1
