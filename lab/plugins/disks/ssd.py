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
        "Samsung 860 PRO on an IBM M1015, 4 KiB random reads; the rest is the lab's",
        certificate="reads at depths 1 to 32: 3.7 % RMS, -8.2 % at worst (depth 8); fitted at "
        "depths 1, 4 and 16, tested at 2, 8 and 32. Writes and flushes were not compared",
        overhead=0.0000095,
        read_latency=0.0000805,
        write_latency=0.000423,
        flush_latency=0.0005,
        channels=16,
        page=4 * KIB,
        gc_after=256 * MIB,
        gc_stall=0.005,
        write_cache=16 * MIB,
        link_rate=540_000_000,
        link_command=0.00000600,
        wake=0.0000000,
    ),
    "ssd_intel_s4610": SolidStateDrive(
        source="Measured: github.com/louwrentius/fio-plot, benchmark_data of 2020, "
        "Intel D3-S4610 on an IBM M1015, 4 KiB random reads; the rest is the lab's",
        certificate="reads at depths 1 to 32: 3.5 % RMS, +6.3 % at worst (depth 2); fitted at "
        "depths 1, 4 and 16, tested at 2, 8 and 32. Writes and flushes were not compared",
        overhead=0.0000334,
        read_latency=0.0000695,
        write_latency=0.000423,
        flush_latency=0.0005,
        channels=8,
        page=4 * KIB,
        gc_after=256 * MIB,
        gc_stall=0.005,
        write_cache=16 * MIB,
        link_rate=540_000_000,
        link_command=0.00000809,
        wake=0.0000044,
    ),
    "ssd_kingston_dc500m": SolidStateDrive(
        source="Measured: github.com/louwrentius/fio-plot, benchmark_data of 2020, "
        "Kingston DC500M on an IBM M1015, 4 KiB random reads; the rest is the lab's",
        certificate="reads at depths 1 to 32: 5.2 % RMS, +9.3 % at worst (depth 2); fitted at "
        "depths 1, 4 and 16, tested at 2, 8 and 32. Writes and flushes were not compared",
        overhead=0.0000392,
        read_latency=0.0000599,
        write_latency=0.000423,
        flush_latency=0.0005,
        channels=8,
        page=4 * KIB,
        gc_after=256 * MIB,
        gc_stall=0.005,
        write_cache=16 * MIB,
        link_rate=540_000_000,
        link_command=0.00000529,
        wake=0.0000532,
    ),
}


def drive_of(disk: Disk) -> SolidStateDrive:
    """Return the drive of a scenario: preset, then changed values."""
    changed = disk.ssd.model_dump(exclude_none=True, exclude={"slower"})
    return replace(PRESETS[disk.preset or DEFAULT], **changed)


class SolidState(DiskModel):
    """A modelled solid-state disk."""

    @property
    @override
    def plain(self) -> bool:
        return False

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
