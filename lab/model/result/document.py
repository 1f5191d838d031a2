"""The result document ``lab.result/1``, as ``lab run --json`` and ``lab results show`` print it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from lab.core.base import Model
from lab.core.statistics import Interval, median_interval
from lab.model.result.calibration import CALIBRATED
from lab.model.result.measurement import GUEST_CPU, UNCONTENDED, Check, Measurement, Prediction
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import AxisValue

DOUBTS: Final = (UNCONTENDED, CALIBRATED, GUEST_CPU)
"""Checks that, when they fail, leave a value standing and make it unreliable."""


def contended(checks: Iterable[Check], workload: str) -> Check | None:
    """The failed check that the workload's steps were contended; ``None``: they were not.

    A check without a workload is about the whole cell, as in runs made before checks had one.
    """
    about = (c for c in checks if c.name == UNCONTENDED and not c.passed)
    return next((c for c in about if c.workload in (None, workload)), None)


class Outcome(StrEnum):
    """What happened to a cell."""

    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    SKIPPED = "skipped"


UNDER_WAY: Final = "the run is still under way"
"""Reason of a cell that is still to come, and of a claim that waits for one."""


class RunState(StrEnum):
    """Whether more is to come."""

    RUNNING = "running"
    """A process of this host is making it."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """It ended too early, or is made on another host."""


class Run(Model):
    """One execution of a scenario on one host at one time."""

    id: str
    scenario: str
    started: str
    """ISO 8601, UTC."""
    finished: str | None = None
    directory: str | None = None
    state: RunState = RunState.FINISHED
    """``running``: its cells so far are shown; ``stopped``: ``--resume`` goes on with it."""


class PhaseSeconds(Model):
    """Where a cell's time went, in seconds."""

    boot: float = 0.0
    """The guest's boot, counted for the first cell that ran in it."""
    array: float = 0.0
    workloads: float = 0.0
    teardown: float = 0.0
    waiting: float = 0.0
    """For a CPU slot, while other guests were being set up."""
    total: float = 0.0


class MemberCounters(Model):
    """What one member did during one trial of one workload, from the guest's ``/proc/diskstats``.

    Fields as in the kernel's ``Documentation/admin-guide/iostats.rst``; bytes are sectors × 512.
    """

    workload: str
    trial: int
    serial: str
    reads: int
    read_bytes: int
    writes: int
    written_bytes: int
    flushes: int


class CellMeasurement(Model):
    """A measurement with its median spelled out, for programs that read the document.

    Between ``low`` and ``high`` the median lies at 95 %, the host's noise counted in.
    """

    workload: str
    metric: str
    unit: str
    values: tuple[float, ...]
    median: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, measurement: Measurement, noise: float) -> CellMeasurement:
        """The measurement with its median; ``noise`` is the share by which a run may be off."""
        found = median_interval(measurement.values).widened(noise)
        return cls(**measurement.model_dump(), median=found.middle, low=found.low, high=found.high)

    @property
    def interval(self) -> Interval:
        """The median and where it lies; nothing but itself in results from before."""
        low = self.median if self.low is None else self.low
        high = self.median if self.high is None else self.high
        return Interval(middle=self.median, low=low, high=high)


class CellClock(StrEnum):
    """What a cell's times are counted by."""

    REAL = "real"
    """The host's clock."""
    VIRTUAL = "virtual"
    """The guest's instructions; the network reached it in the host's time."""
    SEALED = "sealed"
    """The guest's instructions; nothing reached it in the host's time."""


class Digest(Model):
    """SHA-256 of a sealed cell: the same inputs have the same results."""

    inputs: str
    """Image, kernel, driver, program, disks, QEMU with its command line and firmware, seed, and the
    snapshot that the guest started from."""
    results: str
    """All that the guest left: output, kernel messages, counters, contents of its disks."""


class CellResult(Model):
    """A cell's outcome and what was measured in it."""

    id: str
    axes: dict[str, AxisValue]
    outcome: Outcome
    reason: str = ""
    """Why the cell is not ``done``: a sentence."""
    host: str = ""
    """Name of the host that ran it; empty: none did, or nobody kept it."""
    seconds: PhaseSeconds = PhaseSeconds()
    measurements: tuple[CellMeasurement, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    checks: tuple[Check, ...] = ()
    counters: tuple[MemberCounters, ...] = ()
    clock: CellClock = CellClock.REAL
    digest: Digest | None = None
    """Of a cell in a sealed guest."""

    def doubts(self, workload: str) -> tuple[Check, ...]:
        """Failed checks that make this workload's values unreliable."""
        return tuple(
            check
            for check in self.checks
            if check.name in DOUBTS and not check.passed and check.workload in (None, workload)
        )

    @property
    def pending(self) -> bool:
        """Whether it is still to come, in a run that is under way."""
        return self.outcome is Outcome.SKIPPED and self.reason == UNDER_WAY


class ClaimResult(Model):
    """A claim and what became of it."""

    id: str
    says: str
    verdict: Verdict
    measured: float | None = None
    predicted: float | None = None
    """The figure that stands for ``measured`` where theory's predictions are put in its place."""
    published: float | None = None
    expected: str | None = None
    """The expectation in words."""
    reason: str = ""

    @property
    def pending(self) -> bool:
        """Whether it waits for a cell that is still to come."""
        return self.verdict is Verdict.NOT_TESTED and self.reason == UNDER_WAY


def checked_environment(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a run's environment; ``ValueError`` for one that is of another type."""
    for name in ("host", "guest", "image"):
        if not isinstance(facts.get(name) or {}, dict):
            raise ValueError(f"{name} is no mapping")
    for name in ("accelerator", "accelerator_reason", "client", "lab", "libvirt", "qemu"):
        if not isinstance(facts.get(name) or "", str):
            raise ValueError(f"{name} is no text")
    for name in ("kernel", "mdadm"):
        if not isinstance((facts.get("guest") or {}).get(name, ""), str):
            raise ValueError(f"guest.{name} is no text")
    return facts


class Result(Model):
    """One run, whole."""

    schema_: Literal["lab.result/1"] = Field(default="lab.result/1", alias="schema")
    run: Run
    environment: Annotated[dict[str, Any], AfterValidator(checked_environment)]
    cells: tuple[CellResult, ...]
    claims: tuple[ClaimResult, ...]
