"""A contended workload's values are doubtful; its cell's other workloads keep theirs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.analysis.judge import JudgedCell, judge
from lab.analysis.noise import Repetition
from lab.host.system import load, paths
from lab.model.execution.events import CellFinished
from lab.model.execution.procedure import Procedure
from lab.model.result.document import CellResult, Outcome, Result
from lab.model.result.measurement import UNCONTENDED, Check
from lab.model.scenario.claim import Claim, Verdict
from lab.results.compare import comparison_of
from lab.results.documents import result_of
from lab.results.noise_floors import noise_of
from lab.results.trend import _sightings
from lab.run.options import RunOptions
from lab.run.scheduling.decide import REPEATS, decide
from lab.run.scheduling.executor import Execution
from lab.run.task import Task, task_of
from lab.store.runs import RunStore
from tests.fakes import compiled_text, raw_of, stored_run

QUIET, BUSY = 0.05, 0.61
CONTENDED = "the guest waited for a processor for 61.0% of write, trial 1"


def pressure(run: RunStore, waits: dict[str, float]) -> None:
    """Store the guest's waiting time in each workload of the finished cells."""
    for place in (run.directory / "cells").iterdir():
        for workload, wait in waits.items():
            text = f"cpu=1.0\nwait={wait * 10}\nseconds=10.0\n"
            (place / "raw" / f"{workload}.1.pressure.txt").write_text(text)


def with_checks(run: RunStore, *checks: Check) -> None:
    """Set the checks of every finished cell."""
    for path in (run.directory / "cells").glob("*/outcome.json"):
        outcome = json.loads(path.read_text())
        outcome["checks"] = [check.model_dump(mode="json") for check in checks]
        path.write_text(json.dumps(outcome))


def failed(workload: str | None) -> Check:
    return Check(name=UNCONTENDED, passed=False, detail=CONTENDED, workload=workload)


def made(name: str, checks: tuple[Check, ...] = (), megabytes: float | None = None) -> RunStore:
    """Return a stored run with its result; its first cell has that speed."""
    run = stored_run(paths.runs() / name)
    target = paths.runs() / f"raid5-parity-last-202506{name}-120000"
    run.directory.rename(target)
    (paths.runs() / name).rmdir()
    run = RunStore(target)
    started = f"2025-06-{name}T12:00:00+00:00"
    stored = run.load_run().model_copy(update={"id": run.id, "started": started})
    run.save_run(stored)
    if megabytes:
        raw = target / "cells" / stored.cells[0].id / "raw"
        for file, text in raw_of(stored.cells[0].cell, megabytes).items():
            (raw / file).write_text(text)
    with_checks(run, *checks)
    run.save_result(result_of(run))
    return run


# -- verdicts


def claims_of(workload: str) -> Claim:
    value = {"workload": workload, "where": {"disks.count": 5, "array.layout": "parity-last"}}
    expect = {"kind": "bound", "value": value, "at_least": 1}
    return Claim.model_validate({"id": workload, "says": "s", "expect": expect})


def verdicts(run: RunStore) -> dict[str, Verdict]:
    """Return the verdict of a claim about each workload of the first cell."""
    stored = run.load_run()
    claims = tuple(claims_of(w.name) for w in stored.cells[0].cell.workloads)
    run.save_run(stored.model_copy(update={"claims": claims}))
    return {claim.id: claim.verdict for claim in result_of(run).claims}


def test_only_claims_about_the_contended_workload_are_inconclusive(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    with_checks(run, failed("write_stripe"))
    found = verdicts(run)
    assert found.pop("write_stripe") is Verdict.INCONCLUSIVE
    assert found == {"write": Verdict.HOLDS, "read": Verdict.HOLDS}


def test_a_check_without_a_workload_is_about_the_whole_cell(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    with_checks(run, failed(None))
    assert set(verdicts(run).values()) == {Verdict.INCONCLUSIVE}


def test_the_reason_names_the_workload() -> None:
    cell = CellResult(id="c1", axes={}, outcome=Outcome.DONE, checks=(failed("write"),))
    judged = JudgedCell(result=cell, fields={}, published=True)
    value = {"workload": "write"}
    claim = Claim.model_validate(
        {"id": "a", "says": "s", "expect": {"kind": "bound", "value": value, "at_least": 1}}
    )
    (found,) = judge([claim], [judged])
    assert found.reason == f"'write' in the cell c1 was contended: {CONTENDED}"


def test_a_run_of_an_earlier_version_is_judged_by_workload_from_its_raw_output(
    tmp_path: Path,
) -> None:
    run = stored_run(tmp_path)
    with_checks(run, failed(None))  # as earlier versions stored it: for the whole cell
    pressure(run, {"write": BUSY, "read": QUIET, "write_stripe": QUIET})
    found = verdicts(run)
    assert found.pop("write") is Verdict.INCONCLUSIVE
    assert set(found.values()) == {Verdict.HOLDS}


def test_an_old_check_stays_where_the_raw_output_does_not_bear_it_out(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    with_checks(run, failed(None))
    pressure(run, dict.fromkeys(("write", "read", "write_stripe"), QUIET))
    assert set(verdicts(run).values()) == {Verdict.INCONCLUSIVE}


def test_a_cell_that_was_quiet_stays_so(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    with_checks(run, Check(name=UNCONTENDED, passed=True, detail="as it was kept then"))
    pressure(run, {"write": BUSY})
    assert set(verdicts(run).values()) == {Verdict.HOLDS}


# -- several runs


def test_a_comparison_leaves_contended_values_out_and_says_so(lab_home: Path) -> None:
    first, second = made("01"), made("02", (failed("write"),), 20.0)
    found = comparison_of(first, second, 0.05)
    cell = found.cells[0]
    assert {f.workload for f in cell.figures} == {"read", "write_stripe"}
    assert f"'write' was contended in the second run and is left out: {CONTENDED}" in cell.doubts
    whole = comparison_of(first, made("03", (failed(None),)), 0.05).cells[0]
    assert whole.figures == ()
    assert f"it was contended in the second run and is left out: {CONTENDED}" in whole.doubts


def test_noise_and_regressions_take_the_quiet_workloads_of_a_contended_cell(
    lab_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Repetition] = []
    monkeypatch.setattr("lab.results.noise_floors.floors", lambda found: seen.extend(found) or ())
    run = made("01", (failed("write"),))
    noise_of({"accelerator": "tcg", "lab": "0.1.0"})
    assert {one.what[2] for one in seen} == {"read", "write_stripe"}
    facts = {"guest": {"kernel": "6.1.0", "mdadm": "mdadm - v4.2"}}
    result = cast("Result", run.load_result())
    run.save_result(result.model_copy(update={"environment": facts}))
    spoken = {one.figure.workload for one in _sightings(run)}
    assert spoken
    assert "write" not in spoken


# -- repeats


TWO_STEPS = """\
title: Two workloads
question: Which attempt is kept?
disks: {count: 3, size: 1GiB}
array: {level: 5, component_size: 64MiB}
workloads:
  - {name: write, tool: dd, of: '{target}', bs: 1MiB, count: 8}
  - {name: read, tool: dd, if: '{target}', bs: 1MiB, count: 8}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Execution:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(load, "throughput", lambda: 1e15)
    store = RunStore(tmp_path / "run")
    (store.directory / "cells").mkdir(parents=True)
    return Execution(
        store=store,
        compiled=compiled_text(tmp_path, TWO_STEPS),
        platforms={},
        watch=lambda *_: None,
        say=lambda _: None,
        options=RunOptions(jobs=1),
    )


def attempt(run: Execution, task: Task, waits: dict[str, float], *, lost: bool = False) -> Path:
    """Add an attempt at the cell with these waits; return its directory."""
    task.directory = run.store.begin_cell(task.id, task.cell, Procedure(name="q", steps=()))
    (task.directory / "raw").mkdir()
    for workload, wait in waits.items():
        text = f"cpu=1.0\nwait={wait * 10}\nseconds=10.0\n"
        (task.directory / "raw" / f"{workload}.1.pressure.txt").write_text(text)
    worker = cast("Any", SimpleNamespace(id="g1", reserved=False, unread=False))
    outcome = Outcome.LOST if lost else Outcome.DONE
    directory = task.directory
    ended = CellFinished(cell=task.id, outcome=outcome, reason="it is gone")
    run._attempt_ended(worker, task, ended)
    for action in decide(run._state()):
        run._do(action)
    run._waiting.clear()
    return directory


BOTH, WRITE, READ = {"write": BUSY, "read": BUSY}, {"write": BUSY}, {"read": BUSY}
NONE: dict[str, float] = {"write": QUIET}


@pytest.mark.parametrize(
    ("waits", "kept"),
    [
        ((BOTH, WRITE, BOTH, BOTH), 1),
        ((WRITE, READ, WRITE, BOTH), 2),  # of several equal ones the latest, which ran alone
        ((BOTH, BOTH, BOTH, WRITE), 3),
        ((BOTH, WRITE, NONE), 2),
        ((WRITE, BOTH, BOTH, BOTH), 0),
    ],
)
def test_the_attempt_with_the_fewest_contended_workloads_is_kept(
    run: Execution, waits: tuple[dict[str, float], ...], kept: int
) -> None:
    assert len(waits) <= REPEATS + 1
    task = task_of(run.compiled.base)
    for one in waits:
        assert not run.store.has_cell(task.id)
        attempt(run, task, one)
    cell = run.store.load_cell(task.id)
    assert cell is not None
    found = {c.workload for c in cell.outcome.checks if c.name == UNCONTENDED and not c.passed}
    assert found == {w for w, wait in waits[kept].items() if wait == BUSY}
    others = run.store.attempts(task.id)
    assert [run.store.load_attempt(d).outcome for d in others] == [Outcome.DONE] * len(others)
    assert len(others) == len(waits) - 1


def test_an_attempt_that_was_lost_is_not_among_those_that_are_compared(run: Execution) -> None:
    task = task_of(run.compiled.base)
    attempt(run, task, {}, lost=True)
    attempt(run, task, WRITE)
    attempt(run, task, NONE)
    cell = run.store.load_cell(task.id)
    assert cell is not None
    assert cell.outcome.outcome is Outcome.DONE
    assert all(check.passed for check in cell.outcome.checks)
