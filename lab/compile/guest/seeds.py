"""Seeds of trials.

In virtual time trial k of a cell has seed ``cell.seed + k - 1``. It decides the angles of drives,
the places that workloads draw, memory addresses of processes, and which pages of memory are free
before a workload (``stir`` in ``program.py``). Seed 1 changes nothing. The boot is the same for all
seeds, so that all trials start from one snapshot.

Two workloads of a cell that draw places never draw the same ones. The first of them has the seed of
the trial. Each other one has a seed of its own, from the trial's seed and its name. A seed that
the scenario writes (fio's ``randseed`` and ``randrepeat``, or a value other than 1) is kept, so two
workloads have the same places if both have the same seed written. One with ``keep_cache`` uses
what the one before it left, and has its places; so has fio with ``verify``. ``bonnie``,
``file_tree`` and ``ledger`` make files or blocks that their seed names, so theirs is the trial's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from lab.model.scenario.document import SERVED, Cell, Disk, Workload
from lab.plugins import catalog

STRIDE: Final = 100_003
"""Difference between the drives' seeds of two trials: a serial adds up to 100,000 to a seed."""
FIRST: Final = 1
OWN: Final = 1_000_000_000
"""Smallest seed of a workload's own; those of trials and scenarios are far below."""
ONE_REQUEST: Final = 1 << 20
"""Bytes of the longest request that is one bio wherever its pages are: 256 of 4 KiB
(``BIO_MAX_VECS`` in Linux's ``include/linux/bio.h``, and ``LAB_SEGMENTS`` of the driver)."""


def of_trial(cell: Cell, trial: int) -> Cell:
    """Return the cell with the parameters that the trial's seed gives its drives and workloads."""
    cell, seed = own_places(cell), cell.seed_of(trial)
    if seed == FIRST:
        return cell
    return cell.model_copy(
        update={
            "disks": tuple(_disk(disk, seed) for disk in cell.disks),
            "workloads": tuple(_workload(workload, seed) for workload in cell.workloads),
        }
    )


def own_places(cell: Cell) -> Cell:
    """Return the cell with places of its own for each workload that draws them; see the module.

    Applied twice it changes nothing more, because the seeds are written then.
    """
    changed: list[Workload] = []
    taken = {FIRST} if _written(cell.workloads, FIRST) else set[int]()
    seed = FIRST
    for workload in cell.workloads:
        tool = catalog.workload(workload.tool)
        parameters = catalog.parameters_of(workload)
        if not tool.draws_places(parameters):
            changed.append(workload)
            continue
        if not workload.keep_cache or not taken:
            seed = FIRST if FIRST not in taken else OWN + crc32(workload.name.encode()) % OWN
            while seed in taken:
                seed += 1
            taken.add(seed)
        changed.append(workload if seed == FIRST else _workload(workload, seed))
    return cell.model_copy(update={"workloads": tuple(changed)}) if len(taken) > 1 else cell


def _written(workloads: Sequence[Workload], seed: int) -> bool:
    """Whether a workload's places have this seed, because the scenario says so."""
    return any(
        w.parameters.get("randseed") == seed and "randrepeat" in w.parameters for w in workloads
    )


def seeds_of(cell: Cell) -> tuple[int, ...]:
    """The seed of each trial of a cell in virtual time."""
    return tuple(cell.seed_of(trial) for trial in range(1, cell.trials + 1))


def draws(cell: Cell) -> frozenset[str]:
    """Return the names of workloads and faults whose values depend on the seed.

    With a file system it is all: where it puts files depends on random numbers. A fault during or
    after a workload that draws finds other blocks written, and other bits set in a bitmap.
    """
    zfs = cell.array is not None and cell.array.kind == "zfs"
    if zfs or cell.filesystem or any(_disk(disk, FIRST + 1) != disk for disk in cell.disks):
        return frozenset([w.name for w in cell.workloads] + [f.name for f in cell.faults])
    drawn = [_draws(workload) for workload in cell.workloads]
    names = [workload.name for workload in cell.workloads]
    found = {name for name, draw in zip(names, drawn, strict=True) if draw}
    for fault in cell.faults:
        at = names.index(fault.before or fault.during or fault.after or "")
        if any(drawn[: at + (fault.before is None)]):
            found.add(fault.name)
    return frozenset(found)


def _draws(workload: Workload) -> bool:
    """Whether a seed decides which requests a workload makes.

    Those in order and past the page cache are always the same up to ``ONE_REQUEST``. Longer ones
    are split where the pages of the buffer say so.
    """
    tool = catalog.workload(workload.tool)
    parameters = catalog.parameters_of(workload)
    stream = tool.stream(parameters)
    if stream is None or stream.random:
        return tool.seeded(parameters, FIRST + 1) is not parameters
    return stream.block > ONE_REQUEST


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
    parameters = catalog.parameters_of(workload)
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
