"""Variation of repeated measurements on a host."""

from __future__ import annotations

from lab.core.base import Model


class NoiseFloor(Model):
    """One kind of metric on one disk configuration: repeated runs of the same cells."""

    disks: str
    """Models of the cells' disks, as in a scenario, joined by ``+``."""
    metric: str
    deviation: float
    """Standard deviation between runs, relative to the value."""
    freedom: int
    """Degrees of freedom: number of values minus number of different cells."""
    runs: int
    """Number of runs used."""
