"""A planned run: guests, cells, every step."""

from __future__ import annotations

from lab.core.base import Model
from lab.model.execution.procedure import Procedure
from lab.model.scenario.document import AxisValue


class PlannedCell(Model):
    """One cell, compiled."""

    id: str
    axes: dict[str, AxisValue]
    procedure: Procedure


class PlannedGuest(Model):
    """One guest and the cells that share it."""

    procedure: Procedure
    cells: tuple[PlannedCell, ...]


class Plan(Model):
    """Everything that a run would do."""

    scenario: str
    accelerator: str
    notes: tuple[str, ...]
    """What is missing, and how it will be made."""
    guest_directory: str
    private_key: str
    guests: tuple[PlannedGuest, ...]
