"""What is kept of a run beside its raw output: ``run.json``, and ``outcome.json`` of each cell."""

from __future__ import annotations

from typing import Any

from lab.model.base import Model
from lab.model.calibration import Calibration
from lab.model.claim import Claim
from lab.model.measurement import Check
from lab.model.noise import NoiseFloor
from lab.model.result import Outcome, PhaseSeconds
from lab.model.scenario import Cell, Source


class StoredCell(Model):
    """One cell of a run, and whether published figures speak of it."""

    id: str
    cell: Cell
    published: bool


class StoredRun(Model):
    """What a run is about; everything else can be made again from it and the raw output."""

    schema_: str = "lab.run/1"
    id: str
    scenario: str
    title: str
    question: str
    source: Source | None = None
    notes: str = ""
    overrides: tuple[str, ...] = ()
    started: str
    finished: str | None = None
    environment: dict[str, Any]
    cells: tuple[StoredCell, ...]
    claims: tuple[Claim, ...]
    calibrations: tuple[Calibration, ...] = ()
    """What the scenario's disks did, bare."""
    noise: tuple[NoiseFloor, ...] = ()
    """How far the same cells came out differently on this host before."""


class StoredOutcome(Model):
    """How a cell ended."""

    outcome: Outcome
    reason: str = ""
    seconds: PhaseSeconds = PhaseSeconds()
    checks: tuple[Check, ...] = ()
    host: str = ""
    """Where it ran; empty: on the run's own host."""
