"""Seeds of trials.

In virtual time trial k of a cell has seed ``cell.seed + k - 1``. It decides the angles of drives,
the places that workloads draw, and memory addresses of processes. Seed 1 changes nothing. The boot
is the same for all seeds, so that all trials start from one snapshot.
"""

from __future__ import annotations

from typing import Final

from lab.core.base import KEPT
from lab.model.scenario.document import SERVED, Cell, Disk, Workload
from lab.plugins import catalog

STRIDE: Final = 100_003
"""Difference between the drives' seeds of two trials: a serial adds up to 100,000 to a seed."""
FIRST: Final = 1


def of_trial(cell: Cell, trial: int) -> Cell:
    """Return the cell with the parameters that the trial's seed gives its drives and workloads."""
    seed = cell.seed_of(trial)
    if seed == FIRST:
        return cell
    return cell.model_copy(
        update={
            "disks": tuple(_disk(disk, seed) for disk in cell.disks),
            "workloads": tuple(_workload(workload, seed) for workload in cell.workloads),
        }
    )


def seeds_of(cell: Cell) -> tuple[int, ...]:
    """The seed of each trial of a cell in virtual time."""
    return tuple(cell.seed_of(trial) for trial in range(1, cell.trials + 1))


def draws(cell: Cell) -> bool:
    """Whether a seed decides anything of a cell but addresses and names.

    A file system draws too: where it puts files depends on random numbers.
    """
    zfs = cell.array is not None and cell.array.kind == "zfs"
    return (
        zfs
        or cell.filesystem is not None
        or any(_disk(disk, FIRST + 1) != disk for disk in cell.disks)
        or any(map(_draws, cell.workloads))
    )


def _draws(workload: Workload) -> bool:
    """Whether a seed decides which requests a workload makes."""
    tool = catalog.workload(workload.tool)
    parameters = tool.parameters.model_validate(workload.parameters, context=KEPT)
    stream = tool.stream(parameters)
    ordered = stream is not None and not stream.random
    return not ordered and tool.seeded(parameters, FIRST + 1) is not parameters


def _disk(disk: Disk, seed: int) -> Disk:
    if disk.model not in SERVED:
        return disk
    own = getattr(disk, disk.model)
    if "seed" not in type(own).model_fields:
        return disk
    changed = own.model_copy(update={"seed": (own.seed or 1) + (seed - FIRST) * STRIDE})
    return disk.model_copy(update={disk.model: changed})


def _workload(workload: Workload, seed: int) -> Workload:
    tool = catalog.workload(workload.tool)
    parameters = tool.parameters.model_validate(workload.parameters, context=KEPT)
    changed = tool.seeded(parameters, seed)
    if changed is parameters:
        return workload
    return workload.model_copy(
        update={"parameters": changed.model_dump(mode="json", by_alias=True)}
    )


def addresses(seed: int) -> str:
    """Return shell lines that change addresses of later programs, and numbers from
    ``/dev/urandom``.

    The kernel of a guest in virtual time uses no random addresses (``norandmaps``): they would cost
    QEMU a third more, since it translates code again for each address. These lines choose other
    addresses for each seed, the same for all programs of a trial. Mapped memory and libraries begin
    below the stack's limit (``arch/x86/mm/mmap.c: mmap_base``; less than 128 MiB count as 128 MiB),
    and the stack below the environment: T. Mytkowicz et al., "Producing wrong data without doing
    anything obviously wrong", ASPLOS 2009.
    """
    if seed == FIRST:
        return ""
    pages = (seed * 2654435761) % 8191
    padding = "x" * (16 * ((seed * 40503) % 256))
    return (
        f"ulimit -S -s {(128 << 10) + 4 * pages}\n"
        f"export LAB_PADDING={padding}\n"
        f"echo {seed} > /sys/module/lab_disk/parameters/seed\n"
    )
