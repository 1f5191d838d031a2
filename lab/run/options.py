"""Options of a run."""

from __future__ import annotations

from dataclasses import dataclass

from lab.compile.guest.virtual_time import is_sealed, needs_network
from lab.model.scenario.document import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run."""

    keep: bool = False
    """Leave the base cell's guest up."""
    workloads: bool = True
    """``False``: only make the base cell's array."""
    jobs: int | None = None
    """Guests at once; ``None``: as many as the host can run."""
    cold: bool = False
    """Boot every guest; use and make no snapshot."""
    accept_expired: bool = False
    """Build images from an archive whose Release files have expired, too."""
    erase: tuple[str, ...] = ()
    """Serials of real disks that may be written to."""
    fresh: bool = False
    """Run sealed cells that ran here before with the same inputs."""
    remember: bool = True
    """Later runs may take the results of sealed cells."""
    unsealed: bool = False
    """Guests with virtual time keep network and SSH."""

    def unseals(self, cell: Cell) -> bool:
        """Whether a cell's guest has virtual time with network and SSH."""
        return is_sealed(cell) and (self.keep or self.unsealed or needs_network(cell))
