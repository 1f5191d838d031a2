"""Running one unit of each arm, and what is kept of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import proc
from bench.arena import ROOT, Arena, Ended
from bench.document import BenchError
from bench.plan import Unit, product, split

SCENARIO = ROOT / "bench" / "layouts.yaml"
SCRIPT = ROOT / "bench" / "by_hand.sh"
HELP_TIMES = 20
ABANDONED_SECONDS = 10.0
"""After a kill, until what is left is counted: the time that workers get to notice."""
UP = re.compile(r"guest (\S+) is up after")
"""What ``-v`` says once a guest has answered its first SSH command."""


def measure(arena: Arena, unit: Unit) -> dict[str, Any]:
    """Run a unit: what it is, how the machine was meanwhile, what it left, and its results."""
    began, load = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), os.getloadavg()[0]
    before, busy, clock = proc.snapshot(arena.work), proc.machine(), proc.boot_clock()
    stored: dict[str, Any] = {
        "arm": unit.arm,
        "round": unit.round,
        "repeat": unit.repeat,
        "cell": unit.cell,
        "started": began,
        "load_before": round(load, 2),
    }
    own, commands = os.times(), arena.cpu
    try:
        stored |= ACTIONS[unit.arm](arena, unit)
    except BenchError as error:
        stored["error"] = str(error).replace(str(arena.work), "WORK")
        arena.sweep()
    elapsed = proc.boot_clock() - clock
    after = proc.machine()
    mine = sum(os.times()[:2]) - sum(own[:2])
    used = arena.cpu - commands + stored.pop("beside", 0.0) + mine
    cores = len(os.sched_getaffinity(0))
    stored["busy_elsewhere"] = round(max(0.0, after[0] - busy[0] - used) / elapsed / cores, 4)
    if unit.arm == "killed":  # nobody waited for what it killed, so what that used is not known
        stored["busy_elsewhere"] = None
    stored["stolen"] = round((after[1] - busy[1]) / elapsed / cores, 4)
    if "leftovers" not in stored:
        stored["leftovers"] = proc.snapshot(arena.work).since(before)
    shutil.rmtree(arena.work / "runs", ignore_errors=True)
    return stored


def by_hand(arena: Arena, unit: Unit) -> dict[str, Any]:
    """One cell by the script."""
    ended = arena.run(script(arena, unit.cell or "", unit.arm))
    if ended.status != 0:
        raise BenchError(f"by_hand.sh ended with status {ended.status}: {ended.last_words()}")
    return {
        "seconds": round(ended.seconds, 3),
        "cpu_seconds": round(ended.cpu, 2),
        "marks": parse_marks(ended.stdout),
    }


def script(arena: Arena, cell: str, arm: str) -> list[str]:
    """The script's command line."""
    layout, disks = split(cell)
    initial = "sync" if arm == "by-hand-sync" else "assume-clean"
    return [str(SCRIPT), str(arena.image), str(disks), layout, initial]


def parse_marks(text: str) -> dict[str, float]:
    """The script's key=value lines; ``BenchError`` where one is missing or is no number."""
    try:
        marks = {k: float(v) for k, v in (line.split("=") for line in text.splitlines())}
    except ValueError as error:
        raise BenchError(f"by_hand.sh printed something else than key=number: {error}") from error
    wanted = {"qemu_at", "ssh_at", "array_at", "end_at"}
    wanted |= {"write_bytes_per_second", "read_bytes_per_second"}
    if missing := sorted(wanted - marks.keys()):
        raise BenchError(f"by_hand.sh did not print {', '.join(missing)}")
    return marks


def lab_run(arena: Arena, unit: Unit) -> dict[str, Any]:
    """All cells by the lab."""
    more: list[str] = []
    if unit.arm == "lab-cold":
        more = ["--cold"]
    elif unit.arm == "lab-alone":
        layouts, disks = product(arena.alone)
        matrix = {"array.layout": layouts, "disks.count": disks}
        more = ["--jobs", "1", "--set", f"matrix={json.dumps(matrix)}"]
    arguments = ["run", "scenario", str(SCENARIO), *more, "--out", str(arena.work / "runs")]
    ended = arena.run([*arena.lab, *arguments, "--json"])
    result = arena.document(ended, ["run", "scenario", "bench/layouts.yaml", *more])
    return {
        "seconds": round(ended.seconds, 3),
        "cpu_seconds": round(ended.cpu, 2),
        **_watched(ended),
        "cells": [cell_of(c) for c in result["cells"]],
    }


def _watched(ended: Ended) -> dict[str, Any]:
    machines = sum(ended.sampler.qemu_cpu.values())
    return {
        "peak_bytes": ended.sampler.peak,
        "qemu_peak_bytes": ended.sampler.qemu_peak,
        "qemu_cpu_seconds": round(machines, 2),
        "guests": len(ended.sampler.qemu_cpu),
        "beside": machines,  # for the machine's balance: no child of the lab, so not in its own
    }


def name_of(axes: dict[str, Any]) -> str:
    """A cell's name here."""
    return f"{axes['array.layout']}-{axes['disks.count']}"


def ideal_of(cell: dict[str, Any]) -> float:
    """Seconds that theory gives a cell's workloads."""
    return float(sum(p["value"] for p in cell["predictions"] if p["metric"] == "seconds"))


def cell_of(cell: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a cell of a result document."""
    return {
        "cell": name_of(cell["axes"]),
        "outcome": cell["outcome"],
        "seconds": {k: round(v, 3) for k, v in cell["seconds"].items()},
        "ideal_seconds": round(ideal_of(cell), 3),
        "bytes_per_second": {
            m["workload"]: round(m["median"])
            for m in cell["measurements"]
            if m["metric"] == "throughput"
        },
        "failed_checks": [c["name"] for c in cell["checks"] if not c["passed"]],
    }


def lab_up(arena: Arena, unit: Unit) -> dict[str, Any]:
    """One guest: how soon it answers, and then how soon a command of ours is answered in it."""
    arguments = ["up", "scenario", str(SCENARIO), "--no-run", "--set", "matrix={}", "--verbose"]
    arguments += ["--cold"] if unit.arm == "up-cold" else []
    arguments += ["--out", str(arena.work / "runs")]
    try:
        ended = arena.run([*arena.lab, *arguments, "--json"])
        arena.document(ended, ["up", "scenario", "bench/layouts.yaml", "--no-run"])
        answered = [at for at, line in ended.stderr if UP.search(line)]
        workers = list(ended.sampler.workers.values())
        if len(answered) != 1 or len(workers) != 1:
            raise BenchError(
                f"`lab up --no-run` told of {len(answered)} guests and had {len(workers)} workers:"
                " one of each was expected"
            )
        guests = arena.ask("ps")["guests"]
        shell = arena.run([*arena.lab, "ssh", guests[0]["id"], "--", "true"], watch=False)
        if shell.status != 0:
            raise BenchError(f"`lab ssh` ended with status {shell.status}: {shell.last_words()}")
    finally:
        arena.run([*arena.lab, "down"], watch=False)
    return {
        "seconds": round(ended.seconds, 3),
        "cpu_seconds": round(ended.cpu, 2),
        **_watched(ended),
        "worker_to_answer": round(answered[0] - workers[0], 3),
        "command_to_answer": round(answered[0] - ended.started, 3),
        "ssh_seconds": round(shell.seconds, 3),
    }


def lab_help(arena: Arena, _unit: Unit) -> dict[str, Any]:
    """How long the lab takes to say what it can do."""
    times, cpu = [], 0.0
    for _ in range(HELP_TIMES):
        ended = arena.run([*arena.lab, "--help"], watch=False)
        if ended.status != 0:
            raise BenchError(f"`lab --help` ended with status {ended.status}")
        times.append(round(ended.seconds, 3))
        cpu += ended.cpu
    return {"seconds": round(sum(times), 3), "cpu_seconds": round(cpu, 2), "each_seconds": times}


def killed(arena: Arena, _unit: Unit) -> dict[str, Any]:
    """What is left of each after kill -9 in the middle, and of the lab's after `lab gc`."""
    run = ["run", "scenario", str(SCENARIO), "--out", str(arena.work / "runs"), "--json"]
    before = proc.snapshot(arena.work)
    _kill_in_the_middle(arena, [*arena.lab, *run])
    found: dict[str, Any] = {"lab": proc.snapshot(arena.work).since(before)}
    arena.run([*arena.lab, "gc"], watch=False)
    found["lab, after lab gc"] = proc.snapshot(arena.work).since(before)
    arena.sweep()
    before = proc.snapshot(arena.work)
    _kill_in_the_middle(arena, script(arena, arena.cells[0], "by-hand-clean"))
    found["by hand"] = proc.snapshot(arena.work).since(before)
    arena.sweep()
    for path in (arena.work / "tmp").iterdir():
        shutil.rmtree(path, ignore_errors=True)
    return {"after_kill": found, "leftovers": {}}


def _kill_in_the_middle(arena: Arena, argv: Sequence[str]) -> None:
    """Kill a command five seconds after its first guest began."""
    child = arena.start(argv)
    deadline = time.monotonic() + 120.0
    while not any(p.role == "qemu" for p in proc.processes(arena.work)):
        if child.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"`{Path(argv[0]).name}` started no guest that could be left behind")
        time.sleep(0.1)
    time.sleep(5.0)
    child.kill()
    child.wait()
    for pipe in (child.stdout, child.stderr):  # not read to its end: a guest may hold it open
        assert pipe is not None
        pipe.close()
    time.sleep(ABANDONED_SECONDS)


ACTIONS = {
    "by-hand-sync": by_hand,
    "by-hand-clean": by_hand,
    "lab-cold": lab_run,
    "lab-warm": lab_run,
    "lab-alone": lab_run,
    "up-cold": lab_up,
    "up-warm": lab_up,
    "help": lab_help,
    "killed": killed,
}
