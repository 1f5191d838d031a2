"""Options of a run."""

from __future__ import annotations

from dataclasses import dataclass

from lab.compile.guest.virtual_time import is_sealed, needs_network
from lab.model.scenario.document import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run."""

    keep: bool = False
    """Leave the base cell's guest running."""
    workloads: bool = True
    """``False``: only build the base cell's array."""
    jobs: int | None = None
    """Number of concurrent guests; ``None``: as many as the host can run."""
    cold: bool = False
    """Boot every guest; neither use nor make snapshots."""
    accept_expired: bool = False
    """Also build images from an archive whose Release files have expired."""
    erase: tuple[str, ...] = ()
    """Serials of real disks that the guests may write to."""
    fresh: bool = False
    """Run sealed cells even if results for the same inputs are stored."""
    remember: bool = True
    """Allow later runs to take the results of sealed cells."""
    unsealed: bool = False
    """Give guests in virtual time network and SSH."""

    def unseals(self, cell: Cell) -> bool:
        """Return whether a cell's guest has virtual time with network and SSH."""
        return is_sealed(cell) and (self.keep or self.unsealed or needs_network(cell))
