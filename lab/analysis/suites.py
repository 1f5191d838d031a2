"""Claims from the test results of a run's suites.

A passed test holds, a failed one is refuted, a skipped one is not tested. An interrupted test is
inconclusive, and one that was never started is not tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lab.analysis.measure import outputs_of
from lab.compile.guest.suite_steps import LISTED, suite_of
from lab.compile.scenario.identity import cell_id, slug
from lab.model.result.document import CellResult, ClaimResult, Outcome
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import Cell, Workload
from lab.model.scenario.suite import Ending, Tested
from lab.plugins.workloads._suites import tested_version

VERDICTS: Final[Mapping[Ending, Verdict]] = {
    "passed": Verdict.HOLDS,
    "failed": Verdict.REFUTED,
    "skipped": Verdict.NOT_TESTED,
    "unfinished": Verdict.INCONCLUSIVE,
    "not_run": Verdict.NOT_TESTED,
}
_ORDER: Final[tuple[Ending, ...]] = ("failed", "unfinished", "not_run", "skipped", "passed")
"""Worst first: a test's result over several trials is the first of these that occurs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCell:
    """A cell, its result, and its raw output by name."""

    cell: Cell
    result: CellResult
    raw: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteTest:
    """A test's worst result over all trials."""

    claim: str
    """Id of the claim that this test's result decides."""
    cell: str
    """Id of its cell."""
    test: Tested
    trial: int | None
    """``None``: there is only one."""


def claims_of(cells: Sequence[SuiteCell]) -> tuple[ClaimResult, ...]:
    """Return one claim per test: ``WORKLOAD.TEST``; with several cells ``…@AXES``.

    If axes are not unique, the cells' ids replace them.
    """
    return tuple(
        claim
        for one, workload, where in _workloads(cells)
        for claim in _of_workload(one, workload, where)
    )


def tests_of(cells: Sequence[SuiteCell]) -> tuple[SuiteTest, ...]:
    """Return every test of each suite, with its claim's id."""
    return tuple(
        test for one, workload, where in _workloads(cells) for test in _worst(one, workload, where)
    )


def _workloads(cells: Sequence[SuiteCell]) -> Iterator[tuple[SuiteCell, Workload, str]]:
    """Yield each suite of each cell, with the suffix of its claims' ids."""
    slugs = [slug(one.cell) for one in cells]
    names = slugs if len(set(slugs)) == len(slugs) else [cell_id(one.cell) for one in cells]
    for one, name in zip(cells, names, strict=True):
        for workload in one.cell.workloads:
            if suite_of(workload) is not None:
                yield one, workload, f"@{name}" if len(cells) > 1 else ""


def _worst(one: SuiteCell, workload: Workload, where: str) -> Iterator[SuiteTest]:
    trials = [_tests(one, workload, trial) for trial in range(1, one.cell.trials + 1)]
    for name in dict.fromkeys(test.name for tests in trials for test in tests):
        found = [(n, t) for n, tests in enumerate(trials, 1) for t in tests if t.name == name]
        trial, worst = min(found, key=lambda at: _ORDER.index(at[1].ending))
        yield SuiteTest(
            claim=f"{workload.name}.{name}{where}",
            cell=one.result.id,
            test=worst,
            trial=trial if len(trials) > 1 else None,
        )


def _of_workload(one: SuiteCell, workload: Workload, where: str) -> Iterator[ClaimResult]:
    version = tested_version(one.raw.get(f"{workload.name}.{LISTED}.txt", ""))
    expected = f"passed, with mdadm {version}" if version else "passed"
    tests = list(_worst(one, workload, where))
    for found in tests:
        in_trial = f"trial {found.trial}: " if found.trial and found.test.reason else ""
        claim = _claim(found.claim, one, found.test.name, found.test, in_trial)
        yield claim.model_copy(update={"expected": expected})
    if not tests:
        skipped = one.result.outcome is Outcome.SKIPPED
        yield ClaimResult(
            id=f"{workload.name}{where}",
            says=f"the tests of {workload.name} pass",
            verdict=Verdict.NOT_TESTED if skipped else Verdict.INCONCLUSIVE,
            reason=_broken(one.result) or "the list of chosen tests is missing",
        )


def _tests(one: SuiteCell, workload: Workload, trial: int) -> tuple[Tested, ...]:
    suite = suite_of(workload)
    assert suite is not None
    tool, parameters = suite
    listed = one.raw.get(f"{workload.name}.{LISTED}.txt", "")
    return tool.endings(parameters, listed, outputs_of(one.raw, f"{workload.name}.{trial}"))


def _claim(id_: str, one: SuiteCell, name: str, test: Tested, in_trial: str) -> ClaimResult:
    """Return one test as a claim; in a failed cell, unfinished and unstarted tests are
    inconclusive."""
    verdict, reason = VERDICTS[test.ending], f"{in_trial}{test.reason}" or "it passed"
    broken = _broken(one.result)
    if broken and test.ending in ("unfinished", "not_run"):
        verdict, reason = Verdict.INCONCLUSIVE, broken
    _, several, cell = id_.partition("@")
    says = f"{name} passes" + (f" ({cell})" if several else "")
    return ClaimResult(id=id_, says=says, verdict=verdict, reason=reason)


def _broken(result: CellResult) -> str:
    """Return why a cell is not done; empty: it is."""
    if result.outcome is Outcome.DONE:
        return ""
    if result.pending:
        return result.reason
    first = result.reason.splitlines()[0] if result.reason else "no reason was kept"
    return f"the cell {result.id} is {result.outcome.value}: {first}"
