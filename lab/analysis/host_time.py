"""Host seconds of sealed cells, estimated from the requests and bytes of their workloads.

The guest's clock does not show them: while the guest waits, no host time passes, and drives at full
speed keep its CPU busy.
"""

from __future__ import annotations

from typing import Final

from lab.analysis.predict import drives_of, works
from lab.md.theory import cells
from lab.md.theory.bucket import Direction
from lab.md.theory.paths import Load, SequentialLoad
from lab.model.result.measurement import IOPS
from lab.model.scenario.document import Cell
from lab.model.scenario.drive import HardDrive
from lab.plugins import catalog

READ: Final = 0.0004
"""Host CPU seconds of a random read of 4 KiB, measured under TCG on a host with two CPUs."""
WRITE: Final = 0.0014
"""The same of a random write of 4 KiB to a RAID 5."""
COPIED: Final = 200e6
"""Bytes per second that a guest and its disks copy, at least."""
GUEST: Final = 2.0
"""Host seconds of a guest in addition to its workloads. From a snapshot to its results, with 40 MiB
written in between, 1.9 s were measured."""


def host_seconds(cell: Cell) -> dict[str, float]:
    """Return host seconds of each workload in one trial of a sealed cell, by name.

    Workloads that theory does not cover are left out. It takes milliseconds: no drive is simulated.
    """
    found = {}
    for name, work in works(cell).items():
        requests = _requests(cell, name, work)
        if requests is not None:
            reads = work.read_share if isinstance(work, Load) else _reads(work)
            each = reads * READ + (1 - reads) * WRITE + work.block / COPIED
            found[name] = requests * each
    return found


def _reads(work: SequentialLoad) -> float:
    return 1.0 if work.direction is Direction.READ else 0.0


def _requests(cell: Cell, name: str, work: SequentialLoad | Load) -> float | None:
    """Return the number of a workload's requests; ``None``: theory does not cover it."""
    total = work.total
    if isinstance(work, Load):
        if total is None and work.seconds is None:
            total = work.span
        if work.seconds is not None:
            rate = _rate(cell, name, work)
            if rate is None:
                return None
            timed = rate * (work.rest + work.seconds)
            return timed if total is None else min(timed, total / work.block)
    return None if total is None else total / work.block


def _rate(cell: Cell, name: str, work: Load) -> float | None:
    """Return requests per second of the guest's clock; for modelled drives an approximate
    number."""
    drives = [modelled.drive for modelled in drives_of(cell).values()]
    if not drives:
        said = cells.predict(cell, {name: work})
        return next((p.value for p in said if p.metric == IOPS.name), None)
    if not work.random:
        models = [(catalog.disk_model(disk.model), disk) for _, disk in cell.each_disk]
        return sum(model.bytes_per_second(disk) for model, disk in models) / work.block
    first = drives[0]
    if isinstance(first, HardDrive):
        return min(work.depth, len(drives)) / first.access
    at_once = min(work.depth, len(drives) * first.channels)
    return at_once / (first.overhead + first.read_latency)
