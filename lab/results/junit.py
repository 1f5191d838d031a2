"""Runs and matrix runs as JUnit XML for CI servers: a suite per run, a case per claim.

There is no standard. The narrowest format in use is that of Jenkins' xUnit plug-in
(``junit-10.xsd``): a case has a name, a class name and a time; facts about the run belong to its
suite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal
from xml.etree import ElementTree as ET

from lab.analysis.judge import in_words
from lab.compile.scenario.compiler import Compiled
from lab.compile.scenario.fields import fields_of
from lab.core.errors import InputError, LabError
from lab.core.printable import printable
from lab.core.units import shortened
from lab.host.system import files
from lab.host.system.process import uninterrupted
from lab.model.execution.procedure import BeginWorkload, Timed
from lab.model.result.document import UNDER_WAY, CellResult, ClaimResult, Outcome, Result, RunState
from lab.model.scenario.claim import Claim, Verdict, matches
from lab.model.scenario.suite import Tested
from lab.plugins.workloads._suites import COLOUR
from lab.report.export.shell import cell_script
from lab.results.documents import result_of, tests_of_run, understood
from lab.results.report import LOG_SHOWN
from lab.store.runs import RunStore, StoredCell, StoredRun, now

CaseEnding = Literal["passed", "failure", "error", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test case."""

    name: str
    ending: CaseEnding = "passed"
    kind: str = ""
    """Result other than passed, in the lab's words; empty: it passed."""
    reason: str = ""
    """Reason of the result; CI servers show its first line with the name."""
    seconds: float = 0.0
    out: str = ""
    """Evidence: values and commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """All cases of one run."""

    name: str
    started: str
    """ISO 8601."""
    host: str
    seconds: float
    cases: tuple[Case, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    out: str = ""


ENDINGS: Final[Mapping[Verdict, CaseEnding]] = {
    Verdict.HOLDS: "passed",
    Verdict.REFUTED: "failure",
    Verdict.INCONCLUSIVE: "skipped",
    Verdict.NOT_TESTED: "skipped",
}
_BEGUN: Final = "the run is not finished: it was killed, or is still running"
_UNENDED: Final[Mapping[RunState, str]] = {
    RunState.RUNNING: UNDER_WAY,
    RunState.STOPPED: "the run did not finish, without a reason: it was killed",
    RunState.FINISHED: "",
}
THE_RUN: Final = "the run"
"""Name of the case for a run that did not finish."""


def junit_of(store: RunStore, trouble: str = "", *, strict: bool = False) -> str:
    """Return the document of a run so far; ``trouble``: the error that ended it early.

    ``strict``: a claim that does not hold is a failure, whatever the reason.
    """
    return junit_xml(suite_of(store, trouble, strict=strict))


@contextmanager
def written(
    path: Path | None, compiled: Compiled, *, strict: bool = False
) -> Iterator[Callable[[RunStore], None]]:
    """Write a run's document to ``path`` (``None``: nowhere) after the run, even after an error.

    Call the yielded function with the run's directory: it writes a first document, which remains if
    the lab is killed. ``InputError``: no file can be made there.
    """
    if path is None:
        yield lambda _store: None
        return
    check_file(path)
    told: list[RunStore] = []

    def begun(store: RunStore) -> None:
        told.append(store)
        files.write(path, junit_of(store, _BEGUN))

    try:
        yield begun
    except BaseException as error:
        with uninterrupted(), suppress(LabError):  # report the first error
            why = _sentence(error)
            text = junit_of(told[0], why) if told else junit_xml(_nothing_run(compiled, why))
            files.write(path, text)
        raise
    files.write(path, junit_of(told[0], strict=strict))


def check_file(path: Path, option: str = "--junit") -> None:
    """``InputError``: no file can be made there."""
    if path.is_dir():
        raise InputError(f"{option} {path}: is a directory, and the name of a file is needed")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{option} {path}: there is no directory '{path.parent}'")


def _sentence(error: BaseException) -> str:
    if isinstance(error, LabError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "it was stopped by Ctrl-C, or by a signal"
    return f"a mistake in the lab itself: {type(error).__name__}: {error}"


def _nothing_run(compiled: Compiled, why: str) -> Suite:
    """Return the suite of a run that ended before it had a directory."""
    claims = [
        Case(
            name=f"{claim.id}: {claim.says}",
            ending="skipped",
            kind=Verdict.NOT_TESTED.value,
            reason="nothing was run",
        )
        for claim in compiled.scenario.claims
    ]
    return Suite(
        name=compiled.name, started=now(), host="", seconds=0.0, cases=(*claims, _broken(why))
    )


def _broken(why: str) -> Case:
    return Case(name=THE_RUN, ending="error", kind="stopped", reason=why)


@understood
def suite_of(store: RunStore, trouble: str = "", *, strict: bool = False) -> Suite:
    """Return a run's test cases; ``trouble``: the error that ended it early; ``strict`` as in
    ``junit_of``."""
    run = store.load_run()
    ended = run.finished is not None and not trouble
    result = (store.load_result() if ended else None) or result_of(store)
    trouble = trouble or _UNENDED[result.run.state]
    asked = {claim.id: claim for claim in run.claims}
    about = {claim.id: _cells_of(claim, run) for claim in run.claims}
    seconds = {cell.id: cell.seconds.total for cell in result.cells}
    shares = {id_: max(1, sum(id_ in ids for ids in about.values())) for id_ in seconds}
    commands = {cell.id: _Commands(store, cell) for cell in run.cells}
    tests = {test.claim: test.test for test in tests_of_run(store, result)}
    cases = [
        Case(
            name=f"{claim.id}: {claim.says}",
            ending=_ending(claim.verdict, strict=strict),
            kind="" if claim.verdict is Verdict.HOLDS else claim.verdict.value,
            reason=_reason(claim),
            seconds=(tests[claim.id].seconds or 0.0)
            if claim.id in tests
            else sum(seconds[i] / shares[i] for i in about.get(claim.id, ())),
            out=_evidence(
                claim, asked.get(claim.id), [commands[i] for i in about.get(claim.id, ())]
            )
            + _logs(tests.get(claim.id)),
        )
        for claim in result.claims
    ]
    cases += [
        _cell_case(store, cell)
        for cell in result.cells
        if cell.outcome in (Outcome.FAILED, Outcome.LOST)
    ]
    if not ended:
        cases.append(_broken(trouble))
    return Suite(
        name=run.scenario,
        started=run.started,
        host=str(run.environment.get("host", {}).get("name", "")),
        seconds=_wall(run, sum(seconds.values())),
        cases=tuple(cases),
        properties=_properties(run, result),
        out="\n".join(c.whole for c in commands.values() if c.whole),
    )


def _ending(verdict: Verdict, *, strict: bool) -> CaseEnding:
    return "failure" if strict and verdict is not Verdict.HOLDS else ENDINGS[verdict]


def _reason(claim: ClaimResult) -> str:
    """Return the reason of a verdict, with what was expected if it does not hold."""
    if claim.verdict is Verdict.HOLDS or not claim.expected or claim.expected in claim.reason:
        return claim.reason
    return f"{claim.reason}; expected {claim.expected}".removeprefix("; ")


def _cells_of(claim: Claim, run: StoredRun) -> list[str]:
    """Return ids of the cells of a claim, in the run's order."""
    return [
        cell.id
        for cell, *_ in run.points
        if any(matches(value.where, fields_of(cell.cell, (claim,))) for value in claim.values)
    ]


class _Commands:
    """A cell's shell commands."""

    def __init__(self, store: RunStore, cell: StoredCell) -> None:
        self._id = cell.id
        self._procedure = store.load_procedure(store.cell_directory(cell.id))

    @property
    def whole(self) -> str:
        """Return all commands; empty if the cell was not run."""
        return f"# ---- cell {self._id}\n{cell_script(self._procedure)}" if self._procedure else ""

    def of(self, workload: str) -> str:
        """Return a workload's command in the guest."""
        for step in self._procedure.steps if self._procedure else ():
            if isinstance(step, Timed | BeginWorkload) and step.workload == workload:
                return f"# {workload} in the cell {self._id}\n{step.script.rstrip()}\n"
        return ""


def _evidence(found: ClaimResult, claim: Claim | None, cells: Sequence[_Commands]) -> str:
    """Return the claim's values and its workloads' commands. The suite has the commands of whole
    cells.

    ``claim``: the scenario's; ``None``: a test of a suite.
    """
    figures = {
        "expected": found.expected or (in_words(claim, {}) if claim else None),
        "measured": found.shown or found.measured,
        "predicted": found.predicted,
        "published": found.shown_published or found.published,
        "source": claim.source if claim else None,
    }
    lines = [f"{name}: {value}\n" for name, value in figures.items() if value is not None]
    if found.verdict is Verdict.HOLDS and found.reason:
        lines.append(f"{found.reason}\n")
    workloads = list(dict.fromkeys(v.workload for v in (claim.values if claim else ())))
    return "".join([*lines, *(cell.of(name) for cell in cells for name in workloads)])


def _logs(test: Tested | None) -> str:
    """Return logs and kernel messages of a test that failed or did not finish."""
    if test is None or test.ending not in ("failed", "unfinished"):
        return ""
    return "".join(
        f"---- {name}\n{shortened(COLOUR.sub('', text), LOG_SHOWN).rstrip()}\n"
        for name, text in test.logs
    )


def _cell_case(store: RunStore, cell: CellResult) -> Case:
    """Return the case of a cell that failed, with its console log if it was stored."""
    axes = ", ".join(f"{name}: {value}" for name, value in cell.axes.items())
    console = store.raw(store.cell_directory(cell.id)).get("console.txt", "")
    return Case(
        name=f"cell {cell.id}" + (f" ({axes})" if axes else ""),
        ending="error",
        kind=cell.outcome.value,
        reason=cell.reason or "no reason was kept",
        seconds=cell.seconds.total,
        out=f"the guest's console:\n{console}" if console else "",
    )


def _wall(run: StoredRun, busy: float) -> float:
    """Return seconds from start to end; for an unfinished run ``busy``, the sum over its cells."""
    if run.finished is None:
        return busy
    ended, began = (datetime.fromisoformat(text) for text in (run.finished, run.started))
    return max(0.0, (ended - began).total_seconds())


def _properties(run: StoredRun, result: Result) -> dict[str, str]:
    facts: dict[str, Any] = {
        "run": run.id,
        "title": run.title,
        "question": run.question.strip(),
        "directory": result.run.directory,
        "set": list(run.overrides),
        **result.environment,
    }
    return dict(_flat(facts, ""))


def _flat(facts: Mapping[str, Any], above: str) -> Iterator[tuple[str, str]]:
    """Yield dotted names and values; a list is one value, as JSON."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif isinstance(value, list | tuple):
            yield f"{above}{name}", json.dumps(value, ensure_ascii=False)
        elif value is not None:
            yield f"{above}{name}", str(value)


def junit_xml(*suites: Suite) -> str:
    """Return the document of these suites."""
    time = _time(sum(suite.seconds for suite in suites))
    root = ET.Element("testsuites", {"name": "lab", **_counts(*suites), "time": time})
    root.extend(_suite_element(suite) for suite in suites)
    ET.indent(root, " ")
    text: str = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _counts(*suites: Suite) -> dict[str, str]:
    return {
        "tests": str(sum(len(suite.cases) for suite in suites)),
        "failures": _count("failure", *suites),
        "errors": _count("error", *suites),
    }


def _suite_element(suite: Suite) -> ET.Element:
    within = ET.Element(
        "testsuite",
        {
            "name": printable(suite.name),
            **_counts(suite),
            "skipped": _count("skipped", suite),
            "time": _time(suite.seconds),
            "timestamp": printable(suite.started),
            "hostname": printable(suite.host),
        },
    )
    facts = ET.SubElement(within, "properties")
    for name, value in suite.properties.items():
        ET.SubElement(facts, "property", {"name": printable(name), "value": printable(value)})
    for case in suite.cases:
        within.append(_case_element(case, suite.name))
    if suite.out:
        ET.SubElement(within, "system-out").text = printable(suite.out)
    return within


def _case_element(case: Case, suite: str) -> ET.Element:
    name = " ".join(printable(case.name).split())
    made = ET.Element(
        "testcase", {"classname": printable(suite), "name": name, "time": _time(case.seconds)}
    )
    if case.ending != "passed":
        reason = printable(case.reason)
        first = (reason.splitlines() or [""])[0]
        ended = ET.SubElement(made, case.ending, {"type": case.kind, "message": first})
        ended.text = reason
    if case.out:
        ET.SubElement(made, "system-out").text = printable(case.out)
    return made


def _count(ending: CaseEnding, *suites: Suite) -> str:
    return str(sum(case.ending == ending for suite in suites for case in suite.cases))


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"
