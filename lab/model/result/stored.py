"""Stored files of a run, apart from raw output: ``run.json``, and each cell's ``outcome.json``."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any

from pydantic import AfterValidator, field_validator, model_validator

from lab.core.base import Model
from lab.model.result.calibration import Calibration
from lab.model.result.document import (
    CellClock,
    Digest,
    Outcome,
    PhaseSeconds,
    checked_environment,
)
from lab.model.result.measurement import Check
from lab.model.result.noise import NoiseFloor
from lab.model.scenario.claim import Claim
from lab.model.scenario.document import Cell, Source


class StoredCell(Model):
    """One cell of a run, and whether published values apply to it."""

    id: str
    """Also the name of its directory."""
    cell: Cell
    published: bool

    @field_validator("id")
    @classmethod
    def _is_a_name(cls, id_: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", id_):
            raise ValueError(
                f"{id_!r} is not an id: use letters, digits, '.', '_' and '-', at most 128"
            )
        return id_


class StoredRun(Model):
    """A run's scenario, cells and environment. All else is computed from this and raw output."""

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
    environment: Annotated[dict[str, Any], AfterValidator(checked_environment)]
    cells: tuple[StoredCell, ...]
    claims: tuple[Claim, ...]
    calibrations: tuple[Calibration, ...] = ()
    """Measurements of the scenario's bare disks."""
    noise: tuple[NoiseFloor, ...] = ()
    """Noise of the same cells in earlier runs on this host."""

    @model_validator(mode="after")
    def _each_once(self) -> StoredRun:
        for what, ids in (
            ("cell", [cell.id for cell in self.cells]),
            ("claim", [claim.id for claim in self.claims]),
        ):
            if twice := next((i for i, n in Counter(ids).items() if n > 1), None):
                raise ValueError(f"the {what} {twice!r} occurs twice")
        return self

    @property
    def points(self) -> tuple[tuple[StoredCell, ...], ...]:
        """The cells; with `trials: auto`, those of all seeds of a cell together, by seed."""
        found: dict[str, list[StoredCell]] = {}
        for stored in self.cells:
            seedless = stored.cell.model_copy(update={"seed": 1})
            found.setdefault(seedless.model_dump_json(), []).append(stored)
        return tuple(tuple(sorted(group, key=lambda s: s.cell.seed)) for group in found.values())


class StoredOutcome(Model):
    """How a cell ended."""

    outcome: Outcome
    reason: str = ""
    seconds: PhaseSeconds = PhaseSeconds()
    guest_seconds: float | None = None
    """Seconds of a sealed guest's clock, of all trials."""
    checks: tuple[Check, ...] = ()
    host: str = ""
    """Host that ran it; empty: the run's own."""
    clock: CellClock | None = None
    """Which clock timed it; ``None``: sealed if the cell has virtual time."""
    digest: Digest | None = None
    """Of a cell in a sealed guest."""
    reused_from: str | None = None
    """Id of the run whose results these are; ``None``: the cell ran in this run."""
