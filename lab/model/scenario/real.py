"""A real disk, as the host tells it."""

from __future__ import annotations

from lab.core.base import Model


class RealDisk(Model):
    """What a scenario that names a device takes from the host."""

    size: int
    """Bytes."""
    serial: str
    rotational: bool
