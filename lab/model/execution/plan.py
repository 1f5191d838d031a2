"""A planned run: guests, cells, every step."""

from __future__ import annotations

from lab.core.base import Model
from lab.model.execution.procedure import Procedure
from lab.model.scenario.document import AxisValue


class PlannedCell(Model):
    """One compiled cell."""

    id: str
    axes: dict[str, AxisValue]
    procedure: Procedure


class PlannedGuest(Model):
    """One guest and the cells that share it."""

    procedure: Procedure
    cells: tuple[PlannedCell, ...]


class Plan(Model):
    """All steps of a run."""

    scenario: str
    accelerator: str
    notes: tuple[str, ...]
    """Missing files, and how the run makes each."""
    guest_directory: str
    private_key: str
    guests: tuple[PlannedGuest, ...]
