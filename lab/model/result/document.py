"""The result document ``lab.result/1``, which ``lab run --json`` and ``lab results show`` print."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from lab.core.base import Model
from lab.core.statistics import Interval, median_interval
from lab.model.result.calibration import CALIBRATED, VIRTUAL_DRIVES
from lab.model.result.measurement import (
    AT_REST,
    GUEST_CPU,
    STEADY_STATE,
    UNCONTENDED,
    Check,
    Measurement,
    Prediction,
    Unsupported,
)
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import AxisValue

SAME: Final = 20e-6
"""Largest relative difference of equal values of two seeds: QEMU's versions differ by so much."""
SHA256: Final = r"^[0-9a-f]{64}$"

DOUBTS: Final = (UNCONTENDED, CALIBRATED, VIRTUAL_DRIVES, GUEST_CPU, STEADY_STATE, AT_REST)
"""Checks whose failure makes a value unreliable. The value stays in the result."""


def contended(checks: Iterable[Check], workload: str) -> Check | None:
    """Return the failed check that the workload's steps were contended; ``None``: there is none.

    In older runs the check has no workload, and covers the whole cell.
    """
    about = (c for c in checks if c.name == UNCONTENDED and not c.passed)
    return next((c for c in about if c.workload in (None, workload)), None)


class Outcome(StrEnum):
    """How a cell ended."""

    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    SKIPPED = "skipped"


UNDER_WAY: Final = "the run is still under way"
"""Reason of a cell that has not run yet, and of a claim about it."""


class RunState(StrEnum):
    """Whether the run is still running."""

    RUNNING = "running"
    """A process of this host runs it."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """It ended early, or runs on another host."""


class Run(Model):
    """One execution of a scenario on one host."""

    id: str
    scenario: str
    started: str
    """ISO 8601, UTC."""
    finished: str | None = None
    directory: str | None = None
    state: RunState = RunState.FINISHED
    """``running``: its cells so far are shown; ``stopped``: continue it with ``--resume``."""


class PhaseSeconds(Model):
    """Seconds of a cell, by phase."""

    boot: float = 0.0
    """The guest's boot; counted for the first cell in it."""
    array: float = 0.0
    workloads: float = 0.0
    teardown: float = 0.0
    waiting: float = 0.0
    """Waiting for a CPU slot while other guests were being set up."""
    total: float = 0.0


class MemberCounters(Model):
    """One member's counters for one trial of one workload, from the guest's ``/proc/diskstats``.

    Fields as in the kernel's ``Documentation/admin-guide/iostats.rst``; bytes are sectors × 512.
    ``writes`` are requests with data, without empty flushes.
    """

    workload: str
    trial: int
    serial: str
    reads: int
    read_bytes: int
    writes: int
    written_bytes: int
    flushes: int
    """Flush commands; requests that wait for a flush share one."""
    discards: int = 0
    discarded_bytes: int = 0
    empty_flushes: int | None = None
    """Flushes without data, which the kernel counts as writes too; they are not in ``writes``.
    ``None``: they were not counted, so with ``flushes`` they are in ``writes``."""

    @property
    def with_flushes(self) -> bool:
        """Whether an unknown number of empty flushes is among ``writes``."""
        return bool(self.flushes) and self.empty_flushes is None


class CellMeasurement(Model):
    """A measurement with its median and 95 % confidence interval, ``low`` to ``high``, with the
    host's noise."""

    workload: str
    metric: str
    unit: str
    values: tuple[float, ...]
    median: float
    low: float | None = None
    high: float | None = None
    no_seed_changes_it: bool = False
    """A sealed cell's trials have the same value, within 20 parts in a million. There is no
    interval then: more trials would not tell more."""

    @classmethod
    def of_seeds(cls, measurement: Measurement) -> CellMeasurement:
        """The measurement of a sealed cell: the interval is the spread over seeds."""
        found = cls.of(measurement, 0.0)
        values = measurement.values
        same = max(values) - min(values) <= SAME * max(map(abs, values))
        if len(values) < 2 or not same:
            return found
        return found.model_copy(update={"low": None, "high": None, "no_seed_changes_it": True})

    @classmethod
    def of(cls, measurement: Measurement, noise: float) -> CellMeasurement:
        """The measurement with its median; ``noise`` is a relative deviation between runs, or 0 if
        it is not known. Then one trial has no interval."""
        if len(measurement.values) == 1 and not noise:
            return cls(**measurement.model_dump(), median=measurement.median)
        found = median_interval(measurement.values).widened(noise)
        return cls(**measurement.model_dump(), median=found.middle, low=found.low, high=found.high)

    @property
    def interval(self) -> Interval:
        """The median and its interval; in older results only the median."""
        low = self.median if self.low is None else self.low
        high = self.median if self.high is None else self.high
        return Interval(middle=self.median, low=low, high=high)


class CellClock(StrEnum):
    """Which clock times a cell."""

    REAL = "real"
    """The host's clock."""
    VIRTUAL = "virtual"
    """The guest's instructions; its network uses the host's time."""
    SEALED = "sealed"
    """The guest's instructions; nothing uses the host's time."""


class SeedDigest(Model):
    """SHA-256 of one trial of a sealed cell."""

    seed: int
    inputs: str
    results: str


class Digest(Model):
    """SHA-256 of a sealed cell: equal inputs give equal results."""

    inputs: str
    """Image, kernel, driver, program, disks, QEMU with its command line and firmware, seed, and how
    the guest started: by a boot, or from a snapshot that was made in a certain way. Known before
    the cell runs."""
    results: str
    """Everything that the guest left: output, kernel messages, counters, contents of its disks."""
    seeds: tuple[SeedDigest, ...] = ()
    """The same of each trial. A cell with one trial has the digests of that trial."""
    snapshot: str = ""
    """The snapshot's own bytes, for comparing hosts; empty: the guest booted."""


class CellResult(Model):
    """A cell's outcome and measurements."""

    id: str
    axes: dict[str, AxisValue]
    outcome: Outcome
    reason: str = ""
    """Why the cell is not ``done``: a sentence."""
    host: str = ""
    """Host that ran it; empty: none, or unknown."""
    seconds: PhaseSeconds = PhaseSeconds()
    guest_seconds: float | None = None
    """Seconds of a sealed guest's clock, of all trials."""
    measurements: tuple[CellMeasurement, ...] = ()
    shapes: tuple[CellMeasurement, ...] = ()
    """The md array's shape when each workload began, and after each fault."""
    unsupported: tuple[Unsupported, ...] = ()
    """Percentiles without a value, because a trial has too few requests."""
    predictions: tuple[Prediction, ...] = ()
    checks: tuple[Check, ...] = ()
    counters: tuple[MemberCounters, ...] = ()
    clock: CellClock = CellClock.REAL
    digest: Digest | None = None
    """Of a cell in a sealed guest."""
    reused_from: str | None = None
    """The run whose results these are: a cell with the same inputs that ran on this host."""

    def doubts(self, workload: str) -> tuple[Check, ...]:
        """Failed checks that make this workload's values unreliable."""
        return tuple(
            check
            for check in self.checks
            if check.name in DOUBTS and not check.passed and check.workload in (None, workload)
        )

    @property
    def pending(self) -> bool:
        """Whether it has not run yet, in a run that is still running."""
        return self.outcome is Outcome.SKIPPED and self.reason == UNDER_WAY


class Basis(StrEnum):
    """What is known of the chance in a value."""

    COUNTED = "counted"
    """A count, of which one trial is enough; several give a range."""
    FIXED = "fixed"
    """Virtual time, and nothing in the cell is drawn by a seed; or a prediction."""
    SEEDS = "seeds"
    """Virtual time with a seed for each trial."""
    NOISE = "noise"
    """Real time, with the noise floor that was measured on the host."""
    TRIALS = "trials"
    """Real time without one: only the trials tell how far it varies."""


class Part(Model):
    """One comparison of a claim: what was measured, and the limits that decide."""

    measured: float
    low: float | None
    """Lower limit of the interval; ``None``: not known from so few trials."""
    high: float | None
    at_least: float | None = None
    at_most: float | None = None
    trials: int
    """Of the cell with fewest."""
    basis: Basis
    decidable: bool = True
    """``False``: whatever further trials measure, the interval stays across a limit."""

    @property
    def holds(self) -> bool | None:
        """``None``: the interval has values inside and outside the limits, or is not known."""
        if self.low is None or self.high is None:
            return None
        low = float("-inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return Interval(middle=self.measured, low=self.low, high=self.high).within(low, high)


class ComparedValue(Model):
    """A value that a claim compares: the median of a cell's trials."""

    workload: str
    metric: str
    disk: str | None = None
    """Serial of the disk that counted it; ``None``: the whole cell has it."""
    cell: str
    """The cell's id."""
    measured: float
    """In the metric's unit."""
    unit: str = ""
    """Empty in results of earlier versions."""


class ClaimResult(Model):
    """A claim and its verdict."""

    id: str
    says: str
    verdict: Verdict
    measured: float | None = None
    predicted: float | None = None
    """The predicted value that corresponds to ``measured``."""
    published: float | None = None
    expected: str | None = None
    """The expectation in words."""
    shown: str = ""
    """``measured`` as text, with as many digits as tell it from the expectation's limits. Empty:
    nothing was measured, or the result is one of an earlier version."""
    shown_published: str = ""
    """``published`` in the same form."""
    reason: str = ""
    parts: tuple[Part, ...] = ()
    """Every comparison that it consists of. It holds if all do, and is refuted if one is wholly
    outside its limits."""
    values: tuple[ComparedValue, ...] = ()
    """Every value that it compares, in its order: of a ratio ``of`` and ``to``."""

    @property
    def pending(self) -> bool:
        """Whether it waits for a cell that has not run yet."""
        return self.verdict is Verdict.NOT_TESTED and self.reason == UNDER_WAY


class Answer(Model):
    """The answer to the scenario's question: the sentences of its key claims."""

    question: str = ""
    sentences: tuple[str, ...] = ()
    """Two at most."""
    claims: tuple[str, ...] = ()
    """Ids of the claims that give it: the key claims, or the first claim if there is none."""
    values: tuple[ComparedValue, ...] = ()
    """What these claims compare, each once."""


def checked_environment(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a run's environment; ``ValueError``: one has the wrong type."""
    for name in ("host", "guest", "image"):
        if not isinstance(facts.get(name) or {}, dict):
            raise ValueError(f"{name}: expected a mapping")
    texts = ("accelerator", "accelerator_reason", "branch", "client", "commit", "lab", "libvirt")
    for name in (*texts, "qemu"):
        if not isinstance(facts.get(name) or "", str):
            raise ValueError(f"{name}: expected text")
    for name in ("kernel", "mdadm"):
        if not isinstance((facts.get("guest") or {}).get(name, ""), str):
            raise ValueError(f"guest.{name}: expected text")
    return facts


class Result(Model):
    """One complete run."""

    schema_: Literal["lab.result/1"] = Field(default="lab.result/1", alias="schema")
    run: Run
    answer: Answer = Answer()
    """Empty in results of older versions."""
    environment: Annotated[dict[str, Any], AfterValidator(checked_environment)]
    cells: tuple[CellResult, ...]
    claims: tuple[ClaimResult, ...]
