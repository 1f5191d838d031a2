"""``python -m bench.run``: measure the lab and hand-written QEMU, and write docs/benchmarks.md.

A *unit* is one cell by hand, or one command of the lab. The units of all arms are interleaved, so
that a machine that becomes slower affects all of them. Each unit is stored once it is measured, so
``--resume`` can continue.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import table, watch
from bench.table import ARMS, BY_HAND, CELLS, Document, Unit

ROOT = Path(__file__).resolve().parents[1]
SCENARIO = ROOT / "bench" / "layouts.yaml"
SCRIPT = ROOT / "bench" / "by_hand.sh"
FILE = ROOT / "docs" / "benchmarks.json"
SCHEMA = "lab.bench/1"
QUICK_CELLS = ("left-symmetric-3", "left-symmetric-5")
REPEATS = {"lab-warm": 3, "up-warm": 5, "up-cold": 2}
"""Units of an arm per round, if not 1; by hand there is one per cell."""
HELP_TIMES = 20
WARM_UP_RUNS = 5
"""Most runs until the lab saves no more snapshots; it took three."""
ABANDONED_SECONDS = 10.0
"""Seconds from a kill until leftovers are counted: workers need time to notice."""
UP = re.compile(r"guest (\S+) is up after")
"""Output of ``-v`` once a guest has answered its first SSH command."""


class BenchError(Exception):
    """The benchmark cannot continue."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """A work directory with the lab's state and cache, which runs commands."""

    work: Path
    lab: tuple[str, ...] = (sys.executable, "-m", "lab")
    cells: Sequence[str] = CELLS
    """Cells by hand."""
    quick: bool = False
    image: str = ""
    """Directory of the image."""
    accelerator: str = "tcg"
    cpu: float = 0.0
    """CPU seconds of all commands so far."""

    @property
    def runs(self) -> str:
        """The lab's directory of runs."""
        return str(self.work / "runs")

    def environment(self) -> dict[str, str]:
        """Environment variables that keep guests, snapshots and temporary files in the work
        directory."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("LAB_")}
        for variable, name in (("STATE_HOME", "state"), ("CACHE_HOME", "cache"), ("", "tmp")):
            (self.work / name).mkdir(parents=True, exist_ok=True)
            env[f"XDG_{variable}" if variable else "TMPDIR"] = str(self.work / name)
        if home := os.environ.get("LAB_HOME"):  # with its images
            (self.work / "data").mkdir(exist_ok=True)
            if not (self.work / "data" / "lab").exists():
                (self.work / "data" / "lab").symlink_to(Path(home).absolute() / "data")
            env["XDG_DATA_HOME"] = str(self.work / "data")
        return env | {"ACCEL": self.accelerator}

    def run(self, *argv: str, wanted: Iterable[int] = (0,)) -> watch.Ended:
        """Run a command; ``BenchError``: its exit status is not wanted."""
        ended = watch.run(argv, work=self.work, cwd=ROOT, env=self.environment())
        self.cpu += ended.cpu
        if ended.status not in wanted:
            command = " ".join(argv).replace(str(self.work), "WORK")
            raise BenchError(f"`{command}` ended with status {ended.status}: {ended.last_words}")
        return ended

    def ask(self, *arguments: str) -> tuple[dict[str, Any], watch.Ended]:
        """Run a command of the lab that prints a document, even if a claim is refuted."""
        ended = self.run(*self.lab, *arguments, "--json", wanted=(0, 1))
        try:
            return dict(json.loads(ended.stdout)), ended
        except ValueError as error:
            raise BenchError(f"`lab {arguments[0]}` printed no document: {error}") from error

    def snapshots(self) -> set[tuple[str, int]]:
        """Return name and inode of the files next to the lab's snapshots, including hidden ones."""
        place = self.work / "cache" / "lab" / "warm"
        return {(e.name, e.stat().st_ino) for e in place.iterdir()} if place.exists() else set()


# -- the arms


def by_hand(bench: Bench, unit: Unit) -> dict[str, Any]:
    """Run one cell with the script."""
    ended = bench.run(*_script(bench, unit["cell"], unit["arm"]))
    try:
        marks = {k: float(v) for k, v in (line.split("=") for line in ended.stdout.splitlines())}
    except ValueError as error:
        raise BenchError(f"by_hand.sh: expected key=number on each line: {error}") from error
    if missing := table.MARKS - marks.keys():
        raise BenchError(f"by_hand.sh did not print {', '.join(sorted(missing))}")
    return _timed(ended) | {"marks": marks}


def _script(bench: Bench, cell: str, arm: str) -> list[str]:
    layout, _, disks = cell.rpartition("-")
    initial = "sync" if arm == "by-hand-sync" else "assume-clean"
    return [str(SCRIPT), bench.image, disks, layout, initial]


def _timed(ended: watch.Ended) -> dict[str, Any]:
    return {"seconds": round(ended.seconds, 3), "cpu_seconds": round(ended.cpu, 2)}


def _sampled(ended: watch.Ended) -> dict[str, Any]:
    qemu = ended.sampler.qemu
    return _timed(ended) | {
        "peak_bytes": ended.sampler.peak,
        "qemu_cpu_seconds": round(sum(qemu.values()), 2),
        "guests": len(qemu),
    }


def lab_run(bench: Bench, unit: Unit) -> dict[str, Any]:
    """Run all cells with the lab."""
    more = ["--cold"] if unit["arm"] == "lab-cold" else []
    if unit["arm"] == "lab-alone":
        matrix = {"array.layout": ["left-symmetric"], "disks.count": [3, 5]}
        chosen = ["--set", f"matrix={json.dumps(matrix)}"] if bench.quick else []
        more = ["--jobs", "1", *chosen]
    result, ended = bench.ask("run", "scenario", str(SCENARIO), *more, "--out", bench.runs)
    cells = [
        {
            "cell": name_of(cell),
            "outcome": cell["outcome"],
            "seconds": {k: round(v, 3) for k, v in cell["seconds"].items()},
            "ideal_seconds": ideal_of(cell),
            "bytes_per_second": {
                m["workload"]: round(m["median"])
                for m in cell["measurements"]
                if m["metric"] == "throughput"
            },
            "failed_checks": [c["name"] for c in cell["checks"] if not c["passed"]],
        }
        for cell in result["cells"]
    ]
    return _sampled(ended) | {"cells": cells}


def name_of(cell: dict[str, Any]) -> str:
    """Return a cell's name in this benchmark, such as ``left-symmetric-3``."""
    return f"{cell['axes']['array.layout']}-{cell['axes']['disks.count']}"


def ideal_of(cell: dict[str, Any]) -> float:
    """Return the predicted seconds of a cell's workloads."""
    found = [float(p["value"]) for p in cell["predictions"] if p["metric"] == "seconds"]
    return round(sum(found), 3)


def lab_up(bench: Bench, unit: Unit) -> dict[str, Any]:
    """Start one guest, and wait until it answers its first SSH command."""
    cold = ["--cold"] if unit["arm"] == "up-cold" else []
    one = ("up", "scenario", str(SCENARIO), "--no-run", "--set", "matrix={}", "--verbose")
    try:
        _, ended = bench.ask(*one, *cold, "--out", bench.runs)
        answered = [at for at, line in ended.stderr if UP.search(line)]
        workers = list(ended.sampler.workers.values())
        if len(answered) != 1 or len(workers) != 1:
            found = f"{len(answered)} guests and {len(workers)} workers"
            raise BenchError(f"`lab up` reported {found}: expected one of each")
        guests, _ = bench.ask("ps")
        shell = bench.run(*bench.lab, "ssh", guests["guests"][0]["id"], "--", "true")
    finally:
        bench.run(*bench.lab, "down")
    return _sampled(ended) | {
        "worker_to_answer": round(answered[0] - workers[0], 3),
        "command_to_answer": round(answered[0] - ended.started, 3),
        "ssh_seconds": round(shell.seconds, 3),
    }


def lab_help(bench: Bench, _unit: Unit) -> dict[str, Any]:
    """Run `lab --help` many times."""
    runs = [bench.run(*bench.lab, "--help") for _ in range(HELP_TIMES)]
    return {"each_seconds": [round(ended.seconds, 3) for ended in runs]}


def killed(bench: Bench, _unit: Unit) -> dict[str, Any]:
    """Return what is left after kill -9 of script and lab, and of the lab after `lab gc`."""
    before = watch.there(bench.work)
    _kill(bench, [*bench.lab, "run", "scenario", str(SCENARIO), "--out", bench.runs])
    found = {"lab": watch.left(bench.work, before)}
    bench.run(*bench.lab, "gc")
    found["lab, after lab gc"] = watch.left(bench.work, before)
    watch.sweep(bench.work)
    before = watch.there(bench.work)
    _kill(bench, _script(bench, bench.cells[0], "by-hand-clean"))
    found["by hand"] = watch.left(bench.work, before)
    watch.sweep(bench.work)
    shutil.rmtree(bench.work / "tmp")
    return {"after_kill": found, "leftovers": {}}


def _kill(bench: Bench, argv: Sequence[str]) -> None:
    """Kill a command five seconds after its first guest began."""
    null = subprocess.DEVNULL
    child = subprocess.Popen(
        argv, stdin=null, stdout=null, stderr=null, cwd=ROOT, env=bench.environment()
    )
    deadline = time.monotonic() + 120.0
    while not any(p.role == "qemu" for p in watch.processes(bench.work)):
        if child.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"`{Path(argv[0]).name}` started no guest that could be left behind")
        time.sleep(0.1)
    time.sleep(5.0)
    child.kill()
    child.wait()
    time.sleep(ABANDONED_SECONDS)


ACTIONS = {"by": by_hand, "lab": lab_run, "up": lab_up, "help": lab_help, "killed": killed}
"""Function by the first word of an arm's name."""


# -- the order of units


def one_round(number: int, arms: Sequence[str], cells: Sequence[str]) -> list[Unit]:
    """Return the units of a round, each arm's evenly spread; each round starts with another arm."""
    turn = number % len(arms)
    placed = []
    for order, arm in enumerate([*arms[turn:], *arms[:turn]]):
        each: Sequence[str | None] = cells if arm in BY_HAND else [None] * REPEATS.get(arm, 1)
        for i, cell in enumerate(each):
            repeat = 1 if cell else i + 1
            unit = {"arm": arm, "round": number, "repeat": repeat, "cell": cell}
            placed.append(((i + 0.5) / len(each), order, unit))
    return [unit for _, _, unit in sorted(placed, key=lambda p: p[:2])]


def key_of(unit: Unit) -> tuple[Any, ...]:
    """Return the key that identifies a unit in a file."""
    return unit["arm"], unit["round"], unit["repeat"], unit["cell"]


def missing(document: Document, units: Iterable[Unit]) -> list[Unit]:
    """Return the units that the file lacks; failed ones are measured again."""
    done = {key_of(unit) for unit in document["units"] if "error" not in unit}
    return [unit for unit in units if key_of(unit) not in done]


def measure(bench: Bench, unit: Unit) -> Unit:
    """Measure a unit: its results, its leftovers, and the machine's load by other processes."""
    stored = {**unit, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    before, machine, clock = watch.there(bench.work), watch.machine(), watch.now()
    own, commands = time.process_time(), bench.cpu
    try:
        stored |= ACTIONS[unit["arm"].partition("-")[0]](bench, unit)
    except (BenchError, OSError) as error:
        stored["error"] = str(error)
        watch.sweep(bench.work)
    elapsed = (watch.now() - clock) * len(os.sched_getaffinity(0))
    busy, steal = (after - was for after, was in zip(watch.machine(), machine, strict=True))
    used = bench.cpu - commands + stored.get("qemu_cpu_seconds", 0.0) + time.process_time() - own
    # Killed processes were not waited for, so their CPU time is unknown.
    known = unit["arm"] != "killed"
    stored["busy_elsewhere"] = round(max(0.0, busy - used) / elapsed, 4) if known else None
    stored["stolen"] = round(steal / elapsed, 4)
    stored.setdefault("leftovers", watch.left(bench.work, before))
    shutil.rmtree(bench.runs, ignore_errors=True)
    return stored


def prepare(bench: Bench) -> tuple[dict[str, Any], dict[str, float], dict[str, Any]]:
    """Boot and run cells until no snapshot is saved; return facts, ideal seconds, and its
    seconds."""
    print("bench: getting ready: a guest is booted and saved", file=sys.stderr)
    up = ("up", "scenario", str(SCENARIO), "--no-run", "--set", "matrix={}", "--out", bench.runs)
    result, first = bench.ask(*up)
    bench.run(*bench.lab, "down")
    known = result["environment"]
    bench.accelerator = known["accelerator"]
    planned, _ = bench.ask("scenario", "plan", str(SCENARIO))
    argvs = [s.get("argv") or () for g in planned["guests"] for s in g["procedure"]["steps"]]
    disks = [argv[argv.index("-b") + 1] for argv in argvs if "-b" in argv]
    if not disks:
        raise BenchError("`lab scenario plan` names no backing file (qemu-img -b) of a root disk")
    bench.image = str(Path(disks[0]).parent)
    predicted, _ = bench.ask("scenario", "predict", str(SCENARIO))
    ideal = {name_of(cell): ideal_of(cell) for cell in predicted["cells"]}
    host, image = known["host"], known["image"]
    ssh = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True)
    facts = {
        "cores": host["cpus"],
        "cpu": host["cpu"],
        "memory_bytes": host["memory"],
        "kernel": host["kernel"],
        "python": platform.python_version(),
        **{name: known[name] for name in ("accelerator", "qemu", "libvirt")},
        "ssh": (ssh.stdout + ssh.stderr).splitlines()[0],
        "image": f"{image['name']} {image['digest'][:12]}, Linux {image['kernel']},"
        f" mdadm {image['mdadm']}",
        "scenario": hashlib.sha256(SCENARIO.read_bytes()).hexdigest()[:12],
        "by_hand": hashlib.sha256(SCRIPT.read_bytes()).hexdigest()[:12],
    }
    taken = {"first_seconds": round(first.seconds, 1), "run_seconds": warm_up(bench)}
    return facts, ideal, taken


def warm_up(bench: Bench) -> list[float]:
    """Run two cells until the lab's snapshots no longer change; return the seconds of each run."""
    matrix = f"matrix={json.dumps({'disks.count': [3, 5]})}"
    taken = []
    for number in range(1, WARM_UP_RUNS + 1):
        print(f"bench: getting warm: run {number}", file=sys.stderr)
        before = bench.snapshots()
        run = ("run", "scenario", str(SCENARIO), "--set", matrix, "--out", bench.runs)
        taken.append(round(bench.ask(*run)[1].seconds, 1))
        if bench.snapshots() == before:
            return taken
    raise BenchError(f"the lab still saves snapshots after {WARM_UP_RUNS} runs")


def commit() -> str:
    """Return the checkout's commit, and whether other files than the bench's results have
    changed."""
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
    name = subprocess.run([*git, "describe", "--always"], capture_output=True, text=True)
    only = ("--", ":(exclude)docs/benchmarks.*")
    dirty = subprocess.run([*git, "diff", "--quiet", "HEAD", *only], capture_output=True)
    return (name.stdout.strip() or "unknown") + ("-dirty" if dirty.returncode == 1 else "")


def load(path: Path) -> Document:
    """Read a benchmark's file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] == SCHEMA:
            return dict(data)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BenchError(f"'{path}' cannot be read: {error}") from error
    raise BenchError(f'\'{path}\' is not a benchmark: expected "schema": "{SCHEMA}"')


def save(document: Document, path: Path) -> None:
    """Replace a benchmark's file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    part.rename(path)


def run(bench: Bench, document: Document, units: Sequence[Unit], path: Path) -> int:
    """Measure the units and store each at once; return the number of failed ones."""
    facts, ideal, taken = prepare(bench)
    others = {k for k in facts if document["facts"].get(k) != facts[k]}
    others |= {"prediction"} if document["ideal"] != ideal else set()
    if document["units"] and others:
        told = ", ".join(sorted(others))
        raise BenchError(f"'{path}' was measured with another {told}: omit --resume to start anew")
    document |= {"facts": facts, "ideal": ideal}
    document["prepared"].append(taken)
    lab, failed = commit(), 0
    for number, unit in enumerate(units, 1):
        stored = {**measure(bench, unit), "lab": lab}
        kept = [u for u in document["units"] if key_of(u) != key_of(unit)]
        document["units"] = [*kept, stored]
        save(document, path)
        failed += "error" in stored
        what = f"round {unit['round']}: {unit['arm']} {unit['cell'] or unit['repeat']}"
        said = stored.get("error") or f"{stored.get('seconds', 0.0):.1f} s"
        print(f"bench: {number} of {len(units)}: {what}: {said}", file=sys.stderr)
    return failed


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--arm", action="append", choices=ARMS, help="only this; repeatable")
    parser.add_argument("--rounds", type=int, help="default 2; quick: 1")
    parser.add_argument("--cells", nargs="+", choices=CELLS, help="cells that are run by hand")
    parser.add_argument("--quick", action="store_true", help="two of the cells by hand, one round")
    parser.add_argument("--resume", action="store_true", help="measure what the file lacks")
    parser.add_argument("--table", action="store_true", help="only write the page again")
    parser.add_argument("--json", type=Path, help="the file; the page is beside it")
    given = parser.parse_args(words)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = given.json or (cache / "lab-bench" / "quick.json" if given.quick else FILE)
    document: Document = {"schema": SCHEMA, "facts": {}, "ideal": {}, "prepared": [], "units": []}
    cells = given.cells or (QUICK_CELLS if given.quick else CELLS)
    rounds = range(1, (given.rounds or (1 if given.quick else 2)) + 1)
    failed = 0
    try:
        if given.table or (given.resume and path.exists()):
            document = load(path)
        wanted = [u for n in rounds for u in one_round(n, given.arm or [*ARMS], cells)]
        if not given.table and (units := missing(document, wanted)):
            cache.mkdir(parents=True, exist_ok=True)
            bench = Bench(
                work=Path(tempfile.mkdtemp(prefix="lab-bench.", dir=cache)),
                cells=cells,
                quick=given.quick,
            )
            beside = Path(sys.executable).with_name("lab")
            bench.lab = (str(beside),) if beside.exists() else bench.lab
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            try:
                failed = run(bench, document, units, path)
            finally:
                watch.sweep(bench.work)
                shutil.rmtree(bench.work, ignore_errors=True)
    except (BenchError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: stopped; --resume continues", file=sys.stderr)
        return 130
    page = table.page(document)
    path.with_suffix(".md").write_text(page, encoding="utf-8")
    print(page)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
