"""A matrix run that ends too early prints the command that resumes it."""

from __future__ import annotations

import json

import pytest

from lab.cli import capabilities
from lab.host.system import paths
from tests.fakes import Cli
from tests.unit.test_go_on import again, ended_by, files

REPORT = ("--report", "site") if "site" in capabilities.names() else ()

MATRIX = "title: T\nimages: [debian-12]\nscenarios: [{name: ./question.yaml}]\n"


def test_a_matrix_goes_on_with_the_job_that_was_under_way(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, lab = files(cli, monkeypatch), ended_by(cli)
    cli.file(MATRIX, "m.yaml")
    words = ("run", "matrix", "./m.yaml", *REPORT)
    ended = lab("SIGINT", 2, *words, "--shard", "1/1", "--out", "place")
    assert "0 of 1 job done, with 2 cells finished of others, kept in" in ended.stderr
    command = again(ended)
    (directory,) = paths.nights().iterdir()
    assert sorted(command[:-2]) == sorted([*words, "--out", "place"])
    assert command[-2:] == ["--resume", directory.name]
    resumed = lab("tell", 0, *command)
    (run,) = (base / "place").iterdir()
    assert json.loads(resumed.stdout.splitlines()[0])["resume"] == str(run)
    before = {*paths.runs().glob("*"), *paths.nights().glob("*")}
    none = lab("SIGINT", 0, "run", "matrix", "./m.yaml")
    assert "no cell was finished: nothing is kept" in none.stderr
    assert {*paths.runs().glob("*"), *paths.nights().glob("*")} == before
