"""Synthetic stored runs: theory's values with seeded noise, as a tool's output.

They go through the real store, so that reports can be tested on any kind of matrix without a guest.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from lab.analysis.predict import explanations
from lab.compile.cell.procedure import cell_procedure
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.compile.scenario.identity import cell_id, identity
from lab.model.result.document import Outcome, PhaseSeconds
from lab.model.result.measurement import Check
from lab.model.scenario.document import Cell, InitialSync, Workload
from lab.plugins.workloads.fio import CUT
from lab.store.runs import RunStore, StoredCell, StoredOutcome, StoredRun
from tests.fakes import FLOORS

LAYOUTS = """\
title: Test fixture, RAID 5 layouts
question: Which of the six layouts writes fastest, at which chunk, on three and on five disks?
disks:
  count: 5
  size: 1GiB
  throttle: {total_bytes_per_second: 5MiB}
array: {level: 5, layout: left-symmetric, chunk: 64KiB, component_size: 64MiB}
workloads:
  - {name: write, tool: dd, of: '{target}', bs: 1MiB, count: 96, oflag: direct}
  - {name: read, tool: dd, if: '{target}', bs: 1MiB, count: 96, iflag: direct}
matrix:
  array.layout:
    [left-symmetric, left-asymmetric, right-symmetric, right-asymmetric, parity-first, parity-last]
  array.chunk: [16KiB, 64KiB, 256KiB, 512KiB]
  disks.count: [3, 5]
trials: 3
claims:
  - id: FIX-1
    says: On five disks parity-last reads no faster than left-symmetric
    expect:
      kind: order
      values:
        - workload: read
          where: {array.layout: left-symmetric, array.chunk: 64KiB, disks.count: 5}
        - workload: read
          where: {array.layout: parity-last, array.chunk: 64KiB, disks.count: 5}
  - id: FIX-2
    says: On three disks left-symmetric with chunks of 64 KiB writes 30 MB/s
    published: 30MB/s
    expect:
      kind: bound
      value:
        workload: write
        where: {array.layout: left-symmetric, array.chunk: 64KiB, disks.count: 3}
      near: 30MB/s
"""

BITMAP = """\
title: Test fixture, what a write-intent bitmap costs
question: How much slower are small random writes with a bitmap, and at which bitmap chunk?
notes: A fixture. Its figures are theory's.
disks:
  count: 4
  size: 1GiB
  throttle: {total_operations_per_second: 50}
array: {level: 5, layout: left-symmetric, chunk: 64KiB, component_size: 256MiB, bitmap: none}
workloads:
  - {name: write, tool: fio, rw: randwrite, bs: 4KiB, direct: true, ioengine: libaio, iodepth: 16,
     time_based: true, runtime: 10s, write_bw_log: true, log_avg_msec: 1000}
matrix:
  array.bitmap: [none, internal]
  array.bitmap_chunk: [null, 64KiB, 256KiB, 1MiB, 4MiB, 16MiB]
  exclude:
    - {array.bitmap: none, array.bitmap_chunk: 64KiB}
    - {array.bitmap: none, array.bitmap_chunk: 256KiB}
    - {array.bitmap: none, array.bitmap_chunk: 1MiB}
    - {array.bitmap: none, array.bitmap_chunk: 4MiB}
    - {array.bitmap: none, array.bitmap_chunk: 16MiB}
    - {array.bitmap: internal, array.bitmap_chunk: null}
trials: 3
claims:
  - id: FIX-3
    says: The larger the bitmap's chunk, the faster
    expect:
      kind: monotonic
      value: {workload: write, metric: iops, where: {array.bitmap: internal}}
      along: array.bitmap_chunk
      direction: rising
      tolerance: 3%
"""

DEPTH = """\
title: Test fixture, queue depth and jobs
question: How many requests must be under way before an array is busy?
disks:
  count: 4
  size: 1GiB
  throttle: {total_operations_per_second: 50}
array: {level: 5, chunk: 64KiB, component_size: 256MiB, initial_sync: none}
workloads:
  - {name: read, tool: fio, rw: randread, bs: 4KiB, direct: true, ioengine: libaio, iodepth: 1,
     numjobs: 1, time_based: true, runtime: 8s, write_bw_log: true, log_avg_msec: 1000}
matrix:
  workloads.read.iodepth: [1, 4, 16]
  workloads.read.numjobs: [1, 2, 4]
"""

SCALING = """\
title: Test fixture, number of disks
question: What does each further disk bring?
disks: {count: 3, size: 1GiB, throttle: {total_bytes_per_second: 5MiB}}
array: {level: 5, layout: left-symmetric, chunk: 64KiB, component_size: 64MiB}
workloads:
  - {name: read, tool: dd, if: '{target}', bs: 1MiB, count: 96, iflag: direct}
matrix:
  array.layout: [left-symmetric, parity-last]
  disks.count: [3, 4, 5]
  exclude:
    - {array.layout: parity-last, disks.count: 4}
"""

SMALL = """\
title: Test fixture, two cells
question: What do three disks read?
disks: {count: 3, size: 1GiB, throttle: {total_bytes_per_second: 5MiB}}
array: {level: 5, chunk: 64KiB, component_size: 64MiB}
workloads:
  - {name: read, tool: dd, if: '{target}', bs: 1MiB, count: 96, iflag: direct}
matrix:
  array.layout: [left-symmetric, parity-last]
"""

SCATTER = 0.006
"""Relative standard deviation of a trial from theory."""


def theory_run(
    parent: Path,
    text: str,
    *,
    name: str = "fixture",
    stamp: str = "20260101-120000",
    drift: float = 1.0,
    contended: int | None = None,
    lost: int | None = None,
    compiled: Compiled | None = None,
) -> RunStore:
    """Return a run of a scenario with theory's values times ``drift``.

    Cells by number may have failed. ``compiled``: the compiled scenario, if there is one.
    """
    parent.mkdir(parents=True, exist_ok=True)
    if compiled is None:
        source = parent / f".{name}.yaml"
        source.write_text(text, encoding="utf-8")
        compiled = compile_scenario(source)
    scenario = compiled.scenario
    store = RunStore(parent / f"{name}-{stamp}")
    (store.directory / "cells").mkdir(parents=True)
    (store.directory / "scenario.yaml").write_text(text, encoding="utf-8")
    day = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}"
    store.save_run(
        StoredRun(
            id=store.id,
            scenario=name,
            title=scenario.title,
            question=scenario.question,
            notes=scenario.notes,
            started=f"{day}T12:00:00+00:00",
            finished=f"{day}T12:05:00+00:00",
            environment={"accelerator": "tcg", "lab": "0.1.0", "host": {"cpus": 2, "name": "test"}},
            cells=tuple(
                StoredCell(id=cell_id(c), cell=c, published=identity(c) in compiled.published)
                for c in compiled.cells
            ),
            noise=FLOORS,
            claims=scenario.claims,
        )
    )
    for number, cell in enumerate(compiled.cells):
        attempt = store.begin_cell(cell_id(cell), cell, cell_procedure(cell, "/guest"))
        (attempt / "raw").mkdir()
        for file, said in raw_of(cell, drift).items():
            (attempt / "raw" / file).write_text(said, encoding="utf-8")
        wait = "the guest waited for a processor for 61.0% of write, trial 1"
        checks = (
            Check(name="array", passed=True, detail="state=running"),
            Check(
                name="uncontended",
                passed=number != contended,
                detail=wait if number == contended else "the guest waited for 1.0%",
            ),
        )
        outcome = StoredOutcome(
            outcome=Outcome.DONE, seconds=PhaseSeconds(workloads=20, total=24), checks=checks
        )
        if number == lost:
            (attempt / "raw" / "console.txt").write_text("Kernel panic - not syncing: <fixture>\n")
            outcome = StoredOutcome(outcome=Outcome.LOST, reason="the guest panicked")
        store.finish_cell(cell_id(cell), attempt, outcome)
    return store


def raw_of(cell: Cell, drift: float) -> dict[str, str]:
    """Return the output that the tools and the kernel would have printed."""
    chance = random.Random(cell_id(cell))
    found = {"environment.txt": "kernel=6.1.0-18-amd64\nmdadm=mdadm - v4.2\n"}
    if cell.array and cell.array.initial_sync == "none":
        line = "      [=>...]  resync = {:.1f}% (1/9) finish=9min speed=1K/sec\n"
        found["mdadm-create.txt"] = (
            f"md127 : active raid5\n{line.format(0.4)}unused devices: <none>"
        )
        found["end.txt"] = f"md127 : active raid5\n{line.format(31.7)}unused devices: <none>"
    quiet = cell
    if cell.array:  # theory does not cover workloads during a resync
        array = cell.array.model_copy(update={"initial_sync": InitialSync.ASSUME_CLEAN})
        quiet = cell.model_copy(update={"array": array})
    for workload, explained in zip(cell.workloads, explanations(quiet), strict=True):
        for trial in range(1, cell.trials + 1):
            speed = explained.expected["throughput"] * drift * chance.gauss(1, SCATTER)
            tag = f"{workload.name}.{trial}"
            found[f"{tag}.stdout.txt"], found[f"{tag}.stderr.txt"] = "", ""
            if workload.tool == "dd":
                found[f"{tag}.stderr.txt"] = _dd(workload, speed)
            else:
                found[f"{tag}.stdout.txt"] = _fio(workload, speed, chance)
            found[f"{tag}.before.txt"] = _diskstats([(m.serial, 0, 0) for m in explained.members])
            found[f"{tag}.after.txt"] = _diskstats(
                [(m.serial, m.read_bytes, m.written_bytes) for m in explained.members]
            )
    return found


def _dd(workload: Workload, speed: float) -> str:
    copied = workload.parameters["bs"] * workload.parameters["count"]
    records = f"{workload.parameters['count']}+0 records"
    said = f"{copied} bytes (25 MB, 24 MiB) copied, {copied / speed:.6f} s, 1 MB/s\n"
    return f"{records} in\n{records} out\n{said}"


def _fio(workload: Workload, speed: float, chance: random.Random) -> str:
    options = workload.parameters
    seconds = options["runtime"]
    moved = round(speed * seconds)
    idle = {"total_ios": 0, "io_bytes": 0, "runtime": 0}
    percentiles = {f"{p:.6f}": 1e6 / (1 - p / 100) for p in (50, 95, 99, 99.9, 99.99)}
    busy = {
        "io_bytes": moved,
        "runtime": round(seconds * 1000),
        "total_ios": moved // options["bs"],
        "lat_ns": {"mean": 1e6},
        "clat_ns": {"max": 2e10, "percentile": percentiles},
    }
    way = "write" if "write" in options["rw"] else "read"
    job = {"error": 0, "read": idle, "write": idle, "trim": idle} | {way: busy}
    jobs = options.get("numjobs", 1)
    logs = ""
    for number in range(1, jobs + 1):
        logs += f"{CUT} log_bw.{number}.log\n"
        for second in range(1, int(seconds) + 1):
            value = round(speed / jobs / 1024 * chance.gauss(1, 0.05))
            logs += f"{second * 1000}, {value}, {int(way == 'write')}, 0, 0\n"
    return json.dumps({"jobs": [job]}, indent=2) + f"\n{logs}{CUT} end\n"


def _diskstats(members: list[tuple[str, int, int]]) -> str:
    lines = [f"disk {serial} vd{serial}" for serial, _, _ in members]
    for serial, read, written in members:
        counts = [10, 0, read // 512, 5, 20, 0, written // 512, 5, 0, 9, 9, *[0] * 6]
        lines.append(f" 254 0 vd{serial} " + " ".join(map(str, counts)))
    return "\n".join(lines) + "\n"
