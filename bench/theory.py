"""Theory against measurement: draw cells by a seed, run them, and write docs/theory.md.

  python bench/theory.py draw DIRECTORY [--seed N]   scenario files, as many as the table needs
  python bench/theory.py run DIRECTORY               those without a finished run; can be stopped
  python bench/theory.py table DIRECTORY             the table, from the stored runs

A draw that theory says nothing about is drawn again, and counted: the table tells how many.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import geometric_mean, median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ruamel.yaml import YAML  # noqa: E402 - the checkout's own lab comes first

from lab.analysis.predict import predictions, silences  # noqa: E402
from lab.compile.scenario.document import Compiled, compile_scenario  # noqa: E402
from lab.core.errors import InputError  # noqa: E402
from lab.results.documents import result_of  # noqa: E402
from lab.results.explain import explanation_of_run  # noqa: E402
from lab.store import runs as store  # noqa: E402

KIB, MIB = 1024, 1024**2
SECONDS = 5.0
"""How long each sequential workload should take."""

SHORTEST, LONGEST = 2, 12
WHOLE = 6
"""MiB: a whole number of every block that is drawn."""

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
    """An array and its disks."""
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
    """One array, two block sizes, two rates: four cells of a write and a read."""
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
    """One array under a limit on operations, at two depths; every other one with a bitmap."""
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


def draw(directory: Path, seed: int, counts: dict[str, int]) -> None:
    """Write so many files of each kind."""
    directory.mkdir(parents=True, exist_ok=True)
    kinds: dict[str, Callable[[Random, int], dict[str, Any]]] = {
        "sequential": sequential,
        "random": random,
    }
    redrawn: dict[str, dict[str, int]] = {}
    for kind, make in kinds.items():
        dice = Random(f"{kind} {seed}")
        reasons: dict[str, int] = {}
        number = 0
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
            reason = refused(path)
            if reason:
                reasons[reason] = reasons.get(reason, 0) + 1
                path.unlink()
                continue
            number += 1
        redrawn[kind] = reasons
    (directory / f"redrawn-{seed}.json").write_text(json.dumps(redrawn, indent=1) + "\n")
    print(f"{directory}: {sum(counts.values())} scenarios; drawn again: {json.dumps(redrawn)}")


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a scenario."""
    with path.open("w", encoding="utf-8") as file:
        YAML().dump(document, file)


def fit(path: Path, document: dict[str, Any]) -> None:
    """Have each workload take about as long as it should, by theory's own figures."""
    try:
        cells = compile_scenario(path).cells
    except InputError:
        return
    said = [p for cell in cells for p in predictions(cell) if p.metric == "seconds"]
    for workload in document["workloads"]:
        seconds = [p.value for p in said if p.workload == workload["name"]]
        if seconds:
            times = SECONDS / geometric_mean(seconds)
            workload["size"] = f"{max(round(2 * times), 1) * WHOLE}MiB"
    write(path, document)


def refused(path: Path) -> str:
    """Why a draw is no use: mdadm would refuse it, theory is silent, or it takes too long."""
    try:
        compiled = compile_scenario(path)
    except InputError:
        return "mdadm or fio would refuse it"
    for cell in compiled.cells:
        found = predictions(cell)
        if {p.workload for p in found} != {w.name for w in cell.workloads}:
            return f"theory says nothing: {next(iter(silences(cell).values()), 'no reason')}"
        seconds = [p.value for p in found if p.metric == "seconds"]
        if any(not SHORTEST <= each <= LONGEST for each in seconds):
            return f"it would be over in {SHORTEST} seconds, or take more than {LONGEST}"
    return ""


def scenarios(directory: Path) -> list[Path]:
    """The files of a directory, in order."""
    found = sorted(directory.glob("theory-*.yaml"))
    if not found:
        sys.exit(f"{directory} has no theory-*.yaml: `draw` makes them")
    return found


def run(directory: Path, jobs: str | None) -> None:
    """Run what has no finished run yet; a run that was stopped goes on where it was."""
    for path in scenarios(directory):
        states = {r.load_run().finished is not None: r for r in runs_of(path)}
        if True in states:
            continue
        command = [sys.executable, "-m", "lab", "run", "scenario", str(path.resolve())]
        if False in states:
            command += ["--resume", states[False].id]
        if jobs:
            command += ["--jobs", jobs]
        print(" ".join(command[1:]), flush=True)
        if _waited_for(command) == 130:
            raise SystemExit("stopped; the same command goes on with what is left")


def _waited_for(command: Sequence[str]) -> int:
    """The exit status of a command of the lab; Ctrl-C reaches it too, and it takes down its own."""
    with subprocess.Popen(command, cwd=ROOT) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def runs_of(path: Path) -> list[store.RunStore]:
    """The runs of one file, of the cells that it has now; the newest first."""
    wanted = compile_scenario(path)
    return [r for r in store.every() if r.load_run().scenario == path.stem and _same(r, wanted)]


def _same(run: store.RunStore, wanted: Compiled) -> bool:
    return [c.cell for c in run.load_run().cells] == list(wanted.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One workload of one cell."""

    scenario: str
    what: str
    workload: str
    predicted: float
    measured: float
    unit: str
    members: float | None
    """Largest part by which a member's counted bytes differ from theory's."""
    contended: bool

    @property
    def error(self) -> float:
        """By which part the measured figure differs from the predicted one."""
        return self.measured / self.predicted - 1


def figures(directory: Path, kind: str) -> Iterator[Figure]:
    """Every figure of the newest finished run of each file."""
    for path in scenarios(directory):
        if f"-{kind}-" not in path.stem:
            continue
        done = [r for r in runs_of(path) if r.load_run().finished is not None]
        if done:
            yield from _figures(done[0], kind)


def _figures(run: store.RunStore, kind: str) -> Iterator[Figure]:
    metric, unit = ("iops", "/s") if kind == "random" else ("throughput", " MB/s")
    results = {cell.id: cell for cell in result_of(run).cells}
    cells = {stored.id: stored.cell for stored in run.load_run().cells}
    for explained in explanation_of_run(run):
        contended = any(not c.passed for c in results[explained.id].checks)
        for each in explained.workloads:
            if metric not in each.measured:
                print(f"{run.id} {explained.id}: {results[explained.id].reason}", file=sys.stderr)
                continue
            if metric not in each.expected:
                print(f"{run.id} {explained.id}: theory says nothing now", file=sys.stderr)
                continue
            scale = 1e6 if metric == "throughput" else 1.0
            errors = [abs(m.error) for m in each.members if m.error is not None]
            yield Figure(
                scenario=run.load_run().scenario,
                what=_what(cells[explained.id], each.workload),
                workload=each.workload,
                predicted=each.expected[metric] / scale,
                measured=each.measured[metric] / scale,
                unit=unit,
                members=max(errors) if errors and kind == "sequential" else None,
                contended=contended,
            )


def _what(cell: Any, workload: str) -> str:
    """A cell in a few words."""
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


def table(directory: Path, out: Path) -> None:
    """Write the document."""
    lines = [
        "# Theory against measurement",
        "",
        "Made by `python bench/theory.py table` from stored runs. Cells were drawn by a seed; a "
        "draw that theory says nothing about was drawn again (counts below). Error is measured "
        "over predicted, less one. *Members*: the largest part by which a disk's bytes, as the "
        "guest's `/proc/diskstats` counted them, differ from theory's.",
        "",
    ]
    for kind in ("sequential", "random"):
        found = list(figures(directory, kind))
        if not found:
            continue
        errors = [abs(f.error) for f in found]
        lines += [f"## {kind.capitalize()}", ""]
        lines.append(
            f"{len(found)} figures. Error: median {median(errors):.2%}, worst {max(errors):.2%}."
        )
        members = [f.members for f in found if f.members is not None]
        if members:
            lines.append(f"Members' bytes: median {median(members):.2%}, worst {max(members):.2%}.")
        head = "| cell | workload | predicted | measured | error | members |"
        lines += ["", head, "|---|---|---|---|---|---|"]
        for f in found:
            said = "" if f.members is None else f"{f.members:.2%}"
            mark = " (contended)" if f.contended else ""
            lines.append(
                f"| {f.what}{mark} | {f.workload} | {f.predicted:.4g}{f.unit} | "
                f"{f.measured:.4g}{f.unit} | {f.error:+.2%} | {said} |"
            )
        lines.append("")
    for path in sorted(directory.glob("redrawn-*.json")):
        lines.append(f"Drawn again, seed {path.stem.removeprefix('redrawn-')}: ")
        for kind, reasons in json.loads(path.read_text()).items():
            said = "; ".join(f"{why}: {count}" for why, count in reasons.items())
            lines.append(f"{kind}: {said or 'none'}. ")
    out.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(out)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("draw", "run", "table"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sequential", type=int, default=16, help="files of four cells each")
    parser.add_argument("--random", type=int, default=12, help="files of two cells each")
    parser.add_argument("--jobs", help="guests at once, for `lab run`")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "theory.md")
    given = parser.parse_args()
    if given.command == "draw":
        draw(given.directory, given.seed, {"sequential": given.sequential, "random": given.random})
    elif given.command == "run":
        run(given.directory, given.jobs)
    else:
        table(given.directory, given.out)


if __name__ == "__main__":
    main()
