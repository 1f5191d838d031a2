"""Predictions of a cell's workloads from theory and disk models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final

from lab.compile.cell.fault_times import undisturbed
from lab.compile.cell.metrics import metrics_of
from lab.compile.guest.seeds import of_trial, own_places
from lab.md.theory import bitmap_writes, cells
from lab.md.theory.bucket import Direction
from lab.md.theory.cell import only_reads, why_not
from lab.md.theory.drive import sequential_read_rate
from lab.md.theory.mechanism import ModelledDrive
from lab.md.theory.paths import Load, SequentialLoad
from lab.model.plugin import Stream
from lab.model.result.explanation import Explanation
from lab.model.result.measurement import IOPS, SECONDS, THROUGHPUT, Prediction
from lab.model.scenario.document import Cell, Workload
from lab.model.scenario.drive import integers
from lab.model.scenario.guest import Clock
from lab.plugins import catalog

GUEST_SHARE: Final = 0.08
"""Relative uncertainty of a drive's values: an emulated guest adds a millisecond per request."""


def predictions(
    cell: Cell, busy: Mapping[str, float] | None = None, kernel: str | None = None
) -> tuple[Prediction, ...]:
    """Return a prediction for each metric that theory covers and the tool or the disks measure.

    ``busy``: ``measure.busy_shares`` of a sealed cell, whose CPU time delays requests. ``kernel``:
    the version of the guest's kernel, if known; otherwise what depends on it adds to the doubt.

    In virtual time theory follows the measured requests, so each value is the mean over the seeds
    of the cell's trials.
    """
    measured = metrics_of(cell)
    kernel = kernel or named_kernel(cell)
    said = _means([_of_a_seed(one, busy, kernel) for one in _seeds(cell)])
    return tuple(p for p in said if (p.workload, p.metric) in measured)


def _seeds(cell: Cell) -> list[Cell]:
    """Return the cell with each trial's seed, without cells that are equal for theory."""
    trials = cell.trials if cell.guest.clock is Clock.VIRTUAL else 1
    drawn = [of_trial(cell, trial) for trial in range(1, trials + 1)]
    alike = {(*works(one).items(), *drives_of(one).items()): one for one in reversed(drawn)}
    return list(reversed(alike.values()))


def named_kernel(cell: Cell) -> str | None:
    """Return the version in the name of the kernel's package, if it has one."""
    found = re.fullmatch(r"linux-image-(\d+\.\d+.*)", cell.guest.kernel or "")
    return found.group(1) if found else None


def _of_a_seed(
    cell: Cell, busy: Mapping[str, float] | None, kernel: str | None
) -> list[Prediction]:
    bare = tuple(_of_the_drive(cell))
    done = {p.workload for p in bare}
    rest = {name: work for name, work in works(cell).items() if name not in done}
    return [*_with_guest(cell, cells.predict(cell, rest, busy, drives_of(cell), kernel)), *bare]


def _means(each: Sequence[Sequence[Prediction]]) -> Iterator[Prediction]:
    """Yield the mean of each value that all seeds have, with the largest uncertainty."""
    others = [{(p.workload, p.metric): p for p in said} for said in each]
    for first in each[0]:
        alike = [said.get((first.workload, first.metric)) for said in others]
        if all(alike):
            value = fmean(p.value for p in alike if p)
            doubt = max(p.doubt for p in alike if p)
            yield first.model_copy(update={"value": value, "doubt": doubt})


def drives_of(cell: Cell) -> dict[str, ModelledDrive]:
    """Return the cell's modelled drives by serial."""
    found = {}
    for serial, disk in cell.each_disk:
        drive = catalog.disk_model(disk.model).drive(disk)
        if drive is not None and disk.device is None:
            seed = integers(drive, serial).seed
            found[serial] = ModelledDrive(drive=drive, size=disk.size, seed=seed)
    return found


def _with_guest(cell: Cell, said: Sequence[Prediction]) -> Iterator[Prediction]:
    """Yield predictions of drives with the uncertainty that a guest in real time adds."""
    real = cell.guest.clock is Clock.REAL and bool(drives_of(cell))
    for each in said:
        doubt = max(each.doubt, GUEST_SHARE) if real else each.doubt
        yield each.model_copy(update={"doubt": doubt})


def _of_the_drive(cell: Cell) -> Iterator[Prediction]:
    """Yield predictions of sequential reads of one bare modelled drive from its start."""
    if cell.array is not None or cell.filesystem is not None or len(cell.each_disk) != 1:
        return
    drive = catalog.disk_model(cell.disks[0].model).drive(cell.disks[0])
    if drive is None:
        return
    for name, work in works(cell).items():
        if not isinstance(work, Load) or work.read_share < 1 or work.jobs != 1:
            continue
        if work.random or work.offset:
            continue
        rate = sequential_read_rate(drive, 0.0, block=work.block, depth=work.depth, span=work.span)
        for metric, value in ((IOPS, rate / work.block), (THROUGHPUT, rate)):
            yield Prediction(
                workload=name,
                metric=metric.name,
                value=value,
                reason=f"The drive reads {rate / 1e6:.0f} MB per second at its start, with "
                "read-ahead.",
                doubt=GUEST_SHARE if cell.guest.clock is Clock.REAL else 0.0,
            )


def works(cell: Cell) -> dict[str, SequentialLoad | Load]:
    """Return the workloads as theory's loads by name, without those that theory does not cover."""
    found: dict[str, SequentialLoad | Load] = {}
    for workload in undisturbed(own_places(cell)):
        tool = catalog.workload(workload.tool)
        stream = tool.stream(catalog.parameters_of(workload))
        if stream is not None:
            found[workload.name] = work_of(stream)
    return found


def explanations(
    cell: Cell, busy: Mapping[str, float] | None = None, kernel: str | None = None
) -> tuple[Explanation, ...]:
    """Return an explanation of every workload, or why not. ``busy``, ``kernel``: see
    `predictions`."""
    known, shares = works(cell), busy or {}
    return tuple(
        cells.explain(
            *(cell, workload.name, known[workload.name], drives_of(cell)),
            *(shares.get(workload.name, 0.0), kernel or named_kernel(cell)),
        )
        if workload.name in known
        else Explanation(
            workload=workload.name,
            sentences=(f"No prediction: {_no_rule(cell, workload)}.",),
        )
        for workload in cell.workloads
    )


def durations(cell: Cell) -> dict[str, float]:
    """Return predicted or configured seconds of workloads, by name."""
    known = works(cell)
    timed = {
        name: work.rest + work.seconds
        for name, work in known.items()
        if isinstance(work, Load) and work.seconds is not None
    }
    rest = {name: work for name, work in known.items() if name not in timed}
    said = cells.predict(cell, rest, drives=drives_of(cell), kernel=named_kernel(cell))
    return timed | {p.workload: p.value for p in said if p.metric == SECONDS.name}


def bitmap_updates(cell: Cell, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the most bitmap bits that each workload can set in its measured seconds.

    Workloads that only read are left out; empty without a bitmap.
    """
    known = works(cell)
    found = {}
    for name, took in seconds.items():
        work = known.get(name)
        if work is not None and only_reads(work):
            continue
        updates = bitmap_writes.bitmap_updates(cell, work, took)
        if updates is not None:
            found[name] = updates
    return found


def written(cell: Cell) -> int:
    """Return the most bytes that all workloads write in one trial; 0: unknown.

    Random writes use more of a disk's file than their bytes, so for them it is unknown.
    """
    known = works(cell)
    if len(known) < len(cell.workloads):
        return 0
    total = 0
    for work in known.values():
        if isinstance(work, SequentialLoad):
            total += work.total if work.direction is Direction.WRITE else 0
        elif work.read_share < 1:
            return 0
    return total


def work_of(stream: Stream) -> SequentialLoad | Load:
    """Return the workload as one of theory's loads: one request at a time, or many."""
    plain = not stream.random and stream.depth == 1 and stream.direction != "mixed"
    if plain and stream.total is not None and stream.seconds is None:
        return SequentialLoad(
            direction=Direction(stream.direction),
            block=stream.block,
            total=stream.total,
            offset=stream.offset,
        )
    shares = {"read": 1.0, "write": 0.0, "mixed": stream.read_share}
    return Load(
        block=stream.block,
        read_share=shares[stream.direction],
        random=stream.random,
        depth=stream.depth,
        offset=stream.offset,
        span=stream.span,
        total=stream.total,
        seconds=stream.seconds,
        rest=stream.rest,
        repeats=stream.repeats,
        jobs=stream.jobs,
        seed=stream.seed,
        known=stream.known,
    )


def silences(cell: Cell) -> dict[str, str]:
    """Return why there is no prediction, for each workload without one."""
    known = works(cell)
    said = {p.workload for p in predictions(cell)}
    found = {}
    for workload in cell.workloads:
        if workload.name in said:
            continue
        work = known.get(workload.name)
        own = drives_of(cell), named_kernel(cell)
        reason = why_not(cell, work, *own) if work else None
        found[workload.name] = reason or _no_rule(cell, workload)
    return found


def _no_rule(cell: Cell, workload: Workload) -> str:
    """Why a workload is none of theory's loads."""
    if workload not in undisturbed(cell):
        return "theory has no rules for workloads during or after a fault"
    return f"theory has no rule for this use of {workload.tool}"
