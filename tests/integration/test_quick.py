"""How much CPU time commands take that people type all day. They hardly wait for anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import clean_environment
from tests.integration.test_cli import lab_argv
from tests.speed import quickest


@pytest.mark.parametrize(("words", "limit"), [(["--help"], 0.25), (["scenario", "check"], 1.0)])
def test_an_answer_comes_before_anybody_waits(
    tmp_path: Path, words: list[str], limit: float
) -> None:
    argv = [*lab_argv(), *words]
    assert quickest(argv, clean_environment(tmp_path), limit=limit) < limit
