"""Presets of measured drives against their measurements: ``python -m bench.hardware DIRECTORY``.

DIRECTORY has fio-plot's tables (``fio-plot/*.csv``), random requests of 4 KiB by depth. A line is
a preset, an operation, the error of the rates by RMS, and per depth the errors of the rate, the
median and the 99th percentile of the latency. A minute of each is run on ``drive/drive.h``.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from drive.loop import FLAGS, SOURCE, Core, Loop
from lab.model.scenario.drive import HardDrive, SolidStateDrive, integers
from lab.plugins.disks.hdd import PRESETS as HDD
from lab.plugins.disks.ssd import PRESETS as SSD

HOST: Final = 5e-6
"""Seconds of the host between requests to a solid-state disk: assumed."""
DEEPEST: Final = 32
TABLES: Final = {
    "hdd_samsung_f1": ("HPMICROSERVERG10__SATA_AHCI_SAMSUNGF1_1TB_7K2RPM", 10**12),
    "hdd_hgst_hts7210": ("HPDL380G8__P420RAID__P420i_HGST_HTS72101_100GB7k", 10**11),
    "ssd_samsung_860pro": ("SERVER__IBM_M1015__SAMSUNG_860_PRO", 250 * 10**9),
    "ssd_intel_s4610": ("SERVER__IBM_M1015__INTEL_D3-S4610_SSDSC2KG48", 240 * 10**9),
    "ssd_kingston_dc500m": ("SERVER__IBM_M1015__KINGSTONDC500M", 240 * 10**9),
}
"""Table of each preset, and bytes of the drive."""


def errors(core: Core, preset: str, op: str, table: Path) -> list[tuple[int, list[float]]]:
    """Return depths, each with relative errors of rate, median and 99th percentile."""
    drive: HardDrive | SolidStateDrive = HDD[preset] if preset in HDD else SSD[preset]
    found = []
    with table.open() as file:
        rows = [r for r in csv.DictReader(file) if r["rw"] == f"rand{op}" and r["numjobs"] == "1"]
    for row in sorted(rows, key=lambda r: int(r["iodepth"])):
        depth = int(row["iodepth"])
        if depth > DEEPEST:
            continue
        think = 0.0 if isinstance(drive, HardDrive) else HOST
        loop = Loop(depth=depth, read_share=float(op == "read"), think=think)
        answers = core.closed(integers(drive, "drive"), TABLES[preset][1], loop)
        times = sorted(answers.reads or answers.writes)
        said = (answers.rate, times[len(times) // 2] * 1e6, times[len(times) * 99 // 100] * 1e6)
        real = (row[f"{op}_iops"], row[f"{op}_p50_us"], row[f"{op}_p99_us"])
        found.append((depth, [a / float(b) - 1 for a, b in zip(said, real, strict=True)]))
    return found


def main() -> None:
    """Print the errors of all presets whose tables are in the directory."""
    if len(sys.argv) != 2 or not Path(sys.argv[1], "fio-plot").is_dir():
        sys.exit("expected: python -m bench.hardware DIRECTORY, which has a directory fio-plot")
    with tempfile.TemporaryDirectory() as place:
        library = Path(place, "loop.so")
        subprocess.run(["cc", *FLAGS, "-o", library, SOURCE], check=True)
        core = Core(library)
    for preset, (name, _) in TABLES.items():
        table = Path(sys.argv[1], "fio-plot", f"{name}.csv")
        if not table.is_file():
            print(f"{preset}: no table {table}")
            continue
        for op in ("read", "write") if preset in HDD else ("read",):
            found = errors(core, preset, op, table)
            rms = (sum(each[0] ** 2 for _, each in found) / len(found)) ** 0.5
            words = (f"{d}: " + "/".join(f"{e:+.1%}" for e in each) for d, each in found)
            print(f"{preset} {op}: {rms:.1%} RMS; {'; '.join(words)}")


if __name__ == "__main__":
    main()
