"""The data of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from lab.compile.guest.seeds import draws
from lab.core.base import Model
from lab.model.result.document import CellClock, CellResult, Outcome, Result
from lab.model.result.explanation import Explanation
from lab.model.result.measurement import Latencies, Series, SyncSeen
from lab.model.result.timeline import Timeline
from lab.model.scenario.claim import Claim, Verdict
from lab.model.scenario.document import Cell, Source
from lab.model.scenario.suite import Ending


class Evidence(Model):
    """A file of raw output, or its end."""

    name: str
    text: str


class Attempt(Model):
    """A failed attempt at a cell, a failed cell, or a failed test of a suite in it."""

    name: str
    outcome: Outcome
    words: str = ""
    """How it ended, if the outcome does not say so."""
    reason: str
    evidence: tuple[Evidence, ...]
    """Console, kernel messages, and output of the tools."""


class PageTest(Model):
    """A test of a suite: its worst result over all trials."""

    claim: str
    """Id of the claim that this result decides."""
    suite: str
    """Name of its workload."""
    name: str
    ending: Ending
    reason: str
    seconds: float | None


class PageCell(Model):
    """One cell with its explanations, logs, commands, tests and failures."""

    result: CellResult
    cell: Cell
    explanations: tuple[Explanation, ...] = ()
    series: tuple[Series, ...] = ()
    latencies: tuple[Latencies, ...] = ()
    sync: SyncSeen | None = None
    timeline: Timeline | None = None
    """Of a cell with faults on an md array."""
    commands: str = ""
    """The stored procedure as shell lines; empty if it is unreadable."""
    again: str = ""
    """The command that runs this cell again."""
    output: str = ""
    """URL of a file with its commands and raw output, in a site."""
    tests: tuple[PageTest, ...] = ()
    """The tests of its suites."""
    failures: tuple[Attempt, ...] = ()
    """Of a cell that failed: itself and all attempts; failed tests."""
    attempts: tuple[Attempt, ...] = ()
    """Earlier attempts at a cell that did not fail."""


class Page(Model):
    """One run."""

    result: Result
    link: str = ""
    """URL of the report in the page of all runs; a run's id may be any text."""
    scenario_file: str = ""
    """URL of its scenario file, in a site."""
    title: str
    question: str
    source: Source | None = None
    notes: str = ""
    overrides: tuple[str, ...] = ()
    drives: str = ""
    """Modelled drives that no measurement backs."""
    claims: tuple[Claim, ...] = ()
    cells: tuple[PageCell, ...] = ()
    better: Mapping[str, str] = {}
    """``higher`` or ``lower``, by ``WORKLOAD.METRIC``."""
    warnings: tuple[str, ...] = ()
    """One warning about unreadable files, if any."""
    steps: tuple[tuple[str, str], ...] = ()
    """Commands for next steps, each with its purpose."""

    @cached_property
    def fixed(self) -> frozenset[str]:
        """Ids of cells in virtual time in which nothing is drawn: each trial gives the same."""
        return frozenset(
            c.result.id
            for c in self.cells
            if c.result.clock is CellClock.SEALED and not draws(c.cell)
        )

    @property
    def judged(self) -> tuple[Claim, ...]:
        """The claims that were tested."""
        return judged(self.result, self.claims)


def judged(result: Result, claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Return claims without those that were not tested, as when ``--set`` made other cells."""
    left = {claim.id for claim in result.claims if claim.verdict is Verdict.NOT_TESTED}
    return tuple(claim for claim in claims if claim.id not in left)
