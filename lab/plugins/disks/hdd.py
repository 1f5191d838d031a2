"""Hard disks: an arm, rotating platters, a queue and a volatile cache.

Each disk has a server (``drive/nbdkit_disk.c``, run by nbdkit) with a model of its timing
(``drive/drive.h``). The model has seeks by a curve over the full stroke, which a disk of any size
is mapped onto; rotation; transfer by zone; read-ahead; a queue served by shortest positioning time;
and a write cache, written in the background, drained by FLUSH and bypassed by FUA. It waits for a
sector a short distance ahead instead of seeking. Faults are commands on its control socket.

A preset is a measured drive, with a certificate, or a drive's data sheet. ``disks.hdd`` changes
single values.
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

DEFAULT: Final = "hdd_7200"
_AGEING: Final = 0.03
"""The lab's choice: after 0.3 s of waiting a request counts as one revolution nearer. At depth 16
this costs little throughput, and no request starves."""
_ZONES: Final = 16
"""The lab's choice: drives have 15 to 30."""

PRESETS: Final = {
    "hdd_7200": HardDrive(
        source="Seagate, Constellation SAS Product Manual 100538693 Rev. E, 5.1 and 5.2.1 "
        "(ST9500430SS); overhead: access time with controller less without; the cache's size and "
        "the queue's depth are the lab's",
        rpm=7200,
        overhead=0.0002,
        track_to_track=0.0005,
        average_seek=0.0080,
        full_stroke=0.01735,
        write_settle=0.0004,
        outer_rate=142_000_000,
        inner_rate=75_000_000,
        zones=_ZONES,
        read_ahead=2 * MIB,
        write_cache=16 * MIB,
        queue_depth=32,
        ageing=_AGEING,
        link_rate=300_000_000,
    ),
    "hdd_10000": HardDrive(
        source="Seagate, Savvio SAS Product Manual Rev. D, 4.1 and 4.2 (ST973401SS); rates: 360000 "
        "bytes in a revolution on average, spread as the internal rate is, 506 to 753 Mbit/s; the "
        "cache's size and the queue's depth are the lab's",
        rpm=10_000,
        overhead=0.0002,
        track_to_track=0.0002,
        average_seek=0.0040,
        full_stroke=0.0081,
        write_settle=0.0004,
        outer_rate=71_800_000,
        inner_rate=48_200_000,
        zones=_ZONES,
        read_ahead=1 * MIB,
        write_cache=8 * MIB,
        queue_depth=32,
        ageing=_AGEING,
        link_rate=300_000_000,
    ),
    "hdd_5400_usb": HardDrive(
        source="Hitachi, Travelstar 5K320 SATA OEM Specification Rev. 1.5, 4.4.2; the medium's "
        "rates are those of other drives of its time (70 MB/s: Tom's Hardware on the Samsung "
        "HM320HI; inner to outer as 31.0 to 64.8: Hitachi, Deskstar 7K500 specification, 4.4.4), "
        "and the cable is below them: 42 MB/s of USB 2.0's 480 Mbit/s reach a disk, whose "
        "bulk-only transport has one command at a time; cache and overhead are the lab's",
        rpm=5400,
        overhead=0.0003,
        track_to_track=0.0010,
        average_seek=0.0120,
        full_stroke=0.0200,
        write_settle=0.0010,
        outer_rate=70_000_000,
        inner_rate=33_500_000,
        zones=_ZONES,
        read_ahead=2 * MIB,
        write_cache=4 * MIB,
        queue_depth=1,
        ageing=0.0,
        link_rate=42_000_000,
    ),
    "hdd_samsung_f1": HardDrive(
        source="Measured: github.com/louwrentius/fio-plot, benchmark_data of 2019, Samsung F1 1 TB "
        "on AHCI, 4 KiB random requests; rates, read-ahead, overhead and cable are the lab's",
        certificate="reads: rate 2.4% RMS fitted (-3.4% at depth 4), 1.9% RMS not fitted (+3.1%"
        " at depth 8); reads: median 10.6% RMS fitted (+17.6% at depth 16), 11.8% "
        "RMS not fitted (+16.8% at depth 32); reads: 99th percentile 6.3% RMS "
        "fitted (-9.6% at depth 16), 41.5% RMS not fitted (+69.1% at depth 8); "
        "writes: rate 1.7% RMS fitted (+2.6% at depth 1), 0.7% RMS not fitted "
        "(-1.0% at depth 8); writes: median 9.3% RMS fitted (+15.9% at depth 16), "
        "2.2% RMS not fitted (+3.6% at depth 8); writes: 99th percentile 18.4% RMS "
        "fitted (-31.2% at depth 16), 9.8% RMS not fitted (-15.1% at depth 32)",
        rpm=7200,
        overhead=0.0002,
        track_to_track=0.00099,
        average_seek=0.009512,
        full_stroke=0.015859,
        write_settle=0.00025,
        outer_rate=142_000_000,
        inner_rate=75_000_000,
        zones=_ZONES,
        read_ahead=2 * MIB,
        write_cache=32 * MIB,
        queue_depth=32,
        ageing=0.0,
        link_rate=300_000_000,
        lead=4,
        oldest_share=0.031,
        seek_only=1,
        write_places=64,
        write_choice=32,
    ),
    "hdd_hgst_hts7210": HardDrive(
        source="Measured: github.com/louwrentius/fio-plot, benchmark_data of 2019, HGST 7200 rpm "
        "100 GB behind an HP P420i, 4 KiB random requests; the write cache is the controller's, "
        "since the drive has 8 MB: it took 13,000 scattered writes at once, and then wrote them in "
        "order of place; rates, read-ahead and cable are the lab's",
        certificate="reads: rate 1.6% RMS fitted (-2.4% at depth 4), 5.1% RMS not fitted (+8.4%"
        " at depth 32); reads: median 3.3% RMS fitted (+4.3% at depth 16), 6.8% RMS"
        " not fitted (-9.3% at depth 32); reads: 99th percentile 13.2% RMS fitted "
        "(+17.0% at depth 4), 7.4% RMS not fitted (-10.0% at depth 8); writes: rate"
        " 3.3% RMS fitted (-4.2% at depth 4), 2.1% RMS not fitted (+3.6% at depth "
        "32); writes: median 1.3% RMS fitted (+1.9% at depth 1), 5.9% RMS not "
        "fitted (+8.6% at depth 2); writes: 99th percentile 15.3% RMS fitted "
        "(-25.6% at depth 1), 18.5% RMS not fitted (-23.7% at depth 2)",
        rpm=7200,
        overhead=1.1e-05,
        track_to_track=0.00155,
        average_seek=0.010763,
        full_stroke=0.01332,
        write_settle=0.0,
        outer_rate=142_000_000,
        inner_rate=75_000_000,
        zones=_ZONES,
        read_ahead=2 * MIB,
        write_cache=52 * MIB,
        queue_depth=32,
        ageing=0.0,
        link_rate=300_000_000,
        lead=1,
        oldest_share=0.016,
        seek_only=1,
        write_places=13096,
    ),
    "hdd_seagate_st2000dm006": HardDrive(
        source="Measured: github.com/lumir-sliva/ublk-disksim, docs and bench/expect, ST2000DM006 "
        "2 TB, 4 KiB random requests; rates, read-ahead, overhead and cable are the lab's",
        certificate="reads: rate 0.7% RMS fitted (+0.8% at depth 4), 8.6% RMS not fitted "
        "(-10.1% at depth 2); reads: median 0.6% RMS fitted (+0.6% at depth 1); "
        "reads: 99th percentile 0.2% RMS fitted (-0.2% at depth 1); writes: rate "
        "0.2% RMS fitted (-0.2% at depth 1); flushes: median 0.1% RMS fitted (-0.1%"
        " at depth 1, flush after 8), 2.5% RMS not fitted (+2.5% at depth 1, flush "
        "after 64)",
        rpm=7200,
        overhead=0.0002,
        track_to_track=0.000729,
        average_seek=0.012994,
        full_stroke=0.023332,
        write_settle=0.0015,
        outer_rate=210_000_000,
        inner_rate=100_000_000,
        zones=_ZONES,
        read_ahead=2 * MIB,
        write_cache=64 * MIB,
        queue_depth=8,
        ageing=0.0,
        link_rate=300_000_000,
        oldest_share=0.1778,
        seek_only=1,
        write_places=64,
        write_choice=2,
    ),
}


def drive_of(disk: Disk) -> HardDrive:
    """Return the drive of a scenario: preset, then changed values."""
    changed = disk.hdd.model_dump(exclude_none=True, exclude={"slower"})
    return replace(PRESETS[disk.preset or DEFAULT], **changed)


class HardDisk(DiskModel):
    """A modelled hard disk."""

    plain = False

    @override
    def problems(self, disk: Disk) -> Iterable[Problem]:
        yield from served_problems(disk)
        if disk.preset is not None and disk.preset not in PRESETS:
            yield no_preset("hdd", disk.preset, PRESETS)
            return
        drive = drive_of(disk)
        if not drive.track_to_track <= drive.average_seek <= drive.full_stroke:
            yield Problem(
                key="hdd.average_seek",
                message=f"{drive.average_seek} s is not between track_to_track "
                f"({drive.track_to_track} s) and full_stroke ({drive.full_stroke} s)",
            )
        elif drive.seek_curve.b < 0 or drive.seek_curve.e < 0:
            yield Problem(
                key="hdd.average_seek",
                message=f"no seek curve from {drive.track_to_track} s to {drive.full_stroke} s has "
                f"the mean {drive.average_seek} s: give another value",
            )
        if not 0 < drive.inner_rate <= drive.outer_rate:
            yield Problem(
                key="hdd.inner_rate",
                message=f"{drive.inner_rate} bytes per second is not between 1 and outer_rate "
                f"({drive.outer_rate})",
            )
        if drive.link_rate < 1:
            yield Problem(key="hdd.link_rate", message="expected 1 byte per second or more")
        if 0 < drive.write_cache < 64 * KIB:
            yield Problem(key="hdd.write_cache", message="expected 0 (none), or 64KiB or more")
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
        rpm = int(drive_of(disk).rpm)
        if disk.bus is DiskBus.SCSI and rpm > 1:
            target.set("rotation_rate", str(min(rpm, 65534)))
        return as_text(element)

    @override
    def rotational(self, disk: Disk) -> bool | None:
        return True

    @override
    def bytes_per_second(self, disk: Disk) -> float:
        drive = drive_of(disk)
        return float(min(drive.outer_rate, drive.link_rate))

    @override
    def report(self, disk: Disk, path: str) -> tuple[Step, ...]:
        return ask_statistics(path)


DISK: DiskModel = HardDisk()
