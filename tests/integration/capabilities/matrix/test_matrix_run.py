"""Running a matrix: no failure stops it, and known failures are separated from new ones."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from lab.capabilities.matrix import run as running
from lab.capabilities.matrix.file import CompiledMatrix, compile_matrix
from lab.capabilities.matrix.jobs import host_of, plan_of
from lab.capabilities.matrix.junit import matrix_junit
from lab.capabilities.matrix.logic.entries import Expected
from lab.capabilities.matrix.logic.known_failures import endings, expired
from lab.capabilities.matrix.model import Ending, JobRecord, JobState, MatrixResult, MatrixRun
from lab.capabilities.matrix.page import matrix_page, overview_of, plan_page, sentence
from lab.capabilities.matrix.record import MATRIX_RUNS
from lab.capabilities.site.page import verdicts_badge
from lab.capabilities.site.run import write_site
from lab.compile.scenario.compiler import Compiled
from lab.core.errors import FullError, HostError, InputError
from lab.host.system import paths
from lab.model.result.document import ClaimResult, Result, Run
from lab.model.scenario.claim import Verdict
from lab.results.documents import result_of
from lab.run import execute
from lab.run.execute import Done
from lab.run.options import RunOptions
from lab.store import runs as store
from tests.runs import SMALL, theory_run

CLAIM = """claims:
  - id: FIX
    says: With parity-last it reads {rate} or more
    expect:
      kind: bound
      value: {{workload: read, where: {{array.layout: parity-last}}}}
      at_least: {rate}
"""
GOOD, BAD = SMALL + CLAIM.format(rate="1MB/s"), SMALL + CLAIM.format(rate="900MB/s")
MATRIX = """title: A short matrix
scenarios: [good.yaml, bad.yaml]
images: [debian-12, debian-13]
"""


@dataclass
class World:
    """A matrix whose runs have theory's values, and failures instead of some runs."""

    place: Path
    happens: dict[str, BaseException] = field(default_factory=dict)
    """By job: exception once the run has its directory."""
    environment: dict[str, Any] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    hands: list[str] = field(default_factory=list)
    """Executor of each job that ran."""
    clock: float = 0.0

    def compiled(self, text: str = MATRIX) -> CompiledMatrix:
        (self.place / "good.yaml").write_text(GOOD)
        (self.place / "bad.yaml").write_text(BAD)
        (self.place / "short.yaml").write_text(text)
        return compile_matrix(self.place / "short.yaml")

    def run(self, compiled: Compiled, **given: Any) -> Done:
        name = f"{compiled.name}@{compiled.base.guest.image}"
        self.ran.append(name)
        self.hands.append(given["executor"].options.erase[0])
        self.clock += 100
        if given["resume"] is not None:
            self.resumed.append(given["resume"].id)
        number = len(list(paths.runs().glob("*"))) + 1
        run = theory_run(
            paths.runs(),
            compiled.path.read_text(),
            name=compiled.name,
            stamp=f"20260101-{number:06}",
            compiled=compiled,
        )
        image = {"image": {"name": compiled.base.guest.image, "mdadm": "4.4-1", "kernel": "6.12"}}
        stored = run.load_run()
        run.save_run(stored.model_copy(update={"environment": {**stored.environment, **image}}))
        given["ready"](run, None)
        if name in self.happens:
            raise self.happens.pop(name)
        result = result_of(run)
        run.save_result(result)
        return Done(store=run, result=result, kept=None)

    def matrix(self, compiled: CompiledMatrix, planned: MatrixRun | None = None) -> MatrixResult:
        planned = planned or plan_of(compiled, host_of(None), runs=())
        directory = running.begin(compiled, planned)
        return self.go_on(compiled, directory, MATRIX_RUNS.load(directory))

    def go_on(self, compiled: CompiledMatrix, directory: Path, planned: MatrixRun) -> MatrixResult:
        def nothing(*_: object) -> None:
            pass

        @contextlib.contextmanager
        def follow(job: JobRecord, one: Compiled) -> Iterator[running.Follower]:
            hands = execute.LocalExecutor(
                options=RunOptions(erase=(job.id,)), watch=nothing, say=nothing
            )
            yield running.Follower(hands=hands, progress=nothing, ready=nothing)

        options = running.Options(how=RunOptions(), out=None, follow=follow, ended=nothing)
        running.run_jobs(compiled, directory, planned, options)
        return running.matrix_result(directory)


@pytest.fixture
def world(tmp_path: Path, lab_home: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(place=tmp_path)
    monkeypatch.setattr(execute, "run_scenario", made.run)
    monkeypatch.setattr(running.clock, "now", lambda: made.clock)
    return made


def states(found: MatrixResult) -> list[str]:
    return [job.job.state.value for job in found.jobs]


def screen(page: object) -> str:
    console = Console(width=80, file=io.StringIO())
    console.print(page)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_matrix_run_runs_every_job_and_names_its_runs(world: World) -> None:
    found = world.matrix(world.compiled())
    assert world.ran == ["good@debian-12", "good@debian-13", "bad@debian-12", "bad@debian-13"]
    assert world.hands == world.ran  # each job by its own executor
    assert states(found) == ["done"] * 4
    assert [p.claims[0].ending for p in found.jobs] == [Ending.PASSED] * 2 + [Ending.FAILED] * 2
    assert running.exit_status(found) == 1
    runs = [Path(p.job.run or "") for p in found.jobs]
    assert [r.parent for r in runs] == [paths.runs()] * 4
    assert MATRIX_RUNS.find("last") == MATRIX_RUNS.find("short") == Path(found.directory)
    assert (found.jobs[0].kernel, found.jobs[0].mdadm) == ("6.1.0-18-amd64", "4.4-1")
    text = screen(matrix_page(found))
    assert "✗1" in text
    assert "bad@debian-12: FIX is refuted" in text
    assert len(text.splitlines()) <= 24
    assert "4 of 4 jobs done, in 6 min 40 s. Claims: 2 passed, 2 failed." in " ".join(text.split())


def test_with_strict_an_undecided_claim_fails_the_run(world: World) -> None:
    found = world.matrix(world.compiled(MATRIX.replace("[good.yaml, bad.yaml]", "[good.yaml]")))
    assert running.exit_status(found) == running.exit_status(found, strict=True) == 0
    (claim, *_), *_ = (part.claims for part in found.jobs)
    open_ = claim.model_copy(update={"ending": Ending.UNDECIDED})
    first = found.jobs[0].model_copy(update={"claims": (open_,)})
    undecided = found.model_copy(update={"jobs": (first, *found.jobs[1:])})
    assert running.exit_status(undecided) == 0
    assert running.exit_status(undecided, strict=True) == 1


def test_a_part_that_breaks_leaves_the_others_alone(world: World) -> None:
    world.happens["good@debian-12"] = HostError("there is no QEMU")
    world.happens["good@debian-13"] = RuntimeError("a mistake")
    found = world.matrix(world.compiled(MATRIX.replace("bad.yaml", "gone.yaml")))
    assert states(found) == ["broken"] * 4
    assert found.jobs[0].job.reason == "there is no QEMU"
    assert "a mistake in the lab itself: RuntimeError: a mistake" in found.jobs[1].job.reason
    log = Path(found.directory) / "good@debian-13.log"
    assert "Traceback" in log.read_text()
    assert "'good" not in found.jobs[2].job.reason
    assert running.exit_status(found) == 3
    cases = suites(found)
    assert cases["good@debian-12"]["the run"] == "error"
    assert cases["gone@debian-13"] == {"the run": "error"}


def test_a_full_disk_ends_the_matrix_run_and_it_can_be_resumed(world: World) -> None:
    compiled = world.compiled()
    world.happens["good@debian-13"] = FullError("the disk is full")
    with pytest.raises(FullError):
        world.matrix(compiled)
    directory = MATRIX_RUNS.find("short")
    begun = MATRIX_RUNS.load(directory)
    assert [p.state for p in begun.jobs] == [JobState.DONE] + [JobState.WAITING] * 3
    assert begun.finished is None
    world.ran.clear()
    found = world.go_on(compiled, directory, running.resume(compiled, directory))
    assert world.ran == ["good@debian-13", "bad@debian-12", "bad@debian-13"]
    assert world.resumed == [Path(begun.jobs[1].run or "").name]
    assert states(found) == ["done"] * 4
    world.ran.clear()
    world.go_on(compiled, directory, running.resume(compiled, directory))
    assert world.ran == []


def test_another_matrix_is_not_gone_on_with(world: World) -> None:
    compiled = world.compiled()
    found = world.matrix(compiled)
    changed = world.compiled(MATRIX.replace("debian-13", "debian-sid"))
    with pytest.raises(InputError, match="has the job 'good@debian-13', which the matrix"):
        running.resume(changed, Path(found.directory))
    with pytest.raises(InputError, match="there is no matrix run 'other'"):
        MATRIX_RUNS.find("other")
    (Path(found.directory) / "night.json").write_text("{")
    with pytest.raises(InputError, match="is not a matrix run that this lab can read"):
        running.resume(compiled, Path(found.directory))


def test_a_budget_that_is_used_up_ends_the_matrix_run_early(world: World) -> None:
    compiled = world.compiled()
    planned = plan_of(compiled, host_of(None), runs=(), budget=250.0)
    short = tuple(
        p.model_copy(update={"seconds": 60.0, "state": JobState.WAITING}) for p in planned.jobs
    )
    found = world.matrix(compiled, planned.model_copy(update={"jobs": short}))
    assert states(found) == ["done", "done", "left out", "left out"]
    assert "took longer than planned" in found.jobs[2].job.reason
    assert running.exit_status(found) == (
        1 if any(p.claims and p.claims[0].fails for p in found.jobs) else 0
    )
    assert suites(found)[found.jobs[2].job.id] == {"the run": "skipped"}


def test_the_second_run_knows_the_first(world: World) -> None:
    compiled = world.compiled()
    first = world.matrix(compiled)
    # Where KVM passes its first test, the stored runs would be those of another accelerator.
    host = replace(host_of(None), kind="tcg")
    planned = plan_of(compiled, host, runs=list(store.every()))
    assert {p.basis.partition("-")[0] for p in planned.jobs} == {"a run: good", "a run: bad"}
    assert {p.why for p in planned.jobs} == {"last run 2026-01-01"}
    assert {p.seconds for p in planned.jobs} == {300.0}
    assert len(first.jobs) == 4
    other = world.compiled(MATRIX.replace("[good.yaml", "[{name: good.yaml, trials: 2}"))
    planned = plan_of(other, host, runs=list(store.every()))
    why = {p.id: (p.basis, p.why) for p in planned.jobs}
    assert why["good@debian-13"] == ("theory", "never run here")
    page = screen(plan_page(planned))
    assert "a run" in page
    assert "never run here" in page


def suites(found: MatrixResult) -> dict[str, Mapping[str, str]]:
    """Return the ending of each case by suite, from the document."""
    root = ET.fromstring(matrix_junit(found))
    return {
        suite.get("name", ""): {
            case.get("name", "").partition(":")[0]: next(
                (c.tag for c in case if c.tag in ("failure", "error", "skipped")), "passed"
            )
            for case in suite.iter("testcase")
        }
        for suite in root.iter("testsuite")
    }


EXPECTED = """expected:
  - {{claims: [FIX], scenario: {scenario}, image: debian-12, mdadm: '<5', reason: known,
     until: {until}, strict: {strict}}}
"""


def expecting(scenario: str, until: str = "2999-01-01", strict: str = "false") -> str:
    return MATRIX + EXPECTED.format(scenario=scenario, until=until, strict=strict)


def test_what_was_expected_to_fail_does_not_fail_the_matrix(world: World) -> None:
    found = world.matrix(world.compiled(expecting("bad")))
    ends = [p.claims[0].ending for p in found.jobs]
    assert ends == [Ending.PASSED] * 2 + [Ending.EXPECTED, Ending.FAILED]
    assert suites(found)["bad@debian-12"] == {"FIX": "skipped"}
    assert suites(found)["bad@debian-13"] == {"FIX": "failure"}
    assert running.exit_status(found) == 1  # of the other image
    both = expecting("bad").replace("image: debian-12, ", "")
    assert running.exit_status(world.matrix(world.compiled(both))) == 0


def test_an_expectation_that_is_over_excuses_nothing_and_says_so(world: World) -> None:
    found = world.matrix(world.compiled(expecting("bad", until="2020-01-01")))
    claim = found.jobs[2].claims[0]
    assert (claim.ending, claim.fails) == (Ending.FAILED, True)
    assert claim.remark.endswith("expired on 2020-01-01: known")
    assert "FIX expired on 2020-01-01" in found.remarks[0]
    assert suites(found)["bad@debian-12"] == {"FIX": "failure"}
    assert "expired on 2020-01-01" in matrix_junit(found)


@pytest.mark.parametrize(("strict", "ending"), [("false", "passed"), ("true", "failure")])
def test_what_holds_unexpectedly_fails_only_where_that_is_asked_for(
    world: World, strict: str, ending: str
) -> None:
    found = world.matrix(world.compiled(expecting("good", strict=strict)))
    claim = found.jobs[0].claims[0]
    assert (claim.ending, claim.fails) == (Ending.UNEXPECTED, strict == "true")
    assert suites(found)["good@debian-12"] == {"FIX": ending}
    assert "good@debian-12: FIX unexpectedly holds" in " ".join(screen(matrix_page(found)).split())


def judged(verdict: Verdict) -> Result:
    run = Run(id="r", scenario="s", started="2026-01-01T00:00:00+00:00")
    claim = ClaimResult(id="ONE", says="one", verdict=verdict)
    guest = {"kernel": "6.12.9", "mdadm": "mdadm - v4.4 - 2025"}
    return Result(run=run, environment={"guest": guest}, cells=(), claims=(claim,))


@pytest.mark.parametrize(
    ("entry", "excused"),
    [
        ({}, True),
        ({"kernel": ">=6.12"}, True),
        ({"kernel": "<6.12"}, False),
        ({"mdadm": ">=4.4"}, True),
        ({"mdadm": "<4.4"}, False),
        ({"image": "debian-12"}, False),
        ({"scenario": "other"}, False),
        ({"claims": ["TWO"]}, False),
        ({"until": "2026-01-01"}, True),
        ({"until": "2025-12-31"}, False),
    ],
)
def test_an_entry_excuses_what_it_speaks_of(entry: dict[str, Any], excused: bool) -> None:
    whole = {"claims": ["ONE"], "reason": "known", "until": "2026-06-01", **entry}
    expected = (Expected.model_validate(whole),)
    job = JobRecord(id="s@i", scenario="s", image="i", cells=1, seconds=1, basis="theory")
    (found,) = endings(job, judged(Verdict.REFUTED), expected, date(2026, 1, 1))
    assert found.fails is not excused
    assert bool(expired(expected, date(2026, 1, 1))) is (entry.get("until") == "2025-12-31")
    for verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_TESTED):
        (found,) = endings(job, judged(verdict), expected, date(2026, 1, 1))
        assert (found.ending, found.fails) == (Ending.UNDECIDED, False)


def test_the_report_has_every_part_a_page_for_each_run_and_a_badge(
    world: World, tmp_path: Path
) -> None:
    found = world.matrix(world.compiled(expecting("bad")))
    runs = running.runs_of(found.run, list(store.every()))
    index = write_site(runs, tmp_path / "site", "lab", print, overview=overview_of(found))
    page = index.read_text()
    assert "A short matrix" in page
    assert all(f'href="{r.id}.html"' in page for r in runs)
    picture = ET.fromstring((tmp_path / "site" / "badge.svg").read_text())
    assert picture.get("aria-label") == "short: 2 hold, 1 failed"
    assert json.loads(json.dumps(found.model_dump(mode="json", by_alias=True)))["schema"] == (
        "lab.matrix/1"
    )
    assert "in 6 min 40 s" in sentence(found)


@pytest.mark.parametrize(
    ("verdicts", "words", "colour"),
    [
        ([], "nothing was run", "#5f6368"),
        ([Verdict.HOLDS] * 3, "3 hold", "#2e7d32"),
        ([Verdict.HOLDS, Verdict.INCONCLUSIVE], "1 hold, 1 open", "#9a6700"),
        ([Verdict.HOLDS, Verdict.REFUTED], "1 hold, 1 refuted", "#b3261e"),
    ],
)
def test_a_badge_says_how_things_stand(verdicts: list[Verdict], words: str, colour: str) -> None:
    text = verdicts_badge("a <lab> & more", verdicts)
    picture = ET.fromstring(text)
    assert picture.get("aria-label") == f"a <lab> & more: {words}"
    assert colour in text


def why(world: World) -> list[str]:
    planned = plan_of(world.compiled(), host_of(None), runs=list(store.every()))
    return [p.why for p in planned.jobs if p.id == "good@debian-12"]


def rewritten(number: int, verdict: Verdict) -> None:
    """Change the verdict of the n-th newest run of the good scenario on debian-12."""
    runs = [r for r in store.every() if r.scenario_name == "good"]
    mine = [r for r in runs if r.load_run().cells[0].cell.guest.image == "debian-12"]
    result = mine[number].load_result()
    assert result is not None
    claims = tuple(c.model_copy(update={"verdict": verdict}) for c in result.claims)
    mine[number].save_result(result.model_copy(update={"claims": claims}))


def test_why_a_part_is_informative(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why(world) == ["never run here"]
    for _ in range(2):
        world.matrix(world.compiled())
    assert why(world) == ["last run 2026-01-01"]
    rewritten(1, Verdict.REFUTED)
    assert why(world) == ["flipped last time"]
    rewritten(0, Verdict.INCONCLUSIVE)
    assert why(world) == ["unclear last time"]
    manifest = SimpleNamespace(
        kernel_version="6.12",
        mdadm_version="4.4-1",
        packages={},
        kernel_options=None,
        own_modules=(),
    )
    image = SimpleNamespace(digest=None, manifest=manifest)
    monkeypatch.setattr("lab.capabilities.matrix.jobs.systems.find", lambda _guest: image)
    assert why(world) == ["unclear last time"]
    manifest.mdadm_version = "4.5-1"
    assert why(world) == ["system has changed"]


def test_a_record_of_an_earlier_version_is_read_and_keeps_its_keys(tmp_path: Path) -> None:
    golden = Path(__file__).parents[3] / "golden" / "matrix-runs" / "night.json"
    (tmp_path / "night.json").write_text(golden.read_text())
    record = MATRIX_RUNS.load(tmp_path)
    assert [job.state for job in record.jobs] == [
        *(JobState.DONE, JobState.BROKEN, JobState.LEFT_OUT),
    ]
    assert record.expected[0].until == date(2026, 12, 31)
    MATRIX_RUNS.save(tmp_path, record)
    written = json.loads((tmp_path / "night.json").read_text())
    # the keys that it did not have
    assert (written.pop("clock"), written.pop("bisections")) == (None, [])
    assert [job.pop("reused") for job in written["parts"]] == [0, 0, 0]
    assert written == json.loads(golden.read_text())
    whole = running.matrix_result(tmp_path, trends=False).model_dump(mode="json", by_alias=True)
    assert whole["schema"] == "lab.matrix/1"
    assert [job.pop("reused") for job in whole["night"]["parts"]] == [0, 0, 0]
    assert whole["night"]["parts"] == json.loads(golden.read_text())["parts"]
    assert [found["part"]["id"] for found in whole["parts"]] == [job.id for job in record.jobs]
