"""Disks limited by QEMU's leaky buckets, libvirt's ``<iotune>``.

Each limit has a bucket that leaks at the limit's rate. A request passes while the bucket is not
full, and then adds its whole size, so the next request waits. Without ``…_max`` the bucket holds
0.1 s of the rate; with it, ``…_max`` times ``…_max_seconds``. Source: QEMU, ``util/throttle.c``.
Limits apply above qcow2, so its metadata is free. Flushes are free too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from xml.etree import ElementTree as ET

from typing_extensions import override

from lab.core.units import format_size
from lab.model.execution.procedure import Step
from lab.model.plugin import DiskModel, Probe, Problem
from lab.model.scenario.document import Disk, Throttle, ThrottleLimit, Workload
from lab.plugins.disks._drives import as_text, create_file, drive_element, drive_problems

LARGEST_VALUE: Final = 10**15
"""QEMU's ``THROTTLE_VALUE_MAX``, for a rate and for a burst's rate times its length."""
LONGEST_BURST: Final = 2**32 - 1
"""QEMU's longest burst in seconds: a C ``unsigned int``."""

PROBE_SECONDS: Final = 3.0
"""Seconds of the sequential probe against each limit."""

_DIRECTIONS: Final = ("total", "read", "write")
_UNITS: Final = {"bytes": "bytes_sec", "operations": "iops_sec"}
"""The lab's units to libvirt's."""


def _field(direction: str, unit: str, suffix: str = "") -> str:
    return f"{direction}_{unit}_per_second{suffix}"


def _iotune_names() -> dict[str, str]:
    """Return the lab's names to libvirt's, in libvirt's order."""
    names = {}
    for ours, theirs in (("", ""), ("_max", "_max")):
        for unit, spelling in _UNITS.items():
            for direction in _DIRECTIONS:
                names[_field(direction, unit, ours)] = f"{direction}_{spelling}{theirs}"
    names["operation_size"] = "size_iops_sec"
    names["group"] = "group_name"
    for unit, spelling in _UNITS.items():
        for direction in _DIRECTIONS:
            names[_field(direction, unit, "_max_seconds")] = f"{direction}_{spelling}_max_length"
    return names


IOTUNE: Final = _iotune_names()
"""Every field of ``Throttle`` to its ``<iotune>`` element."""


def throttle_problems(throttle: Throttle) -> Iterable[Problem]:
    """Apply QEMU's rules, ``throttle_is_valid``, to the lab's names; keys begin ``throttle.``"""
    limits: dict[str, int] = throttle.model_dump(exclude={"group"}, exclude_none=True)
    for name, value in limits.items():
        yield from _range_problems(name, value)
    for unit in _UNITS:
        for suffix in ("", "_max"):
            yield from _exclusive_problems(limits, unit, suffix)
        for direction in _DIRECTIONS:
            yield from _burst_problems(limits, direction, unit)
    operations = [_field(d, "operations") for d in _DIRECTIONS]
    if "operation_size" in limits and not any(limits.get(name) for name in operations):
        yield Problem(
            key="throttle.operation_size",
            message=f"it has no effect without a limit on operations: set {operations[0]}, or "
            "remove it",
        )
    if throttle.group is not None and not limits:
        yield Problem(
            key="throttle.group",
            message=f"the group {throttle.group!r} has no limit to share: set one such as "
            "total_bytes_per_second",
        )


def _range_problems(name: str, value: int) -> Iterable[Problem]:
    if value < 1:
        yield Problem(
            key=f"throttle.{name}",
            message=f"{value} is not a limit: remove the field, or give 1 or more",
        )
    elif name.endswith("_seconds") and value > LONGEST_BURST:
        yield Problem(
            key=f"throttle.{name}",
            message=f"{value} seconds is above QEMU's maximum: give {LONGEST_BURST} or less",
        )
    elif value > LARGEST_VALUE:
        yield Problem(
            key=f"throttle.{name}",
            message=f"{format_size(value)} is above QEMU's maximum: give {LARGEST_VALUE} or less",
        )


def _exclusive_problems(limits: dict[str, int], unit: str, suffix: str) -> Iterable[Problem]:
    total = _field("total", unit, suffix)
    if not limits.get(total):
        return
    for direction in ("read", "write"):
        name = _field(direction, unit, suffix)
        if limits.get(name):
            yield Problem(
                key=f"throttle.{name}",
                message=f"QEMU accepts {total} or limits per direction, and both are set: remove "
                "one of them",
            )


def _burst_problems(limits: dict[str, int], direction: str, unit: str) -> Iterable[Problem]:
    average = limits.get(_field(direction, unit), 0)
    burst_name, length_name = (
        _field(direction, unit, "_max"),
        _field(direction, unit, "_max_seconds"),
    )
    burst = limits.get(burst_name, 0)
    length = limits.get(length_name, 0)
    if burst and not average:
        yield Problem(
            key=f"throttle.{burst_name}",
            message=f"a burst needs a limit: set {_field(direction, unit)}, or remove it",
        )
    elif burst and burst < average:
        yield Problem(
            key=f"throttle.{burst_name}",
            message=f"the burst of {burst} is below the limit of {average}: give at least "
            f"{average}, or remove it for the shortest burst",
        )
    if length and not burst:
        yield Problem(
            key=f"throttle.{length_name}",
            message=f"there is no burst whose length it could be: set {burst_name}, or remove it",
        )
    elif length and length > LARGEST_VALUE // burst:
        yield Problem(
            key=f"throttle.{length_name}",
            message=f"{length} seconds at {burst} overflow QEMU's bucket: their product must be "
            f"{LARGEST_VALUE} or less",
        )


def _passes(limit: ThrottleLimit) -> int:
    """Return the bytes or operations that a limit lets pass in `PROBE_SECONDS`, about."""
    burst = min(limit.seconds or 1, PROBE_SECONDS) if limit.burst else 0.0
    return int((limit.burst or 0) * burst + limit.average * (PROBE_SECONDS - burst))


def _streams(disk: Disk, way: str) -> Iterable[Probe]:
    """Yield probes with sequential dd without the page cache: large blocks for limits in bytes,
    pages for operations."""
    blocks = (("bytes", 256 * 1024, 1), ("operations", 4096, 4096))
    for unit, block, weight in blocks:
        limits = [
            limit
            for limit in disk.throttle.limits()
            if limit.unit == unit and limit.direction in ("total", way)
        ]
        passed = weight * min(map(_passes, limits), default=0)
        if passed > disk.size:
            passed = int(weight * PROBE_SECONDS * min(limit.average for limit in limits))
        count = passed // block
        if not count or count * block > disk.size:
            continue
        target = {"of": "{target}", "if": "/dev/zero", "oflag": "direct"}
        if way == "read":
            target = {"if": "{target}", "of": "/dev/null", "iflag": "direct"}
        yield Probe(
            workload=Workload(
                name=f"{way}_{unit}",
                tool="dd",
                parameters={**target, "bs": block, "count": count},
            ),
            metric="throughput",
        )


class Throttled(DiskModel):
    """A disk limited in bytes and operations per second."""

    @override
    def problems(self, disk: Disk) -> Iterable[Problem]:
        yield from drive_problems(disk)
        yield from throttle_problems(disk.throttle)

    @override
    def probes(self, disk: Disk) -> tuple[Probe, ...]:
        # Not on a real disk: the probe would write to it, and it may be slower than its limits.
        if disk.device is not None:
            return ()
        return tuple(probe for way in ("write", "read") for probe in _streams(disk, way))

    @override
    def create(self, disk: Disk, path: str) -> tuple[Step, ...]:
        return create_file(disk, path)

    @override
    def xml(self, disk: Disk, *, serial: str, path: str, index: int) -> str:
        element = drive_element(disk, serial=serial, path=path, index=index)
        limits = disk.throttle.model_dump(exclude_none=True)
        if limits:
            iotune = ET.Element("iotune")
            for ours, theirs in IOTUNE.items():
                if ours in limits:
                    ET.SubElement(iotune, theirs).text = str(limits[ours])
            element.insert(len(element) - 1, iotune)
        return as_text(element)

    @override
    def rotational(self, disk: Disk) -> bool | None:
        return disk.device_rotational


DISK: DiskModel = Throttled()
