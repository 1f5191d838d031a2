"""A matrix run: one execution of a matrix, job by job.

Keys of documents keep their first names: ``parts``, ``part`` and ``night``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.matrix.file import Expected
from lab.model.result.comparison import Change
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import AxisValue


class JobState(StrEnum):
    """How far a job is."""

    WAITING = "waiting"
    DONE = "done"
    BROKEN = "broken"
    """It could not be run, or not to its end."""
    LEFT_OUT = "left out"
    """The budget had no room for it."""


class JobRecord(Model):
    """A job: one scenario on one image with one kernel; its estimate, and how it ended."""

    id: str
    scenario: str
    image: str
    kernel: str | None = None
    cells: int
    seconds: float
    """Estimated time."""
    basis: str
    """Source of the estimate."""
    why: str = ""
    """Why it is run now."""
    memory: int = 0
    """Bytes of its concurrent guests."""
    space: int = 0
    """Bytes to which their disks may grow."""
    state: JobState = JobState.WAITING
    run: str | None = None
    """The directory of its run."""
    took: float | None = None
    """Seconds."""
    reason: str = ""
    """Why it is not done."""


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
    """``K/N``; ``None``: all of it."""
    budget: float | None = None
    """Seconds."""
    jobs: tuple[JobRecord, ...] = Field(alias="parts")
    expected: tuple[Expected, ...] = ()
    notes: tuple[str, ...] = ()


class Ending(StrEnum):
    """What a claim's verdict means for the matrix."""

    PASSED = "passed"
    FAILED = "failed"
    EXPECTED = "failed as expected"
    UNEXPECTED = "unexpectedly holds"
    UNDECIDED = "undecided"


class ClaimEnding(Model):
    """A claim of a job, and whether it fails the matrix."""

    id: str
    says: str
    verdict: Verdict
    reason: str = ""
    ending: Ending
    fails: bool
    remark: str = ""
    """What an entry of the matrix says of it."""


class JobResult(Model):
    """A job with its results."""

    job: JobRecord = Field(alias="part")
    kernel: str | None = None
    mdadm: str | None = None
    claims: tuple[ClaimEnding, ...] = ()
    failed_cells: tuple[str, ...] = ()
    """A sentence for each cell that did not finish."""


class Regression(Model):
    """A value that got worse with a version, by more than noise."""

    scenario: str
    claim: str
    axes: dict[str, AxisValue]
    workload: str
    metric: str
    good: str
    """The last good system: Linux and mdadm."""
    bad: str
    """The first bad one."""
    named: str
    """What differs between the two: ``Linux 6.12.120``, ``mdadm 4.5-1``, or both."""
    between: tuple[str, ...] = ()
    """Versions between them of which noise hides the answer."""
    also: tuple[str, ...] = ()
    """Other facts that differ: QEMU, libvirt, the lab, the accelerator."""
    before: float
    after: float
    change: float
    """As a share."""
    verdicts: tuple[Verdict, Verdict]
    verdict: Change = Change.CHANGED
    seen: str
    """When the first bad version was first seen to be bad, ISO 8601."""
    new: bool = True
    """Not seen before this matrix run."""


class MatrixResult(Model):
    """A complete matrix run: what ``lab run matrix --json`` prints."""

    schema_: Literal["lab.matrix/1"] = Field(default="lab.matrix/1", alias="schema")
    run: MatrixRun = Field(alias="night")
    directory: str
    jobs: tuple[JobResult, ...] = Field(alias="parts")
    regressions: tuple[Regression, ...] = ()
    remarks: tuple[str, ...] = ()
    """Entries of the matrix that are out of date, a sentence each."""
