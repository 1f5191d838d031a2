"""A run that ends too early prints the finished cells, and the command that resumes it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.host.system import paths
from tests.fakes import Cli, Ended, with_matrix

TEXT = with_matrix("  array.layout: [left-symmetric, parity-last, left-asymmetric]\n")
LAB = """
import json, os, signal, sys, time
how, cells = HOW, CELLS
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from lab.run import execute
from lab.compile.scenario.identity import cell_id
from lab.core.errors import full
from lab.host.system.accelerator import Accelerator
from lab.run.preparation.platforms import Platform
from lab.model.execution.procedure import Procedure
from lab.model.result.document import Outcome
from lab.store.runs import RunStore, StoredOutcome

def run(compiled, *, texts, out, resume, ready, **_):
    if how == "tell":
        print(json.dumps({"resume": str(resume.directory), "texts": list(texts)}))
        sys.exit(0)
    if cells >= 0:
        about = execute._stored_run(compiled, compiled.cells, texts, {})
        store = RunStore.create(compiled.name, compiled.path.read_text(), out)
        store.save_run(about.model_copy(update={"id": store.id, "started": "2026-01-01"}))
        tcg = Accelerator(kind="tcg", reason="TCG")
        ready(store, Platform(accelerator=tcg, image=None, emulator=""))
        for cell in compiled.cells[:cells]:
            attempt = store.begin_cell(cell_id(cell), cell, Procedure(name="q", steps=()))
            store.finish_cell(cell_id(cell), attempt, StoredOutcome(outcome=Outcome.DONE))
    if how == "full":
        raise full("'x' cannot be written")
    if how == "mistake":
        raise RuntimeError("a mistake")
    os.kill(os.getpid(), signal.Signals[how])
    time.sleep(10)

@contextmanager
def joined(*_):
    yield SimpleNamespace()

execute.run_scenario = run
"""

Lab = Callable[..., Ended]


@pytest.fixture
def base(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    return files(cli, monkeypatch)


@pytest.fixture
def lab(cli: Cli) -> Lab:
    return ended_by(cli)


def files(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    cli.file(TEXT)
    monkeypatch.setenv("LAB_HOME", str(cli.home))
    return cli.base


def ended_by(cli: Cli, more: str = "") -> Lab:
    """Run a command whose run ends in some way after so many cells; -1: before its directory."""

    def run(how: str, cells: int, *words: str) -> Ended:
        before = LAB.replace("HOW", repr(how)).replace("CELLS", str(cells)) + more
        return cli(*words, before=before)

    return run


def again(ended: Ended) -> list[str]:
    """Return the words of the printed command, which has its own line; it resumes the run."""
    before, _, line = ended.stderr.rstrip("\n").rpartition("\n")
    assert before.endswith("Resume with:"), ended.stderr
    assert line.startswith("  lab ")
    return shlex.split(line)[1:]


@pytest.mark.parametrize(
    ("how", "status", "first"),
    [
        ("SIGINT", 130, "lab: stopped; all guests of this command are removed"),
        ("SIGTERM", 130, "lab: stopped; all guests of this command are removed"),
        ("full", 3, "lab: the disk is full: 'x' cannot be written"),
        ("mistake", 3, "lab: bug in the lab: RuntimeError: a mistake"),
    ],
)
def test_however_it_ends_what_is_kept_is_told_and_how_to_go_on(
    base: Path, lab: Lab, how: str, status: int, first: str
) -> None:
    words = ("run", "scenario", "./question.yaml", "--set", "disks.size=2 GiB", "--trials", "2")
    ended = lab(how, 2, *words)
    assert ended.status == status
    assert ended.stderr.index(first) < ended.stderr.index("2 of 3 cells finished and kept in")
    (run,) = paths.runs().iterdir()
    command = again(ended)
    assert command == [*words, "--resume", run.name]
    resumed = lab("tell", 0, *command)
    assert resumed.json == {"resume": str(run), "texts": ["disks.size=2 GiB", "trials=2"]}


def test_with_json_it_is_on_standard_error_and_a_run_elsewhere_goes_by_its_path(
    base: Path, lab: Lab
) -> None:
    ended = lab(
        *("SIGINT", 1, "run", "scenario", "./question.yaml", "--json", "--out", "a place"),
        *("--junit", "j.xml", "-j", "2", "--cold"),
    )
    assert ended.stdout == ""
    (run,) = (base / "a place").iterdir()
    command = again(ended)
    head, options = command[:3], command[3:]
    assert head == ["run", "scenario", "./question.yaml"]
    assert options[-2:] == ["--resume", str(run)]
    assert {"--json", "--cold", "--junit", "--jobs"} <= set(options)
    assert "--out" not in options
    assert lab("tell", 0, *command).json["resume"] == str(run)
    # After a second stop it prints the same.
    assert again(lab("SIGINT", -1, *command)) == command


def test_up_has_its_own_command(base: Path, lab: Lab) -> None:
    up = again(lab("SIGINT", 1, "up", "scenario", "./question.yaml"))
    assert up[:3] == ["up", "scenario", "./question.yaml"]
    assert lab("tell", 0, *up).json["resume"].endswith(up[-1])


@pytest.mark.parametrize("cells", [-1, 0])
def test_that_there_is_nothing_to_keep_is_told(base: Path, lab: Lab, cells: int) -> None:
    ended = lab("SIGINT", cells, "run", "scenario", "./question.yaml")
    assert ended.status == 130
    assert "no cell was finished: nothing is kept" in ended.stderr
    assert "--resume" not in ended.stderr
    ended = lab("SIGINT", 0, "up", "scenario", "./question.yaml", "--no-run")
    assert "no cell was finished: nothing is kept" in ended.stderr
    assert [p for p in paths.runs().glob("*") if p.is_dir()] == []  # it is so


def test_a_run_that_failed_before_its_first_cell_ended_is_evidence(base: Path, lab: Lab) -> None:
    ended = lab("mistake", 0, "run", "scenario", "./question.yaml")
    (run,) = paths.runs().iterdir()
    assert run.name in ended.stderr
    assert "nothing is kept" not in ended.stderr


def test_bad_input_says_nothing_of_what_is_kept(base: Path, lab: Lab) -> None:
    ended = lab("SIGINT", 1, "run", "scenario", "./question.yaml", "--set", "disks.sice=1")
    assert ended.status == 2
    assert "keep" not in ended.stderr
