"""Finds stored runs for a table, and runs the missing ones."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.core.errors import InputError
from lab.core.yaml import parse_override
from lab.model.scenario.document import AutoTrials
from lab.model.scenario.guest import Clock
from lab.store import runs as store

ROOT = Path(__file__).resolve().parent.parent
Command = Sequence[str]
LAB: Command = (sys.executable, "-m", "lab")


def finished(directories: Iterable[Path]) -> dict[str, store.RunStore]:
    """Return each scenario's newest finished run, from directories that `run_missing` wrote."""
    newest: dict[str, tuple[str, store.RunStore]] = {}
    for run in store.every([each / "runs" for each in directories]):
        try:
            stored = run.load_run()
        except InputError as error:
            print(error, file=sys.stderr)
            continue
        known = newest.get(stored.scenario)
        if stored.finished and (known is None or known[0] < stored.started):
            newest[stored.scenario] = (stored.started, run)
    return {name: run for name, (_, run) in sorted(newest.items())}


def run_missing(
    directory: Path,
    scenarios: Iterable[Path],
    jobs: str | None = None,
    lab: Command = LAB,
    clock: str | None = None,
    *,
    claims: bool = False,
    seed: int | None = None,
    settings: Sequence[str] = (),
) -> int:
    """Run each scenario that has no finished run of its cells; 130 if Ctrl-C stopped one, else 0.

    A stopped run is resumed. A refuted claim or a failed cell does not stop the rest. ``claims``:
    a run must have the file's claims too, and in virtual time its trials are ``auto``. ``seed``:
    that of the first trial, and a run with other seeds does not count. ``settings``: KEY=VALUE of
    ``lab run --set``.
    """
    for path in scenarios:
        texts = [*([f"guest.clock={clock}"] if clock else []), *settings]
        auto = claims and _virtual(path, texts)
        seeded = [*texts, *([f"seed={seed}"] if seed is not None else [])]
        runs = _of(path, directory, seeded, auto=auto, claims=claims)
        if any(run.load_run().finished for run in runs):
            continue
        where = ["--resume", str(runs[0].directory)] if runs else ["--out", str(directory / "runs")]
        words = [
            "run",
            "scenario",
            str(path.resolve()),
            *where,
            *(["--clock", clock] if clock else []),
            *(["--trials", "auto"] if auto else []),
            *(["--seed", str(seed)] if seed is not None else []),
            *(word for text in settings for word in ("--set", text)),
            *(["--jobs", jobs] if jobs else []),
        ]
        print(f"lab {' '.join(words)}", file=sys.stderr, flush=True)
        if _status([*lab, *words]) == 130:
            print("stopped: the same command continues", file=sys.stderr)
            return 130
    return 0


def _compiled(path: Path, texts: Sequence[str], *, auto: bool = False) -> Compiled:
    overrides = [parse_override(text) for text in texts]
    return compile_scenario(path, overrides=overrides, trials=AutoTrials() if auto else None)


def _virtual(path: Path, texts: Sequence[str]) -> bool:
    """Return whether every cell has virtual time, where trials may be ``auto``."""
    return all(c.guest.clock is Clock.VIRTUAL for c in _compiled(path, texts).cells)


def _of(
    path: Path, directory: Path, texts: Sequence[str], *, auto: bool, claims: bool
) -> list[store.RunStore]:
    """Return the runs of a scenario file's present cells, newest first."""
    wanted = _compiled(path, texts, auto=auto)
    expected = {claim.id: claim.expect for claim in wanted.scenario.claims}
    found = []
    for run in store.every([directory / "runs"]):
        try:
            stored = run.load_run()
        except InputError:
            continue
        same = tuple(first.cell for first, *_ in stored.points) == wanted.cells
        judged = {claim.id: claim.expect for claim in stored.claims}
        if stored.scenario == path.stem and same and (not claims or judged == expected):
            found.append(run)
    return found


def _status(command: Command) -> int:
    """Return a command's exit status. After Ctrl-C it waits for the command's clean-up."""
    with subprocess.Popen(command, cwd=ROOT) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def arguments(description: str | None, *more: str) -> argparse.ArgumentParser:
    """Return a parser for the commands ``run`` and ``table`` (and ``more``) on a directory."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=(*more, "run", "table"))
    parser.add_argument("directory", type=Path, nargs=None if "page" not in more else "?")
    if "differ" in more:
        parser.add_argument("other", type=Path, nargs="?", help="differ: the other runs")
    parser.add_argument("--jobs", help="run: guests at once, as of `lab run`")
    parser.add_argument("--clock", help="run: real or virtual, as of `lab run`")
    parser.add_argument("--seed", type=int, help="run: of the first trial, as of `lab run`")
    parser.add_argument(
        "--set", action="append", default=[], help="run: KEY=VALUE, as of `lab run`"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run: these scenarios")
    parser.add_argument("--out", type=Path, help="table: the file to write")
    return parser
