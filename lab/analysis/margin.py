"""Margins: largest differences at which two values count as equal. Pure."""

from __future__ import annotations

from typing import Final

from lab.compile.guest.virtual_time import is_sealed
from lab.model.scenario.document import Cell, Throttle, Workload
from lab.plugins import catalog

MARGIN: Final = 0.01
"""Smallest relative difference that counts as a direction (faster, behind); below it values are
equal."""

OPERATIONS: Final = 0.016
"""Largest difference of real and virtual time on disks with a limit of operations per second: 29
values of ``raid5-random-write`` and ``bitmap-external``."""
SHARED_BITMAP: Final = 0.23
"""The same for several requests at a time to a RAID 4, 5 or 6 with an internal bitmap, on such
disks: in virtual time fewer writes share a write of the bitmap.

Both: docs/concepts/virtual-time.md. Disks with a limit of bytes differed by at most 1 %; modelled
drives have virtual time only."""


def margins(cell: Cell) -> dict[str, float]:
    """Return the margin of each workload's directions."""
    return {workload.name: _margin(cell, workload) for workload in cell.workloads}


def _margin(cell: Cell, workload: Workload) -> float:
    if not is_sealed(cell) or not any(_operations(d.throttle) for d in cell.disks):
        return MARGIN
    array = cell.array
    internal = array is not None and array.bitmap == "internal"
    if array is not None and internal and str(array.level) in ("4", "5", "6"):
        tool = catalog.workload(workload.tool)
        stream = tool.stream(catalog.parameters_of(workload))
        if stream is None or stream.depth * stream.jobs > 1:
            return SHARED_BITMAP
    return OPERATIONS


def _operations(throttle: Throttle) -> bool:
    return any(limit.unit == "operations" for limit in throttle.limits())
