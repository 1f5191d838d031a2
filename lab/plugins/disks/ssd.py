"""Solid-state disks: parallel channels, and garbage collection that stops all of them.

The disk server and its faults are those of hard disks (``drive/nbdkit_disk.c``). The address
decides which channel reads or writes a page. After every ``gc_after`` bytes written all channels
stop for ``gc_stall``. Writes since the last flush are lost with the power, up to ``write_cache``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from typing_extensions import override

from lab.core.units import KIB, MIB
from lab.model.execution.procedure import Step
from lab.model.plugin import DiskModel, Problem
from lab.model.scenario.document import Disk, DiskBus
from lab.model.scenario.drive import HardDrive, SolidStateDrive
from lab.plugins.disks._drives import (
    as_text,
    ask_statistics,
    drive_limits,
    network_element,
    no_preset,
    serve,
    served_problems,
    stretched,
)

DEFAULT: Final = "ssd_sata"

PRESETS: Final = {
    "ssd_sata": SolidStateDrive(
        source="Intel, product specification of the M.2 SSDSCKHB series, 80 GB: 4 KiB random reads "
        "67000/s and writes 14500/s at depth 32, sequential read 470 MB/s, latency 50 µs and 65 µs "
        "to and from its buffer; 8 channels and their latencies are chosen so that depth 32 gives "
        "these rates, the page so that a stream fills the cable; garbage collection, flush latency "
        "and the cache's size are the lab's",
        overhead=0.00002,
        read_latency=0.0000893,
        write_latency=0.000423,
        flush_latency=0.0005,
        channels=8,
        page=16 * KIB,
        gc_after=256 * MIB,
        gc_stall=0.005,
        write_cache=16 * MIB,
        link_rate=470_000_000,
    ),
    "ssd_samsung_860pro": SolidStateDrive(
        source="Measured: github.com/louwrentius/fio-plot, benchmark_data of 2020, "
        "Samsung 860 PRO on an IBM M1015, 4 KiB random requests; the rest is the lab's",
        certificate="reads: rate 1.7% RMS fitted (+2.9% at depth 4), 3.5% RMS not fitted (+4.3%"
        " at depth 2); reads: median 6.5% RMS fitted (-9.9% at depth 4), 4.1% RMS "
        "not fitted (+4.7% at depth 32); reads: 99th percentile 7.6% RMS fitted "
        "(-9.9% at depth 1), 17.0% RMS not fitted (-26.7% at depth 32); writes: "
        "rate 14.0% RMS fitted (+22.8% at depth 4), 10.2% RMS not fitted (-14.3% at"
        " depth 32); writes: median 15.6% RMS fitted (-21.8% at depth 4), 12.3% RMS"
        " not fitted (-16.6% at depth 8); writes: 99th percentile 9.9% RMS fitted "
        "(-16.1% at depth 1), 54.0% RMS not fitted (-91.9% at depth 2)",
        overhead=1.31e-05,
        read_latency=6.84e-05,
        write_latency=7.02e-06,
        flush_latency=0.0005,
        channels=16,
        page=4 * KIB,
        gc_after=1_130_496,
        gc_stall=0.001529,
        write_cache=16 * MIB,
        link_rate=608_743_245,
        link_command=7.28e-06,
    ),
    "ssd_intel_s4610": SolidStateDrive(
        source="Measured: github.com/louwrentius/fio-plot, benchmark_data of 2020, "
        "Intel D3-S4610 on an IBM M1015, 4 KiB random requests; the rest is the lab's",
        certificate="reads: rate 0.7% RMS fitted (+1.2% at depth 16), 1.8% RMS not fitted "
        "(+2.7% at depth 2); reads: median 3.8% RMS fitted (+4.3% at depth 1), 2.4%"
        " RMS not fitted (+3.3% at depth 2); reads: 99th percentile 18.4% RMS "
        "fitted (-23.0% at depth 16), 16.0% RMS not fitted (-27.4% at depth 32); "
        "writes: rate 7.6% RMS fitted (-10.7% at depth 1), 9.6% RMS not fitted "
        "(-12.3% at depth 2); writes: median 23.2% RMS fitted (-33.0% at depth 4), "
        "15.4% RMS not fitted (-22.5% at depth 8); writes: 99th percentile 5.6% RMS"
        " fitted (-9.1% at depth 16), 6.6% RMS not fitted (-8.7% at depth 32)",
        overhead=1.13e-06,
        read_latency=9.757e-05,
        write_latency=3.796e-05,
        flush_latency=0.0005,
        channels=32,
        page=4 * KIB,
        gc_after=131_072,
        gc_stall=6.2e-05,
        write_cache=16 * MIB,
        link_rate=540_000_000,
        link_command=8.52e-06,
    ),
    "ssd_kingston_dc500m": SolidStateDrive(
        source="Measured: github.com/louwrentius/fio-plot, benchmark_data of 2020, "
        "Kingston DC500M on an IBM M1015, 4 KiB random requests; the rest is the lab's",
        certificate="reads: rate 4.1% RMS fitted (-7.1% at depth 4), 5.9% RMS not fitted "
        "(-10.1% at depth 8); reads: median 7.1% RMS fitted (-11.6% at depth 16), "
        "2.4% RMS not fitted (-3.1% at depth 32); reads: 99th percentile 18.1% RMS "
        "fitted (-28.3% at depth 1), 17.3% RMS not fitted (-29.9% at depth 32); "
        "writes: rate 20.1% RMS fitted (-32.4% at depth 1), 15.7% RMS not fitted "
        "(+24.2% at depth 2); writes: median 41.3% RMS fitted (+64.9% at depth 1), "
        "29.4% RMS not fitted (-46.1% at depth 2); writes: 99th percentile 31.3% "
        "RMS fitted (+49.6% at depth 1), 20.2% RMS not fitted (+32.8% at depth 2)",
        overhead=3.21e-06,
        read_latency=9.714e-05,
        write_latency=0.0,
        flush_latency=0.0005,
        channels=32,
        page=4 * KIB,
        gc_after=131_072,
        gc_stall=3.2e-05,
        write_cache=16 * MIB,
        link_rate=607_236_762,
        link_command=6.54e-06,
        wake=4.133e-05,
    ),
}


def drive_of(disk: Disk) -> SolidStateDrive:
    """Return the drive of a scenario: preset, then changed values."""
    changed = disk.ssd.model_dump(exclude_none=True, exclude={"slower"})
    return replace(PRESETS[disk.preset or DEFAULT], **changed)


class SolidState(DiskModel):
    """A modelled solid-state disk."""

    plain = False

    @override
    def problems(self, disk: Disk) -> Iterable[Problem]:
        yield from served_problems(disk)
        if disk.preset is not None and disk.preset not in PRESETS:
            yield no_preset("ssd", disk.preset, PRESETS)
            return
        drive = drive_of(disk)
        if drive.page < 512 or drive.page % 512:
            yield Problem(
                key="ssd.page", message=f"{drive.page} is not a multiple of 512 bytes: write 16KiB"
            )
        if drive.link_rate < 1:
            yield Problem(key="ssd.link_rate", message="expected 1 byte per second or more")
        yield from drive_limits(disk, drive)

    @override
    def drive(self, disk: Disk) -> HardDrive | SolidStateDrive | None:
        return None if stretched(disk) else drive_of(disk)

    @override
    def create(self, disk: Disk, path: str) -> tuple[Step, ...]:
        return serve(disk, path, drive_of(disk))

    @override
    def xml(self, disk: Disk, *, serial: str, path: str, index: int) -> str:
        element = network_element(disk, serial=serial, path=path, index=index)
        target = element.find("target")
        assert target is not None
        if disk.bus is DiskBus.SCSI:
            target.set("rotation_rate", "1")
        return as_text(element)

    @override
    def rotational(self, disk: Disk) -> bool | None:
        return False

    @override
    def bytes_per_second(self, disk: Disk) -> float:
        return float(drive_of(disk).link_rate)

    @override
    def report(self, disk: Disk, path: str) -> tuple[Step, ...]:
        return ask_statistics(path)


DISK: DiskModel = SolidState()
