"""A metric over all runs, in a directory with any other entries."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.capabilities.history.run import history_of
from lab.cli.commands import app
from lab.compile.scenario.identity import cell_id
from lab.core.errors import EXIT_DIFFERENT, InputError
from lab.host.system import paths
from lab.model.result.noise import NoiseFloor
from lab.results.documents import result_of
from lab.run import environment
from lab.store import runs as store
from lab.store.runs import RunStore
from tests.fakes import Cli, raw_of, stored_run
from tests.unit.test_bundles import bundle, other, sealed_cell
from tests.unit.test_reuse import ran


def kept(day: int, megabytes: float = 10.4, *, scenario: str = "raid5-parity-last") -> RunStore:
    """Return a run of that day with its result; its first cell has that speed."""
    made = stored_run(paths.runs() / "tmp")
    place = paths.runs() / f"{scenario}-202506{day:02}-120000"
    shutil.move(made.directory, place)
    (paths.runs() / "tmp").rmdir()
    run = RunStore(place)
    started = f"2025-06-{day:02}T12:00:00+00:00"
    stored = run.load_run().model_copy(
        update={"id": run.id, "started": started, "scenario": scenario}
    )
    run.save_run(stored)
    for name, text in raw_of(stored.cells[0].cell, megabytes).items():
        (place / "cells" / stored.cells[0].id / "raw" / name).write_text(text)
    run.save_result(result_of(run))
    return run


def test_runs_stand_in_order_with_what_changed(lab_home: Path) -> None:
    for day, figure in ((3, 11.9), (1, 10.4), (2, 10.42)):
        kept(day, figure)
    found = history_of("throughput", None)
    assert found.broken == ()
    first = result_of(RunStore(paths.runs() / "raid5-parity-last-20250601-120000")).cells[0].id
    line = [p for p in found.points if (p.cell, p.workload) == (first, "write")]
    assert [p.started[8:10] for p in line] == ["01", "02", "03"]
    assert [round(p.median / 1e6, 2) for p in line] == [10.4, 10.42, 11.9]
    assert line[0].axes == {"array.layout": "parity-last", "disks.count": 5}
    assert len(found.points) == 3 * 2 * 3
    assert found.changes == ()  # one run may be an outlier
    kept(4, 11.9)
    changes = history_of("throughput", None).changes
    assert {c.cell for c in changes} == {first}  # the other finished cell has equal values
    assert {c.run[-15:] for c in changes} == {"20250603-120000"}
    [change] = [c for c in changes if c.workload == "write"]
    assert change.change == pytest.approx(11.9 / 10.41 - 1, rel=1e-3)
    assert change.runs == (2, 2)


def test_branches_are_compared_where_they_are_named(
    cli: Cli, lab_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day, branch in enumerate(("main", "main", "main", "faster", "faster"), 1):
        run = kept(day, 10.4 if branch == "main" else 12.0)
        stored = run.load_run()
        run.save_run(
            stored.model_copy(update={"environment": {**stored.environment, "branch": branch}})
        )
        run.save_result(result_of(run))
    found = history_of("throughput", None, "faster")
    assert found.changes == ()
    assert {d.workload: d.differs for d in found.differences if d.change} == {
        "write": True,
        "read": True,
        "write_stripe": True,
    }
    with pytest.raises(InputError, match=r"no run has the branch 'fast' \(there are: faster, main"):
        history_of("throughput", None, "fast")
    shown = cli("results", "history", "throughput", "--branch", "faster")
    assert shown.status == 0
    assert "main → faster" in shown.stdout
    assert "differs" in shown.stdout
    assert "no difference shown" in shown.stdout


@pytest.mark.parametrize(
    ("given", "branch"),
    [
        ({}, None),
        ({"LAB_BRANCH": "mine", "GITHUB_REF_NAME": "main"}, "mine"),
        ({"GITHUB_HEAD_REF": "", "GITHUB_REF_NAME": "main"}, "main"),
        ({"GITHUB_HEAD_REF": "fix", "GITHUB_REF_NAME": "7/merge"}, "fix"),
        ({"CI_COMMIT_REF_NAME": "next"}, "next"),
    ],
)
def test_a_run_knows_its_branch_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], branch: str | None
) -> None:
    for names in environment._SOURCES.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert environment.source_facts().get("branch") == branch


def test_only_one_scenarios_runs_are_shown_where_it_is_named(lab_home: Path) -> None:
    kept(1)
    kept(2, scenario="other")
    assert {p.scenario for p in history_of("throughput", None).points} == {
        "raid5-parity-last",
        "other",
    }
    assert {p.scenario for p in history_of("throughput", "other").points} == {"other"}
    with pytest.raises(InputError, match=r"no run of 'othr' \(there are runs of: other, raid5"):
        history_of("throughput", "othr")
    with pytest.raises(InputError, match="did you mean 'throughput'"):
        history_of("throughputs", None)


def test_without_runs_there_is_no_history(lab_home: Path) -> None:
    assert history_of("throughput", None).points == ()
    assert not lab_home.exists()


CUT = [b"", b'{"schema": "lab.result/1", "run": {"id"', b"\xff\xfe{}", b"[]", b'{"schema": "x/1"}']


@pytest.mark.parametrize("text", CUT)
def test_a_result_that_nobody_can_read_is_named_and_made_again(lab_home: Path, text: bytes) -> None:
    kept(1)
    broken = kept(2, 11.9)
    (broken.directory / "result.json").write_bytes(text)
    found = history_of("throughput", None)
    assert [str(broken.directory / "result.json") in s for s in found.broken] == [True]
    assert "made again from the raw output" in found.broken[0]
    assert {p.run for p in found.points} == {
        "raid5-parity-last-20250601-120000",
        "raid5-parity-last-20250602-120000",
    }


def test_a_run_that_stopped_early_counts_and_a_lost_one_is_named(lab_home: Path) -> None:
    kept(1)
    stopped = kept(2)
    (stopped.directory / "result.json").unlink()
    lost = kept(3)
    for name in ("result.json", "run.json"):
        (lost.directory / name).write_text("{")
    found = history_of("throughput", None)
    assert len({p.run for p in found.points}) == 2
    assert [f"{lost.id}/run.json" in s for s in found.broken] == [True]


def test_results_from_before_intervals_are_compared_too(lab_home: Path) -> None:
    for day in (1, 2, 3, 4):
        path = kept(day, 10.0 + day // 3).directory / "result.json"
        data = json.loads(path.read_text())
        for cell in data["cells"]:
            for measurement in cell["measurements"]:
                del measurement["low"], measurement["high"]
        path.write_text(json.dumps(data))
    found = history_of("throughput", None)
    assert [c.change for c in found.changes] == pytest.approx([0.1] * 3, rel=1e-3)


def test_a_noisy_hosts_history_calls_less_a_change(lab_home: Path) -> None:
    for day, figure in ((1, 10.4), (2, 10.4), (3, 11.0), (4, 11.0)):
        kept(day, figure)
    assert history_of("throughput", None).changes
    floor = NoiseFloor(disks="throttle", metric="throughput", deviation=0.05, freedom=20, runs=3)
    for run in store.every():
        run.save_run(run.load_run().model_copy(update={"noise": (floor,)}))
    noisy = history_of("throughput", None)
    assert (noisy.changes, noisy.too_short) == ((), 0)


def test_the_command_line_compares_and_exports(cli: Cli, lab_home: Path) -> None:
    first, second = kept(1), kept(2, 8.0)
    shown = cli("results", "compare", first.id, second.id)
    assert shown.status == 0
    assert "less" in shown.stdout
    assert "S004-1: holds → refuted" in shown.stdout
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    data = cli("results", "compare", first.id, second.id, "--json", "--least", "0.02").json
    assert (data["schema"], data["least"]) == ("lab.comparison/1", 0.02)
    wrong = cli("results", "compare", first.id, second.id, "--least", "2")
    assert (wrong.status, "--least: '2'" in wrong.stderr) == (2, True)
    floors = cli("results", "noise", first.id, "--json").json
    assert floors["runs"] == 2
    assert {f["metric"] for f in floors["floors"]} == {"throughput", "seconds"}
    assert "repetitions in 2 runs" in cli("results", "noise").stdout
    written = cli("results", "export", "--format", "csv", "--out", "a.csv", "--json")
    assert written.json == {"format": "csv", "files": ["a.csv", "a.csv.datapackage.json"]}
    assert (cli.base / "a.csv").read_text().count("\n") == 14
    wrong = cli("results", "export", "--format", "xls", "--out", "b.xls")
    assert (wrong.status, "csv, parquet, fio, junit" in wrong.stderr) == (2, True)


def test_of_two_bundles_the_first_byte_that_differs_is_named(
    lab_home: Path, tmp_path: Path
) -> None:
    cell = sealed_cell(tmp_path)
    mine = ran(cell)
    theirs = other(mine, tmp_path / "o")
    raw = sorted((theirs.cell_directory(cell_id(cell)) / "raw").iterdir())[0]
    raw.write_text(raw.read_text() + "x")
    files = [str(bundle(r, tmp_path / n)) for r, n in ((mine, "1"), (theirs, "2"))]
    done = CliRunner().invoke(app, ["results", "compare", *files, "--json"])
    assert done.exit_code == EXIT_DIFFERENT
    said = json.loads(done.stdout)["agreement"]
    assert (said["agree"], said["cells"][0]["difference"]["file"]) == (False, f"raw/{raw.name}")
    shown = CliRunner().invoke(app, ["results", "compare", *files]).stdout
    assert f"raw/{raw.name}" in shown
    assert CliRunner().invoke(app, ["results", "compare", files[0], files[0]]).exit_code == 0
