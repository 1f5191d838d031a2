"""Why theory predicts a workload's speed, in sentences, with each member's bytes."""

from __future__ import annotations

from lab.core.base import Model
from lab.model.scenario.document import AxisValue


class MemberBytes(Model):
    """Bytes that one member moves: predicted, and counted by the guest."""

    serial: str
    read_bytes: int | None = None
    """``None``: theory predicts nothing, and the disk was counted."""
    written_bytes: int | None = None
    counted_read_bytes: int | None = None
    """Median of the trials, from ``/proc/diskstats``; ``None``: not run."""
    counted_written_bytes: int | None = None

    @property
    def error(self) -> float | None:
        """Relative difference of the counted bytes from the predicted ones."""
        if self.counted_read_bytes is None or self.counted_written_bytes is None:
            return None
        if self.read_bytes is None or self.written_bytes is None:
            return None
        expected = self.read_bytes + self.written_bytes
        counted = self.counted_read_bytes + self.counted_written_bytes
        return (counted - expected) / expected if expected else None


class Explanation(Model):
    """One workload of one cell."""

    workload: str
    expected: dict[str, float] = {}
    """Metric to value; empty: theory does not cover it."""
    measured: dict[str, float] = {}
    """Medians of a run's trials."""
    sentences: tuple[str, ...]
    members: tuple[MemberBytes, ...] = ()


class CellExplanation(Model):
    """All workloads of one cell."""

    id: str
    axes: dict[str, AxisValue]
    workloads: tuple[Explanation, ...]
