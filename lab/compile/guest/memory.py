"""The memory that a cell's guest needs and cannot give back: md's caches, workloads' buffers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from lab.core.units import GIB, KIB, MIB, format_amount, format_size, is_digits
from lab.model.plugin import MemoryUse, Problem
from lab.model.scenario.document import Array, Disk, Workload
from lab.model.scenario.drive import integers
from lab.model.scenario.guest import Clock, Guest
from lab.plugins import catalog

SYSTEM: Final = 144 * MIB
"""Kernel and programs. A sealed guest of 512 MiB (debian-12) had room for 10240 stripes of 8
members, 353 MiB, and panicked with 11264, 388 MiB."""
_SLOT: Final = 40
"""``drive.h: struct lab_drive_slot``, for each page of a modelled drive's cache."""
_HUGE: Final = 2 * MIB
_UNITS: Final = {"": 1, "K": KIB, "M": MIB, "G": GIB}


def memory_problems(
    guest: Guest, array: Array | None, disks: Sequence[Disk], workloads: Sequence[Workload]
) -> Iterator[Problem]:
    """Yield a problem if the guest has less memory than the cell's caches and buffers need.

    The kernel would kill programs, or panic: "Out of memory".
    """
    memory = _memory(guest)
    arc = array.zfs.arc_max if array is not None and array.kind == "zfs" else None
    if arc is not None and arc >= memory:
        yield Problem(
            key="array.zfs.arc_max",
            message=f"ZFS ignores {format_size(arc)} in a guest of {format_size(guest.memory)}"
            " (arc.c: arc_tuning_update): lower it, or raise guest.memory",
        )
        return
    uses = [*_of_guest(guest, disks), *_of_array(array, disks)]
    buffers = [use for workload in workloads for use in _of_workload(workload)]
    if buffers:  # workloads run one after the other
        uses.append(max(buffers, key=lambda use: use.size))
    needed, left = sum(use.size for use in uses), memory - SYSTEM
    if needed <= left:
        return
    uses.sort(key=lambda use: -use.size)
    named = ", ".join(f"{use.what} {format_amount(use.size)}" for use in uses[:3])
    enough = -(-(needed + SYSTEM) // (256 * MIB)) * 256 * MIB
    yield Problem(
        key=uses[0].key,
        message=f"the guest would run out of memory: it has {format_size(guest.memory)}, of which"
        f" about {format_amount(max(left, 0))} are free, and needs {format_amount(needed)}"
        f" ({named}): lower it, or set guest.memory to {format_size(enough)}",
    )


def _memory(guest: Guest) -> int:
    """Return the bytes that the guest's kernel uses: its argument ``mem`` may be less."""
    found = [
        int(m[1]) * _UNITS[m[2].upper()]
        for word in guest.kernel_arguments
        if (m := re.fullmatch(r"mem=([0-9]{1,18})([kKmMgG]?)", word))
    ]
    return min([guest.memory, *found])


def _of_guest(guest: Guest, disks: Sequence[Disk]) -> Iterator[MemoryUse]:
    words = dict(word.partition("=")[::2] for word in guest.kernel_arguments)
    if is_digits(pages := words.get("hugepages", "")):
        size = GIB if words.get("hugepagesz", "").upper() == "1G" else _HUGE
        yield MemoryUse(
            key="guest.kernel_arguments", size=int(pages) * size, what=f"hugepages={pages}"
        )
    if guest.clock is Clock.REAL:
        return
    total = 0
    for disk in disks:
        drive = catalog.disk_model(disk.model).drive(disk)
        if drive is not None:
            total += disk.count * (integers(drive, "").cache // (4 * KIB)) * _SLOT
    if total:
        yield MemoryUse(key="guest.memory", size=total, what="tables of the drives' caches")


def _of_array(array: Array | None, disks: Sequence[Disk]) -> Iterator[MemoryUse]:
    if array is not None:
        singles = [disk for disk in disks for _ in range(disk.count)]
        yield from catalog.array_kind(array.kind).memory(array, singles)


def _of_workload(workload: Workload) -> Iterator[MemoryUse]:
    tool = catalog.workload(workload.tool)
    size = tool.memory(catalog.parameters_of(workload))
    if size:
        yield MemoryUse(key="guest.memory", size=size, what=f"buffers of '{workload.name}'")
