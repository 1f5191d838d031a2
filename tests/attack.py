"""Runs every command that reads stored runs on a hostile run, and reports problems.

Problems are a hang, a traceback, a file written elsewhere, a secret that was read, and control
characters or markup of the run in any output.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import re
import resource
import shutil
import signal
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
from lab.model.scenario.document import Cell
from tests.hostile_files import SECRET
from tests.hostile_values import ABSOLUTE

SECONDS = 120.0
"""Longest duration of a command, on a busy host."""
LARGEST: Final = 64 << 20
"""Most bytes that a command may write to a file: a copied sparse file would fill the disk."""
_STYLE: Final = frozenset({"fill-opacity", "stroke-dasharray", "stroke-opacity", "opacity"})
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


@dataclass(slots=True)
class Elements(HTMLParser):
    """The elements and attributes of a page, and the targets of its links."""

    found: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script" and (kind := dict(attrs).get("type")) is not None:
            tag = f"script of {kind}"  # those of the site; markup in names has none with a type
        self.found |= {tag, *(f"{tag}@{name}" for name, _ in attrs)}
        self.links += [v or "" for n, v in attrs if n in ("href", "src", "xlink:href", "action")]

    @classmethod
    def of(cls, text: str) -> Elements:
        page = cls()
        page.feed(text)
        page.close()
        return page


class Hung(BaseException):
    """A command took too long."""


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
    """Output and exit status of a command."""

    status: int
    stdout: str
    stderr: str


def call(words: list[str], seconds: float) -> Said:
    """Run ``lab`` in this process."""
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


_JUDGED = re.compile(r"/h/cache(/judged(/[0-9a-f]{32}\.[a-z]+)?)?$")
"""Where the lab keeps what it has judged."""


def tree(directory: Path, *, but: Path) -> dict[str, str]:
    """Return every entry below a directory with the contents of files, except one directory in
    it."""
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
    """A home with a good run, the run of a seed, and the commands that read them."""

    base: Path
    good: Path
    """A stored run without changes."""
    clean: frozenset[str]
    """Elements and attributes in pages of good runs."""
    seconds: float = field(default_factory=lambda: SECONDS)
    commands: int = 0

    def problems(self, run: Path, seed: int) -> Iterator[str]:
        """Yield each problem, with the command."""
        out = self.base / "out"
        out.mkdir(exist_ok=True)
        before = tree(self.base, but=out)
        for words in self._commands(run, out, seed):
            self.commands += 1
            said = call(words, self.seconds)
            name = " ".join(words[:2] + [w for w in words if w.startswith("--")])
            name += f" {words[words.index('--format') + 1]}" if "--format" in words else ""
            for problem in heard(said, "--json" in words):
                yield f"{name}: {problem}"
        for path in sorted(out.rglob("*")):
            for problem in _written(path, out, self.clean):
                yield f"{path.relative_to(out).parts[0]}: {problem}"
        after = tree(self.base, but=out)
        after.pop(str(run / "report.html"), None)
        changed = [
            path
            for path in {*before, *after}
            if before.get(path) != after.get(path) and not _JUDGED.search(path)
        ]
        yield from (f"written elsewhere: {path}" for path in changed)
        if list(Path(ABSOLUTE).parent.glob(f"*{Path(ABSOLUTE).name}*")):
            yield f"written elsewhere: {ABSOLUTE}"
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
        own = run / "scenario.yaml"
        if not own.is_symlink():  # a user who names a scenario's file may name a link
            yield ["scenario", "explain", str(own), "--run", place]
            yield ["scenario", "explain", str(own), "--run", place, "--json"]
        yield ["site", str(out / "site")]
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
        bundle = str(out / "x.lab.zip")
        yield ["results", "export", place, "--format", "bundle", "--out", bundle]
        for form in ("csv", "parquet", "fio", "junit", "summary", "openmetrics"):
            yield ["results", "export", place, "--format", form, "--out", str(out / form)]
        for number, cell in enumerate(_cell_ids(run)):
            yield [
                *("results", "export", place, "--format", "script", "--cell", cell),
                *("--out", str(out / f"script{number}")),
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


def heard(said: Said, as_json: bool) -> Iterator[str]:
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
    if path.name == "parquet" or path.suffix in (".png", ".zip"):
        return
    text = data.decode(errors="replace")
    inside = path.relative_to(out).parts
    copied = inside[0].startswith("script") and (
        "raw" in inside or path.suffix in (".json", ".jsonl", ".yaml") or inside[1:2] == ("cells",)
    )
    if not copied and (found := _UNPRINTABLE.search(text)):
        yield f"control character {found[0]!r}: {text[max(0, found.start() - 60) : found.end()]!r}"
    if path.suffix in (".html", ".svg"):
        page = Elements.of(text)
        names = {one.rpartition("@")[2] for one in clean} | _STYLE  # marks vary in their attributes
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
    """Cache functions that depend only on their arguments: theory, drawing, commands."""
    import vl_convert

    from lab.results import documents as results
    from lab.results import explain

    known: dict[tuple[str, str], Any] = {}

    def once(name: str, function: Callable[..., Any], text: Callable[[Any], str]) -> Any:
        def looked_up(argument: Any, *more: Any) -> Any:
            key = (name, text(argument) + repr(more))
            if key not in known:
                known[key] = function(argument, *more)
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
            (explain, "explanations"),
        ):
            patch.setattr(module, name, once(name, getattr(module, name), of_cell))
        yield
