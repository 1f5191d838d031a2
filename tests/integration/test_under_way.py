"""A run with a live maker is running on every display; without one it has stopped."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.capabilities.history.run import history_of
from lab.capabilities.matrix.record import MATRIX_RUNS
from lab.capabilities.site.run import write_site
from lab.core.errors import InputError
from lab.host.system import makers, paths
from lab.model.result.document import UNDER_WAY, Outcome, RunState
from lab.model.scenario.claim import Verdict
from lab.report.content.reliability import caveats, steps
from lab.report.html.page import run_page
from lab.results.compare import comparison_of
from lab.results.documents import result_of
from lab.results.judged import summary
from lab.results.junit import junit_of
from lab.results.noise_floors import noise_here
from lab.results.report import page_of
from lab.store.runs import RunStore
from tests.fakes import Cli, stored_run

HOLD = """
import sys, time
from pathlib import Path
from lab.host.system import makers
with makers.hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def maker() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Start a process that writes a directory, until it is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(directory: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run(lab_home: Path) -> RunStore:
    """A run with one finished cell of three."""
    store = stored_run(paths.runs(), finished=False)
    for stored in store.load_run().cells[1:]:
        shutil.rmtree(store.cell_directory(stored.id))
    return store


def test_a_directory_has_a_maker_for_as_long_as_the_process_lives(
    tmp_path: Path, maker: Callable[[Path], subprocess.Popen[str]]
) -> None:
    assert makers.holder(tmp_path) is None
    process = maker(tmp_path)
    found = makers.holder(tmp_path)
    assert found is not None
    assert (found.pid, found.boot) == (process.pid, makers.boot_id())
    assert makers.holder(tmp_path) == found  # a check does not disturb the holder
    process.kill()
    process.wait()
    assert makers.holder(tmp_path) is None
    with makers.hold(tmp_path):
        assert makers.holder(tmp_path) is not None
    assert makers.holder(tmp_path) is None


def test_a_copy_has_no_maker(
    tmp_path: Path, maker: Callable[[Path], subprocess.Popen[str]]
) -> None:
    (tmp_path / "run").mkdir()
    maker(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert makers.holder(tmp_path / "run") is not None
    assert (tmp_path / "copy" / makers.NAME).read_bytes()
    assert makers.holder(tmp_path / "copy") is None


@pytest.mark.parametrize("fact", ["host", "boot"])
def test_a_maker_on_another_host_is_none_of_ours(
    tmp_path: Path, maker: Callable[[Path], subprocess.Popen[str]], fact: str
) -> None:
    """As on a shared file system, which passes locks on."""
    maker(tmp_path)
    path = tmp_path / makers.NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), fact: "elsewhere"}))
    assert makers.holder(tmp_path) is None
    path.write_text("{")  # its maker is writing it
    assert makers.holder(tmp_path) is not None


def test_only_one_process_makes_a_run(
    tmp_path: Path, maker: Callable[[Path], subprocess.Popen[str]]
) -> None:
    process = maker(tmp_path)
    with (
        pytest.raises(
            InputError,
            match=rf"'{tmp_path.name}' is still running: process {process.pid} on .* writes it",
        ),
        makers.hold(tmp_path),
    ):
        pass
    process.kill()
    process.wait()
    with makers.hold(tmp_path):
        pass


def test_whoever_looks_does_not_keep_a_maker_out(tmp_path: Path) -> None:
    """A check holds the lock for a moment: a resumed run retries instead of giving up."""
    (tmp_path / makers.NAME).touch()
    looking = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys, time\n"
            "file = open(sys.argv[1])\n"
            "fcntl.flock(file, fcntl.LOCK_SH)\n"
            "print('looking', flush=True)\n"
            "time.sleep(0.3)\n",
            str(tmp_path / makers.NAME),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert looking.stdout is not None
    assert looking.stdout.readline() == "looking\n"
    with makers.hold(tmp_path):
        pass
    looking.communicate()


def test_a_run_is_running_stopped_and_running_again(
    run: RunStore, maker: Callable[[Path], subprocess.Popen[str]]
) -> None:
    assert result_of(run).run.state is RunState.STOPPED
    process = maker(run.directory)
    assert result_of(run).run.state is RunState.RUNNING
    process.kill()
    process.wait()
    assert summary(run)["state"] == "stopped"
    maker(run.directory)
    assert summary(run)["state"] == "running"
    run.save_run(run.load_run().model_copy(update={"finished": "2025-06-10T12:02:00+00:00"}))
    assert summary(run)["state"] == "finished"


def test_claims_wait_for_cells_that_are_to_come(run: RunStore) -> None:
    with run.hold():
        result = result_of(run)
    assert [c.outcome for c in result.cells] == [Outcome.DONE, Outcome.SKIPPED, Outcome.SKIPPED]
    assert [c.reason for c in result.cells[1:]] == [UNDER_WAY] * 2
    verdicts = {c.id: c.verdict for c in result.claims}
    assert verdicts["S004-1"] is Verdict.HOLDS  # its cell exists
    waiting = [c for c in result.claims if c.verdict is Verdict.NOT_TESTED]
    assert waiting
    assert {c.reason for c in waiting} == {UNDER_WAY}
    sentences = [*caveats(result)]
    n = len(waiting)
    assert sentences[0] == (
        f"The run is still under way: 1 of 3 cells so far, and {n} of {len(result.claims)} claims"
        " wait for others."
    )
    assert "did not finish" not in " ".join(sentences)
    assert "is not decided yet" in result.answer.sentences[1]
    assert not any(
        "--resume" in line for line, _ in steps(result, lab="lab", scenario="s", run="r")
    )
    stopped = result_of(run)
    assert not any(c.verdict is Verdict.NOT_TESTED for c in stopped.claims)
    assert any("--resume" in line for line, _ in steps(stopped, lab="lab", scenario="s", run="r"))


def test_a_running_run_is_listed_shown_and_reported_as_such(run: RunStore, cli: Cli) -> None:
    assert cli.home == paths.runs().parents[1]
    with run.hold():
        (row,) = cli("results", "list", "--json").json["runs"]
        assert (row["state"], row["cells"], row["ended"]) == ("running", 3, 1)
        listed = cli("results", "list").stdout
        assert re.search(r"1 of\s+3", listed)
        assert "running" in listed
        document = cli("results", "show", "--json").json
        assert document["run"]["state"] == "running"
        shown = cli("results", "show").stdout
        assert "still under way: 1 of 3 cells so far" in shown
        assert "to come" in shown
        assert "did not finish" not in shown
        page = run_page(page_of(run))
        assert "<strong>running</strong>" in page
        assert "did not finish" not in page
        assert UNDER_WAY in junit_of(run)
        index = write_site([run], run.directory / "site", "lab", print).read_text()
        assert '<td>running</td><td class="number">1 of 3</td>' in index
    assert "<strong>stopped</strong>" in run_page(page_of(run))
    assert cli("results", "list", "--json").json["runs"][0]["state"] == "stopped"


def test_what_is_to_come_is_left_out_of_comparisons(run: RunStore, lab_home: Path) -> None:
    whole = stored_run(lab_home / "other")
    with run.hold():
        for pair in ((run, whole), (whole, run)):
            found = comparison_of(*pair, 0.05)
            assert [cell.first for cell in found.cells] == [whole.load_run().cells[0].id]
            assert (found.only_first, found.only_second) == ((), ())
            assert found.claims == ()
        points = history_of("throughput", None).points
        assert {point.cell for point in points} == {whole.load_run().cells[0].id}
        assert noise_here(run.load_run().environment)[1] == 0
    assert len(comparison_of(run, whole, 0.05).cells) == 3


def test_a_run_that_goes_on_has_no_result_from_before(run: RunStore) -> None:
    run.save_run(run.load_run().model_copy(update={"finished": "2025-06-10T12:02:00+00:00"}))
    run.save_result(result_of(run))
    with run.hold():
        run.go_on()
        assert run.load_result() is None
        assert summary(run)["state"] == "running"


def test_a_matrix_run_that_is_under_way_is_not_resumed(
    cli: Cli, lab_home: Path, maker: Callable[[Path], subprocess.Popen[str]]
) -> None:
    cli.file("title: T\nimages: [debian-12]\nscenarios: [{name: raid5-parity-last}]\n", "m.yaml")
    plan = cli("run", "matrix", "./m.yaml", "--plan", "--json")
    assert plan.status == 0, plan.stderr
    directory = MATRIX_RUNS.create("m", {"matrix.yaml": ""})
    (directory / "night.json").write_text(plan.stdout)
    maker(directory)
    refused = cli("run", "matrix", "./m.yaml", "--resume", directory.name)
    assert refused.status == 2
    assert f"'{directory.name}' is still running" in refused.stderr


def test_a_run_that_is_under_way_is_not_resumed(
    run: RunStore, cli: Cli, maker: Callable[[Path], subprocess.Popen[str]]
) -> None:
    maker(run.directory)
    refused = cli("run", "scenario", "raid5-parity-last", "--resume", run.id)
    assert refused.status == 2
    assert f"'{run.id}' is still running: process " in refused.stderr
    assert "Resume with" not in refused.stderr
