"""How far the same measurement comes out differently on a host, with nothing changed."""

from __future__ import annotations

from lab.core.base import Model


class NoiseFloor(Model):
    """One kind of metric on one kind of disk: the same cells, run again and again."""

    disks: str
    """Models of the cells' disks, as in a scenario; several are joined by ``+``."""
    metric: str
    deviation: float
    """Standard deviation between runs, as a share of the figure."""
    freedom: int
    """Degrees of freedom: figures less different ones."""
    runs: int
    """Runs that were looked at."""
