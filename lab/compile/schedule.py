"""Admission of cells: resource needs and free resources of the host. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.core.units import GIB, KIB, MIB
from lab.model.scenario.document import Cell, Disk
from lab.model.scenario.guest import Clock
from lab.plugins import catalog

VIRTUAL_SPACE = 8 * GIB
"""Bytes that the disks of a guest with virtual time may come to hold, at most."""
UNKNOWN_SECONDS = 60.0
"""Assumed seconds of a workload without a prediction."""
GUEST_SECONDS = {"kvm": 10.0, "tcg": 40.0}
"""Assumed seconds of a guest's start, until the first was measured."""
CELL_SECONDS = {"kvm": 4.0, "tcg": 12.0}
"""Assumed seconds of a cell without its workloads, until the first was measured."""
RESERVE = GIB
"""Bytes of memory and of disk space that are left for the host."""
LARGEST_REQUEST = 1280 * KIB
"""Largest request of a guest in bytes (``include/linux/blkdev.h: BLK_DEF_MAX_SECTORS_CAP``), for a
limit on operations."""
SHARE = 0.5
"""Largest fraction of the host's measured throughput for the limits of all running disks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Resources that a running cell needs."""

    memory: int
    """Bytes of the guest and QEMU; 0: the guest already runs."""
    space: int
    """Most bytes that its disks use."""
    rate: float
    """Bytes per second that its disks' limits allow together; 0: a disk has no limit."""
    cores: float = 0.0
    """Peak CPU use of its guest."""
    virtual: bool = False
    """Its clock is the guest's own, so load does not change its values: only memory and space
    count. ``rate`` and ``cores`` are for cells in real time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Free resources of the host."""

    memory: int
    space: int
    rate: float
    """Measured bytes per second of the host."""
    cores: float
    """Free CPUs."""


def need_of(cell: Cell, memory: int, written: int) -> Need:
    """Return the needs of a cell; ``written``: most bytes that its workloads write, 0: unknown."""
    disks = [disk for _, disk in cell.each_disk]
    files = [disk for disk in disks if disk.device is None]
    whole = sum(disk.size for disk in files)
    space = min(whole, 2 * written + len(files) * 16 * MIB) if written else whole
    if cell.guest.clock is Clock.VIRTUAL:
        return Need(memory=memory, space=min(space, VIRTUAL_SPACE), rate=0.0, virtual=True)
    rates = [rate_of(disk) for disk in disks]
    return Need(memory=memory, space=space, rate=0.0 if 0.0 in rates else sum(rates))


def rate_of(disk: Disk) -> float:
    """Return the most bytes per second that a disk's limits allow; 0: no limits."""
    t = disk.throttle
    bounds = [
        float(limit * size)
        for limit, size in (
            (t.total_bytes_per_second, 1),
            (t.total_operations_per_second, LARGEST_REQUEST),
        )
        if limit
    ]
    read = _least(t.read_bytes_per_second, t.read_operations_per_second)
    write = _least(t.write_bytes_per_second, t.write_operations_per_second)
    if read and write:
        bounds.append(read + write)
    return min(bounds, default=catalog.disk_model(disk.model).bytes_per_second(disk))


def _least(bytes_: int | None, operations: int | None) -> float:
    """Return the smaller of two limits on one direction; 0: no limits."""
    given = [float(bytes_ or 0), float((operations or 0) * LARGEST_REQUEST)]
    return min((g for g in given if g), default=0.0)


def fits(need: Need, running: Sequence[Need], room: Room) -> bool:
    """Return whether a cell may start with the running ones; a single cell always may.

    Cells in real time and in virtual time do not run at once: a guest in virtual time uses a whole
    CPU.
    """
    if not running:
        return True
    if any(r.virtual != need.virtual for r in running):
        return False
    if need.memory + RESERVE > room.memory:
        return False
    if need.space + sum(r.space for r in running) + RESERVE > room.space:
        return False
    if need.virtual:
        return True
    if need.rate == 0.0 or any(r.rate == 0.0 for r in running):
        return False  # a disk without limits is measured alone
    if need.cores + sum(r.cores for r in running) > room.cores:
        return False
    return need.rate + sum(r.rate for r in running) <= SHARE * room.rate
