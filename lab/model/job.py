"""What a worker is handed: one guest, and the cells to run in it, one after another."""

from __future__ import annotations

from lab.model.base import Model
from lab.model.procedure import Procedure


class CellJob(Model):
    """One cell, compiled."""

    id: str
    procedure: Procedure
    directory: str
    """Where its raw output goes; it exists and is empty."""
    target: str
    """The array's path in the guest."""


class GuestJob(Model):
    """One guest and its cells; a worker process takes exactly one such job."""

    guest: str
    scenario: str
    image: str
    host_key: str
    """Public line of the guest's host key."""
    private_key: str
    """Path of the lab's private key."""
    procedure: Procedure
    cells: tuple[CellJob, ...]
    keep: bool = False
    """Leave the guest up, with the last cell's array, if all went well."""
