"""Which cell next, and whether it fits beside those that run: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.core.units import GIB, KIB, MIB
from lab.model.scenario.document import Cell, Disk
from lab.plugins import catalog

UNKNOWN_SECONDS = 60.0
"""What a workload counts for that theory knows nothing of."""
GUEST_SECONDS = {"kvm": 10.0, "tcg": 40.0}
"""All of a guest's start, until the first has told better."""
CELL_SECONDS = {"kvm": 4.0, "tcg": 12.0}
"""What a cell takes beyond its workloads, until the first has told better."""
RESERVE = GIB
"""Memory and disk space, bytes each, that is left to the host."""
LARGEST_REQUEST = 1280 * KIB
"""Bytes of a guest's request at most (``include/linux/blkdev.h: BLK_DEF_MAX_SECTORS_CAP``), of
which a limit on operations lets so many through."""
SHARE = 0.5
"""Part of the host's measured throughput that the limits of all running disks may add up to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a cell takes from the host while it runs."""

    memory: int
    """Bytes, of the guest and of QEMU; a guest that stands already needs none."""
    space: int
    """Bytes that its disks may grow to."""
    rate: float
    """Bytes per second that its disks' limits allow together; 0 where a disk has none."""
    cores: float = 0.0
    """Processors that its guest keeps busy in its busiest step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the host has left."""

    memory: int
    space: int
    rate: float
    """Bytes per second that the host itself moves, measured."""
    cores: float
    """Processors that may be busy."""


def need_of(cell: Cell, memory: int, written: int) -> Need:
    """``written``: bytes that the workloads write at most; 0 where nobody knows."""
    disks = [disk for _, disk in cell.each_disk]
    files = [disk for disk in disks if disk.device is None]
    whole = sum(disk.size for disk in files)
    space = min(whole, 2 * written + len(files) * 16 * MIB) if written else whole
    rates = [rate_of(disk) for disk in disks]
    return Need(memory=memory, space=space, rate=0.0 if 0.0 in rates else sum(rates))


def rate_of(disk: Disk) -> float:
    """Bytes per second that a disk's limits let through at most; 0 where they let all through."""
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
    """The lesser of two limits on one direction; 0: it has none."""
    given = [float(bytes_ or 0), float((operations or 0) * LARGEST_REQUEST)]
    return min((g for g in given if g), default=0.0)


def fits(need: Need, running: Sequence[Need], room: Room) -> bool:
    """Whether a cell may start beside those that run. Alone, any cell may."""
    if not running:
        return True
    if need.memory + RESERVE > room.memory:
        return False
    if need.space + sum(r.space for r in running) + RESERVE > room.space:
        return False
    if need.rate == 0.0 or any(r.rate == 0.0 for r in running):
        return False  # a disk without limits is measured alone
    if need.cores + sum(r.cores for r in running) > room.cores:
        return False
    return need.rate + sum(r.rate for r in running) <= SHARE * room.rate
