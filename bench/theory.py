"""Theory against measurement: draw cells by a seed, run them, and write docs/theory.md.

  python -m bench.theory draw DIRECTORY [--seed N]   scenario files, as many as the table needs
  python -m bench.theory run DIRECTORY               those without a finished run there; --clock and
                                                     --set as of bench.claims
  python -m bench.theory table DIRECTORY             the table, from the runs there

Draws that theory does not cover are repeated and counted.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from statistics import geometric_mean, median
from typing import Any

from ruamel.yaml import YAML

from bench.stored import ROOT, arguments, finished, run_missing
from lab.analysis.predict import predictions, silences
from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import InputError
from lab.model.scenario.guest import Clock
from lab.results.documents import result_of
from lab.results.explain import explanation_of_run

KIB, MIB = 1024, 1024**2
SECONDS = 5.0
"""Seconds that each sequential workload should take."""

NUMBER = re.compile(r"\d+(\.\d+)?")
SHORTEST, LONGEST = 2, 12
WHOLE = 6
"""MiB: a multiple of every drawn block size."""

DISPLAYED = 0.005
"""Least error beyond theory's doubt that is counted."""

KERNEL = "6.1"
"""That of the drawn scenarios' image, Debian 12."""

ROTATING = ("left-asymmetric", "right-asymmetric", "left-symmetric", "right-symmetric")
RAID5 = (*ROTATING, "parity-first", "parity-last")
RAID6 = (*RAID5, *(f"{name}-6" for name in ROTATING), "ddf-zero-restart", "ddf-N-continue")
RAID10 = ("n2", "f2", "o2", "n3", "f3")
LEVELS: dict[int, tuple[str | None, ...]] = {
    0: (None,),
    1: (None,),
    4: (None,),
    5: RAID5,
    6: RAID6,
    10: RAID10,
}


def shape(dice: Random, levels: tuple[int, ...], chunks: tuple[int, ...]) -> dict[str, Any]:
    """Return a random array with its disks."""
    level = dice.choice(levels)
    layout = dice.choice(LEVELS[level])
    least = {0: 2, 1: 2, 4: 3, 5: 3, 6: 4, 10: 3}[level]
    count = dice.randint(least, 4 if level == 1 else 8)
    array: dict[str, Any] = {"level": level, "bitmap": "none", "initial_sync": "assume_clean"}
    if level:
        array["component_size"] = "256MiB"
    if level in (0, 1):
        array |= {} if level else {"chunk": f"{dice.choice(chunks)}KiB"}
    else:
        array["chunk"] = f"{dice.choice(chunks)}KiB"
    if layout:
        array["layout"] = layout
    return {"disks": {"count": count, "size": "1GiB", "format": "raw"}, "array": array}


def sequential(dice: Random, _number: int) -> dict[str, Any]:
    """Return a scenario: one array, two block sizes, two rates; four cells of a write and a
    read."""
    found = shape(dice, (0, 1, 4, 5, 5, 5, 6, 6, 10, 10), (32, 64, 128, 256, 512))
    blocks = sorted(dice.sample((64, 128, 192, 256, 384, 512, 768, 1024, 2048, 3072), 2))
    slow = dice.randint(3, 6)
    rates = [slow, dice.randint(slow + 1, slow + 3)]
    found["disks"]["throttle"] = {"total_bytes_per_second": f"{rates[0]}MiB"}
    found["workloads"] = [
        {"name": name, "tool": "fio", "rw": name, "bs": f"{block}KiB", "size": f"{2 * WHOLE}MiB"}
        | {"direct": True, "ioengine": "psync"}
        for name, block in (("write", blocks[0]), ("read", dice.choice(blocks)))
    ]
    found["matrix"] = {
        "disks.throttle.total_bytes_per_second": [f"{rate}MiB" for rate in rates],
        "workloads.write.bs": [f"{block}KiB" for block in blocks],
    }
    return found


def random(dice: Random, number: int) -> dict[str, Any]:
    """Return a scenario: one array with a limit on operations, two depths; half with a bitmap."""
    bitmap = number % 2 == 1
    levels = (1, 5, 5, 5, 6, 10) if bitmap else (0, 1, 4, 5, 5, 5, 6, 10)
    found = shape(dice, levels, (64,))
    if bitmap:
        found["array"] |= {"bitmap": "internal", "bitmap_chunk": dice.choice(("64KiB", "1MiB"))}
    limit = dice.choice((40, 60, 80))
    found["disks"]["throttle"] = {"total_operations_per_second": limit}
    depths = sorted(dice.sample((1, 4, 8, 16, 32), 2))
    found["workloads"] = [
        {"name": "write", "tool": "fio", "rw": "randwrite", "bs": "4KiB", "direct": True}
        | {"ioengine": "libaio", "iodepth": depths[0], "time_based": True, "runtime": "10s"}
    ]
    found["matrix"] = {"workloads.write.iodepth": depths}
    return found


KINDS: dict[str, Callable[[Random, int], dict[str, Any]]] = {
    "sequential": sequential,
    "random": random,
}


def draw(directory: Path, seed: int, counts: dict[str, int]) -> None:
    """Write the wanted number of files of each kind."""
    directory.mkdir(parents=True, exist_ok=True)
    redrawn: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for kind, make in KINDS.items():
        dice, number = Random(f"{kind} {seed}"), 0
        while number < counts[kind]:
            path = directory / f"theory-{kind}-{seed}-{number + 1:02}.yaml"
            document = {
                "title": f"Theory against measurement: {kind}, draw {number + 1} of seed {seed}",
                "question": "Is the array as fast as theory says?",
                "guest": {"image": "debian-12", "cpus": 1, "memory": "512MiB"},
                **make(dice, number),
            }
            write(path, document)
            if kind == "sequential":
                fit(path, document)
            if reason := refused(path):
                redrawn[kind][NUMBER.sub("N", reason)] += 1
                path.unlink()
            else:
                number += 1
    (directory / f"redrawn-{seed}.json").write_text(json.dumps(redrawn, indent=1) + "\n")
    print(f"{directory}: {sum(counts.values())} scenarios; drawn again: {json.dumps(redrawn)}")


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a scenario."""
    with path.open("w", encoding="utf-8") as file:
        YAML().dump(document, file)


def fit(path: Path, document: dict[str, Any]) -> None:
    """Set sizes so that each workload takes about `SECONDS` by theory."""
    try:
        cells = compile_scenario(path).cells
    except InputError:
        return
    said = [p for cell in cells for p in predictions(cell, kernel=KERNEL) if p.metric == "seconds"]
    for workload in document["workloads"]:
        seconds = [p.value for p in said if p.workload == workload["name"]]
        if seconds:
            times = SECONDS / geometric_mean(seconds)
            workload["size"] = f"{max(round(2 * times), 1) * WHOLE}MiB"
    write(path, document)


def refused(path: Path) -> str:
    """Return why a draw is unusable: mdadm would refuse it, theory does not cover it, or too
    long."""
    try:
        compiled = compile_scenario(path)
    except InputError:
        return "mdadm or fio would refuse it"
    for cell in compiled.cells:
        found = predictions(cell, kernel=KERNEL)
        if {p.workload for p in found} != {w.name for w in cell.workloads}:
            return f"theory says nothing: {next(iter(silences(cell).values()), 'no reason')}"
        seconds = [p.value for p in found if p.metric == "seconds"]
        if any(not SHORTEST <= each <= LONGEST for each in seconds):
            return f"it would be over in {SHORTEST} seconds, or take more than {LONGEST}"
    return ""


def scenarios(directory: Path) -> list[Path]:
    """Return the drawn files in order."""
    found = sorted(directory.glob("theory-*.yaml"))
    if not found:
        sys.exit(f"'{directory}' has no theory-*.yaml: `draw` writes them")
    return found


def figures(directory: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield every predicted and measured value of a kind's runs; throughput in MB/s."""
    metric, unit, scale = ("iops", "/s", 1.0) if kind == "random" else ("throughput", " MB/s", 1e6)
    done = finished([directory])
    for run in [done[p.stem] for p in scenarios(directory) if p.stem in done]:
        if f"-{kind}-" not in run.scenario_name:
            continue
        results = {cell.id: cell for cell in result_of(run).cells}
        cells = {stored.id: stored.cell for stored in run.load_run().cells}
        for explained in explanation_of_run(run):
            result = results[explained.id]
            for each in explained.workloads:
                if metric not in each.measured or metric not in each.expected:
                    why = result.reason or "theory says nothing now"
                    print(f"{run.id} {explained.id}: {why}", file=sys.stderr)
                    continue
                predicted, measured = each.expected[metric], each.measured[metric]
                errors = [abs(m.error) for m in each.members if m.error is not None]
                doubts = {(p.workload, p.metric): p.doubt for p in result.predictions}
                yield {
                    "what": _what(cells[explained.id], each.workload),
                    "workload": each.workload,
                    "predicted": f"{predicted / scale:.4g}{unit}",
                    "measured": f"{measured / scale:.4g}{unit}",
                    "error": measured / predicted - 1,
                    "doubt": doubts.get((each.workload, metric), 0.0),
                    "members": max(errors) if errors and kind == "sequential" else None,
                    "contended": any(not check.passed for check in result.checks),
                }


def _what(cell: Any, workload: str) -> str:
    """Return a short description of a cell."""
    array, disk = cell.array, cell.disks[0]
    words = [f"RAID {array.level} {array.layout or ''}".strip(), f"{disk.count} disks"]
    if array.chunk:
        words.append(f"{array.chunk // KIB}K chunk")
    throttle = disk.throttle
    if throttle.total_bytes_per_second:
        words.append(f"{throttle.total_bytes_per_second // MIB} MiB/s")
    if throttle.total_operations_per_second:
        words.append(f"{throttle.total_operations_per_second} ops/s")
    parameters = next(w.parameters for w in cell.workloads if w.name == workload)
    words.append(f"bs {parameters['bs'] // KIB}K")
    if "iodepth" in parameters:
        words.append(f"depth {parameters['iodepth']}")
    if array.bitmap != "none":
        words.append(f"bitmap {array.bitmap_chunk // KIB}K")
    return ", ".join(words)


def _guests(directory: Path) -> str:
    """Return how the cells ran."""
    counted: Counter[str] = Counter()
    for run in finished([directory]).values():
        for stored in run.load_run().cells:
            guest = stored.cell.guest
            counted[
                "in real time" if guest.clock is Clock.REAL else f"in virtual time, {guest.engine}"
            ] += 1
    return "Cells: " + ", ".join(f"{n} {how}" for how, n in sorted(counted.items())) + "."


def page(directory: Path) -> str:
    """Return the whole document."""
    lines = [
        "# Theory against measurement",
        "",
        "Made by `python -m bench.theory table` from stored runs. A seed selects random "
        "cells. A cell without a prediction is replaced by another one (counts below). Error is "
        "measured / predicted - 1. *Members*: the largest difference of a disk's bytes, as counted "
        "by the guest's `/proc/diskstats`, from theory's. *Doubt*: what theory says of itself.",
        "",
        _guests(directory),
        "",
    ]
    for kind in KINDS:
        found = list(figures(directory, kind))
        if not found:
            continue
        errors = [abs(f["error"]) for f in found]
        members = [f["members"] for f in found if f["members"] is not None]
        lines += [
            f"## {kind.capitalize()}",
            "",
            f"{len(found)} values. Error: median {median(errors):.2%}, worst {max(errors):.2%}.",
        ]
        if members:
            lines.append(f"Members' bytes: median {median(members):.2%}, worst {max(members):.2%}.")
        beyond = sum(abs(f["error"]) > f["doubt"] + DISPLAYED for f in found)
        lines.append(f"{beyond} errors exceed theory's doubt by more than {DISPLAYED:.1%}.")
        lines += ["", "| cell | workload | predicted | measured | error | doubt | members |"]
        lines.append("|---|---|---|---|---|---|---|")
        for f in found:
            said = "" if f["members"] is None else f"{f['members']:.2%}"
            doubt = f"±{f['doubt']:.1%}" if f["doubt"] else ""
            mark = " (contended)" if f["contended"] else ""
            lines.append(
                f"| {f['what']}{mark} | {f['workload']} | {f['predicted']} | {f['measured']} |"
                f" {f['error']:+.2%} | {doubt} | {said} |"
            )
        lines.append("")
    for path in sorted(directory.glob("redrawn-*.json")):
        lines.append(f"Drawn again, seed {path.stem.removeprefix('redrawn-')}: ")
        for kind, reasons in json.loads(path.read_text()).items():
            said = "; ".join(f"{why}: {count}" for why, count in reasons.items())
            lines.append(f"{kind}: {said or 'none'}. ")
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Run the command line; return the exit status."""
    parser = arguments(__doc__, "draw")
    parser.add_argument("--sequential", type=int, default=16, help="draw: files of four cells each")
    parser.add_argument("--random", type=int, default=12, help="draw: files of two cells each")
    given = parser.parse_args()
    directory = given.directory.absolute()
    if given.command == "draw":
        seed = 1 if given.seed is None else given.seed
        draw(directory, seed, {"sequential": given.sequential, "random": given.random})
    elif given.command == "run":
        files = scenarios(directory)
        return run_missing(directory, files, given.jobs, clock=given.clock, settings=given.set)
    else:
        out = given.out or ROOT / "docs" / "theory.md"
        out.write_text(page(directory), encoding="utf-8")
        print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
