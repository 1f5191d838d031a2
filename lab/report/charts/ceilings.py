"""What N disks could do at the most: N·B, and (N-1)·B where one of them holds parity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lab.model.scenario.document import Cell
from lab.report.content.figures import Row

DISKS: Final = "disks.count"
CEILINGS: Final = (("N·B", 0), ("(N-1)·B", 1))
"""What they are called, and how many of the disks are not counted."""
WORDS: Final = "B: what one disk's limit lets through"


def disk_limit(cell: Cell, metric: str) -> float | None:
    """What the limits of one disk let through, in the metric's unit; ``None``: no one figure."""
    found: set[float] = set()
    for disk in cell.disks:
        kind = {"throughput": "bytes", "iops": "operations"}.get(metric)
        given = disk.throttle.model_dump(exclude_none=True)
        limit = given.get(f"total_{kind}_per_second")
        if disk.model != "throttle" or limit is None:
            return None
        found.add(float(limit))
    return found.pop() if len(found) == 1 else None


def ceilings(rows: Sequence[Row], cells: Mapping[str, Cell]) -> list[tuple[str, int, float]]:
    """Each ceiling's name, for every number of disks, and what it is there.

    Empty where the number of disks is no axis, or the disks have not all the same limit.
    """
    limits = {disk_limit(cells[row.cell.id], row.metric) for row in rows}
    counts = sorted({n for row in rows if isinstance(n := row.cell.axes.get(DISKS), int)})
    limit = limits.pop() if limits else None
    if limits or limit is None or len(counts) < 2:
        return []
    return [(name, n, (n - less) * limit) for name, less in CEILINGS for n in counts]
