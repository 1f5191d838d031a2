"""DiskSim's traced drives of 1990 to 1999 on ``drive/drive.h``.

Each drive has a trace of requests with their measured times, a measured seek curve and its zones
(``disksim-valid/``). The seek curve is fitted by the lab's three values, the rates are those of the
first and the last zone. Three values are fitted to the first half of the trace: the controller's
time by the mean, the bus by cached writes, read-ahead by the demerit. The second half tests them.

The demerit is the root mean square of the horizontal distance between the two distributions of
times: C. Ruemmler and J. Wilkes, "An introduction to disk drive modeling", IEEE Computer 27(3),
1994.
"""

from __future__ import annotations

import lzma
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from drive.loop import Core
from lab.core.units import KIB
from lab.md.theory.profile import seek_curve
from lab.model.scenario.drive import HardDrive, integers
from lab.plugins.disks.hdd import PRESETS

NAMES: Final = {
    "barracuda": ("Seagate Barracuda ST32171W", "1996 to 1999"),
    "cheetah4LP": ("Seagate Cheetah ST34501N", "1996 to 1999"),
    "atlas_III": ("Quantum Atlas III", "1996 to 1999"),
    "ibm18es": ("IBM DNES-309170W", "1996 to 1999"),
    "atlas10k": ("Quantum Atlas 10K", "1996 to 1999"),
    "hp_c2490a": ("HP C2490A", "older"),
    "dec_rz26": ("DEC RZ26", "older"),
}
READ_AHEADS: Final = (0, 4, 16, 64, 256)
"""KiB."""
CACHE: Final = 512 * KIB
CACHED: Final = 0.003
"""Seconds below which most writes are cached ones."""


@dataclass(frozen=True, slots=True)
class Request:
    write: bool
    offset: int
    length: int
    seconds: float
    think: float
    """Seconds from its end to the next one."""


@dataclass(frozen=True, slots=True)
class Traced:
    """Means and demerits in seconds."""

    name: str
    years: str
    requests: int
    measured: float
    """Mean of the half that was not fitted."""
    modelled: float
    demerit: float
    disksim: float
    """Demerit of DiskSim's own model, which was fitted to the whole trace."""
    overhead: float
    read_ahead: int


def demerit(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the demerit of two samples of the same size."""
    pairs = zip(sorted(one), sorted(other), strict=True)
    return math.sqrt(sum((a - b) ** 2 for a, b in pairs) / len(one))


def drive_of(place: Path, name: str) -> tuple[HardDrive, int]:
    """Return the drive of a model's file and seek curve, and its size."""
    file = next(f for n in (name, f"{name}_validate") if (f := place / f"{n}.model").is_file())
    text = file.read_text()

    def number(key: str) -> float:
        found = re.search(rf"{key}\s*=\s*([\d.]+)", text)
        assert found, key
        return float(found[1])

    cylinders, rpm = number("Number of cylinders"), number(r"Rotation speed \(in rpms\)")
    tracks = [int(n) for n in re.findall(r"Blocks per track\s*=\s*(\d+)", text)]
    seeks = re.findall(r"^(\d+),\s*([\d.]+)", file.with_suffix(".seek").read_text(), re.MULTILINE)
    far = [(int(d) / cylinders, float(ms) / 1e3) for d, ms in seeks if int(d)]
    preset = PRESETS["hdd_7200"]
    distances, times = zip(*far, strict=True)
    first, average, full = seek_curve(distances, times, preset)
    rates = [n * 512 * rpm / 60 for n in (tracks[0], tracks[-1])]
    drive = replace(
        preset,
        source=f"DiskSim, {file.name} and its seek curve",
        rpm=rpm,
        overhead=0.0005,
        track_to_track=first,
        average_seek=average,
        full_stroke=full,
        write_settle=0.0,
        outer_rate=round(max(rates)),
        inner_rate=round(min(rates)),
        read_ahead=0,
        write_cache=0,
        queue_depth=1,
        ageing=0.0,
        link_rate=20_000_000,
    )
    return drive, int(number("Block count")) * 512


def requests_of(place: Path, name: str, size: int) -> list[Request]:
    """Return a trace's requests within the disk."""
    found = []
    with lzma.open(place / f"{name}.trace.xz", "rt") as lines:
        for line in lines:
            words = line.split()
            if len(words) == 6:
                offset, length = int(words[2]) * 512, int(words[3]) * 512
                seconds, think = float(words[4]) / 1e6, float(words[5]) / 1e6
                if offset + length <= size:
                    found.append(Request(words[0] == "W", offset, length, seconds, think))
    return found


def compared(core: Core, place: Path, name: str, disksim: float) -> Traced:
    """Return a traced drive beside its model. ``disksim``: DiskSim's demerit in seconds."""
    drive, size = drive_of(place, name)
    trace = requests_of(place, name, size)
    half = len(trace) // 2
    thinks = [0.0, *(r.think for r in trace)]
    rows = [(r.write, r.offset, r.length, t) for r, t in zip(trace, thinks, strict=False)]
    measured = [r.seconds for r in trace]

    def run(one: HardDrive, count: int) -> list[float]:
        return core.trace(integers(one, name), size, rows[:count])

    writes = [r for r in trace[:half] if r.write]
    usual = statistics.median(r.seconds for r in writes)
    if usual < CACHED:
        own = [r for r in writes if r.seconds < 3 * usual]
        slope, start = statistics.linear_regression(
            [r.length for r in own], [r.seconds for r in own]
        )
        drive = replace(drive, write_cache=CACHE, link_rate=round(1 / slope), overhead=start)
    found: list[tuple[float, HardDrive]] = []
    for ahead in READ_AHEADS:
        one = replace(drive, read_ahead=ahead * KIB)
        for _ in range(4):  # the time after a read decides what is read ahead meanwhile
            off = statistics.fmean(measured[:half]) - statistics.fmean(run(one, half))
            one = replace(one, overhead=max(one.overhead + off, 0.0))
        found.append((demerit(run(one, half), measured[:half]), one))
    _, best = min(found, key=lambda pair: pair[0])
    times = run(best, len(rows))
    return Traced(
        *NAMES[name],
        requests=len(trace),
        measured=statistics.fmean(measured[half:]),
        modelled=statistics.fmean(times[half:]),
        demerit=demerit(times[half:], measured[half:]),
        disksim=disksim,
        overhead=best.overhead,
        read_ahead=best.read_ahead,
    )


def all_of(core: Core, place: Path) -> list[Traced]:
    """Return all traced drives of a directory that has seek curves."""
    lines = (place / "demerit.tsv").read_text().splitlines()
    known = {w[0]: float(w[2]) / 1e3 for line in lines if len(w := line.split("\t")) == 3}
    return [compared(core, place, name, known[name]) for name in NAMES]
