"""Modelled drives against measured ones: ``python -m bench.hardware``.

=============================  ====================================================================
``--page``                     writes ``docs/hardware.md`` and its picture from ``hardware.yaml``
``DIRECTORY``                  prints errors on the full data: ``fio-plot/``, ``disksim-valid/``
``DIRECTORY --table``          writes ``hardware.yaml``: the figures that the page needs
``DIRECTORY --array JSON``     puts a run of ``raid5-of-eight`` into it: its result
``DIRECTORY --fit PRESET...``  fits presets again as ``lab disk fit`` does, and prints them
=============================  ====================================================================

``hardware.yaml`` has each drive's loads with one job, of fio's 4 KiB random requests.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from bench import hardware_page, traced
from drive.loop import FLAGS, SOURCE, Core
from lab.md.theory.certificate import certificate
from lab.md.theory.load_fit import chosen, fit_loads, halves, points_of
from lab.model.scenario.drive import HardDrive, SolidStateDrive
from lab.model.scenario.profile import Load, Point
from lab.plugins.disks.hdd import PRESETS as HDD
from lab.plugins.disks.ssd import PRESETS as SSD

TABLE: Final = Path(__file__).parent / "hardware.yaml"
PAGE: Final = Path(__file__).parents[1] / "docs" / "hardware.md"
SOURCES: Final = {
    "fio-plot": "github.com/louwrentius/fio-plot, benchmark_data of 2019 and 2020, BSD-3",
    "ublk-disksim": "github.com/lumir-sliva/ublk-disksim, docs and bench/expect",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measured drive, and the preset that is to behave like it."""

    preset: str
    name: str
    table: str
    """File of ``fio-plot/``; empty: ``drive-figures/``."""
    size: int
    """Bytes."""
    rpm: float | None = None


DRIVES: Final = (
    Measured(
        preset="hdd_samsung_f1",
        name="Samsung F1 1 TB, AHCI",
        table="HPMICROSERVERG10__SATA_AHCI_SAMSUNGF1_1TB_7K2RPM",
        size=10**12,
        rpm=7200,
    ),
    Measured(
        preset="hdd_hgst_hts7210",
        name="HGST 100 GB 7200 rpm behind an HP P420i",
        table="HPDL380G8__P420RAID__P420i_HGST_HTS72101_100GB7k",
        size=10**11,
        rpm=7200,
    ),
    Measured(
        preset="hdd_seagate_st2000dm006",
        name="Seagate ST2000DM006 2 TB",
        table="",
        size=2 * 10**12,
        rpm=7200,
    ),
    Measured(
        preset="ssd_samsung_860pro",
        name="Samsung 860 PRO on an IBM M1015",
        table="SERVER__IBM_M1015__SAMSUNG_860_PRO",
        size=256 * 10**9,
    ),
    Measured(
        preset="ssd_intel_s4610",
        name="Intel D3-S4610 on an IBM M1015",
        table="SERVER__IBM_M1015__INTEL_D3-S4610_SSDSC2KG48",
        size=480 * 10**9,
    ),
    Measured(
        preset="ssd_kingston_dc500m",
        name="Kingston DC500M on an IBM M1015",
        table="SERVER__IBM_M1015__KINGSTONDC500M",
        size=480 * 10**9,
    ),
)


def drive_of(preset: str) -> HardDrive | SolidStateDrive:
    """Return a preset's drive."""
    return HDD[preset] if preset in HDD else SSD[preset]


def library() -> Core:
    """Compile and return the timing core."""
    with tempfile.TemporaryDirectory() as place:
        built = Path(place, "loop.so")
        subprocess.run(["cc", *FLAGS, "-o", built, SOURCE], check=True)
        return Core(built)


def fio_plot(table: Path) -> list[Load]:
    """Return the loads of a table of fio-plot's."""
    found = []
    with table.open() as file:
        for row in csv.DictReader(file):
            if row["rw"] not in ("randread", "randwrite"):
                continue
            op = row["rw"].removeprefix("rand")
            time = datetime.strptime(row["time"], "%a %b %d %H:%M:%S %Y")  # noqa: DTZ007  differences only
            found.append(
                Load(
                    read_share=float(op == "read"),
                    depth=int(row["iodepth"]),
                    jobs=int(row["numjobs"]),
                    seconds=float(row["runtime_s"]),
                    rate=float(row[f"{op}_iops"]),
                    mean=float(row[f"{op}_clat_mean_us"]) / 1e6,
                    percentiles={p: float(row[f"{op}_p{p:.0f}_us"]) / 1e6 for p in (50.0, 99.0)},
                    begins=time.timestamp(),
                )
            )
    return found


def st2000dm006(place: Path) -> list[Load]:
    """Return the loads of the drive of ``drive-figures/``: depths, percentiles at depth 1, single
    writes, and flushes after 8 and 64 scattered writes."""
    rows = [line.split("\t") for line in (place / "real-drives.tsv").read_text().splitlines()]
    own = {(r[1], r[2]): r[3] for r in rows if r[0] == "ST2000DM006"}
    first = "4K random read QD1"
    shape = {
        float(metric[1:]): float(value) / 1e3
        for (test, metric), value in own.items()
        if test == first and metric.startswith("p")
    }
    found = []
    for line in (place / "qd.tsv").read_text().splitlines():
        name, depth, rate = line.split("\t")
        if name == "ST2000DM006 (real)":
            found.append(
                Load(
                    read_share=1,
                    depth=int(depth),
                    rate=float(rate),
                    percentiles=shape if depth == "1" else {},
                )
            )
    single = float(own["4K random write QD1 30 s", "iops"])
    found.append(Load(read_share=0, depth=1, rate=single, seconds=30))
    for writes in (8, 64):
        seconds = float(own[f"flush after {writes} scattered 4K writes", "p50"]) / 1e3
        found.append(
            Load(read_share=0, depth=1, rate=1, flush_every=writes, flushes={50.0: seconds})
        )
    return found


def loads_of(drive: Measured, place: Path) -> list[Load]:
    """Return a drive's loads from the full data."""
    if drive.table:
        return fio_plot(place / "fio-plot" / f"{drive.table}.csv")
    return st2000dm006(place / "drive-figures")


def table() -> dict[str, Any]:
    """Return the project's own table."""
    found: dict[str, Any] = YAML(typ="safe").load(TABLE)
    return found


def stored() -> dict[str, list[Load]]:
    """Return the loads of the project's own table, by preset."""
    return {d["preset"]: [Load.model_validate(x) for x in d["loads"]] for d in table()["drives"]}


def points(core: Core, drive: Measured, loads: Sequence[Load]) -> tuple[Point, ...]:
    """Return measured and modelled values of a drive, each with whether it was fitted."""
    return points_of(core, drive_of(drive.preset), loads, halves(loads), drive.size)


def write_table(core: Core, place: Path) -> None:
    """Write the project's own table from the full data."""
    array = table()["array"]  # of a run of raid5-of-eight, which takes minutes
    drives: list[dict[str, Any]] = []
    for drive in DRIVES:
        loads = [x for x in chosen(loads_of(drive, place)) if x.jobs == 1]
        drives.append(
            {
                "preset": drive.preset,
                "name": drive.name,
                "source": SOURCES["fio-plot" if drive.table else "ublk-disksim"],
                "loads": [x.model_dump(mode="json", exclude_defaults=True) for x in loads],
            }
        )
    rows = [
        {k: round(v, 7) if isinstance(v, float) else v for k, v in asdict(row).items()}
        for row in traced.all_of(core, place / "disksim-valid")
    ]
    dump({"drives": drives, "traced": rows, "array": array})


def write_array(place: Path, result: Path) -> None:
    """Put a run of ``raid5-of-eight`` into the project's own table. ``result``: its JSON."""
    cells = json.loads(result.read_text())["cells"]
    modelled: dict[tuple[str, int], tuple[float, float, float]] = {}
    for cell in cells:
        depth = int(next(iter(cell["axes"].values())))
        for kind in ("read", "write"):
            values = {
                m["metric"]: m["median"] for m in cell["measurements"] if m["workload"] == kind
            }
            own = [c for c in cell["counters"] if c["workload"] == kind]
            requests = values["iops"] * values["seconds"]
            members = (sum(c[f"{word}s"] for c in own) / requests for word in ("read", "write"))
            modelled[kind, depth] = (values["iops"], *members)
    name = "SERVER__IBM_M1015__8x2TBRAID5MDADM.csv"
    rates: dict[tuple[str, int], float] = {}
    for load in fio_plot(place / "fio-plot" / name):
        rates["read" if load.read_share else "write", load.depth] = load.rate
    counted: dict[int, list[float]] = {}
    with (place / "fio-plot-members" / name).open() as file:
        for row in csv.DictReader(file):
            if row["rw"] == "randwrite" and not row["disk"].startswith("md"):
                sums = counted.setdefault(int(row["iodepth"]), [0.0, 0.0])
                for n, field in enumerate(("read_ios", "write_ios")):
                    sums[n] += int(row[field]) / int(row["fio_writes"])
    rows = [
        {
            "depth": depth,
            "reads": [round(rates["read", depth], 2), round(modelled["read", depth][0], 2)],
            "writes": [round(rates["write", depth], 2), round(modelled["write", depth][0], 2)],
            "member_reads": [round(v, 3) for v in (counted[depth][0], modelled["write", depth][1])],
            "member_writes": [
                round(v, 3) for v in (counted[depth][1], modelled["write", depth][2])
            ],
        }
        for depth in sorted(counted)
        if ("write", depth) in modelled
    ]
    dump({**table(), "array": rows})


def dump(data: dict[str, Any]) -> None:
    """Write the project's own table."""
    yaml = YAML()
    yaml.default_flow_style = None
    yaml.width = 200
    with TABLE.open("w") as file:
        file.write(
            "# Figures of measured drives, for docs/hardware.md: seconds, requests per second.\n"
            "# Made by `python -m bench.hardware DIRECTORY --table`.\n"
        )
        yaml.dump(data, file)


def write_page(core: Core, page: Path = PAGE) -> None:
    """Write the page and its picture from the project's own table."""
    import vl_convert

    about = {d["preset"]: d for d in table()["drives"]}
    loads = stored()
    all_points = {d.preset: points(core, d, loads[d.preset]) for d in DRIVES}
    drives = [(about[d.preset], drive_of(d.preset), all_points[d.preset]) for d in DRIVES]
    own = table()
    more = hardware_page.traced(own["traced"]) + "\n" + hardware_page.array(own["array"])
    page.write_text(hardware_page.page(drives, more))
    picture = hardware_page.scatter([(d.name, all_points[d.preset]) for d in DRIVES])
    page.with_suffix(".svg").write_text(vl_convert.vegalite_to_svg(picture) + "\n")


def print_errors(core: Core, place: Path) -> None:
    """Print each preset's errors on the full data."""
    for drive in DRIVES:
        loads = chosen(loads_of(drive, place))
        print(f"{drive.preset}: {len(loads)} loads")
        for line in certificate(points(core, drive, loads)):
            print(f"  {line.group}: fitted {line.fitted}; not fitted {line.tested}")
    for row in traced.all_of(core, place / "disksim-valid"):
        print(
            f"{row.name}: mean {row.modelled / row.measured - 1:+.1%}, demerit "
            f"{row.demerit * 1e3:.3f} ms, DiskSim's {row.disksim * 1e3:.3f} ms"
        )


def fit(core: Core, place: Path, presets: Iterable[str]) -> None:
    """Fit presets again, and print their values and errors."""
    for drive in DRIVES:
        if drive.preset not in presets:
            continue
        found = fit_loads(
            core,
            loads_of(drive, place),
            hdd=HDD["hdd_7200"],
            ssd=SSD["ssd_sata"],
            size=drive.size,
            rpm=drive.rpm,
        )
        values = getattr(found, found.kind).model_dump(exclude_none=True)
        print(
            f"{drive.preset}:",
            *(f"    {name}={value!r}," for name, value in values.items()),
            sep="\n",
        )
        for line in certificate(found.points):
            print(f"  {line.group}: fitted {line.fitted}; not fitted {line.tested}")
        for point in found.points:
            if "jobs" not in point.name:
                print(f"    {point.group}, {point.name}: {point.error:+.1%}")


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m bench.hardware", description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--array", type=Path, metavar="RESULT.json")
    parser.add_argument("--fit", nargs="*", metavar="PRESET")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.directory is not None and not (given.directory / "fio-plot").is_dir():
        sys.exit(f"'{given.directory}' has no directory fio-plot")
    core = library()
    if given.page:
        write_page(core)
    if given.directory is not None and given.array:
        write_array(given.directory, given.array)
    elif given.directory is not None and given.table:
        write_table(core, given.directory)
    elif given.directory is not None and given.fit is not None:
        fit(core, given.directory, given.fit or [d.preset for d in DRIVES])
    elif given.directory is not None:
        print_errors(core, given.directory)


if __name__ == "__main__":
    main()
