"""A matrix run: one execution of a matrix file, job by job.

Keys of documents keep their first names: ``parts``, ``part`` and ``night``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from lab.capabilities.matrix.logic.entries import Expected
from lab.core.base import Model
from lab.model.result.regression import Regression
from lab.model.scenario.claim import Verdict


class JobState(StrEnum):
    """State of a job."""

    WAITING = "waiting"
    DONE = "done"
    BROKEN = "broken"
    """It could not run, or did not finish."""
    LEFT_OUT = "left out"
    """It did not fit the budget."""


class JobRecord(Model):
    """A job: one scenario on one image with one kernel; its estimate and its result."""

    id: str
    scenario: str
    image: str
    kernel: str | None = None
    cells: int
    seconds: float
    """Expected duration."""
    basis: str
    """Source of the expected duration."""
    why: str = ""
    """Reason for its position in the order."""
    memory: int = 0
    """Peak memory of its concurrent guests, in bytes."""
    space: int = 0
    """Most bytes that their disks may occupy."""
    state: JobState = JobState.WAITING
    run: str | None = None
    """Path of its run's directory."""
    reused: int = 0
    """Number of cells with results from earlier runs with the same inputs."""
    took: float | None = None
    """Actual duration in seconds."""
    reason: str = ""
    """Why it is not finished."""


class Flip(Model):
    """A claim that held in the run before and is refuted in this one, and what a bisection found.

    ``lab run matrix --bisect`` looks for them.
    """

    job: str
    claim: str
    good: str
    """The system of the run in which it held: Linux and mdadm."""
    bad: str
    """The system of this run."""
    bisection: str | None = None
    """Path of the bisection's directory; ``None``: none could begin."""
    result: str = ""
    """What was found, in a sentence; empty: the bisection is not finished."""


class MatrixRun(Model):
    """``night.json``: the jobs, and where their runs are."""

    schema_: Literal["lab.night/1"] = Field(default="lab.night/1", alias="schema")
    id: str
    matrix: str
    title: str
    started: str
    """ISO 8601, UTC."""
    finished: str | None = None
    shard: str | None = None
    """``K/N``; ``None``: everything."""
    budget: float | None = None
    """Seconds."""
    clock: str | None = None
    """``guest.clock`` of all guests, as set with ``--clock``; ``None``: not set."""
    jobs: tuple[JobRecord, ...] = Field(alias="parts")
    expected: tuple[Expected, ...] = ()
    notes: tuple[str, ...] = ()
    bisections: tuple[Flip, ...] = ()


class Ending(StrEnum):
    """What a claim's verdict means for the matrix run."""

    PASSED = "passed"
    FAILED = "failed"
    EXPECTED = "failed as expected"
    UNEXPECTED = "unexpectedly holds"
    UNDECIDED = "undecided"


class ClaimEnding(Model):
    """A claim of a job, and whether it fails the matrix run."""

    id: str
    says: str
    verdict: Verdict
    reason: str = ""
    ending: Ending
    fails: bool
    remark: str = ""
    """The matching entry of ``expected``, in words."""


class JobResult(Model):
    """A job with its results."""

    job: JobRecord = Field(alias="part")
    kernel: str | None = None
    mdadm: str | None = None
    claims: tuple[ClaimEnding, ...] = ()
    failed_cells: tuple[str, ...] = ()
    """A sentence for each cell that did not finish."""


class MatrixResult(Model):
    """A complete matrix run: what ``lab run matrix --json`` prints."""

    schema_: Literal["lab.matrix/1"] = Field(default="lab.matrix/1", alias="schema")
    run: MatrixRun = Field(alias="night")
    directory: str
    jobs: tuple[JobResult, ...] = Field(alias="parts")
    regressions: tuple[Regression, ...] = ()
    remarks: tuple[str, ...] = ()
    """Outdated entries of the matrix file, a sentence each."""
