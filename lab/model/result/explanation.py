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


class ChunkUse(Model):
    """A chunk of one member, and whether md reads and writes in it for a request."""

    name: str
    """``D`` with the number of the chunk in the array, ``P``, ``Q`` or ``failed``."""
    read: bool = False
    written: bool = False


class Anatomy(Model):
    """Where one write goes, with an empty stripe cache."""

    block: int
    """Bytes of the write."""
    rows: tuple[int, ...]
    """Numbers of the rows of chunks that are shown."""
    chunks: tuple[tuple[ChunkUse, ...], ...]
    """Of each row, by member."""

    @property
    def counts(self) -> tuple[int, int]:
        """Chunks that are read, and written."""
        every = [chunk for row in self.chunks for chunk in row]
        return sum(c.read for c in every), sum(c.written for c in every)


class Explanation(Model):
    """One workload of one cell."""

    workload: str
    expected: dict[str, float] = {}
    """Metric to value; empty: theory does not cover it."""
    measured: dict[str, float] = {}
    """Medians of a run's trials."""
    sentences: tuple[str, ...]
    anatomy: Anatomy | None = None
    """Of one of its writes; ``None``: it writes nothing, or the level has no chunks."""
    members: tuple[MemberBytes, ...] = ()


class CellExplanation(Model):
    """All workloads of one cell."""

    id: str
    axes: dict[str, AxisValue]
    workloads: tuple[Explanation, ...]
