"""Everything that a report page shows, gathered before a line of it is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.core.base import Model
from lab.model.result.document import CellResult, Outcome, Result
from lab.model.result.explanation import Explanation
from lab.model.result.measurement import Series, SyncSeen
from lab.model.scenario.claim import Claim, Verdict
from lab.model.scenario.document import Cell, Source


class Evidence(Model):
    """A piece of raw output, by its file's name."""

    name: str
    text: str


class Attempt(Model):
    """An attempt that did not become the cell, the cell's own end where it failed, or a test of a
    suite in it that failed."""

    name: str
    outcome: Outcome
    words: str = ""
    """How it ended, where that is not the outcome's own word."""
    reason: str
    evidence: tuple[Evidence, ...]
    """Console, the kernel's messages, and what the tools said."""


class PageCell(Model):
    """One cell, with what lies beside its figures."""

    result: CellResult
    cell: Cell
    explanations: tuple[Explanation, ...] = ()
    series: tuple[Series, ...] = ()
    sync: SyncSeen | None = None
    commands: str = ""
    """The stored procedure as shell lines; empty where there is none that can be read."""
    failures: tuple[Attempt, ...] = ()


class Page(Model):
    """One run, whole."""

    result: Result
    link: str = ""
    """Where the page is, seen from that of all runs; the run's id may be anything."""
    title: str
    question: str
    source: Source | None = None
    notes: str = ""
    overrides: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    cells: tuple[PageCell, ...] = ()
    better: Mapping[str, str] = {}
    """``higher`` or ``lower``, by ``WORKLOAD.METRIC``."""
    warnings: tuple[str, ...] = ()
    """One warning about unreadable files, if any."""
    steps: tuple[tuple[str, str], ...] = ()
    """What to type next, and what it is for."""

    @property
    def judged(self) -> tuple[Claim, ...]:
        """The claims that speak of the cells as they were run."""
        return judged(self.result, self.claims)


def judged(result: Result, claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Claims but those that were not tested, as where ``--set`` made other cells than published."""
    left = {claim.id for claim in result.claims if claim.verdict is Verdict.NOT_TESTED}
    return tuple(claim for claim in claims if claim.id not in left)
