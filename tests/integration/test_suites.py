"""Suites as workloads: their output becomes verdicts, also if it is cut off."""

from __future__ import annotations

import io
import json
import shlex
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lab.analysis.measure import contention
from lab.capabilities.history.page import comparison_page
from lab.capabilities.matrix.logic.entries import Expected
from lab.capabilities.matrix.logic.known_failures import endings
from lab.capabilities.matrix.model import Ending, JobRecord
from lab.compile.cell.procedure import cell_procedure, target_of
from lab.compile.scenario.compiler import Compiled
from lab.compile.scenario.identity import cell_id, identity
from lab.core.errors import InputError, ToolError
from lab.host.guest.ssh import directories
from lab.model.execution.procedure import GuestCommand, Procedure, SendDirectory, Timed
from lab.model.result.comparison import Comparison
from lab.model.result.document import ClaimResult, Outcome
from lab.model.scenario.claim import Verdict
from lab.model.scenario.outputs import Outputs
from lab.model.scenario.suite import LEFT_OUT, Suite, SuiteParameters
from lab.plugins import catalog
from lab.plugins.workloads._suites import LONGEST_REASON
from lab.report.content import tables
from lab.report.content.tables import figures_table
from lab.report.html.page import charts_of, run_page
from lab.results.compare import comparison_of
from lab.results.documents import result_of
from lab.results.junit import junit_of
from lab.results.report import page_of
from lab.run import execute
from lab.run.preparation.suites import check_suites, wanting
from lab.run.steps import Undo, run_procedure
from lab.store.runs import RunStore, StoredCell, StoredOutcome, StoredRun
from tests.fakes import PLUGIN, Cli, FakeBench, compiled_text
from tests.suites import blktests_suite, mdadm_suite

pytest_plugins = ["pytester"]

MDADM = {
    "00good": "echo fine",
    "00good.broken": "always",
    "01bad": "echo about to\necho -e '\\n\\tERROR: active raid5 not found \\n'\nexit 2",
    "01worse": "false",
    "02skips": "echo -e '\\n\\tSKIPPING, REASON: no such kernel \\n'\nexit 3",
    "02lacks": "echo -ne 'skipping... '\nexit 0",
    "03after": "echo fine",
}
BLKTESTS = {
    "001": "test_it() { echo good; }",
    "002": "test_it() { echo good; echo 'mdadm: no'; }",
    "003": "requires() { SKIP='driver brd is not available'; }",
    "004": "test_it() { return 1; }",
}
GOLDEN = Path(__file__).parent.parent / "golden" / "workloads"
CUT_OFF = "the suite's output is cut off"
KNOWN = "(known to the suite as broken: known for the record, always fails)"
SUITE = "/var/lib/lab/suites/7e67d355"
SCENARIO = """\
title: A suite
question: Does it pass?
guest: {image: debian-12, cpus: 1, memory: 512MiB}
disks: {count: 1, size: 1GiB, model: none}
array: none
workloads:
  - {name: suite, tool: mdadm_tests, tests: ['*'], directory: DIRECTORY}
"""


@dataclass(frozen=True)
class Ran:
    """Output of the guest's program in a run on this host."""

    tool: str
    parameters: SuiteParameters
    listed: str
    outputs: Outputs
    status: int

    def claims(self) -> dict[str, tuple[str, str]]:
        suite: Any = catalog.workload(self.tool)
        found = suite.endings(self.parameters, self.listed, self.outputs)
        return {test.name: (test.ending, test.reason) for test in found}

    def metrics(self) -> dict[str, float]:
        return catalog.workload(self.tool).parse(self.parameters, self.outputs)

    def cut(self, words: str) -> Ran:
        """Cut the output after these words, as when a guest dies."""
        assert words in self.outputs.stdout
        end = self.outputs.stdout.index(words) + len(words)
        outputs = Outputs(stdout=self.outputs.stdout[:end], stderr="", files={})
        return Ran(self.tool, self.parameters, self.listed, outputs, 1)


def here(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a script that calls the guest's program, on a directory of this host."""
    words = shlex.split(script[script.index("python3 -c ") :])
    given = {**json.loads(words[3]), "directory": str(directory)}
    return subprocess.run(
        [sys.executable, "-c", words[2], json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run(tool: str, directory: Path, **parameters: Any) -> Ran:
    workload = catalog.workload(tool)
    assert isinstance(workload, Suite)
    p = workload.parameters.model_validate({"directory": str(directory), **parameters})
    assert isinstance(p, SuiteParameters)
    listed = here(workload.listing(p), directory)
    if tool == "blktests":
        (directory / "lab-config").write_text("TEST_DEVS=()\n")
    done = here(workload.script(p, "/dev/disk1"), directory)
    outputs = Outputs(stdout=done.stdout, stderr=done.stderr, files={})
    return Ran(tool, p, listed.stdout, outputs, done.returncode)


@pytest.fixture(scope="module")
def mdadm(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run("mdadm_tests", mdadm_suite(tmp_path_factory.mktemp("m") / "s", MDADM), tests=["*"])


@pytest.fixture(scope="module")
def blktests(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run("blktests", blktests_suite(tmp_path_factory.mktemp("b") / "s", BLKTESTS))


def test_mdadms_words_become_endings_with_the_line_that_says_why(mdadm: Ran) -> None:
    assert mdadm.status == 0
    assert mdadm.claims() == {
        "00good": ("passed", ""),
        "01bad": ("failed", "active raid5 not found"),
        "01worse": ("failed", "it ended at: false"),
        "02lacks": ("skipped", "its log says that it was skipped, without a reason"),
        "02skips": ("skipped", "no such kernel"),
        "03after": ("passed", ""),
    }
    assert mdadm.metrics() == {"passed": 2, "failed": 2, "skipped": 2, "unfinished": 0}


def test_blktests_words_become_endings_with_the_line_that_says_why(blktests: Ran) -> None:
    assert blktests.claims() == {
        "md/001": ("passed", ""),
        "md/002": ("failed", "its output differs: +mdadm: no"),
        "md/003": ("skipped", "driver brd is not available"),
        "md/004": ("failed", "exited with status 1"),
    }


def recorded(tool: str, case: str) -> dict[str, tuple[str, str]]:
    """Return a suite's output from a guest, without the shell's trace of its own code in the
    logs."""
    folder = GOLDEN / tool / case
    given = json.loads((folder / "expected.json").read_text())["parameters"]
    suite: Any = catalog.workload(tool)
    outputs = Outputs(stdout=(folder / "stdout").read_text(), stderr="", files={})
    found = suite.endings(suite.parameters.model_validate(given), "", outputs)
    return {test.name: (test.ending, test.reason) for test in found}


def test_what_mdadms_suite_printed_in_a_guest() -> None:
    """Its own tests, and four added ones: 98…, one of which hung and one killed the suite."""
    assert recorded("mdadm_tests", "mdadm-4.2") == {
        "00linear": ("passed", ""),
        "00raid1": ("passed", ""),
        "00raid5": ("passed", ""),
        "06name": ("passed", ""),
        "98fails": ("failed", "active raid5 not found"),
        "98hangs": ("unfinished", "it did not end within 40 seconds and was ended"),
        "98kills": ("unfinished", "while it ran, the suite was killed by signal 9"),
        "98skips": ("skipped", "its log says that it was skipped, without a reason"),
        "00multipath": ("failed", "dmesg prints errors when testing 00multipath!"),
    }
    cut = recorded("mdadm_tests", "cut-off")
    assert [name for name, (ending, _) in cut.items() if ending == "passed"] == [
        *("00linear", "00raid1", "00raid5", "06name")
    ]
    assert cut["98kills"] == ("not_run", f"{CUT_OFF} before it: {SUITE}/tests/98kill")


def test_what_a_newer_suite_printed_which_has_colours_and_known_failures() -> None:
    condition = "'[' '' '!=' yes ']'"
    assert recorded("mdadm_tests", "mdadm-4.4") == {
        "00linear": ("skipped", f"it skips itself or its rest, since {condition}"),
        "06name": ("passed", ""),
        "98fails": ("failed", f"active raid5 not found {KNOWN}"),
        "07testreshape5": ("skipped", "test_stripes binary has not been compiled, skipping"),
    }


def test_what_blktests_printed_in_a_guest() -> None:
    assert recorded("blktests", "md") == {
        "md/001": ("skipped", "command nvme is not available"),
        "md/101": ("skipped", "TEST_CASE_DEV_ARRAY is not defined for md/101"),
        "md/102": ("passed", ""),
        "md/103": ("failed", "its output differs: +mdadm: invalid raid level: 7"),
        "md/104": ("failed", "exited with status 3"),
        "md/105": (
            "failed",
            "something found in dmesg: [ 49.276507] WARNING: CPU: 0 PID: 1 at drivers/md/md.c:1",
        ),
        "md/106": ("unfinished", "it did not end within 15 seconds and was ended"),
        "md/107": ("passed", ""),
    }
    cut = recorded("blktests", "cut-off")
    assert [cut[f"md/{number}"][0] for number in ("001", "101", "102", "103")] == [
        *("skipped", "skipped", "unfinished", "not_run")
    ]  # 102 passed on three disks, and began on a fourth


def test_a_test_known_to_be_broken_says_so(mdadm: Ran) -> None:
    text = mdadm.outputs.stdout.replace(
        "fail01worse.log for details\n",
        "fail01worse.log for details\n\n  (KNOWN BROKEN TEST: always fails)\n",
    )
    known = Ran(mdadm.tool, mdadm.parameters, "", Outputs(stdout=text, stderr="", files={}), 0)
    reason = "it ended at: false (known to the suite as broken: always fails)"
    assert known.claims()["01worse"] == ("failed", reason)


@pytest.mark.parametrize("words", ["00good... ", "\nsucc", "01bad... ", "1bad.log"])
def test_output_that_is_cut_off_never_lets_a_test_hold_that_did_not_end(
    mdadm: Ran, words: str
) -> None:
    cut = mdadm.cut(words)
    with pytest.raises(ToolError, match="did not finish"):
        cut.metrics()
    found = cut.claims()
    assert set(found) == set(mdadm.claims())  # from the list before the first test
    held = {name for name, (ending, _) in found.items() if ending == "passed"}
    assert held == ({"00good"} if "succeeded" in cut.outputs.stdout else set())
    assert found["03after"][0] == "not_run"
    assert "cut off before it" in found["03after"][1]


def test_what_a_suite_says_in_the_labs_name_is_taken_for_its_own(mdadm: Ran) -> None:
    forged = (
        '--lab-- {"tests": 5}\n--lab-- {"log": "00good", "text": 1}\n--lab-- []\n--lab-- {"x": 1}\n'
    )
    outputs = Outputs(stdout=forged + mdadm.outputs.stdout, stderr="", files={})
    assert Ran(mdadm.tool, mdadm.parameters, "", outputs, 0).claims() == mdadm.claims()


def test_a_reason_is_a_line_that_can_be_shown(mdadm: Ran) -> None:
    stdout = mdadm.outputs.stdout.replace(
        "active raid5 not found", "\\u001b[0;31mno\\u0000" + "x" * 999
    )
    outputs = Outputs(stdout=stdout, stderr="", files={})
    reason = Ran(mdadm.tool, mdadm.parameters, "", outputs, 0).claims()["01bad"][1]
    assert reason.startswith("no xx")
    assert len(reason) == LONGEST_REASON


def test_without_a_list_nothing_is_said(mdadm: Ran) -> None:
    silent = Ran(mdadm.tool, mdadm.parameters, "", Outputs(stdout="", stderr="", files={}), 1)
    assert silent.claims() == {}


def test_a_test_that_hangs_is_ended_and_the_next_ones_come(tmp_path: Path) -> None:
    tests = {"00good": ":", "01hangs": "sleep 100", "02after": ":"}
    found = run("mdadm_tests", mdadm_suite(tmp_path / "s", tests), tests=["*"], limit=1.0)
    assert found.claims() == {
        "00good": ("passed", ""),
        "01hangs": ("unfinished", "it did not end within 1 seconds and was ended"),
        "02after": ("passed", ""),
    }
    assert found.metrics() == {"passed": 2, "failed": 0, "skipped": 0, "unfinished": 1}


def test_a_test_that_takes_the_suite_down_takes_no_other_one_with_it(tmp_path: Path) -> None:
    tests = {"00good": ":", "01kills": "kill -9 $$", "02after": ":"}
    found = run("mdadm_tests", mdadm_suite(tmp_path / "s", tests), tests=["*"])
    claims = found.claims()
    assert claims["00good"] == claims["02after"] == ("passed", "")
    reason = "while it ran, the suite was killed by signal 9"
    assert claims["01kills"] == ("unfinished", reason)


def test_a_suite_that_goes_on_no_more_leaves_its_tests_untested(tmp_path: Path) -> None:
    """The second call of the suite ends at once."""
    setup = "[ ! -e once ] || { echo 'it is broken'; exit 9; }; touch once"
    tests = {"00good": ":", "01kills": "kill -9 $$", "02after": ":"}
    found = run("mdadm_tests", mdadm_suite(tmp_path / "s", tests, setup), tests=["*"]).claims()
    assert found["00good"] == ("passed", "")
    reason = "the suite ended with status 9 before it: it is broken"
    assert found["02after"] == ("not_run", reason)


def test_a_suite_that_never_begins_fails_and_says_with_what(tmp_path: Path) -> None:
    setup = "echo 'lsblk command not found!'; exit 1"
    found = run("mdadm_tests", mdadm_suite(tmp_path / "s", {"00good": ":"}, setup), tests=["*"])
    assert found.status == 1
    assert "lsblk command not found!" in found.outputs.stderr
    assert found.claims()["00good"][0] == "not_run"


def test_a_pattern_that_fits_no_test_is_named(tmp_path: Path) -> None:
    suite = mdadm_suite(tmp_path / "s", MDADM)
    found = run("mdadm_tests", suite, tests=["00*", "99*"])
    assert found.status == 1
    assert "none of the 6 tests in" in found.outputs.stderr
    assert "'99*'" in found.outputs.stderr


def test_of_several_disks_the_worst_decides() -> None:
    tool: Any = catalog.workload("blktests")
    p = tool.parameters()
    stdout = (
        '\n--lab-- {"tests": ["md/001", "md/002", "nvme/001"]}\n'
        "md/001 => vda (one)\nmd/001 => vda (one)                    [passed]\n"
        "md/001 => vdb (one)\nmd/001 => vdb (one)                    [failed]\n"
        "    runtime  0.1s  ...  0.2s\n    something found in dmesg:\n    [ 1.0] WARNING: here\n"
        "md/002 (two)\nmd/002 (two)        [not run]\n    command nvme is not available\n"
        "nvme/***                                      [not run]\n    no nvme here\n"
        '\n--lab-- {"status": 1}\n\n--lab-- {"over": true}\n'
    )
    found = tool.endings(p, "", Outputs(stdout=stdout, stderr="", files={}))
    assert [(t.name, t.ending, t.reason) for t in found] == [
        ("md/001", "failed", "vdb: something found in dmesg: [ 1.0] WARNING: here"),
        ("md/002", "skipped", "command nvme is not available"),
        ("nvme/001", "skipped", "no nvme here"),
    ]


# -- scenarios


def compiled(directory: object, tmp_path: Path, text: str = SCENARIO, *sets: str) -> Compiled:
    return compiled_text(tmp_path, text.replace("DIRECTORY", str(directory)), *sets, name="suite")


def test_a_directory_in_the_file_is_looked_for_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "called").mkdir()
    monkeypatch.chdir(tmp_path / "called")

    def found(*sets: str) -> str:
        made = compiled("mdadm", tmp_path, SCENARIO, *sets)
        return str(made.base.workloads[0].parameters["directory"])

    assert found() == str(tmp_path / "mdadm")
    here = "workloads.suite.directory=mdadm"
    assert found(here) == str(tmp_path / "called" / "mdadm")
    assert found("workloads.suite.directory=~nobody-here/x").endswith("~nobody-here/x")
    assert found("workloads.0.directory=../x") == str(tmp_path / "called" / ".." / "x")


def test_directories_can_be_an_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "called").mkdir()
    monkeypatch.chdir(tmp_path / "called")
    text = SCENARIO + "matrix:\n  workloads.suite.directory: [one, two]\n"

    def found(*sets: str) -> list[object]:
        cells = compiled("x", tmp_path, text, *sets).cells
        return [cell.workloads[0].parameters["directory"] for cell in cells]

    assert found() == [str(tmp_path / "one"), str(tmp_path / "two")]
    assert found("workloads.suite.directory=one") == [str(tmp_path / "called" / "one")]
    typed = "matrix={workloads.suite.directory: [three]}"
    assert found(typed) == [str(tmp_path / "called" / "three")]


def test_where_a_suite_lies_changes_no_claim_and_other_tests_do(tmp_path: Path) -> None:
    one, other = (compiled(tmp_path / d, tmp_path).base for d in ("a", "b"))
    assert identity(one) == identity(other)
    assert cell_id(one) != cell_id(other)
    fewer = compiled(tmp_path / "a", tmp_path, SCENARIO, "workloads.suite.tests=['00*']").base
    assert identity(fewer) != identity(one)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "array: none",
            "array: {level: 1}",
            r":5: array: .*write array: none",
        ),
        ("array: none", "filesystem: {type: ext4}", r":5: filesystem.*remove it"),
        ("['*']", "[]", r"workloads\[0\]\.tests: .*at least 1"),
        ("['*']", "['*'], limit: 0s", r"workloads\[0\]\.limit: .*above 0"),
        (
            "mdadm_tests, tests: ['*']",
            "blktests, tests: [md, ../x]",
            r":7: workloads\[0\]\.tests: '\.\./x' is not",
        ),
        ("['*']", "['*'], mdadm: mine", r"workloads\[0\]\.mdadm: .*one of guest, directory"),
    ],
)
def test_what_a_suite_cannot_have_is_said(tmp_path: Path, old: str, new: str, says: str) -> None:
    text = SCENARIO.replace("count: 1", "count: 2") if "level" in new else SCENARIO
    with pytest.raises(InputError, match=says):
        compiled(tmp_path, tmp_path, text.replace(old, new))


def test_a_suite_is_aimed_at_all_disks_and_others_at_one(tmp_path: Path) -> None:
    text = SCENARIO.replace("count: 1", "count: 3")
    target = target_of(compiled(tmp_path, tmp_path, text).base)
    assert [p.rpartition("/")[2] for p in target.split()] == [f"virtio-disk{n}" for n in (1, 2, 3)]
    mixed = text + "  - {name: read, tool: dd, if: '{target}', bs: 1MiB, count: 1}\n"
    with pytest.raises(InputError, match=r":4: disks\.count: .*there are 3"):
        compiled(tmp_path, tmp_path, mixed)


def test_the_suite_is_copied_unpacked_and_asked_before_it_runs(tmp_path: Path) -> None:
    cell = compiled(tmp_path / "a", tmp_path).base
    steps = cell_procedure(cell, "/g").steps
    kinds = [type(s).__name__ for s in steps if isinstance(s, SendDirectory | GuestCommand | Timed)]
    assert kinds[-5:] == ["GuestCommand", "SendDirectory", "GuestCommand", "GuestCommand", "Timed"]
    (sent,) = [s for s in steps if isinstance(s, SendDirectory)]
    assert sent.source == str(tmp_path / "a")
    made = next(s for s in steps if isinstance(s, GuestCommand) and sent.target in s.undo)
    assert made.undo.startswith("rm -rf /var/lib/lab/suites/")
    assert [s.capture for s in steps if isinstance(s, GuestCommand)][-1] == "suite.tests"


def not_there(directory: Path) -> None:
    pass


def a_file(directory: Path) -> None:
    directory.write_text("x")


def nothing_in_it(directory: Path) -> None:
    directory.mkdir()


def a_socket(directory: Path) -> None:
    mdadm_suite(directory, {})
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(directory / "s"))


def too_large(directory: Path) -> None:
    with (mdadm_suite(directory, {}) / "large").open("wb") as file:
        file.truncate(300 * 1024**2)  # sparse


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (not_there, "does not exist"),
        (a_file, "is not a directory"),
        (nothing_in_it, "is not mdadm_tests's: there is no file 'test' in it"),
        (a_socket, "is not a file, directory or link"),
        (too_large, "holds more than 256MiB"),
    ],
)
def test_a_directory_that_is_none_is_said_before_anything_boots(
    tmp_path: Path, cli: Cli, make: Callable[[Path], None], says: str
) -> None:
    make(tmp_path / "d")
    found = compiled(tmp_path / "d", tmp_path)
    with pytest.raises(InputError, match=rf"suite\.yaml:7: workloads\[0\]\.directory: .*{says}"):
        check_suites(found)
    done = cli("run", "scenario", str(found.path))
    assert done.status == 2
    assert says in done.stderr
    assert not list(cli.home.glob("**/runs/*"))


def test_a_good_directory_is_good_and_without_one_it_is_said_what_to_give(
    tmp_path: Path, cli: Cli
) -> None:
    check_suites(compiled(mdadm_suite(tmp_path / "d", MDADM), tmp_path))
    built = compiled(tmp_path / "d", tmp_path, SCENARIO, "workloads.suite.mdadm=directory")
    with pytest.raises(InputError, match="there is no file 'mdadm' in it"):
        check_suites(built)
    text = SCENARIO.replace(", directory: DIRECTORY", "")
    without = compiled("", tmp_path, text)
    (sentence,) = wanting(without)
    assert "--set workloads.suite.directory=DIR" in sentence
    assert sentence in cli("scenario", "check", str(without.path)).stdout
    assert cli("scenario", "plan", str(without.path)).status == 0
    refused = cli("run", "scenario", str(without.path))
    assert refused.status == 2
    assert "no directory is given" in refused.stderr


def test_a_directory_is_packed_without_gits_and_owned_by_root(tmp_path: Path) -> None:
    suite = mdadm_suite(tmp_path / "d", {"00good": ":"})
    (suite / ".git").mkdir()
    (suite / ".git" / "objects").write_text("x")
    (suite / "link").symlink_to("/etc/passwd")
    (suite / "test").chmod(0o755)
    directories._pack(suite, tmp_path / "p.tar", LEFT_OUT, 10_000)
    with tarfile.open(tmp_path / "p.tar") as tar:
        found = {m.name: m for m in tar.getmembers()}
    assert set(found) == {"test", "link", "tests", "tests/func.sh", "tests/00good"}
    assert found["link"].issym()
    assert found["test"].mode & 0o111
    assert {(m.uid, m.uname) for m in found.values()} == {(0, "root")}
    with pytest.raises(InputError, match="holds more than 10,"):
        directories._pack(suite, tmp_path / "p.tar", LEFT_OUT, 10)


# -- results


def stored(
    tmp_path: Path, ran: Ran, raw: Mapping[str, str], outcome: Outcome = Outcome.DONE, *, text: str
) -> RunStore:
    made = compiled(tmp_path / "d", tmp_path, text)
    store = RunStore(tmp_path / "suite-20260101-120000")
    (store.directory / "cells").mkdir(parents=True)
    (store.directory / "scenario.yaml").write_text(made.path.read_text())
    cells = tuple(StoredCell(id=cell_id(c), cell=c, published=True) for c in made.cells)
    run = StoredRun(
        id=store.id,
        scenario="suite",
        title="t",
        question="q?",
        started="2026-01-01T12:00:00+00:00",
        finished="2026-01-01T12:02:00+00:00",
        environment={"image": {"kernel": "6.1.0", "mdadm": "4.2"}},
        cells=cells,
        claims=made.scenario.claims,
    )
    store.save_run(run)
    for cell in made.cells:
        attempt = store.begin_cell(cell_id(cell), cell, Procedure(name="q", steps=()))
        (attempt / "raw").mkdir()
        for name, content in raw.items():
            (attempt / "raw" / name).write_text(content)
        reason = "" if outcome is Outcome.DONE else "the guest panicked\n  its console"
        store.finish_cell(cell_id(cell), attempt, StoredOutcome(outcome=outcome, reason=reason))
    return store


def whole(ran: Ran) -> dict[str, str]:
    listed = json.loads(ran.listed) | {"version": "mdadm - v4.9 - 2026-01-01"}
    return {"suite.tests.txt": json.dumps(listed), "suite.1.stdout.txt": ran.outputs.stdout}


def verdicts(store: RunStore) -> dict[str, ClaimResult]:
    return {claim.id: claim for claim in result_of(store).claims}


def test_each_test_is_a_claim_of_the_result(tmp_path: Path, mdadm: Ran) -> None:
    text = SCENARIO + (
        "claims:\n  - id: ends\n    says: all end\n    expect: {kind: bound, value: "
        "{workload: suite, metric: unfinished}, at_most: 0}\n"
    )
    store = stored(tmp_path, mdadm, whole(mdadm), text=text)
    found = verdicts(store)
    assert {id_: claim.verdict.value for id_, claim in found.items()} == {
        "ends": "holds",
        "suite.00good": "holds",
        "suite.01bad": "refuted",
        "suite.01worse": "refuted",
        "suite.02lacks": "not_tested",
        "suite.02skips": "not_tested",
        "suite.03after": "holds",
    }
    assert found["suite.01bad"].reason == "active raid5 not found"
    assert found["suite.02skips"].reason == "no such kernel"
    assert found["suite.00good"].expected == "passed, with mdadm v4.9"
    xml = junit_of(store)
    assert xml.count("<testcase") == 7
    assert xml.count("<failure") == 2
    assert "suite.01bad: 01bad passes" in xml


def test_two_runs_of_a_suite_are_compared_by_tests_and_not_by_numbers_of_tests(
    tmp_path: Path, mdadm: Ran
) -> None:
    raw = whole(mdadm)
    fixed = raw["suite.1.stdout.txt"].replace("FAILED", "succeeded", 1)
    others = json.loads(raw["suite.tests.txt"])
    others["tests"] = [*others["tests"][:-1], "04new"]
    listed = raw["suite.1.stdout.txt"].replace("03after", "04new")
    stores = []
    for name, texts in {
        "a": raw,
        "b": raw | {"suite.1.stdout.txt": fixed},
        "c": {"suite.tests.txt": json.dumps(others), "suite.1.stdout.txt": listed},
    }.items():
        (tmp_path / name).mkdir()
        stores.append(stored(tmp_path / name, mdadm, texts, text=SCENARIO))
    before, after, other = stores
    found = comparison_of(before, after, 0.05)
    assert [cell.figures for cell in found.cells] == [()]
    assert [(c.id, c.first, c.second) for c in found.claims] == [
        ("suite.01bad", Verdict.REFUTED, Verdict.HOLDS)
    ]
    text = said(found)
    assert "suite.01bad: failed → passed" in text
    assert "Of 6 tests in both runs 1 changed." in text
    assert "%" not in text
    text = said(comparison_of(before, other, 0.05))
    assert "Tests only in the first run: suite.03after" in text
    assert "Tests only in the second run: suite.04new" in text
    assert "Of 5 tests in both runs none changed." in text


def said(found: Comparison) -> str:
    out = io.StringIO()
    Console(file=out, width=80, highlight=False).print(comparison_page(found))
    return out.getvalue()


def test_a_suites_report_is_a_table_of_its_tests_and_no_charts(tmp_path: Path, mdadm: Ran) -> None:
    page = page_of(stored(tmp_path, mdadm, whole(mdadm), text=SCENARIO))
    assert charts_of(page) == ()
    table = tables.tests_table(page)
    assert [(line.values[0][2:], line.values[1]) for line in table.rows] == [
        *(("failed", "01bad"), ("failed", "01worse"), ("skipped", "02lacks")),
        *(("skipped", "02skips"), ("passed", "00good"), ("passed", "03after")),
    ]
    assert table.caption == "6 tests: 2 failed, 2 skipped, 2 passed."
    assert figures_table(page).rows == ()
    html = run_page(page)
    assert 'id="tests"' in html
    assert 'id="claims"' not in html
    assert page.result.answer.sentences[0] == "Of 6 tests 2 passed, 2 failed, 2 did not run."


def test_what_a_lost_guest_has_not_told_is_inconclusive(tmp_path: Path, mdadm: Ran) -> None:
    raw = {"suite.tests.txt": mdadm.listed}
    found = verdicts(stored(tmp_path, mdadm, raw, Outcome.LOST, text=SCENARIO))
    assert len(found) == 6
    assert {claim.verdict for claim in found.values()} == {Verdict.INCONCLUSIVE}
    assert all("is lost: the guest panicked" in claim.reason for claim in found.values())


def test_a_suite_whose_tests_nobody_knows_is_one_claim(tmp_path: Path, mdadm: Ran) -> None:
    found = verdicts(stored(tmp_path, mdadm, {}, Outcome.FAILED, text=SCENARIO))
    assert {id_: claim.verdict for id_, claim in found.items()} == {"suite": Verdict.INCONCLUSIVE}


def test_output_that_is_cut_off_fails_the_cell_and_keeps_what_was_told(
    tmp_path: Path, mdadm: Ran
) -> None:
    cut = mdadm.cut("01bad... ")
    store = stored(tmp_path, cut, whole(cut), text=SCENARIO)
    assert [c.outcome for c in result_of(store).cells] == [Outcome.FAILED]
    found = verdicts(store)
    assert found["suite.00good"].verdict is Verdict.HOLDS
    others = {claim.verdict for id_, claim in found.items() if id_ != "suite.00good"}
    assert others == {Verdict.INCONCLUSIVE}


def test_of_several_cells_and_trials_each_claim_says_which(tmp_path: Path, mdadm: Ran) -> None:
    text = SCENARIO + "matrix:\n  guest.memory: [512MiB, 1GiB]\ntrials: 2\n"
    begun = '"test": "03after", "number": 6, "of": 6}\n'
    assert f"{begun}succeeded" in mdadm.outputs.stdout
    second = mdadm.outputs.stdout.replace(f"{begun}succeeded", f"{begun}FAILED - see x")
    raw = {**whole(mdadm), "suite.2.stdout.txt": second}
    found = verdicts(stored(tmp_path, mdadm, raw, text=text))
    assert len(found) == 12
    for memory in (512 * 1024**2, 1024**3):
        claim = found[f"suite.03after@{memory}"]
        assert claim.verdict is Verdict.REFUTED
        assert claim.reason.startswith("trial 2: ")
        assert str(memory) in claim.says


def test_an_excuse_of_a_matrix_can_name_a_test(tmp_path: Path, mdadm: Ran) -> None:
    result = result_of(stored(tmp_path, mdadm, whole(mdadm), text=SCENARIO))
    excuse = Expected.model_validate(
        {"claims": ["suite.01bad"], "kernel": "<6.2", "reason": "known", "until": "2026-12-31"}
    )
    job = JobRecord(id="p", scenario="suite", image="debian-12", cells=1, seconds=1.0, basis="b")
    ended = {e.id: e.ending for e in endings(job, result, [excuse], excuse.until)}
    assert ended["suite.01bad"] is Ending.EXPECTED
    assert ended["suite.01worse"] is Ending.FAILED


def test_a_file_of_tests_has_one_for_each_suite(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mdadm: Ran
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("CI", raising=False)
    store = stored(tmp_path, mdadm, whole(mdadm), text=SCENARIO)
    store.save_result(result_of(store))
    done = execute.Done(store=store, result=result_of(store), kept=None)
    monkeypatch.setattr(execute, "run_scenario", lambda *_, **__: done)
    (pytester.path / "suite.yaml").write_text(SCENARIO)
    found = pytester.runpytest_inprocess(*PLUGIN, "suite.yaml", "-v")
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(
        ["*2 of 6 tests of suite failed:*", "*suite.01bad: active raid5 not found*"]
    )


def test_the_lab_lists_which_scenarios_want_a_directory(cli: Cli) -> None:
    rows = cli("scenario", "list", "--json").json["scenarios"]
    assert {row["name"] for row in rows if row["wanting"]} == {"mdadm-tests", "blktests-md"}


@pytest.mark.parametrize(("claim", "known"), [("suite.01bad", True), ("other.01bad", False)])
def test_a_matrix_may_expect_a_suites_test_to_fail(
    tmp_path: Path, cli: Cli, claim: str, known: bool
) -> None:
    mdadm_suite(tmp_path / "d", MDADM)
    compiled(tmp_path / "d", tmp_path)
    matrix = (
        "title: m\nscenarios: [./suite.yaml]\nimages: [debian-12]\n"
        f"expected:\n  - {{claims: [{claim}], reason: r, until: 2027-01-01}}\n"
    )
    done = cli("matrix", "check", cli.file(matrix, "m.yaml"))
    assert done.status == (0 if known else 2), done.stderr
    assert ("has the claim 'other.01bad'" in done.stderr) is not known


def test_a_part_of_a_matrix_without_its_directory_cannot_be_run(tmp_path: Path, cli: Cli) -> None:
    compiled(tmp_path / "nowhere", tmp_path)
    matrix = "title: m\nscenarios: [./suite.yaml]\nimages: [debian-12]\n"
    done = cli("matrix", "check", cli.file(matrix, "m.yaml"))
    assert done.status == 2
    assert "nowhere' does not exist" in done.stderr


def test_the_plan_has_the_commands_that_copy_a_suite(tmp_path: Path, cli: Cli) -> None:
    suite = mdadm_suite(tmp_path / "d", MDADM)
    path = compiled(suite, tmp_path).path
    planned = cli("scenario", "plan", str(path)).stdout
    assert (
        f'tar -c --exclude=.git --exclude=.svn --exclude=.hg -C {suite} -f "$DIRECTORY/suite.tar" .'
        in planned
    )
    assert 'scp -q -F none -P "$PORT"' in planned


class FakeShell:
    """Accepts files that exist."""

    def __init__(self) -> None:
        self.put_: dict[str, list[str]] = {}

    def put(self, source: Path, target: str) -> None:
        with tarfile.open(source) as tar:
            self.put_[target] = tar.getnames()


def test_a_directory_is_sent_as_one_tar_and_nothing_of_it_stays(tmp_path: Path) -> None:
    suite = mdadm_suite(tmp_path / "d", {"00good": ":"})
    (tmp_path / "guest").mkdir()
    (step,) = [
        s
        for s in cell_procedure(compiled(suite, tmp_path).base, "/g").steps
        if isinstance(s, SendDirectory)
    ]
    shell: Any = FakeShell()
    directories.send(shell, step, tmp_path / "guest")
    assert shell.put_ == {step.target: ["test", "tests", "tests/00good", "tests/func.sh"]}
    assert list((tmp_path / "guest").iterdir()) == []
    gone = step.model_copy(update={"source": str(tmp_path / "gone")})
    with pytest.raises(ToolError, match="gone' does not exist"):
        directories.send(shell, gone, tmp_path / "guest")
    assert list((tmp_path / "guest").iterdir()) == []


def test_the_loop_sends_it_and_takes_it_back(tmp_path: Path) -> None:
    steps = cell_procedure(compiled(tmp_path / "d", tmp_path).base, "/g").steps
    own = [s for s in steps if isinstance(s, SendDirectory | GuestCommand) and "suite" in str(s)]
    bench, undo = FakeBench(), Undo()
    saved: dict[str, str] = {}
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    procedure = Procedure(name="p", steps=tuple(own))
    run_procedure(procedure, bench, undo, saved.__setitem__, nothing, nothing)
    (place,) = [target.removesuffix(".tar") for kind, *_, target in bench.log if kind == "send"]
    assert "suite.tests.txt" in saved
    undo.unwind()
    assert bench.log[-1] == ("guest", f"rm -rf {place} {place}.tar")


def test_a_suite_is_never_contended(tmp_path: Path) -> None:
    cell = compiled(tmp_path / "d", tmp_path).base
    waited = {"suite.1.pressure.txt": "wait=9\nseconds=10\n"}
    assert contention(cell, waited) == ()
    reading = "  - {name: suite, tool: dd, if: '{target}', bs: 1MiB, count: 1}\n"
    text = SCENARIO[: SCENARIO.index("  - {")] + reading
    assert not contention(compiled("", tmp_path, text).base, waited)[0].passed


def test_blktests_gets_all_disks_one_by_one_and_together() -> None:
    """An older ``check`` does not know arrays of disks, and reads the same file."""
    tool = catalog.workload("blktests")
    p = tool.parameters.model_validate({"directory": "/x", "tests": ["md", "block/00*"]})
    script = tool.script(p, "/dev/null /dev/zero")
    config = script.partition("CONFIG'\n")[2].partition("CONFIG\n")[0]
    printed = "declare -p TEST_DEVS TEST_CASE_DEV_ARRAY 2>&1"

    def said(before: str) -> str:
        words = ["bash", "-c", f"{before}\n{config}\n{printed}"]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout

    devices = 'TEST_DEVS=([0]="/dev/null" [1]="/dev/zero")'
    assert devices in said("")
    new = said("declare -A TEST_CASE_DEV_ARRAY")
    assert devices in new
    assert '[md/]="/dev/null /dev/zero"' in new
    assert '[block/]="/dev/null /dev/zero"' in new
