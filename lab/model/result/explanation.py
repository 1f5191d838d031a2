"""Why a workload should be as fast as theory says, in sentences, with each member's bytes."""

from __future__ import annotations

from lab.core.base import Model
from lab.model.scenario.document import AxisValue


class MemberBytes(Model):
    """What one member moves: as theory has it, and as the guest counted it."""

    serial: str
    read_bytes: int
    written_bytes: int
    counted_read_bytes: int | None = None
    """Median of the trials, from ``/proc/diskstats``; ``None`` where nothing was run."""
    counted_written_bytes: int | None = None

    @property
    def error(self) -> float | None:
        """By which part the counted bytes differ from theory's."""
        if self.counted_read_bytes is None or self.counted_written_bytes is None:
            return None
        expected = self.read_bytes + self.written_bytes
        counted = self.counted_read_bytes + self.counted_written_bytes
        return (counted - expected) / expected if expected else None


class Explanation(Model):
    """One workload of one cell."""

    workload: str
    expected: dict[str, float] = {}
    """Metric to value; empty where theory has nothing to say."""
    measured: dict[str, float] = {}
    """Medians of a run's trials."""
    sentences: tuple[str, ...]
    members: tuple[MemberBytes, ...] = ()


class CellExplanation(Model):
    """All workloads of one cell."""

    id: str
    axes: dict[str, AxisValue]
    workloads: tuple[Explanation, ...]
