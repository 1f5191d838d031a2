"""``python -m bench.run``: measure the lab beside QEMU by hand, and write the file and the table.

Each unit is stored as soon as it is measured. So a benchmark that was stopped goes on with
``--resume``, and ``--arm ARM --append`` adds rounds of one arm to those that are there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import plan, table
from bench.arena import ROOT, Arena, lab_command
from bench.arms import SCENARIO, SCRIPT, ideal_of, measure, name_of
from bench.document import BenchError, Document, load, save
from bench.plan import Unit

WARM_UP_RUNS = 5
"""Runs after which the lab must have saved whatever it wants to; it took three when this was
written, the last of which changed nothing."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m bench.run",
        description="Measure the lab beside QEMU by hand; on a quiet machine.",
        epilog="Arms: " + "; ".join(f"{name}: {what}" for name, what in plan.ARMS.items()) + ".",
    )
    made.add_argument(
        "--arm", action="append", choices=list(plan.ARMS), help="Only this one; repeatable."
    )
    made.add_argument("--rounds", type=int, help="How often all of it (default 2; quick: 1).")
    made.add_argument(
        "--cells",
        help="Comma-separated, as left-symmetric-5: those that are run by hand. The makespan by"
        " hand is then their mean times twelve, and the table says so.",
    )
    made.add_argument("--quick", action="store_true", help="Two of the twelve cells, one round.")
    how = made.add_mutually_exclusive_group()
    how.add_argument("--append", action="store_true", help="Add rounds to the file.")
    how.add_argument("--resume", action="store_true", help="Measure what the file lacks.")
    how.add_argument("--table-only", action="store_true", help="Make the table again.")
    made.add_argument("--json", type=Path, help="The file (default docs/benchmarks.json).")
    made.add_argument("--table", type=Path, help="The table (default beside the file, .md).")
    made.add_argument("--work", type=Path, help="Work below this directory (default: the cache's).")
    made.add_argument("--lab", help="The lab's command (default: that beside this Python).")
    made.add_argument("--plan", action="store_true", help="Say what would be measured, and end.")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the exit status."""
    options = parser().parse_args(arguments)
    try:
        return go(options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: stopped; `--resume` goes on", file=sys.stderr)
        return 130


def go(options: argparse.Namespace) -> int:
    """Everything that the options ask for."""
    path = options.json or _default(quick=options.quick)
    page = options.table or path.with_suffix(".md")
    if options.table_only:
        page.write_text(table.page(load(path)), encoding="utf-8")
        return 0
    cells = _cells(options)
    kept = options.append or options.resume
    document = load(path) if kept and path.exists() else Document()
    units = todo(options, document, cells)
    if options.plan:
        print("\n".join(unit.label() for unit in units))
        return 0
    if not units:
        print("bench: the file holds all of it already", file=sys.stderr)
    elif not kept and path.exists():
        path.replace(path.with_name(f"{path.stem}.previous.json"))
    failed = _measure(options, document, units, path, cells) if units else 0
    page.write_text(table.page(document), encoding="utf-8")
    print(table.page(document))
    return 1 if failed else 0


def _default(*, quick: bool) -> Path:
    if not quick:
        return ROOT / "docs" / "benchmarks.json"
    return _cache() / "lab-bench" / "quick.json"


def _cache() -> Path:
    named = os.environ.get("XDG_CACHE_HOME", "")
    return Path(named) if named.startswith("/") else Path.home() / ".cache"


def _cells(options: argparse.Namespace) -> tuple[str, ...]:
    if options.cells is None:
        return plan.QUICK_CELLS if options.quick else plan.CELLS
    chosen = tuple(options.cells.split(","))
    if unknown := sorted(set(chosen) - set(plan.CELLS)):
        raise BenchError(
            f"there is no cell {', '.join(unknown)}: there are {', '.join(plan.CELLS)}"
        )
    try:
        plan.product(chosen)
    except ValueError as error:
        raise BenchError(str(error)) from error
    return chosen


def todo(options: argparse.Namespace, document: Document, cells: Sequence[str]) -> list[Unit]:
    """The units that are still to be measured, in their order."""
    arms = options.arm or list(plan.ARMS)
    rounds = options.rounds or (1 if options.quick else 2)
    if rounds < 1:
        raise BenchError(f"--rounds {rounds}: expected 1 or more")
    done = document.done()
    first = plan.first_round(done, arms) if options.append else 1
    repeats = plan.QUICK_REPEATS if options.quick else plan.REPEATS
    units = [
        unit
        for number in range(first, first + rounds)
        for unit in plan.one_round(number, arms, cells, repeats)
    ]
    known = {unit.key for unit in done}
    return [unit for unit in units if unit.key not in known]


def _measure(
    options: argparse.Namespace,
    document: Document,
    units: Sequence[Unit],
    path: Path,
    cells: Sequence[str],
) -> int:
    """Measure them, each stored at once; how many failed."""
    base = options.work or _cache()
    base.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="lab-bench.", dir=base))
    arena = Arena(
        work=work,
        lab=tuple(options.lab.split()) if options.lab else lab_command(),
        cells=cells,
        alone=plan.QUICK_CELLS if options.quick else plan.CELLS,
    )
    signal.signal(signal.SIGTERM, _stop)
    try:
        facts, ideal, first = prepare(arena)
        document.accept(facts, ideal)
        runs = warm_up(arena) if {u.arm for u in units} & set(plan.WARM) else []
        document.prepared.append({"first_seconds": first, "run_seconds": runs})
        commit = commit_of(ROOT)
        failed, began = 0, time.monotonic()
        for number, unit in enumerate(units, 1):
            stored = {**measure(arena, unit), "lab": commit}
            document.units = [u for u in document.units if _key(u) != unit.key] + [stored]
            save(document, path)
            failed += "error" in stored
            spent = time.monotonic() - began
            said = stored.get("error") or f"{stored.get('seconds', 0.0):.1f} s"
            print(
                f"{spent / 60:5.1f} min  {number} of {len(units)}  {unit.label()}: {said}",
                file=sys.stderr,
            )
        return failed
    finally:
        arena.stop()
        shutil.rmtree(work, ignore_errors=True)


def _key(stored: dict[str, Any]) -> tuple[str, int, int, str | None]:
    return stored["arm"], stored["round"], stored["repeat"], stored["cell"]


def _stop(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def warm_up(arena: Arena) -> list[float]:
    """Run cells until the lab's saved guests stay as they are; the seconds of each run.

    When it saves which guest is its own affair. Without this, a warm figure would depend on how
    often the lab had run before.
    """
    matrix = f"matrix={json.dumps({'disks.count': plan.DISKS})}"
    taken = []
    for number in range(1, WARM_UP_RUNS + 1):
        print(f"bench: getting warm: run {number}", file=sys.stderr)
        before, began = arena.saved_guests(), time.monotonic()
        arena.ask(
            *("run", "scenario", str(SCENARIO), "--set", matrix),
            *("--out", str(arena.work / "runs")),
        )
        taken.append(round(time.monotonic() - began, 1))
        if arena.saved_guests() == before:
            return taken
    raise BenchError(
        f"after {WARM_UP_RUNS} runs the lab still saves guests or throws them away: a warm figure"
        " would depend on when it was measured"
    )


def prepare(arena: Arena) -> tuple[dict[str, Any], dict[str, float], float]:
    """Have the lab find out what it must; facts, each cell's ideal time, and the seconds it took.

    Afterwards the lab's cache is as on a machine where it ran once.
    """
    print("bench: getting ready: a guest is booted and saved", file=sys.stderr)
    up = ("up", "scenario", str(SCENARIO), "--no-run", "--set", "matrix={}")
    began = time.monotonic()
    result = arena.ask(*up, "--out", str(arena.work / "runs"))
    first = round(time.monotonic() - began, 1)
    arena.run([*arena.lab, "down"], watch=False)
    shutil.rmtree(arena.work / "runs", ignore_errors=True)
    known = result["environment"]
    arena.accelerator = known["accelerator"]
    arena.image = image_directory(arena.ask("scenario", "plan", str(SCENARIO)))
    predicted = arena.ask("scenario", "predict", str(SCENARIO))
    ideal = {name_of(c["axes"]): round(ideal_of(c), 3) for c in predicted["cells"]}
    if set(ideal) != set(plan.CELLS):
        raise BenchError("bench/layouts.yaml has other cells than bench/plan.py")
    host, image = known["host"], known["image"]
    facts = {
        "cores": host["cpus"],
        "cpu": host["cpu"],
        "memory_bytes": host["memory"],
        "kernel": host["kernel"],
        "python": platform.python_version(),
        "accelerator": known["accelerator"],
        "qemu": known["qemu"],
        "libvirt": known["libvirt"],
        "ssh": _first_line("ssh", "-V"),
        "image": f"{image['name']} {image['digest'][:12]}, Linux {image['kernel']},"
        f" mdadm {image['mdadm']}",
        "scenario": _digest(SCENARIO),
        "by_hand": _digest(SCRIPT),
    }
    return facts, ideal, first


def image_directory(planned: dict[str, Any]) -> Path:
    """Where the image's files are that the lab would boot from: its root disk's backing file."""
    for guest in planned["guests"]:
        for step in guest["procedure"]["steps"]:
            argv = step.get("argv") or ()
            if "-b" in argv:
                return Path(argv[argv.index("-b") + 1]).parent
    raise BenchError(
        "`lab scenario plan --json` names no backing file of a root disk: the image is not known"
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _first_line(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return (done.stdout + done.stderr).splitlines()[0]


def commit_of(checkout: Path) -> str:
    """The checkout's commit, and whether more than the bench's own results has changed."""
    git = ["git", "-c", f"safe.directory={checkout}", "-C", str(checkout)]
    name = ["describe", "--always", "--exclude", "*"]
    changes = ["diff", "--name-only", "HEAD", "--", ":(exclude)docs/benchmarks.*"]
    try:
        commit, changed = (
            subprocess.run([*git, *asked], capture_output=True, text=True, check=True).stdout
            for asked in (name, changes)
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.strip() + ("-dirty" if changed else "")


if __name__ == "__main__":
    sys.exit(main())
