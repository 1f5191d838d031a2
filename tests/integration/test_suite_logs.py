"""Suites' logs: complete for failed tests, searched for the first error, and shown."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from lab.cli.display.live import log_line
from lab.core.errors import InputError, ToolError
from lab.core.units import shortened
from lab.host.guest.ssh.suite_tests import SuiteTests
from lab.model.execution.events import TestStarted
from lab.model.result.document import Outcome
from lab.model.scenario.outputs import Outputs
from lab.plugins import catalog
from lab.plugins.guest_programs import suite as program
from lab.plugins.workloads._suites import KERNEL, suite_output
from lab.plugins.workloads.blktests import _UNAME
from lab.report.html.page import run_page
from lab.results import report
from lab.results.documents import result_of
from lab.results.junit import junit_of
from lab.results.report import page_of
from lab.run.preparation.suites import check_suites
from tests.fakes import Cli
from tests.integration.test_progress import IDS, shown, writing
from tests.integration.test_suites import SCENARIO, compiled, run, stored, whole
from tests.suites import blktests_suite, mdadm_suite

GOLDEN = Path(__file__).parent.parent / "golden" / "workloads"
LONG = "for i in {1..2000}; do echo line $i; done 2> /dev/null"


def recorded(tool: str, case: str) -> dict[str, Any]:
    stdout = (GOLDEN / tool / case / "stdout").read_text()
    given = json.loads((GOLDEN / tool / case / "expected.json").read_text())["parameters"]
    suite: Any = catalog.workload(tool)
    parameters = suite.parameters.model_validate(given)
    outputs = Outputs(stdout=stdout, stderr="", files={})
    return {test.name: test for test in suite.endings(parameters, "", outputs)}


# -- what is kept


def test_a_failed_tests_logs_are_whole_and_of_others_the_end_is_kept(tmp_path: Path) -> None:
    tests = {"00good": LONG, "01bad": f"{LONG}\nexit 1", "02hangs": f"{LONG}\nsleep 100"}
    found = run("mdadm_tests", mdadm_suite(tmp_path / "s", tests), tests=["*"], limit=3.0)
    out = suite_output(found.outputs.stdout)
    assert len(out.log("00good")) == program.TAIL
    whole_log = out.log("01bad", "01bad.log")
    assert "line 1\n" in whole_log
    assert "line 2000\n" in whole_log
    assert out.log("01bad", "fail01bad.log") == "## saved of 01bad\n"
    assert set(out.seconds) == set(tests)
    assert 3.0 <= out.seconds["02hangs"] < 20.0


def test_of_a_log_that_is_too_long_the_middle_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    loud = "head -c 400000 /dev/zero | tr '\\0' x; echo; echo the end; exit 1"
    found = run("mdadm_tests", mdadm_suite(tmp_path / "s", {"00loud": loud}), tests=["*"])
    log = suite_output(found.outputs.stdout).log("00loud", "00loud.log")
    assert program.WHOLE < len(log) < program.WHOLE + 100
    assert "the end" in log
    left = re.search(r"\[lab: (\d+) characters are left out here\]", log)
    assert left is not None
    assert int(left[1]) > 400_000 - program.WHOLE
    assert shortened("abcdefgh", 4) == program.shortened("abcdefgh", 4)
    assert shortened("abcdefgh", 4) == "ab\n[lab: 4 characters are left out here]\ngh"
    assert shortened("abcd", 4) == "abcd"


def test_all_logs_together_have_a_limit_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(program, "ALL", program.WHOLE + 10)
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(program, "tell", lambda **what: told.append(what))
    for name in ("one", "two"):
        (tmp_path / name).write_text("x" * 10_000)
    given = {"directory": str(tmp_path), "fails": "no", "logs": ["%s"], "unsaved": []}
    tests = program.Tests(given, ["one", "two"])
    for name in ("one", "two"):
        tests.begin(name)
        tests.print("no")
    tests.end()
    kept = {
        what["log"]: len(what["text"])
        for what in told
        if what.get("file") != KERNEL and "log" in what
    }
    assert kept == {"one": 10_000, "two": program.TAIL}


# -- why a test failed


def test_the_reason_is_the_first_error_and_not_the_last_line() -> None:
    """mdadm 4.2's suite on Linux 6.1, as it was recorded in a guest."""
    found = recorded("mdadm_tests", "first-errors")
    silent = ", which the suite calls with --quiet, ended with status 1 and said nothing; then: "
    assert {name: test.reason for name, test in found.items() if test.ending == "failed"} == {
        "00multipath": "dmesg prints errors when testing 00multipath! [  351.384174] multipath: "
        "only one IO path left and IO error.",
        "00raid0": "mdadm -CR /dev/md0 -e0.90 -l0 -n4 /dev/loop0 /dev/loop1 /dev/loop2 /dev/loop3"
        f"{silent}active raid0 not found",
        "00readonly": "array is not read-only!",
        "03r0assem": "mdadm -CR /dev/md2 -l0 --metadata=0.90 -n3 /dev/loop0 /dev/loop1 /dev/loop2"
        f"{silent}active raid0 not found",
        "04r0update": "mdadm -CR -e 0.90 /dev/md0 -l0 -n3 /dev/loop0 /dev/loop1 /dev/loop2"
        f"{silent}/dev/md0 isn't a block device.",
        "06wrmostly": "Invalid value for maximum outstanding write-behind writes: (null). Must be "
        "between 0 and 16383. (mdadm -CR /dev/md0 -l1 -n3 --write-behind --bitmap=internal "
        "--bitmap-chunk=4 /dev/loop0 /dev/loo…: status 2); then: /dev/md0 isn't a block device.",
    }
    for name, test in found.items():
        if test.ending == "failed":
            files = {file for file, _ in test.logs}
            assert {f"lab-logs/{name}.log", f"lab-logs/fail{name}.log"} <= files
            assert test.seconds > 0


DIES = "echo -e '\\n\\tERROR: no raid \\n'; exit 2"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("nosuchprogram --help || true\nexit 2", "the guest has no program 'nosuchprogram'"),
        (
            f"set +e\nmdadm --fail\n{DIES}",
            "it said no (mdadm --fail: status 3); then: no raid",
        ),
        (
            f"set +e\nmdadm --fail\ncheck opposite_result\n{DIES}",
            "no raid",
        ),
        ("set +e\nmdadm --silent\nmdadm --well\nexit 2", "it ended at: exit 2"),
    ],
)
def test_an_error_that_a_test_wants_is_none(tmp_path: Path, script: str, reason: str) -> None:
    (tmp_path / "bin").mkdir()
    real = tmp_path / "bin" / "mdadm"
    real.write_text(
        "#!/bin/sh\ncase $1 in --fail) echo 'mdadm: it said no' >&2; exit 3;;\n"
        "--silent) exit 4;; esac\n"
    )
    real.chmod(0o755)
    setup = (
        f'mdadm() {{\n{real} "$@" 2> stderr\nrv=$?\ncat >&2 stderr\nreturn $rv\n}}\n'
        "check() { :; }\n"
    )
    suite = mdadm_suite(tmp_path / "s", {"00it": script}, setup)
    assert run("mdadm_tests", suite, tests=["*"]).claims()["00it"] == ("failed", reason)


def test_what_the_kernel_said_is_the_reason_where_the_suite_looks_there(tmp_path: Path) -> None:
    suite = mdadm_suite(tmp_path / "s", {"00it": "true"})
    ran = run("mdadm_tests", suite, tests=["*"])
    log = {
        "log": "00it",
        "file": "lab-logs/fail00it.log",
        "text": "## dmesg\n[ 1.0] EXT4-fs error: x\n",
    }
    said = "\n\tERROR: dmesg prints errors when testing 00it! \n\nFAILED - see x\n"
    stdout = ran.outputs.stdout.replace("succeeded\n", f"{said}\n--lab-- {json.dumps(log)}\n")
    tool: Any = catalog.workload("mdadm_tests")
    (test,) = tool.endings(ran.parameters, "", Outputs(stdout=stdout, stderr="", files={}))
    assert test.reason == "dmesg prints errors when testing 00it! [ 1.0] EXT4-fs error: x"


# -- display


def test_logs_of_failed_tests_are_in_the_report_and_in_junit(tmp_path: Path) -> None:
    tests = {"00good": "echo in a good one", "01bad": "echo '<in a bad one>'\nexit 2"}
    ran = run("mdadm_tests", mdadm_suite(tmp_path / "s", tests), tests=["*"])
    kernel = {"log": "01bad", "file": KERNEL, "text": "[ 1.0] md: planted\n"}
    stdout = f"{ran.outputs.stdout}\n--lab-- {json.dumps(kernel)}\n"
    raw = {**whole(ran), "suite.1.stdout.txt": stdout}
    store = stored(tmp_path, ran, raw, text=SCENARIO)
    page = page_of(store)
    (failure,) = page.cells[0].failures
    assert failure.name == "suite.01bad"
    assert failure.reason == "it ended at: exit 2"
    shown = run_page(page)
    section = shown[shown.index('id="failures"') : shown.index('id="cells"')]
    for words in ("&lt;in a bad one&gt;", "md: planted", "## saved of 01bad", "<details>"):
        assert words in section
    assert "in a good one" not in section
    cases = {c.attrib["name"]: c for c in ET.fromstring(junit_of(store)).iter("testcase")}
    bad, good = cases["suite.01bad: 01bad passes"], cases["suite.00good: 00good passes"]
    out = bad.findtext("system-out", "")
    for words in ("---- lab-logs/01bad.log", "<in a bad one>", "md: planted", "## saved of 01bad"):
        assert words in out
    assert "in a good one" not in good.findtext("system-out", "")
    seconds = {t: suite_output(stdout).seconds[t] for t in tests}
    assert float(bad.attrib["time"]) == seconds["01bad"]


def test_a_page_shows_beginning_and_end_of_a_long_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run("mdadm_tests", mdadm_suite(tmp_path / "s", {"00bad": f"{LONG}\nexit 2"}), tests=["*"])
    store = stored(tmp_path, ran, whole(ran), text=SCENARIO)
    monkeypatch.setattr(report, "LOG_SHOWN", 1000)
    (failure,) = page_of(store).cells[0].failures
    text = next(e.text for e in failure.evidence if e.name.endswith("/00bad.log"))
    assert "characters are left out here" in text
    assert "line 2000" in text


# -- patterns, before a boot


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        ("['00*', 00god]", "'00god': did you mean '00good'?"),
        ("[zz*]", "'zz*': they are called '00good', '01bad' …"),
        ("['01bad.broken']", "'01bad.broken': did you mean '01bad'"),
    ],
)
def test_a_name_that_is_no_tests_is_said_before_anything_boots(
    tmp_path: Path, cli: Cli, tests: str, says: str
) -> None:
    suite = mdadm_suite(tmp_path / "d", {"00good": ":", "01bad": ":", "01bad.broken": "x"})
    path = compiled(suite, tmp_path, SCENARIO.replace("['*']", tests)).path
    done = cli("run", "scenario", str(path))
    assert done.status == 2, done.stderr
    assert "suite.yaml:7: workloads[0].tests: none of the 2 tests in " in done.stderr
    assert says in done.stderr
    assert not list(cli.home.glob("**/runs/*"))
    good = cli("scenario", "check", str(compiled(suite, tmp_path).path))
    assert good.status == 0, good.stderr


def test_a_group_that_is_not_there_is_said_too(tmp_path: Path) -> None:
    suite = blktests_suite(tmp_path / "d", {"001": ":"})
    text = SCENARIO.replace("mdadm_tests, tests: ['*']", "blktests, tests: [mdd]")
    with pytest.raises(InputError, match=r"none of the 1 tests in .* is called 'mdd/\*'"):
        check_suites(compiled(suite, tmp_path, text))
    check_suites(compiled(suite, tmp_path, text.replace("[mdd]", "[md, md/001]")))


# -- no test ran


def test_a_suite_of_which_nothing_ran_fails_and_says_why(tmp_path: Path) -> None:
    tests = {
        "001": "requires() { SKIP='command nvme is not available'; }",
        "002": "requires() { SKIP='driver brd is not available'; }",
        "003": "requires() { SKIP='command nvme is not available'; }",
    }
    ran = run("blktests", blktests_suite(tmp_path / "s", tests))
    why = (
        "blktests ran no test, all 3 were skipped: command nvme is not available (md/001, md/003); "
        "driver brd is not available (md/002)"
    )
    with pytest.raises(ToolError) as caught:
        ran.metrics()
    assert caught.value.message == why
    text = SCENARIO.replace("mdadm_tests, tests: ['*']", "blktests, tests: [md]")
    result = result_of(stored(tmp_path, ran, whole(ran), text=text))
    assert [(c.outcome, c.reason) for c in result.cells] == [(Outcome.FAILED, why)]
    assert {c.id: c.reason for c in result.claims}["suite.md/002"] == "driver brd is not available"


def test_each_reason_of_a_skipped_test_is_told() -> None:
    tool: Any = catalog.workload("blktests")
    stdout = (
        '\n--lab-- {"tests": ["md/001"]}\n'
        "md/001 (one)                                    [not run]\n"
        "    driver brd is not available\n    command nvme is not available\n"
        '\n--lab-- {"status": 0, "last": "md/001"}\n\n--lab-- {"over": true}\n'
    )
    (test,) = tool.endings(tool.parameters(), "", Outputs(stdout=stdout, stderr="", files={}))
    assert test.reason == "driver brd is not available; command nvme is not available"


# -- a kernel version that blktests can parse


@pytest.mark.parametrize(
    ("release", "seen"),
    [
        ("7.3.4+deb13-amd64", "7.3.4-deb13-amd64"),
        ("7.3~rc2-amd64", "7.3-rc2-amd64"),
        ("6.1.0-56-cloud-amd64", "6.1.0-56-cloud-amd64"),
    ],
)
def test_blktests_finds_a_release_that_it_can_read(tmp_path: Path, release: str, seen: str) -> None:
    for directory in ("bin", f"modules/{release}/kernel", "boot", "suite"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "boot" / f"config-{release}").write_text("CONFIG_MD=y\n")
    fake = tmp_path / "bin" / "uname"
    fake.write_text(f"#!/bin/sh\necho {release}\n")
    fake.chmod(0o755)
    lines = _UNAME.format(place=tmp_path / "suite")
    lines = lines.replace("/lib/modules", f"{tmp_path}/modules").replace(
        "/boot", f"{tmp_path}/boot"
    )
    reads = "uname -r | sed 's/-.*//;s/[^.0-9]//'"  # `_have_kver` of blktests' common/rc
    there = f"ls -d {tmp_path}/modules/$(uname -r)/kernel; cat {tmp_path}/boot/config-$(uname -r)"
    asks = f"({reads}; uname -r; {there})"
    done = subprocess.run(
        ["sh", "-ec", f"PATH={tmp_path}/bin:$PATH\n(\n{lines}{asks}\n)\n"],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    version, found, _, config = done.stdout.splitlines()
    assert all(part.isdigit() for part in version.split("."))
    assert found == seen
    assert config == "CONFIG_MD=y"
    assert [p.name for p in (tmp_path / "modules").iterdir()] == [release]
    assert [p.name for p in (tmp_path / "boot").iterdir()] == [f"config-{release}"]


# -- the running test


def test_a_test_is_told_while_it_runs() -> None:
    told: list[TestStarted] = []
    heard = SuiteTests(told.append)
    line = b'\n--lab-- {"test": "00raid5", "number": 7, "of": 23}\n'
    other = b'\n--lab-- {"ended": "00raid5", "seconds": 3.0}\n'
    forged = b'\n--lab-- {"test": "\\u001b[2J", "number": 1, "of": 1}\n\n--lab-- {"test": 5\n'
    stream = b"x" * 5000 + line + b"tests/00raid5... " + other + forged + line.replace(b"7", b"8")
    for at in range(0, len(stream), 7):
        heard.take(stream[at : at + 7])
    assert [(t.test, t.number, t.of) for t in told] == [("00raid5", 7, 23), ("00raid5", 8, 23)]


def test_the_program_tells_it_at_once(tmp_path: Path) -> None:
    suite = mdadm_suite(tmp_path / "s", {"00one": "sleep 2", "01two": ":"})
    tool = catalog.workload("mdadm_tests")
    p = tool.parameters.model_validate({"directory": str(suite), "tests": ["*"]})
    script = tool.script(p, "/dev/disk1")
    words = shlex.split(script[script.index("python3 -c ") :])
    given = {**json.loads(words[3]), "directory": str(suite)}
    told: list[TestStarted] = []
    heard = SuiteTests(told.append)
    with subprocess.Popen(
        [sys.executable, "-c", words[2], json.dumps(given)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        while not told:
            got = process.stdout.read1()
            assert got
            heard.take(got)
        assert process.poll() is None  # the first test still runs
        heard.take(process.stdout.read())
    assert [(t.test, t.number, t.of) for t in told] == [("00one", 1, 2), ("01two", 2, 2)]


def test_the_display_and_the_log_have_the_test_and_how_many_there_are() -> None:
    run_ = writing()
    run_.take(40, "g1", TestStarted(test="00raid5", number=7, of=23))
    (line,) = [line for line in shown(run_, 45) if "test 00raid5 (7 of 23)" in line]
    assert line.endswith(" 5 s")
    assert "test 00raid5 (7 of 23), 5 s" in log_line(run_, 45)
    assert IDS[0] in run_.running
