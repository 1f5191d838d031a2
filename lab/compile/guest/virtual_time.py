"""Guests in virtual time: cells that can run in them, and their disks on the lab's driver.

A sealed guest has all its disks from its start. The guest's own timer completes requests, by QEMU's
rules for limits (``drive/throttle.h``) or by a drive's model (``drive/drive.h``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from lab.model.execution.procedure import DiskLimit, SealDisks, SealedDisk
from lab.model.plugin import Problem
from lab.model.scenario.document import CacheMode, Cell, Disk, DiskBus
from lab.model.scenario.drive import integers
from lab.model.scenario.guest import Clock, Engine, Guest
from lab.model.scenario.suite import Suite
from lab.plugins import catalog

LARGEST: Final = 12 << 40
"""Largest disk in bytes: the limit of its block map."""
THROUGH: Final = (CacheMode.WRITETHROUGH, CacheMode.DIRECTSYNC)
"""Cache modes in which a disk announces no volatile cache."""


def is_sealed(cell: Cell) -> bool:
    """Return whether a cell runs in a guest in virtual time.

    That guest is sealed, unless the cell needs the network or the user requests SSH.
    """
    return cell.guest.clock is Clock.VIRTUAL


def on_the_labs_bus(guest: Guest, disks: tuple[Disk, ...]) -> tuple[Disk, ...]:
    """Return the disks with the lab's driver, if the guest has virtual time."""
    if guest.clock is Clock.REAL:
        return disks
    return tuple(disk.model_copy(update={"bus": DiskBus.LAB}) for disk in disks)


def guest_problems(guest: Guest) -> Iterator[Problem]:
    """Yield problems of a guest in virtual time."""
    if guest.clock is Clock.REAL:
        if guest.disturb:
            yield Problem(
                key="disturb",
                message="only a guest with virtual time can be disturbed: set guest.clock to"
                " virtual, or remove it",
            )
        if guest.engine is Engine.NATIVE:
            yield Problem(
                key="engine",
                message="the native engine has virtual time only: set guest.clock to virtual, or"
                " remove the engine",
            )
        return
    if guest.engine is Engine.NATIVE and guest.disturb:
        yield Problem(
            key="disturb",
            message="the native engine disturbs no guest yet: set guest.engine to emulated",
        )
    if guest.engine is Engine.NATIVE and guest.kernel is not None:
        yield Problem(
            key="kernel",
            message="the native engine builds the kernel of the image from its source: remove the"
            " kernel, or set guest.engine to emulated",
        )
    if guest.engine is Engine.NATIVE and (strange := not_native(guest.kernel_arguments)):
        yield Problem(
            key="kernel_arguments",
            message=f"the native engine takes parameters of modules only, and '{strange}' is none:"
            " remove it, or set guest.engine to emulated",
        )
    if guest.cpus != 1:
        yield Problem(
            key="cpus",
            message=f"a guest with virtual time has 1 CPU, not {guest.cpus}: set it to 1, or"
            " guest.clock to real",
        )


def why_emulated(guest: Guest, *, sealed: bool) -> str:
    """Return why the native engine cannot run a guest, as far as the scenario tells; or empty.

    ``sealed``: the cell needs no SSH.
    """
    if not sealed:
        return "it needs SSH"
    if guest.disturb:
        return "guest.disturb is set"
    if guest.kernel is not None:
        return f"guest.kernel is {guest.kernel}"
    if strange := not_native(guest.kernel_arguments):
        return f"guest.kernel_arguments has '{strange}'"
    return ""


_OF_MODULE: Final = re.compile(
    r"(?!lab|random)[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*(=[\w.,:+-]{0,200})?", re.ASCII
)


def not_native(arguments: Sequence[str]) -> str:
    """Return the first kernel argument that a native guest does not get; empty: there is none.

    Most words are options of User-Mode Linux's program, which name files of the host, the guest's
    memory and its clock.
    """
    return next((word for word in arguments if not _OF_MODULE.fullmatch(word)), "")


def disk_problems(guest: Guest, disk: Disk) -> Iterator[Problem]:
    """Yield problems of a disk of a guest in virtual time; ``bus`` is as written."""
    if guest.clock is Clock.REAL:
        if disk.bus is DiskBus.LAB:
            yield Problem(
                key="bus",
                message="the bus 'lab' needs virtual time: set it to virtio or scsi, or "
                "guest.clock to virtual",
            )
        return
    if disk.device is not None:
        yield Problem(
            key="device",
            message="a real disk runs in the host's time, and guest.clock is virtual: set it to "
            "real, or use a virtual disk",
        )
    if disk.bus is DiskBus.SCSI:
        yield Problem(
            key="bus",
            message="SCSI disks run in the host's time, and guest.clock is virtual: set it to "
            "real, or remove the bus",
        )
    if disk.size > LARGEST:
        yield Problem(
            key="size",
            message="with virtual time a disk has 12TiB at most: lower it, or set guest.clock to "
            "real",
        )


def needs_network(cell: Cell) -> bool:
    """Return whether a cell has suites, which are copied into the guest over SSH."""
    return any(isinstance(catalog.workload(w.tool), Suite) for w in cell.workloads)


def seal(cell: Cell, seed: int = 1) -> SealDisks:
    """Return a cell's disks, in the order of their numbers in the guest; ``seed``: the trial's."""
    names: list[str] = []
    disks = []
    partitions = cell.array is not None and catalog.array_kind(cell.array.kind).partitions
    for serial, disk in cell.each_disk:
        given, model = disk.throttle, catalog.disk_model(disk.model)
        drive = model.drive(disk)
        group = 0
        if given.group is not None:
            names += [given.group] if given.group not in names else []
            group = names.index(given.group) + 1
        disks.append(
            SealedDisk(
                serial=serial,
                size=disk.size,
                rotational=model.rotational(disk) is not False,
                write_back=disk.cache not in THROUGH,
                partitions=partitions,
                group=group,
                logical=disk.sectors.logical,
                physical=disk.sectors.physical,
                operation_size=given.operation_size or 0,
                limits=dict(_limits(disk)),
                drive=asdict(integers(drive, serial)) if drive else {},
            )
        )
    return SealDisks(disks=tuple(disks), seed=seed, disturb=cell.guest.disturb)


def _limits(disk: Disk) -> Iterator[tuple[str, DiskLimit]]:
    for limit in disk.throttle.limits():
        yield (
            f"{limit.unit}_{limit.direction}",
            DiskLimit(average=limit.average, burst=limit.burst or 0, seconds=limit.seconds or 0),
        )
