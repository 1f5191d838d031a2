"""A real disk, as the host describes it."""

from __future__ import annotations

from lab.core.base import Model


class RealDisk(Model):
    """The facts that a scenario with ``device`` takes from the host."""

    size: int
    """Bytes."""
    serial: str
    rotational: bool
