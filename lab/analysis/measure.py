"""Measurements from raw output; a stored run can be measured again. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from statistics import median
from typing import Final

from lab.compile.cell.fault_times import before, begun, cut_short
from lab.compile.cell.metrics import COUNTS, SHAPES, has_shape, metrics_of
from lab.compile.cell.samples import metrics_of_samples, values_of_samples
from lab.compile.cell.samples import traces as samples_over_time
from lab.compile.guest.seeds import of_trial
from lab.compile.guest.virtual_time import is_sealed
from lab.core.base import KEPT
from lab.core.errors import ToolError
from lab.core.steady_state import RANGE, SLOPE, Window
from lab.core.units import KIB
from lab.model.execution.procedure import UNREST
from lab.model.plugin import Distributed, InRounds, Keeper, Sampled, Trace, Traced
from lab.model.result.document import MemberCounters
from lab.model.result.measurement import (
    AT_REST,
    BITMAP_UPDATED,
    GUEST_CPU,
    NUMBERS,
    SECONDS,
    STEADY_STATE,
    THROUGHPUT,
    UNCONTENDED,
    Check,
    Latencies,
    Measurement,
    Metric,
    MetricKind,
    Prediction,
    Series,
    SyncSeen,
    Unsupported,
)
from lab.model.scenario.document import Cell, InitialSync, Workload
from lab.model.scenario.fault import Fault
from lab.model.scenario.outputs import Outputs
from lab.model.scenario.suite import Suite
from lab.plugins import catalog
from lab.plugins.faults._pools import pool_values
from lab.plugins.faults._shared import COMMON, common, shape_in

SECTOR = 512
"""Unit of ``/proc/diskstats`` in bytes, for every device."""


def measurements(cell: Cell, raw: Mapping[str, str]) -> tuple[Measurement, ...]:
    """Return every metric of every workload and fault, one value per trial: see `measured`."""
    return measured(cell, raw)[0]


def measured(
    cell: Cell, raw: Mapping[str, str]
) -> tuple[tuple[Measurement, ...], tuple[Check, ...]]:
    """Return every metric of every workload and fault, one value per trial; and a failed check for
    each metric with a number that no measurement gives.

    Such a metric is left out: without one trial it would be a choice among trials. ``ToolError``:
    the output is unreadable. A workload that a fault ended early has no metrics.
    """
    found: list[Measurement] = []
    wrong: list[Check] = []
    cut = cut_short(cell)
    for number, workload in enumerate(cell.workloads):
        tool = catalog.workload(workload.tool)
        if workload.name not in cut:
            trials = _trials(cell, number, raw)
            few = {u.metric for u in _unsupported(cell, number, raw)}
            own = tool.measures(catalog.parameters_of(workload))
            every = (*own, *metrics_of_samples(workload))
            metrics = [m for m in every if m.name not in few]
            found += _each(workload.name, metrics, trials)
            wrong += _left_out(workload.name, metrics, trials)
    for fault in cell.faults:
        common_too = (*COMMON, *catalog.fault_kind(fault.fault).metrics)
        trials = [_of_fault(cell, fault, raw, trial) for trial in range(1, cell.trials + 1)]
        found += _each(fault.name, common_too, trials)
        wrong += _left_out(fault.name, common_too, trials)
    return tuple(found), tuple(wrong)


def _trials(cell: Cell, number: int, raw: Mapping[str, str]) -> list[Mapping[str, float]]:
    """Return the metrics of each trial of a workload."""
    workload = cell.workloads[number]
    name, tool = workload.name, catalog.workload(workload.tool)
    found: list[Mapping[str, float]] = []
    for trial in range(1, cell.trials + 1):
        parameters = catalog.parameters_of(of_trial(cell, trial).workloads[number])
        try:
            values = tool.parse(parameters, outputs_of(raw, f"{name}.{trial}"))
            sampled = values_of_samples(workload, raw.get(f"{name}.{trial}.after.txt", ""))
            found.append({**values, **sampled})
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ToolError(
                f"the output of {name}, trial {trial}, has numbers that make no sense:"
                f" {type(error).__name__}: {error}"
            ) from error
    return found


def _left_out(
    name: str, metrics: Sequence[Metric], trials: Sequence[Mapping[str, float]]
) -> list[Check]:
    return [
        Check(
            name=NUMBERS,
            passed=False,
            detail=f"{metric.name} of {name} is left out: it is {trials[bad][metric.name]:g} in"
            f" trial {bad + 1}",
            workload=name,
        )
        for metric in metrics
        if (bad := _absurd(metric, trials)) is not None
    ]


SMALLEST: Final = 1e-12
LARGEST: Final = 1e21
"""Values that are measured are 0 or between these: a picosecond, and a thousand exabytes (per
second). Arithmetic with others ends in infinities."""


def _absurd(metric: Metric, trials: Sequence[Mapping[str, float]]) -> int | None:
    """Return the first trial with a number that no measurement gives; ``None``: there is none."""
    for number, trial in enumerate(trials):
        value = trial.get(metric.name, 1.0)
        # Levels and layouts of md may be negative: -1 is linear.
        size = abs(value) if metric.unit == "1" else value
        if size != 0 and not SMALLEST <= size <= LARGEST:
            return number
        # A rate over an endless time.
        if (
            size == 0
            and metric.kind is MetricKind.TIMED
            and any(v > LARGEST for v in trial.values())
        ):
            return number
    return None


def unsupported(cell: Cell, raw: Mapping[str, str]) -> tuple[Unsupported, ...]:
    """Return metrics that are left out because a trial has too few requests.

    One such trial is enough: leaving out only that one would choose among trials. ``ToolError``:
    the output is unreadable.
    """
    cut = cut_short(cell)
    whole = [number for number, workload in enumerate(cell.workloads) if workload.name not in cut]
    return tuple(one for number in whole for one in _unsupported(cell, number, raw))


def _unsupported(cell: Cell, number: int, raw: Mapping[str, str]) -> list[Unsupported]:
    name, tool = cell.workloads[number].name, catalog.workload(cell.workloads[number].tool)
    if not isinstance(tool, Sampled):
        return []
    found: dict[str, tuple[int, int]] = {}
    for trial in range(1, cell.trials + 1):
        parameters = catalog.parameters_of(of_trial(cell, trial).workloads[number])
        for metric, few in tool.too_few(parameters, outputs_of(raw, f"{name}.{trial}")).items():
            found[metric] = min(few, found.get(metric, few))
    return [
        Unsupported(workload=name, metric=metric, requests=requests, needed=needed)
        for metric, (requests, needed) in found.items()
    ]


def steady_state(cell: Cell, raw: Mapping[str, str]) -> tuple[Check, ...]:
    """Return a check per workload that runs in rounds: in each trial some of them were steady.

    ``ToolError``: the output is unreadable.
    """
    found = []
    for number, workload in enumerate(cell.workloads):
        tool = catalog.workload(workload.tool)
        if not isinstance(tool, InRounds) or workload.name in cut_short(cell):
            continue
        windows = [
            tool.window(
                catalog.parameters_of(of_trial(cell, trial).workloads[number]),
                outputs_of(raw, f"{workload.name}.{trial}"),
            )
            for trial in range(1, cell.trials + 1)
        ]
        if there := [window for window in windows if window]:
            worst = max(there, key=lambda window: (not window.steady, window.last))
            said, passed = _steady(workload.name, worst), worst.steady
            found.append(
                Check(name=STEADY_STATE, passed=passed, detail=said, workload=workload.name)
            )
    return tuple(found)


def _steady(name: str, window: Window) -> str:
    rounds = f"rounds {window.rounds.start + 1} to {window.rounds.stop} of {name}"
    off = f"{window.range:.1%} of their mean, and its trend is {abs(window.slope):.1%}"
    if window.steady:
        return f"the range of {rounds} is {off}"
    return (
        f"no five rounds in a row are steady, which needs a range of {RANGE:.0%} and a trend of"
        f" {SLOPE:.0%} at most; the range of {rounds} is {off}: give more rounds, or precondition"
        " the disks"
    )


def counted(cell: Cell) -> frozenset[tuple[str, str]]:
    """Workload or fault, and metric, of the values that are counts: no clock has a part in them.

    Also what a workload's disks count, unless it runs for a given time.
    """
    timed = {w.name for w in cell.workloads if _lasts(w)}
    return frozenset(
        (name, metric.name)
        for (name, _), metric in metrics_of(cell).items()
        if metric.kind is MetricKind.COUNTED and not (name in timed and metric.name in COUNTS)
    )


def _lasts(workload: Workload) -> bool:
    if catalog.missing_plugin("workloads", workload.tool):
        return "runtime" in workload.parameters
    return catalog.workload(workload.tool).lasts(catalog.parameters_of(workload))


def steps(cell: Cell) -> dict[tuple[str, str], float]:
    """Return the relative distance of neighbouring values, by workload and metric, where a tool has
    steps."""
    return {key: metric.step for key, metric in metrics_of(cell).items() if metric.step}


def outputs_of(raw: Mapping[str, str], tag: str) -> Outputs:
    """Return the raw output of one trial of a workload or fault."""
    own = {k.removeprefix(f"{tag}."): v for k, v in raw.items() if k.startswith(f"{tag}.")}
    return Outputs(stdout=own.pop("stdout.txt", ""), stderr=own.pop("stderr.txt", ""), files=own)


def _each(
    name: str, metrics: Sequence[Metric], trials: Sequence[Mapping[str, float]]
) -> list[Measurement]:
    found = []
    for metric in metrics:
        values = tuple(trial[metric.name] for trial in trials if metric.name in trial)
        if values and _absurd(metric, trials) is None:
            found.append(
                Measurement(workload=name, metric=metric.name, unit=metric.unit, values=values)
            )
    return found


def _of_fault(cell: Cell, fault: Fault, raw: Mapping[str, str], trial: int) -> dict[str, float]:
    """Return a fault's metrics: md, disk counters, acknowledged writes."""
    kind = catalog.fault_kind(fault.fault)
    outputs = outputs_of(raw, f"{fault.name}.{trial}")
    found = kind.parse(kind.parameters.model_validate(fault.parameters, context=KEPT), outputs)
    if cell.array is not None:
        pool = cell.array.kind == "zfs"
        found |= (pool_values if pool else common)(outputs.stdout, outputs.files)
    disks = [c for c in counters(cell, raw) if (c.workload, c.trial) == (fault.name, trial)]
    if disks:
        found["read_bytes"] = float(sum(d.read_bytes for d in disks))
        found["written_bytes"] = float(sum(d.written_bytes for d in disks))
    kept = []
    for workload in begun(cell, fault):
        tool = catalog.workload(workload.tool)
        if isinstance(tool, Keeper):
            told = raw.get(f"{workload.name}.{trial}.stdout.txt", "")
            there = outputs.files.get(f"{workload.name}.kept.txt", "")
            parameters = catalog.parameters_of(workload)
            kept.append(tool.kept(parameters, told, there))
    if kept:
        found["acknowledged"] = float(sum(k.acknowledged for k in kept))
        found["lost"] = float(sum(k.lost for k in kept))
        found["intact"] = float(found["lost"] == 0)
    return found


def shapes(cell: Cell, raw: Mapping[str, str], checks: Sequence[Check]) -> tuple[Measurement, ...]:
    """Return the array's shape at each workload's beginning and after each fault, one value per
    trial.

    What md printed before a workload: after the last fault, or when the array was made. The size of
    the components is then that of the check of the new array, in ``checks``.
    """
    if not has_shape(cell):
        return ()
    found: list[Measurement] = []
    cut, made = cut_short(cell), _component_of(checks)
    sources = {w.name: before(cell, w) for w in cell.workloads if w.name not in cut}
    sources |= {f.name: [f] for f in cell.faults}
    for name, faults in sources.items():
        trials = [_shape(cell, raw, trial, faults, made) for trial in range(1, cell.trials + 1)]
        if all(trials):
            found += _each(name, tuple(SHAPES.values()), trials)
    return tuple(found)


def _shape(
    cell: Cell, raw: Mapping[str, str], trial: int, faults: Sequence[Fault], made: str
) -> dict[str, float]:
    if faults:
        return shape_in(raw.get(f"{faults[-1].name}.{trial}.state.txt", ""))
    own = f".{trial}" if trial > 1 and is_sealed(cell) else ""
    return shape_in(f"{made}\n{raw.get(f'mdadm-create{own}.txt', '')}")


def _component_of(checks: Sequence[Check]) -> str:
    """Return the line ``component_size=`` in KiB of a new array; empty: it was not checked."""
    detail = next((c.detail for c in checks if c.name == "array" and c.passed), "")
    sizes = (pair.partition("=") for pair in detail.split(", "))
    size = next((value for key, _, value in sizes if key == "component_size"), "")
    return f"component_size={int(size) // KIB}" if _is_count(size) else ""


def series(cell: Cell, raw: Mapping[str, str]) -> tuple[Series, ...]:
    """Return each workload's speed over time, if its tool records it, and its samples; skip
    unreadable ones."""
    found: list[Series] = []
    for number, workload in enumerate(cell.workloads):
        tool = catalog.workload(workload.tool)
        for trial in range(1, cell.trials + 1):
            parameters = catalog.parameters_of(of_trial(cell, trial).workloads[number])
            tag = f"{workload.name}.{trial}"
            traces: dict[tuple[str, str], Trace] = {}
            with suppress(ToolError):
                if isinstance(tool, Traced):
                    traces |= tool.series(parameters, outputs_of(raw, tag))
            with suppress(ToolError):
                traces |= samples_over_time(workload, raw.get(f"{tag}.after.txt", ""))
            found += [
                Series(
                    workload=workload.name,
                    trial=trial,
                    direction=direction,
                    unit=unit,
                    seconds=tuple(at for at, _ in trace),
                    values=tuple(value for _, value in trace),
                )
                for (direction, unit), trace in traces.items()
            ]
    return tuple(found)


def latencies(cell: Cell, raws: Sequence[Mapping[str, str]]) -> tuple[Latencies, ...]:
    """Return how the latencies of each workload are distributed, where its tool says so; skip
    unreadable ones. ``raws``: the cell's raw output, with ``trials: auto`` one of each trial."""
    found: list[Latencies] = []
    for number, workload in enumerate(cell.workloads):
        tool = catalog.workload(workload.tool)
        if not isinstance(tool, Distributed):
            continue
        trials: dict[str, list[Mapping[float, float]]] = {}
        for raw, trial in product(raws, range(1, cell.trials + 1)):
            parameters = catalog.parameters_of(of_trial(cell, trial).workloads[number])
            with suppress(ToolError, ArithmeticError, LookupError, TypeError, ValueError):
                own = tool.latencies(parameters, outputs_of(raw, f"{workload.name}.{trial}"))
                for direction, values in own.items():
                    trials.setdefault(direction, []).append(values)
        for direction, each in trials.items():
            percents = sorted(set(each[0]).intersection(*each[1:]))
            found.append(
                Latencies(
                    workload=workload.name,
                    direction=direction,
                    percents=tuple(percents),
                    seconds=tuple(median(own[p] for own in each) for p in percents),
                )
            )
    return tuple(found)


_SYNC = re.compile(r"\b(resync|recovery|reshape|check|repair)\s*=\s*(PENDING|DELAYED|[\d.]+%)")


def sync_seen(cell: Cell, raw: Mapping[str, str]) -> SyncSeen | None:
    """Return md's background activity during the workloads, from ``/proc/mdstat``; ``None``: none.

    The line is that of the kernel's ``drivers/md/md.c: status_resync``. An initial sync with
    ``wait`` ended before the workloads.
    """
    waited = cell.array is not None and cell.array.initial_sync is InitialSync.WAIT
    texts = ("" if waited else raw.get("mdadm-create.txt", ""), raw.get("end.txt", ""))
    seen = [_SYNC.search(text.partition("unused devices")[0]) for text in texts]
    action = next((match[1] for match in seen if match), None)
    if action is None:
        return None
    before, after = (_share(match[2]) if match else None for match in seen)
    return SyncSeen(action=action, before=before, after=after)


def _share(text: str) -> float:
    return float(text[:-1]) / 100 if text.endswith("%") else 0.0


def counters(cell: Cell, raw: Mapping[str, str]) -> tuple[MemberCounters, ...]:
    """Return each disk's I/O counters per trial of each workload and after each fault.

    A disk that was detached or attached in between has none.
    """
    found: list[MemberCounters] = []
    for name in (*(w.name for w in cell.workloads), *(f.name for f in cell.faults)):
        for trial in range(1, cell.trials + 1):
            tag = f"{name}.{trial}"
            before, after = raw.get(f"{tag}.before.txt"), raw.get(f"{tag}.after.txt")
            if before is None or after is None:
                continue
            serials = [serial for serial, _ in cell.each_disk]
            old, new = _disks(before, serials), _disks(after, serials)
            if cell.faults:
                serials = [s for s in serials if s in old and s in new and _grew(old[s], new[s])]
            missing = sorted(set(serials) - (set(old) & set(new)))
            if missing:
                raise ToolError(
                    f"/proc/diskstats has no line for {', '.join(missing)}: {after[:200]}"
                )
            found += [_counted_of(name, trial, s, old[s], new[s]) for s in serials]
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """A disk's counters at one moment."""

    kernel: Sequence[int]
    """Of ``/proc/diskstats``, in the order of the kernel's ``iostats.rst``."""
    empty: int | None = None
    """Requests without data since the trigger was set, by the kernel's tracing."""
    writes: int | None = None
    """Write requests by the sealed guest's driver, which gets no empty flush as a write."""


class _Place(IntEnum):
    """Places in ``_Looked.kernel``. Discards are there since Linux 4.18, flushes since 5.5."""

    READS = 0
    READ_SECTORS = 2
    WRITES = 4
    WRITE_SECTORS = 6
    DISCARDS = 11
    DISCARD_SECTORS = 13
    FLUSHES = 15


def _grew(old: _Looked, new: _Looked) -> bool:
    """Return whether no counter of requests fell, as when a disk is attached again."""
    both = list(zip(old.kernel, new.kernel, strict=True))
    return all(both[place][0] <= both[place][1] for place in _Place if place < len(both))


def _counted_of(name: str, trial: int, serial: str, old: _Looked, new: _Looked) -> MemberCounters:
    delta = [n - o for n, o in zip(new.kernel, old.kernel, strict=True)]
    delta += [0] * (_Place.FLUSHES + 1 - len(delta))
    writes, flushes = delta[_Place.WRITES], delta[_Place.FLUSHES]
    empty = None if flushes else 0
    if new.writes is not None and old.writes is not None:
        empty = writes - (new.writes - old.writes)
    elif new.empty is not None and old.empty is not None:
        empty = new.empty - old.empty
    return MemberCounters(
        workload=name,
        trial=trial,
        serial=serial,
        reads=delta[_Place.READS],
        read_bytes=delta[_Place.READ_SECTORS] * SECTOR,
        writes=writes - (empty or 0),
        written_bytes=delta[_Place.WRITE_SECTORS] * SECTOR,
        flushes=flushes,
        discards=delta[_Place.DISCARDS],
        discarded_bytes=delta[_Place.DISCARD_SECTORS] * SECTOR,
        empty_flushes=empty,
    )


_EMPTY: Final = re.compile(r"^\{ dev: +(\d+) +\} hitcount: +(\d+)", re.MULTILINE)
_TRIGGER: Final = "trigger info: hist:keys=dev"
"""In the output of ``Documentation/trace/histogram.rst``, which has a line for each device."""


def _disks(text: str, serials: Sequence[str]) -> dict[str, _Looked]:
    """Return counters by serial."""
    devices: dict[str, str] = {}
    driver: dict[str, int] = {}
    kernel: dict[str, list[int]] = {}
    empty = {int(device): int(count) for device, count in _EMPTY.findall(text)}
    without_data: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "disk":
            devices[words[2]] = words[1]
        elif len(words) == 7 and words[0] == "requests" and all(map(_is_count, words[2:])):
            driver[words[1]] = int(words[3]) + int(words[6])  # zeros are writes of the kernel
        elif len(words) >= 14 and all(map(_is_count, (*words[:2], *words[3:]))):
            if words[2] in devices:
                kernel[words[2]] = [int(w) for w in words[3:]]
            if disk := _disk_of(words[2], devices):
                count = empty.get((int(words[0]) << 20) | int(words[1]), 0)
                without_data[disk] = without_data.get(disk, 0) + count
    armed = _TRIGGER in text
    found = {
        devices[name]: _Looked(
            kernel=counts,
            empty=without_data.get(name, 0) if armed else None,
            writes=driver.get(name),
        )
        for name, counts in kernel.items()
    }
    return {serial: found[serial] for serial in serials if serial in found}


def _disk_of(name: str, disks: Collection[str]) -> str | None:
    """Return the disk of a device: itself, or that of a partition (``vdb1``, ``lab0p1``)."""
    if name in disks:
        return name
    whole = name.rstrip("0123456789")
    return next((d for d in (whole, whole.removesuffix("p")) if d in disks), None)


WAITING = 0.4
"""Largest fraction of a timed step in which a guest's QEMU may wait for a CPU.

A throttled guest can wait without losing throughput. Of 66 timed steps, with six concurrent guests
on two CPUs, those below this fraction were within 2.4 % of theory, except one (3.8 %), which
``NOTICED`` detects. At 0.4 to 0.55 they were up to 2.7 % slower, on busier hosts up to 12 %."""
NOTICED = 0.1
"""With this fraction of waiting or more, a value below the prediction by ``SHORT`` is suspect."""
SHORT = 0.02


def at_rest(cell: Cell, raw: Mapping[str, str]) -> tuple[Check, ...]:
    """Return a failed check for each workload that did not begin at rest in one of its trials.

    Shell lines before it report that (:mod:`lab.compile.cell.rest`).
    """
    checks = []
    for workload in cell.workloads:
        for trial in range(1, cell.trials + 1):
            lines = raw.get(f"{workload.name}.{trial}.before.txt", "").splitlines()
            said = [
                rest
                for first, _, rest in (line.partition(" ") for line in lines)
                if first == UNREST
            ]
            if said:
                detail = f"{workload.name}, trial {trial}, did not begin at rest: {said[0]}"
                checks.append(
                    Check(name=AT_REST, passed=False, detail=detail, workload=workload.name)
                )
                break
    return tuple(checks)


def _uncontended(workload: Workload, detail: str, *, passed: bool) -> Check:
    return Check(name=UNCONTENDED, passed=passed, detail=detail, workload=workload.name)


def contention(
    cell: Cell, raw: Mapping[str, str], expected: Sequence[Prediction] = ()
) -> tuple[Check, ...]:
    """Return a check per workload: its timed steps had enough CPU; empty: not recorded.

    A step below its prediction is suspect at a smaller fraction of waiting. In a repetition alone
    on an idle host the prediction is not used.
    """
    said = [p for p in expected if p.metric == THROUGHPUT.name and p.value]
    wanted = {p.workload: p.value * (1 - p.doubt) for p in said}
    found = {m.workload: m.values for m in _readable(cell, raw) if m.metric == THROUGHPUT.name}
    checks = []
    for workload in cell.workloads:
        if isinstance(catalog.workload(workload.tool), Suite):
            continue  # a suite has no timed values
        worst, where, passed = 0.0, "", True
        for trial in range(1, cell.trials + 1):
            text = raw.get(f"{workload.name}.{trial}.pressure.txt", "")
            share = _waiting(text)
            if share is None:
                continue
            name = f"{workload.name}, trial {trial}"
            short = 0.0
            if workload.name in wanted and trial <= len(found.get(workload.name, ())):
                short = 1 - found[workload.name][trial - 1] / wanted[workload.name]
            if passed and share > NOTICED and short > SHORT:
                passed, worst, where = False, share, f"{name}, {short:.1%} below theory"
            elif passed and (not where or share >= worst or share > WAITING):
                worst, where = share, name
                passed = share <= WAITING
        if where:
            detail = f"the guest waited for a processor for {worst:.1%} of {where}"
            checks.append(_uncontended(workload, detail, passed=passed))
    return tuple(checks)


SHOWS = 0.02
"""Fraction of the disks' operations that no value can show: the throttle's error is as large."""
_WRITES = 0.01
"""Smallest fraction of writes at which a workload counts as writing."""


def seconds_of(cell: Cell, raw: Mapping[str, str]) -> dict[str, float]:
    """Return seconds of each workload's longest trial by the host's clock, if recorded."""
    found: dict[str, float] = {}
    for workload in cell.workloads:
        for trial in range(1, cell.trials + 1):
            took = _pressure(raw.get(f"{workload.name}.{trial}.pressure.txt", "")).get("seconds")
            if took is not None:
                found[workload.name] = max(took, found.get(workload.name, 0.0))
    return found


BUSY: Final = 0.7
"""Largest use of a sealed guest's one CPU. Above it a workload may have waited for the CPU instead
of the disks: copies, md and the workload share it."""


def guest_cpu(cell: Cell, raw: Mapping[str, str]) -> tuple[Check, ...]:
    """Return a check per workload: CPU use of a sealed guest in its busiest trial, if recorded.

    From the first line of ``/proc/stat``, ``proc(5)``, before and after the program ran. If the
    program measured less than half of that time, its start may be most of the CPU time; then the
    check takes the largest use that is possible while it measured.
    """
    checks = []
    for name, used in _cpu_use(cell, raw).items():
        share = max(use.possible for use in used)
        detail = f"the guest's processor was busy for {share:.1%} of {name}"
        if share > max(use.share for use in used):
            seconds = min(use.measured for use in used if use.possible == share)
            detail = (
                f"{name} measured {seconds:.3g} s, which is too short to say how much of it the"
                f" guest's processor was busy: up to {share:.1%}"
            )
        checks.append(Check(name=GUEST_CPU, passed=share <= BUSY, detail=detail, workload=name))
    return tuple(checks)


def busy_shares(cell: Cell, raw: Mapping[str, str]) -> dict[str, float]:
    """Return a sealed guest's largest CPU use, over each workload's trials, as a fraction.

    Empty for a cell in real time, and for a native guest, whose processor takes no time.
    """
    return {name: max(use.share for use in used) for name, used in _cpu_use(cell, raw).items()}


@dataclass(frozen=True, slots=True)
class _CpuUse:
    """How busy a sealed guest's processor was in one trial of a workload."""

    busy: float
    """Seconds."""
    between: float
    """Seconds between the counters, in which the program started, measured and ended."""
    measured: float
    """Seconds that the program measured; all of ``between`` if it does not say."""

    @property
    def share(self) -> float:
        """The fraction of the time between the counters."""
        return self.busy / self.between

    @property
    def possible(self) -> float:
        """The largest fraction of what was measured, if that is less than half of the time."""
        if not 0 < 2 * self.measured < self.between:
            return self.share
        return min(1.0, self.busy / self.measured)


def _cpu_use(cell: Cell, raw: Mapping[str, str]) -> dict[str, list[_CpuUse]]:
    # A native guest's processor takes no time. Its ticks count programs that wake at a tick.
    emulated = is_sealed(cell) and not cell.guest.native
    used: dict[str, list[_CpuUse]] = {}
    for number, workload in enumerate(cell.workloads if emulated else ()):
        ticks = {
            trial: passed
            for trial in range(1, cell.trials + 1)
            if (passed := _ticks(raw, f"{workload.name}.{trial}"))
        }
        if not ticks:
            continue
        try:
            values = _trials(cell, number, raw)
        except ToolError:  # `measurements` reports it
            values = [{}] * cell.trials
        used[workload.name] = [
            _CpuUse(
                busy=(sum(passed) - passed[3] - passed[4]) / _USER_HZ,
                between=sum(passed) / _USER_HZ,
                measured=values[trial - 1].get(SECONDS.name, sum(passed) / _USER_HZ),
            )
            for trial, passed in ticks.items()
        ]
    return used


_USER_HZ: Final = 100
"""Units of ``/proc/stat`` per second, ``time(7)``."""


def _ticks(raw: Mapping[str, str], tag: str) -> list[int]:
    """Return the first eight counters of ``/proc/stat`` that passed, if any did; the fourth and
    fifth are idle time."""
    ticks = []
    for moment in ("before", "after"):
        words = raw.get(f"{tag}.{moment}.txt", "").partition("\n")[0].split()
        if words[:1] != ["cpu"] or not all(map(_is_count, words[1:])) or len(words) < 9:
            return []
        ticks.append([int(w) for w in words[1:9]])
    passed = [after - before for before, after in zip(*ticks, strict=True)]
    return passed if sum(passed) > 0 else []


def bitmap_shares(
    counted: Sequence[MemberCounters], updates: Mapping[str, float]
) -> dict[str, float]:
    """Return the largest possible fraction of bitmap writes in the disks' operations, by workload.

    ``updates``: most bitmap updates; each goes to every disk. Workloads without writes are left
    out.
    """
    found: dict[str, float] = {}
    for workload, most in updates.items():
        for trial in {c.trial for c in counted if c.workload == workload}:
            own = [c for c in counted if (c.workload, c.trial) == (workload, trial)]
            operations, writes = sum(c.reads + c.writes for c in own), sum(c.writes for c in own)
            if writes > _WRITES * operations:
                share = min(most * len(own) / operations, 1.0)
                found[workload] = max(share, found.get(workload, 0.0))
    return found


def bitmap_updated(shares: Mapping[str, float], updates: Mapping[str, float]) -> tuple[Check, ...]:
    """Return the check that the cell can show its bitmap; empty: no bitmap, or no writes."""
    if not shares:
        return ()
    name = min(shares, key=lambda workload: shares[workload])
    passed = shares[name] >= SHOWS
    detail = f"of the disks' operations in {name}, at most {shares[name]:.2g} write the bitmap"
    if not passed:
        detail = (
            f"{name} can set a bit of the bitmap {updates[name]:.0f} times, for which at most "
            f"{shares[name]:.2%} of the disks' operations are needed: what is measured says "
            "nothing of a bitmap; a smaller array.bitmap_chunk has more bits"
        )
    return (Check(name=BITMAP_UPDATED, passed=passed, detail=detail),)


def _readable(cell: Cell, raw: Mapping[str, str]) -> tuple[Measurement, ...]:
    try:
        return measurements(cell, raw)
    except ToolError:
        return ()


def _waiting(text: str) -> float | None:
    """Return the fraction of a step in which the guest's QEMU waited; ``None``: not recorded."""
    pairs = _pressure(text)
    if "wait" not in pairs or "seconds" not in pairs:
        return None
    return pairs["wait"] / max(pairs["seconds"], 1e-9)


def _is_count(word: str) -> bool:
    """Return whether this is one of the kernel's counters, which have 64 bits."""
    return word.isdecimal() and len(word) <= 20


def _pressure(text: str) -> dict[str, float]:
    """Parse ``key=value`` lines with numbers; skip others."""
    found = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        try:
            number = float(value) if equals else 0.0
        except ValueError:
            continue
        if 0 <= number <= LARGEST:  # neither NaN nor infinite
            found[key] = number
    return found


def environment(raw: Mapping[str, str]) -> dict[str, str]:
    """Return the guest's own report of its environment."""
    pairs = (line.partition("=") for line in raw.get("environment.txt", "").splitlines())
    return {key: value.strip() for key, equals, value in pairs if equals}
