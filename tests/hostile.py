"""Run directories of somebody who means harm: kept runs, changed by a seed; and what came of it.

``build`` makes the directory of a seed. `Attack` calls every command that reads stored runs, in
this process, and tells what went wrong: a hang, a traceback, something written elsewhere, a secret
read, a control character or markup of the run's in any output.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import pytest
import typer.main

import lab.cli
from lab.model.scenario import Cell
from lab.workloads.fio import CUT
from tests import kept

SECRET: Final = "TOP-SECRET-d41d8cd9"
TERMINAL: Final = (
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0gLXJm\x1b\\",
    "\x9b2J\x90q\x9c",
    "\u202egpj.exe\u202c",
    "\u2066right\u2069\u200f",
    "a\rb\x08\x7f\x00",
    "\x0e\x0f\x05",
)
MARKUP: Final = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style></svg><svg onload=alert(1)>",
    "javascript:alert(1)//",
    "]]><script xmlns='http://www.w3.org/1999/xhtml'>alert(1)</script>",
    "{{ 7 * 7 }}{% raw %}",
)
FORMULAS: Final = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1")
SHELL: Final = (
    "x\ntouch PWNED\n",
    "$(touch PWNED)",
    "`touch PWNED`",
    "x'; touch PWNED; '",
    "x}\n#",
)
PATHS: Final = (
    "..",
    ".",
    "",
    "../../outside/new",
    "/tmp/lab-hostile-new",
    "a/../../../outside/new",
    "nul\0nul",
    "n" * 300,
    "line\nfeed",
    "\x1b[2J",
    "-rf",
)
NUMBERS: Final = (
    "NaN",
    "Infinity",
    "-Infinity",
    "-1",
    "0",
    "1e308",
    "1" + "0" * 18,
    "1" + "0" * 400,
)
OTHERS: Final[tuple[Any, ...]] = (None, True, -1, 1e300, "", "x", [], {}, [[]], {"a": None}, [{}])

_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

LARGEST: Final = 64 << 20
"""Bytes of a file that a command may write here: what copies a sparse file would fill the disk."""

_STYLE: Final = frozenset({"fill-opacity", "stroke-dasharray", "stroke-opacity", "opacity"})

Change = Callable[[Path, random.Random, Path], None]
CHANGES: Final[dict[str, Change]] = {}


def change(function: Change) -> Change:
    CHANGES[function.__name__] = function
    return function


def _files(run: Path) -> list[Path]:
    return sorted(p for p in run.rglob("*") if p.is_file() and not p.is_symlink())


def _some_file(run: Path, chance: random.Random) -> Path:
    """Any file; those that are read first as often as all others together."""
    tops = [
        p for name in ("run.json", "result.json", "scenario.yaml") if (p := run / name).exists()
    ]
    parts = [p for p in _files(run) if p.name in ("outcome.json", "procedure.json")]
    return chance.choice([f for f in (tops, parts, _files(run)) if f][chance.randrange(3)])


def _texts(run: Path) -> list[Path]:
    return [p for p in _files(run) if p.parent.name == "raw"]


def _edit(path: Path, edit: Callable[[Any], Any]) -> None:
    """A JSON file with something else in it; one that another change has spoilt is left alone."""
    with suppress(ValueError, OSError, RecursionError):
        text = json.dumps(edit(json.loads(path.read_text(encoding="utf-8", errors="replace"))))
        path.write_text(text, encoding="utf-8")


def _places(data: Any, wanted: Callable[[Any], bool]) -> list[tuple[Any, Any]]:
    """Every container and key in it whose value is wanted."""
    found: list[tuple[Any, Any]] = []
    listed = enumerate(data) if isinstance(data, list) else ()
    for key, value in list(data.items() if isinstance(data, dict) else listed):
        if wanted(value):
            found.append((data, key))
        found += _places(value, wanted)
    return found


def _documents(run: Path) -> list[Path]:
    names = ("run.json", "result.json", "outcome.json", "procedure.json", "cell.json")
    return [p for p in _files(run) if p.name in names]


def _say(run: Path, chance: random.Random, words: tuple[str, ...]) -> None:
    """Somebody's words wherever the lab's own are shown: in the run's, its cells', the tools'."""
    word = chance.choice(words)

    def spoil(data: Any) -> Any:
        free = ("title", "question", "notes", "says", "detail", "reason", "url", "author", "kernel")
        free += ("host", "name", "scenario", "id", "started", "mdadm", "accelerator", "serial")
        known = [(d, k) for d, k in _places(data, lambda v: isinstance(v, str)) if k in free]
        for holder, key in chance.sample(known, min(len(known), chance.randint(1, 6))):
            holder[key] = chance.choice((word, holder[key] + word))
        if "title" in data:
            data["title"] += word
            data["environment"][word] = word
            data["overrides"] = [*data["overrides"], f"title={word}"]
            for cell in chance.sample(data["cells"], 1):
                cell["cell"]["axes"]["array.chunk"] = word
        if "outcome" in data:
            data["reason"] = word
            data["outcome"] = chance.choice(("failed", "lost", data["outcome"]))
        return data

    for path in {run / "run.json", *chance.sample(_documents(run), min(2, len(_documents(run))))}:
        _edit(path, spoil)
    for path in chance.sample(_texts(run), min(3, len(_texts(run)))):
        text = path.read_text(encoding="utf-8", errors="replace")
        at = chance.randint(0, len(text))
        path.write_text(text[:at] + word + text[at:], encoding="utf-8")
    for cell in chance.sample(sorted((run / "cells").glob("*/raw")), 1) if _texts(run) else ():
        (cell / "console.txt").write_text(f"[ 0.0] {word}\n", encoding="utf-8")


@change
def terminal(run: Path, chance: random.Random, _outside: Path) -> None:
    _say(run, chance, TERMINAL)


@change
def markup(run: Path, chance: random.Random, _outside: Path) -> None:
    _say(run, chance, MARKUP)


@change
def formula(run: Path, chance: random.Random, _outside: Path) -> None:
    _say(run, chance, FORMULAS)


@change
def shell(run: Path, chance: random.Random, _outside: Path) -> None:
    _say(run, chance, SHELL)

    def image(data: Any) -> Any:
        for cell in data["cells"]:
            cell["cell"]["guest"]["image"] = chance.choice(SHELL)
        return data

    if chance.random() < 0.5:
        _edit(run / "run.json", image)


@change
def cell_ids(run: Path, chance: random.Random, outside: Path) -> None:
    """A cell whose id is a path, with its files where that leads."""
    named = chance.choice((*PATHS, "../../outside", str(outside)))

    def spoil(data: Any) -> Any:
        cell = chance.choice(data["cells"])
        old, cell["id"] = cell["id"], named
        with suppress(OSError, ValueError):
            (run / "cells" / old).rename(run / "cells" / named)
        return data

    _edit(run / "run.json", spoil)


@change
def run_id(run: Path, chance: random.Random, _outside: Path) -> None:
    named = chance.choice((*PATHS, "javascript:alert(1)//", "//evil.example/x", "last"))
    for name in ("run.json", "result.json"):
        _edit(run / name, lambda data: data | {"id": named, "scenario": named})


@change
def fio_names(run: Path, chance: random.Random, _outside: Path) -> None:
    """fio's own report with paths for values; logs that have paths for names."""
    named = chance.choice(PATHS)
    option = chance.choice(("rw", "bs", "iodepth", "numjobs", "rwmixread"))

    def ask(data: Any) -> Any:
        for cell in data["cells"]:
            for workload in cell["cell"]["workloads"]:
                if workload["tool"] == "fio":
                    workload["parameters"]["write_bw_log"] = 1
                cell["cell"]["axes"][f"workloads.{workload['name']}.{named}"] = named
        return data

    _edit(run / "run.json", ask)
    for path in _texts(run):
        text = path.read_text(encoding="utf-8", errors="replace")
        if '"jobs"' not in text:
            continue
        document = json.loads(text[text.index("{\n") :].partition(CUT)[0])
        document["jobs"][0].setdefault("job options", {})[option] = named
        if chance.random() < 0.3:
            document["jobs"][0]["job options"] = chance.choice(OTHERS)
        log = "" if "\n" in named else f"{CUT} log_{named}\n1000, 5, 0, 4096\n{CUT} end\n"
        path.write_text(json.dumps(document, indent=1) + "\n" + log, encoding="utf-8")


@change
def links(run: Path, chance: random.Random, outside: Path) -> None:
    """Files that are links to somebody's secret, absolute or relative."""
    for _ in range(chance.randint(1, 4)):
        path = _some_file(run, chance)
        target = outside / "secret.txt"
        if path.name in ("result.json", "outcome.json", "run.json") and chance.random() < 0.7:
            target = outside / path.name  # what could be read as such
            if not target.exists():
                words = path.read_text(encoding="utf-8", errors="replace")
                target.write_text(words.replace('"title": "', f'"title": "{SECRET}'))
        path.unlink()
        there = os.path.relpath(target, path.parent) if chance.random() < 0.5 else target
        path.symlink_to(there)


@change
def linked_directories(run: Path, chance: random.Random, outside: Path) -> None:
    """The cells, a cell or its raw output are elsewhere."""
    cells = sorted((run / "cells").iterdir())
    raws = [p for p in run.glob("cells/*/raw") if p.is_dir()]
    place = chance.choice([*raws, *cells, run / "cells"])
    if place.is_dir() and not place.is_symlink():
        moved = outside / f"moved-{place.name}"
        shutil.rmtree(moved, ignore_errors=True)
        place.rename(moved)
        (moved / "console.txt").write_text(SECRET)
        for one in moved.rglob("raw"):
            (one / "console.txt").write_text(SECRET)
        place.symlink_to(moved if chance.random() < 0.8 else place.name)


@change
def fifos(run: Path, chance: random.Random, _outside: Path) -> None:
    for _ in range(chance.randint(1, 3)):
        path = _some_file(run, chance)
        path.unlink()
        os.mkfifo(path)


@change
def sockets_and_devices(run: Path, chance: random.Random, _outside: Path) -> None:
    path = _some_file(run, chance)
    path.unlink()
    if os.geteuid() == 0 and chance.random() < 0.5:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # as /dev/zero: it never ends
        return
    before = Path.cwd()
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)  # names of sockets are short
        made.bind(path.name)
        os.chdir(before)


@change
def directories_for_files(run: Path, chance: random.Random, _outside: Path) -> None:
    path = _some_file(run, chance)
    path.unlink()
    (path / "within").mkdir(parents=True)


@change
def huge(run: Path, chance: random.Random, _outside: Path) -> None:
    """Sparse: much larger than memory, and nothing on the disk."""
    os.truncate(_some_file(run, chance), 1 << 40)


@change
def deep(run: Path, chance: random.Random, _outside: Path) -> None:
    """JSON that nests deeper than any parser's stack, or is one huge list."""
    text = chance.choice(("[" * 200_000, '{"a":' * 100_000, "[0" + ",0" * 500_000 + "]"))
    path = chance.choice([_some_file(run, chance), *_texts(run)[:1]])
    path.write_text("{\n" * (path.suffix == ".txt") + text)


@change
def deep_within(run: Path, chance: random.Random, _outside: Path) -> None:
    """A valid document with a value that nests deeply, where anything may stand."""
    levels = chance.choice((100, 190, 900))
    path = run / chance.choice(("run.json", "result.json"))
    if path.is_file() and not path.is_symlink():
        value = "[" * levels + "]" * levels
        text = path.read_text(encoding="utf-8", errors="replace")
        path.write_text(
            re.sub(r'"environment": ?\{', f'"environment": {{"x": {value}, ', text, count=1)
        )


@change
def wrong_types(run: Path, chance: random.Random, _outside: Path) -> None:
    for path in chance.sample(_documents(run), min(3, len(_documents(run)))):

        def spoil(data: Any) -> Any:
            places = _places(data, lambda _: True)
            for holder, key in chance.sample(places, min(len(places), chance.randint(1, 3))):
                holder[key] = chance.choice(OTHERS)
            return data

        _edit(path, spoil)


@change
def loose_types(run: Path, chance: random.Random, _outside: Path) -> None:
    """Wrong types where a model takes anything: the environment, a workload's parameters."""

    def spoil(data: Any) -> Any:
        loose = [data["environment"]]
        loose += [w["parameters"] for c in data["cells"] for w in c["cell"]["workloads"]]
        for holder in chance.sample(loose, chance.randint(1, len(loose))):
            for key in chance.sample(sorted(holder), min(len(holder), 2)):
                holder[key] = chance.choice(OTHERS)
        names = ("host", "guest", "image", "calibrations", "accelerator", "client", "libvirt")
        data["environment"][chance.choice(names)] = chance.choice(OTHERS)
        return data

    _edit(run / "run.json", spoil)
    _edit(run / "result.json", lambda d: d | {"environment": {"guest": chance.choice(OTHERS)}})


@change
def numbers(run: Path, chance: random.Random, _outside: Path) -> None:
    """Numbers that are none, or far too large, anywhere in a document."""
    for path in chance.sample(_documents(run), min(2, len(_documents(run)))):
        text = path.read_text(encoding="utf-8", errors="replace")
        found = list(re.finditer(r"(?<=: )-?\d+(\.\d+)?(?=[,\n}])", text))
        for match in sorted(chance.sample(found, min(len(found), 2)), key=lambda m: -m.start()):
            text = text[: match.start()] + chance.choice(NUMBERS) + text[match.end() :]
        path.write_text(text, encoding="utf-8")


@change
def cell_numbers(run: Path, chance: random.Random, _outside: Path) -> None:
    """What theory and measuring reckon with: counts, sizes, rates, trials."""

    def spoil(data: Any) -> Any:
        for cell in data["cells"]:
            places = _places(cell["cell"], lambda v: isinstance(v, int) and not isinstance(v, bool))
            for holder, key in chance.sample(places, min(len(places), chance.randint(1, 3))):
                holder[key] = chance.choice((0, -1, 1, 7, 10**6, 10**9, 10**15, 10**18, 10**60))
        return data

    _edit(run / "run.json", spoil)


@change
def raw_numbers(run: Path, chance: random.Random, _outside: Path) -> None:
    """Numbers that the tools never print."""
    for path in chance.sample(_texts(run), min(8, len(_texts(run)))):
        text = path.read_text(encoding="utf-8", errors="replace")
        for match in reversed(list(re.finditer(r"\d+(\.\d+)?", text))):
            if chance.random() < 0.2:
                text = text[: match.start()] + chance.choice(NUMBERS) + text[match.end() :]
        path.write_text(text, encoding="utf-8")


@change
def raw_types(run: Path, chance: random.Random, _outside: Path) -> None:
    """JSON of a tool with other types in it."""
    for path in _texts(run):
        text = path.read_text(encoding="utf-8", errors="replace")
        start = text.find("{\n")
        with suppress(ValueError):
            data, end = json.JSONDecoder().raw_decode(text[start:]) if start >= 0 else ({}, 0)
            places = _places(data, lambda _: True)
            for holder, key in chance.sample(places, min(len(places), 3)):
                holder[key] = chance.choice(OTHERS)
            if end:
                path.write_text(text[:start] + json.dumps(data, indent=1) + text[start + end :])


@change
def no_utf8(run: Path, chance: random.Random, _outside: Path) -> None:
    for _ in range(3):
        path = _some_file(run, chance)
        data = path.read_bytes()[: 1 << 20]
        at = chance.randint(0, len(data))
        path.write_bytes(
            data[:at] + chance.choice((b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80")) + data[at:]
        )


@change
def cut_off(run: Path, chance: random.Random, _outside: Path) -> None:
    path = _some_file(run, chance)
    path.write_bytes(path.read_bytes()[: chance.randint(0, min(path.stat().st_size, 5000))])


@change
def twice(run: Path, chance: random.Random, _outside: Path) -> None:
    """Cells and claims that are there twice, some under another's name."""

    def spoil(data: Any) -> Any:
        for name in ("cells", "claims"):
            if data.get(name):
                data[name] = [*data[name], chance.choice(data[name])]
                if chance.random() < 0.5:
                    data[name][0]["id"] = data[name][-1]["id"]
        return data

    for name in ("run.json", "result.json"):
        _edit(run / name, spoil)


@change
def thousands(run: Path, chance: random.Random, _outside: Path) -> None:
    """Thousands of entries in a directory."""
    places = [run, run / "cells", *run.glob("cells/*"), *run.glob("cells/*/raw")]
    place = chance.choice([p for p in places if p.is_dir() and not p.is_symlink()])
    for number in range(3000):
        (place / f"more.{number}.stderr.txt").touch()


@change
def file_names(run: Path, chance: random.Random, _outside: Path) -> None:
    """Names of files that are no text, or not meant for a terminal or a page."""
    names = [b"\xff\xfe.txt", b"\x1b[31mred.stderr.txt", "\u202etxt.stderr.txt".encode()]
    names += [b"<script>alert(1)<x>.stderr.txt", b"a\nb.stderr.txt", b"=1+1.stderr.txt"]
    for place in [run, *run.glob("cells/*"), *run.glob("cells/*/raw")]:
        if place.is_dir() and not place.is_symlink():
            with suppress(OSError):
                (place / os.fsdecode(chance.choice(names))).write_text("a word\n")
    for path in run.glob("cells/*/outcome.json"):
        _edit(path, lambda data: data | {"outcome": "lost", "reason": "gone"})


def build(seed: int, kept_runs: list[Path], parent: Path, outside: Path) -> tuple[Path, list[str]]:
    """The run of a seed, and the names of what was changed; all of them come in turn."""
    chance = random.Random(seed)
    source = kept_runs[seed // len(CHANGES) % len(kept_runs)]
    run = parent / source.name
    shutil.copytree(source, run)
    names = [list(CHANGES)[seed % len(CHANGES)]]
    names += chance.sample(list(CHANGES), chance.choice((0, 0, 1, 2)))
    names.sort(key=lambda name: name == "huge")  # what reads or copies files is done before
    for name in dict.fromkeys(names):
        try:
            CHANGES[name](run, chance, outside)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            if name == names[0]:
                raise  # only what an earlier change has left may be in the way
    return run, names


def few_cells(run: Path) -> None:
    """A kept run with its first two cells alone: reports of many take long."""
    for name in ("run.json", "result.json"):
        _edit(run / name, lambda data: data | {"cells": data["cells"][:2]})
    left = {c["id"] for c in json.loads((run / "run.json").read_text())["cells"]}
    for cell in (run / "cells").iterdir():
        if cell.name not in left:
            shutil.rmtree(cell)


# -- what is done with it, and what came of it


@dataclass(slots=True)
class Elements(HTMLParser):
    """The elements and attributes of a page, and where its links go."""

    found: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(f"{tag}@{name}" for name, _ in attrs)}
        self.links += [v or "" for n, v in attrs if n in ("href", "src", "xlink:href", "action")]

    @classmethod
    def of(cls, text: str) -> Elements:
        page = cls()
        page.feed(text)
        page.close()
        return page


class Hung(BaseException):
    """A command took longer than it may."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def over(_signal: int, _frame: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str


def call(words: list[str], seconds: float) -> Said:
    """``lab`` in this process."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, limit[1]))
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in "oe"]
    before = (sys.argv, sys.stdout, sys.stderr, Path.cwd())
    handlers = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGHUP)}
    sys.argv, sys.stdout, sys.stderr = ["lab", *words], *streams
    status = 0
    try:
        with limited(seconds):
            lab.cli.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except Hung:
        status = -1
    finally:
        sys.argv, sys.stdout, sys.stderr = before[:3]
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        for kind, handler in handlers.items():
            signal.signal(kind, handler)
    out, err = (s.buffer.getvalue().decode(errors="replace") for s in streams)  # type: ignore[attr-defined]
    return Said(status, out, err)


def tree(directory: Path, *, but: Path) -> dict[str, str]:
    """Every entry below a directory, with what is in files; but for one directory in it."""
    found = {}
    for parent, folders, names in os.walk(directory):
        folders[:] = [f for f in folders if Path(parent, f) != but]
        for name in (*folders, *names):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            what = f"{stat.S_IFMT(mode):o}"
            if stat.S_ISLNK(mode):
                what += str(path.readlink())
            elif stat.S_ISREG(mode):
                size = path.stat().st_size
                what += f" {size} {hash(path.read_bytes()) if size < 1 << 20 else ''}"
            found[str(path)] = what
    return found


@dataclass(slots=True)
class Attack:
    """A home with a good run, the run of a seed, and everything that reads them."""

    base: Path
    good: Path
    """A kept run that nobody has touched."""
    clean: frozenset[str]
    """Elements and attributes that pages of good runs have."""
    seconds: float = 10.0
    commands: int = 0

    def problems(self, run: Path, seed: int) -> Iterator[str]:
        """What went wrong, with the command."""
        out = self.base / "out"
        out.mkdir(exist_ok=True)
        before = tree(self.base, but=out)
        for words in self._commands(run, out, seed):
            self.commands += 1
            said = call(words, self.seconds)
            name = " ".join(words[:2] + [w for w in words if w.startswith("--")])
            name += f" {words[words.index('--format') + 1]}" if "--format" in words else ""
            for problem in _heard(said, "--json" in words):
                yield f"{name}: {problem}"
        for path in sorted(out.rglob("*")):
            for problem in _written(path, out, self.clean):
                yield f"{path.relative_to(out).parts[0]}: {problem}"
        after = tree(self.base, but=out)
        after.pop(str(run / "report.html"), None)
        changed = [p for p in {*before, *after} if before.get(p) != after.get(p)]
        yield from (f"written elsewhere: {path}" for path in changed)
        shutil.rmtree(out)

    def _commands(self, run: Path, out: Path, seed: int) -> Iterator[list[str]]:
        place, good = str(run), str(self.good)
        yield ["results", "list"]
        yield ["results", "list", "--json"]
        yield ["results", "show", place]
        yield ["results", "show", place, "--whole"]
        yield ["results", "show", place, "--json"]
        yield ["results", "compare", good, place]
        yield ["results", "compare", place, place, "--json"]
        yield ["results", "history", "throughput"]
        yield ["results", "history", "throughput", "--json"]
        yield ["results", "noise", place]
        yield ["scenario", "explain", "raid5-parity-last", "--run", place]
        own = str(run / "scenario.yaml")
        yield ["scenario", "explain", own, "--run", place]
        yield ["scenario", "explain", own, "--run", place, "--json"]
        yield ["report", "--all", "--out", str(out / "site")]
        if seed % 4 == 0:
            yield ["report", place, "--json"]
            yield [
                "report",
                place,
                "--out",
                str(out / "a.html"),
                "--pictures",
                str(out / "pictures"),
            ]
        for form in ("csv", "parquet", "fio", "junit"):
            yield ["results", "export", place, "--format", form, "--out", str(out / form)]
        for number, cell in enumerate(_cell_ids(run)):
            yield [
                *("results", "export", place, "--format", "bundle", "--cell", cell),
                *("--out", str(out / f"bundle{number}")),
            ]


def _cell_ids(run: Path) -> list[str]:
    path = run / "run.json"
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 24:
        return ["x"]
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))["cells"]
        return [str(c["id"]) for c in found[:2]]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ["x"]


def _heard(said: Said, as_json: bool) -> Iterator[str]:
    both = said.stdout + said.stderr
    if said.status == -1:
        yield "hang"
    elif said.status not in (0, 1, 2, 3):
        yield f"status {said.status}"
    if "Traceback" in both:
        yield f"traceback: {said.stderr[-300:]}"
    if "mistake in the lab" in both:
        yield f"mistake: {said.stderr.partition('mistake in the lab')[2][:160]}"
    if found := _UNPRINTABLE.search(both):
        yield f"control character {found[0]!r}: {both[max(0, found.start() - 60) : found.end()]!r}"
    if SECRET in both:
        yield "secret shown"
    if as_json and said.stdout:
        try:
            json.loads(said.stdout, parse_constant=_no_number)
        except ValueError as error:
            yield f"no JSON: {error}"


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _written(path: Path, out: Path, clean: frozenset[str]) -> Iterator[str]:
    mode = path.lstat().st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        yield f"{path.relative_to(out)} is no file"
    if not stat.S_ISREG(mode):
        return
    data = path.read_bytes()
    if SECRET.encode() in data:
        yield "secret written"
    if path.name == "parquet" or path.suffix == ".png":
        return
    text = data.decode(errors="replace")
    inside = path.relative_to(out).parts
    copied = inside[0].startswith("bundle") and (
        "raw" in inside or path.suffix in (".json", ".jsonl", ".yaml") or inside[1:2] == ("cells",)
    )
    if not copied and (found := _UNPRINTABLE.search(text)):
        yield f"control character {found[0]!r}: {text[max(0, found.start() - 60) : found.end()]!r}"
    if path.suffix in (".html", ".svg"):
        page = Elements.of(text)
        names = {one.rpartition("@")[2] for one in clean} | _STYLE  # which mark has which, varies
        foreign = {f for f in page.found - clean if "@" not in f or f.split("@")[1] not in names}
        if foreign:
            yield f"foreign markup {sorted(foreign)}"
        for link in page.links:
            if re.match(r"\s*([a-z]+:|//)", link, re.IGNORECASE) and link != "data:,":
                yield f"link to {link!r}"
    if path.name == "junit" or path.suffix == ".svg":
        try:
            ElementTree.fromstring(text)
        except ElementTree.ParseError as error:
            yield f"no XML: {error}"
    if path.name == "csv":
        rows = list(csv.reader(io.StringIO(text)))
        for value in (v for row in rows for v in row if v[:1] in tuple("=+-@\t\r") and v):
            with suppress(ValueError):
                float(value)
                continue
            yield f"formula {value!r}"
    if path.suffix == ".sh" and any(line.startswith("touch PWNED") for line in text.splitlines()):
        yield "shell command of the run's"


@contextmanager
def remembered() -> Iterator[None]:
    """Nothing is computed twice that depends on its arguments alone: theory, drawing, commands."""
    import vl_convert

    from lab.app import explain, report, results

    known: dict[tuple[str, str], Any] = {}

    def once(name: str, function: Callable[[Any], Any], text: Callable[[Any], str]) -> Any:
        def looked_up(argument: Any) -> Any:
            key = (name, text(argument))
            if key not in known:
                known[key] = function(argument)
            return known[key]

        return looked_up

    def of_cell(cell: Cell) -> str:
        return cell.model_dump_json()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        drawn = once("svg", vl_convert.vegalite_to_svg, json.dumps)
        patch.setattr(vl_convert, "vegalite_to_svg", drawn)
        for module, name in (
            (results, "predictions"),
            (report, "explanations"),
            (explain, "explanations"),
        ):
            patch.setattr(module, name, once(name, getattr(module, name), of_cell))
        yield


def unpack(parent: Path) -> list[Path]:
    """Every kept run, of two cells."""
    runs = [kept.unpacked(name, parent).directory for name in kept.NAMES]
    for run in runs:
        few_cells(run)
    return runs
