#!/usr/bin/env python3
"""The delete test: each folder of ``lab/capabilities`` can be removed, and the rest still works.

``tools/delete_test.py [--static] [--keep] [NAME...]`` copies the tree. For each capability it
removes the folder, those that may import it (pyproject.toml names the pairs), and their tests
(``tests/*/capabilities/NAME``). Then the types, the layers and the fast tests of the others have to
pass, and ``lab`` has to have the other commands and no more. The core's fast tests have to pass
without any capability (`make check` runs them with all). ``--static``: without the fast tests.
Exit status: 0 all pass, 1 one does not, 2 no such capability.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
ROOMS: Final = Path("lab/capabilities")
PAIR: Final = re.compile(r"lab\.capabilities\.(\w+)\.\*\* -> lab\.capabilities\.(\w+)\.\*\*")
NOTICES: Final = re.compile(
    r"\bcli\b|\bCli\b|\blab_argv\b|lab\.(?:cli|testing)|\bROOT\b|rglob|subprocess|sys\.executable"
)
"""A test without these neither calls a command nor reads the tree: it cannot notice a room."""
COMMANDS: Final = """
import json, sys
import typer.main
from lab.cli.commands import app
def walk(command, *words):
    for name, sub in getattr(command, "commands", {}).items():
        yield [" ".join([*words, name]), getattr(sub.callback, "__module__", "")]
        yield from walk(sub, *words, name)
print(json.dumps(list(walk(typer.main.get_command(app)))))
"""
"""Prints each command and the module of its function."""


def rooms(tree: Path) -> list[str]:
    """Return the names of all capabilities."""
    return sorted(path.parent.name for path in tree.glob(f"{ROOMS}/*/command.py"))


def users(name: str) -> list[str]:
    """Return a capability and those that may import it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (contract,) = (one for one in contracts if one["id"] == "capabilities")
    pairs = [PAIR.fullmatch(line) for line in contract["ignore_imports"]]
    found = [name]
    for one in found:
        found += [p[1] for p in pairs if p and p[2] == one and p[1] not in found]
    return found


@contextmanager
def removed(tree: Path, names: Sequence[str]) -> Iterator[None]:
    """Remove these capabilities and their tests, and put them back at the end."""
    gone: list[Path] = []
    for name in names:
        gone += [tree / ROOMS / name, *tree.glob(f"tests/*/capabilities/{name}")]
    moved = [(path, tree.parent / "aside" / path.relative_to(tree)) for path in gone]
    for path, aside in moved:
        aside.parent.mkdir(parents=True, exist_ok=True)
        path.rename(aside)
    try:
        yield
    finally:
        for path, aside in moved:
            aside.rename(path)


def copied(target: Path) -> Path:
    """Copy all files that git does not ignore; return the copy, which has this environment."""
    words = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-coz", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    (target / ".venv").symlink_to(Path(sys.prefix))
    return target


def tool(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program in the copy, whose packages go before the installed ones."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": ""}
    return subprocess.run(
        words, cwd=tree, env=environment, check=False, capture_output=True, text=True
    )


def commands(tree: Path) -> dict[str, str]:
    """Return the module of each command; an empty one for a group."""
    done = tool(tree, sys.executable, "-c", COMMANDS)
    if done.returncode:
        raise SystemExit(f"lab does not start:\n{done.stderr}")
    return dict(json.loads(done.stdout))


def tests(tree: Path) -> list[str]:
    """Return the fast tests of the capabilities that are there; without any, those of the core
    that could notice."""
    found = sorted(tree.glob("tests/unit/capabilities/**/test_*.py"))
    if not rooms(tree):
        core = sorted(tree.glob("tests/unit/test_*.py"))
        found = [path for path in core if NOTICES.search(path.read_text("utf-8"))]
    return [str(path.relative_to(tree)) for path in found]


def failures(
    tree: Path, names: Sequence[str], before: dict[str, str], *, fast: bool
) -> Iterator[str]:
    """Yield what does not pass in the copy without these capabilities."""
    bin_ = Path(sys.executable).parent
    for check in ([str(bin_ / "mypy")], [str(bin_ / "lint-imports"), "--no-logo"]):
        done = tool(tree, *check)
        if done.returncode:
            yield f"{Path(check[0]).name}:\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
    own = tuple(f"lab.capabilities.{name}." for name in names)
    gone = {word for word, module in before.items() if module.startswith(own)}
    now = commands(tree)
    if not gone:
        yield "it has no command"
    if wrong := gone & now.keys():
        yield f"lab still has the commands {sorted(wrong)}"
    if wrong := {w for w, module in before.items() if module} - gone - now.keys():
        yield f"lab lost the commands {sorted(wrong)}"
    shown = tool(tree, sys.executable, "-m", "lab", "--help").stdout
    first = {word.split()[0] for word in now}
    for word in {word.split()[0] for word in before} - first:
        if re.search(rf"^  {re.escape(word)} ", shown, re.MULTILINE):
            yield f"lab --help shows {word}"
    if fast:
        done = tool(
            tree, sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider",
            "-m", "not guest and not slow", *tests(tree),
        )  # fmt: skip
        if done.returncode:
            yield f"pytest:\n{done.stdout[-6000:]}{done.stderr[-2000:]}"


def main(words: Sequence[str] | None = None) -> int:
    """Run the test for the named capabilities, or for all; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--static", action="store_true", help="without the fast tests")
    parser.add_argument("--keep", action="store_true", help="keep the copy, and print its path")
    given = parser.parse_args(words)
    known = rooms(ROOT)
    if unknown := sorted(set(given.names) - set(known)):
        print(f"no such capability: {', '.join(unknown)} (there are {', '.join(known)})")
        return 2
    status = 0
    place = Path(tempfile.mkdtemp(prefix="delete-test-"))
    try:
        tree = copied(place / "lab")
        before = commands(tree)
        sets = [users(name) for name in given.names or known]
        for names in sets if given.names else [*sets, known]:
            began = time.monotonic()
            with removed(tree, names):
                wrong = list(failures(tree, names, before, fast=not given.static))
            state = "FAILED" if wrong else "ok"
            taken = f"{time.monotonic() - began:.0f} s"
            print(f"without {' and '.join(names)}: {state} ({taken})", *wrong, sep="\n", flush=True)
            status = status or bool(wrong)
    finally:
        if given.keep:
            print(place)
        else:
            shutil.rmtree(place)
    return status


if __name__ == "__main__":
    sys.exit(main())
