"""A run as JUnit: the schema takes it, a claim is a case, a run that stops leaves a file too."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import xmlschema

from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import HostError, InputError
from lab.model.execution.procedure import Procedure, Timed
from lab.model.result.document import Outcome
from lab.model.scenario.claim import Verdict
from lab.results.documents import result_of
from lab.results.junit import Case, Suite, junit_of, junit_xml, written
from lab.store.runs import RunStore
from tests.fakes import Cli, stored_run
from tests.runs import LAYOUTS, SMALL, theory_run

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = xmlschema.XMLSchema(ROOT / "tests/golden/junit/junit.xsd")
CLAIM = """\
claims:
  - id: FIX-1
    says: Three disks read 30 MB/s
    expect: {kind: bound, value: {workload: read, where: {array.layout: parity-last}}, near: 30MB/s}
"""


def read(text: str) -> ET.Element:
    """The suite of a document that the schema takes."""
    SCHEMA.validate(text)
    (suite,) = ET.fromstring(text.encode())
    counts = {"tests": "testcase", "failures": ".//failure", "errors": ".//error"}
    for name, path in (counts | {"skipped": ".//skipped"}).items():
        assert int(suite.attrib[name]) == len(suite.findall(path)), name
    return suite


def endings(suite: ET.Element) -> dict[str, str]:
    """How each case ended, by the first word of its name."""
    found = {}
    for case in suite.findall("testcase"):
        ended = [part.tag for part in case if part.tag != "system-out"]
        found[case.attrib["name"].partition(":")[0]] = ended[0] if ended else "passed"
    return found


def case(suite: ET.Element, name: str) -> ET.Element:
    (found,) = [c for c in suite.findall("testcase") if c.attrib["name"].startswith(name)]
    return found


def test_each_claim_is_a_case_that_ends_as_its_verdict(tmp_path: Path) -> None:
    store = stored_run(tmp_path)
    suite = read(junit_of(store))
    result = result_of(store)
    ends = {
        Verdict.HOLDS: "passed",
        Verdict.REFUTED: "failure",
        Verdict.INCONCLUSIVE: "skipped",
        Verdict.NOT_TESTED: "skipped",
    }
    found = endings(suite)
    assert {c.id: ends[c.verdict] for c in result.claims}.items() <= found.items()
    assert {c.verdict for c in result.claims} >= {Verdict.HOLDS, Verdict.INCONCLUSIVE}
    assert {c.attrib["classname"] for c in suite.findall("testcase")} == {"raid5-parity-last"}
    # the cell that was lost is a case of its own, and the run's only error
    (lost,) = [c for c in result.cells if c.outcome is Outcome.LOST]
    assert [name for name, end in found.items() if end == "error"] == [
        n for n in found if n.startswith(f"cell {lost.id}")
    ]
    error = case(suite, f"cell {lost.id}").find("error")
    assert error is not None
    assert error.attrib == {"type": "lost", "message": "the guest panicked"}


@pytest.mark.parametrize(("drift", "ending"), [(1.0, "passed"), (0.5, "failure")])
def test_a_refuted_claim_is_a_failure_with_its_reason(
    tmp_path: Path, drift: float, ending: str
) -> None:
    plain = theory_run(tmp_path / "first", SMALL)
    speed = result_of(plain).cells[1].measurements[0].median
    claims = CLAIM.replace("30MB/s", f"{speed / 1e6:.2f}MB/s")
    suite = read(junit_of(theory_run(tmp_path, SMALL + claims, drift=drift)))
    assert endings(suite) == {"FIX-1": ending}
    failure = suite.find(".//failure")
    if ending == "passed":
        assert failure is None
        return
    assert failure is not None
    assert failure.attrib["type"] == "refuted"
    assert re.search(r"was measured, -5\d(\.\d)?% off", failure.attrib["message"])


def test_a_case_says_what_was_run_and_the_suite_has_every_command(tmp_path: Path) -> None:
    store = theory_run(tmp_path, SMALL + CLAIM)
    suite = read(junit_of(store))
    said = case(suite, "FIX-1").findtext("system-out") or ""
    whole = suite.findtext("system-out") or ""
    first, second = store.load_run().cells
    procedure = store.load_procedure(store.cell_directory(second.id))
    assert isinstance(procedure, Procedure)
    scripts = {s.script for s in procedure.steps if isinstance(s, Timed)}
    assert scripts
    assert all(script.rstrip() in said for script in scripts)
    assert "expected: 30" in said
    # the claim speaks of one of the two cells only; the suite has both
    assert second.id in said
    assert first.id not in said
    assert first.id in whole
    assert whole.count("mdadm --create") == 2


def test_the_cases_times_add_up_to_what_the_claimed_cells_took(tmp_path: Path) -> None:
    store = theory_run(tmp_path, LAYOUTS)
    suite = read(junit_of(store))
    times = [float(c.attrib["time"]) for c in suite.findall("testcase")]
    # FIX-1 compares two cells of five disks, FIX-2 picks one of three: 24 s each, none shared
    assert times == [48.0, 24.0]
    assert float(suite.attrib["time"]) == 300.0  # the run's own five minutes


def test_properties_are_the_environments_facts(tmp_path: Path) -> None:
    suite = read(junit_of(theory_run(tmp_path, SMALL)))
    facts = {p.attrib["name"]: p.attrib["value"] for p in suite.iter("property")}
    assert facts["accelerator"] == "tcg"
    assert facts["host.cpus"] == "2"
    assert facts["guest.kernel"] == "6.1.0-18-amd64"
    assert facts["run"] == "fixture-20260101-120000"
    assert suite.attrib["hostname"] == "test"


def test_what_no_xml_can_hold_is_replaced() -> None:
    broken = Case(
        name="a\x00 <b>\n",
        ending="error",
        kind="lost",
        reason="\x1b[31mpanic\x1b[0m & ]]>\nmore \ud800",
        out="\x08",
    )
    suite = Suite(
        name="q", started="2026-01-01T12:00:00+00:00", host="", seconds=0, cases=(broken,)
    )
    found = read(junit_xml(suite)).find("testcase")
    assert found is not None
    assert found.attrib["name"] == "a\\u0000 <b>"
    error = found.find("error")
    assert error is not None
    assert error.text == "\\u001b[31mpanic\\u001b[0m & ]]>\nmore \\ud800"
    assert error.attrib["message"] == "\\u001b[31mpanic\\u001b[0m & ]]>"


def without(text: str, old: str, new: str) -> str:
    assert text.count(old) >= 1
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (' tests="', ' test="'),
        ("<properties>", '<properties><property name="x"/>'),
        ("<testcase ", "<testcase file='x' "),
        ("</testsuite>", "<failure/></testsuite>"),
        (' time="', ' time="a minute, '),
    ],
)
def test_the_schema_refuses_what_jenkins_would(tmp_path: Path, old: str, new: str) -> None:
    text = junit_of(stored_run(tmp_path))
    read(text)
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        SCHEMA.validate(without(text, old, new))


# -- while a run goes on


def begin(store: RunStore, path: Path, error: BaseException | None) -> None:
    compiled = compile_scenario(store.directory / "scenario.yaml")
    with written(path, compiled) as begun:
        begun(store)
        assert "is not finished" in path.read_text()
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HostError("there is no room", hint="make some"), "there is no room"),
        (KeyboardInterrupt(), "stopped by Ctrl-C"),
        (ZeroDivisionError("1/0"), "a mistake in the lab itself: ZeroDivisionError: 1/0"),
    ],
)
def test_a_run_that_stops_leaves_what_is_known(
    tmp_path: Path, error: BaseException, said: str
) -> None:
    store = theory_run(tmp_path, SMALL + CLAIM)
    unfinished = store.load_run().model_copy(update={"finished": None})
    store.save_run(unfinished)
    path = tmp_path / "junit.xml"
    with pytest.raises(type(error)):
        begin(store, path, error)
    suite = read(path.read_text())
    assert endings(suite) == {"FIX-1": "failure", "the run": "error"}
    found = case(suite, "the run").find("error")
    assert found is not None
    assert said in found.attrib["message"]
    # the control: the same run, once it has ended, has no such case
    store.save_run(unfinished.model_copy(update={"finished": "2026-01-01T12:05:00+00:00"}))
    begin(store, path, None)
    assert endings(read(path.read_text())) == {"FIX-1": "failure"}
    assert list(tmp_path.glob(".*.part")) == []


def test_a_run_that_never_began_has_a_file_too(tmp_path: Path) -> None:
    source, path = tmp_path / "small.yaml", tmp_path / "junit.xml"
    source.write_text(SMALL + CLAIM)
    with (
        pytest.raises(HostError),
        written(path, compile_scenario(source)),
    ):
        raise HostError("there is no QEMU")
    suite = read(path.read_text())
    assert endings(suite) == {"FIX-1": "skipped", "the run": "error"}


def test_a_killed_lab_leaves_a_file_that_says_so(tmp_path: Path) -> None:
    store = theory_run(tmp_path, SMALL + CLAIM)
    store.save_run(store.load_run().model_copy(update={"finished": None}))
    path = tmp_path / "junit.xml"
    code = (
        "import os, sys, signal\nfrom pathlib import Path\n"
        "from lab.results.junit import written\n"
        "from lab.compile.scenario.compiler import compile_scenario\n"
        "from lab.store.runs import RunStore\n"
        "run = RunStore(Path(sys.argv[1]))\n"
        "with written(Path(sys.argv[2]), compile_scenario(run.directory / 'scenario.yaml')) as b:\n"
        "    b(run)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, store.directory, path], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    assert endings(read(path.read_text()))["the run"] == "error"


@pytest.mark.parametrize("name", ["no/such/place.xml", "."])
def test_a_place_where_no_file_can_be_is_said_before_anything_runs(cli: Cli, name: str) -> None:
    ended = cli("run", "scenario", "raid5-parity-last", "--junit", name)
    assert ended.status == 2
    assert ended.stderr.startswith(f"lab: --junit {name}: ")
    assert cli.left() == []


def test_a_place_is_looked_at_before_the_run(tmp_path: Path) -> None:
    source = tmp_path / "small.yaml"
    source.write_text(SMALL)
    compiled = compile_scenario(source)
    with pytest.raises(InputError, match="no directory"), written(Path("no/x"), compiled):
        pytest.fail("the run began")


def test_a_stored_run_is_exported(cli: Cli) -> None:
    stored_run(cli.home / "data" / "runs")
    words = ("results", "export", "last", "--format", "junit")
    ended = cli(*words, "--out", "j.xml", "--json")
    assert ended.json == {"format": "junit", "files": ["j.xml"]}
    read((cli.base / "j.xml").read_text())
    again = cli(*words, "--out", "j.xml")
    assert (again.status, "'j.xml' exists already" in again.stderr) == (2, True)
    part = cli(*words, "--out", "k.xml", "--cell", "any")
    assert part.status == 2


def test_strict_makes_a_failure_of_each_claim_that_does_not_hold(tmp_path: Path) -> None:
    store = stored_run(tmp_path)
    usual, strict = (endings(read(junit_of(store, strict=s))) for s in (False, True))
    assert set(usual.values()) & {"skipped"}
    assert strict == {
        name: "failure" if ending == "skipped" else ending for name, ending in usual.items()
    }


def test_a_claim_that_does_not_hold_says_what_was_expected(tmp_path: Path) -> None:
    store = theory_run(tmp_path, SMALL + CLAIM, drift=0.5)
    failure = read(junit_of(store)).find(".//failure")
    assert failure is not None
    assert re.search(r"expected .*30", failure.attrib["message"])
