"""A run as JUnit: gathered for its document, and kept up to date while the run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from lab.analysis.judge import in_words
from lab.compile.scenario.document import Compiled
from lab.compile.scenario.fields import fields_of
from lab.core.errors import InputError, LabError
from lab.core.units import shortened
from lab.host.system import files
from lab.host.system.process import uninterrupted
from lab.model.execution.procedure import BeginWorkload, Timed
from lab.model.result.document import UNDER_WAY, CellResult, ClaimResult, Outcome, Result, RunState
from lab.model.scenario.claim import Claim, Verdict, matches
from lab.model.scenario.suite import Tested
from lab.plugins.workloads._suites import COLOUR
from lab.report.export.junit import Case, Ending, Suite, junit_xml
from lab.report.terminal.plan import cell_script
from lab.results.documents import result_of, tests_of_run, understood
from lab.results.report import LOG_SHOWN
from lab.store.runs import RunStore, StoredCell, StoredRun, now

ENDINGS: Final[Mapping[Verdict, Ending]] = {
    Verdict.HOLDS: "passed",
    Verdict.REFUTED: "failure",
    Verdict.INCONCLUSIVE: "skipped",
    Verdict.NOT_TESTED: "skipped",
}
_BEGUN: Final = "the run did not come to its end, and did not say why: it was killed, or goes on"
_UNENDED: Final[Mapping[RunState, str]] = {
    RunState.RUNNING: UNDER_WAY,
    RunState.STOPPED: "the run did not come to its end, and did not say why: it was killed",
    RunState.FINISHED: "",
}
THE_RUN: Final = "the run"
"""Name of the case that a run has which did not come to its end."""


def junit_of(store: RunStore, trouble: str = "") -> str:
    """The document of a run as far as it is known; ``trouble``: what ended it too early."""
    return junit_xml(suite_of(store, trouble))


@contextmanager
def kept_up(path: Path | None, compiled: Compiled) -> Iterator[Callable[[RunStore], None]]:
    """Write a run's document to ``path`` (``None``: nowhere), however the run ends.

    What is yielded is told the run's directory as soon as there is one. From then on a file is
    there, even where the lab is killed. ``InputError`` where no file can be made there.
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
        with uninterrupted(), suppress(LabError):  # what went wrong first is what is told
            why = _sentence(error)
            text = junit_of(told[0], why) if told else junit_xml(_nothing_run(compiled, why))
            files.write(path, text)
        raise
    files.write(path, junit_of(told[0]))


def check_file(path: Path) -> None:
    """``InputError`` where no file can be made there."""
    if path.is_dir():
        raise InputError(f"--junit {path}: is a directory, and the name of a file is needed")
    if not path.absolute().parent.is_dir():
        raise InputError(f"--junit {path}: there is no directory '{path.parent}'")


def _sentence(error: BaseException) -> str:
    if isinstance(error, LabError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "it was stopped by Ctrl-C, or by a signal"
    return f"a mistake in the lab itself: {type(error).__name__}: {error}"


def _nothing_run(compiled: Compiled, why: str) -> Suite:
    """A run that ended before it had a directory."""
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
def suite_of(store: RunStore, trouble: str = "") -> Suite:
    """A run's test cases; ``trouble``: what ended it too early."""
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
            ending=ENDINGS[claim.verdict],
            kind="" if claim.verdict is Verdict.HOLDS else claim.verdict.value,
            reason=claim.reason,
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


def _cells_of(claim: Claim, run: StoredRun) -> list[str]:
    """The cells of a run that a claim speaks of, each once, in the run's order."""
    return [
        cell.id
        for cell in run.cells
        if any(matches(value.where, fields_of(cell.cell, (claim,))) for value in claim.values)
    ]


class _Commands:
    """What was run in a cell, as shell commands."""

    def __init__(self, store: RunStore, cell: StoredCell) -> None:
        self._id = cell.id
        self._procedure = store.load_procedure(store.cell_directory(cell.id))

    @property
    def whole(self) -> str:
        """All of it; empty where the cell was not run."""
        return f"# ---- cell {self._id}\n{cell_script(self._procedure)}" if self._procedure else ""

    def of(self, workload: str) -> str:
        """A workload's own command, in the guest."""
        for step in self._procedure.steps if self._procedure else ():
            if isinstance(step, Timed | BeginWorkload) and step.workload == workload:
                return f"# {workload} in the cell {self._id}\n{step.script.rstrip()}\n"
        return ""


def _evidence(found: ClaimResult, claim: Claim | None, cells: Sequence[_Commands]) -> str:
    """The claim's figures, and the workloads it speaks of; whole cells stand with the suite.

    ``claim`` is the scenario's; ``None``: it is one of a workload's own tests.
    """
    figures = {
        "expected": found.expected or (in_words(claim) if claim else None),
        "measured": found.measured,
        "predicted": found.predicted,
        "published": found.published,
        "source": claim.source if claim else None,
    }
    lines = [f"{name}: {value}\n" for name, value in figures.items() if value is not None]
    if found.verdict is Verdict.HOLDS and found.reason:
        lines.append(f"{found.reason}\n")
    workloads = list(dict.fromkeys(v.workload for v in (claim.values if claim else ())))
    return "".join([*lines, *(cell.of(name) for cell in cells for name in workloads)])


def _logs(test: Tested | None) -> str:
    """What a test has left that did not come to a good end: its logs, the kernel's messages."""
    if test is None or test.ending not in ("failed", "unfinished"):
        return ""
    return "".join(
        f"---- {name}\n{shortened(COLOUR.sub('', text), LOG_SHOWN).rstrip()}\n"
        for name, text in test.logs
    )


def _cell_case(store: RunStore, cell: CellResult) -> Case:
    """A cell that nothing can be learnt from; its console, where it was kept."""
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
    """Seconds from the run's beginning to its end; of one that has none, what its cells took."""
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
    """Dotted names and their values; a list is one value, as JSON."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif isinstance(value, list | tuple):
            yield f"{above}{name}", json.dumps(value, ensure_ascii=False)
        elif value is not None:
            yield f"{above}{name}", str(value)
