"""Hostile values in a run's documents and in its tools' output."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from lab.plugins.workloads.fio import CUT
from tests.hostile_files import documents, edit, texts

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
ABSOLUTE: Final = "/tmp/lab-hostile-new"
PATHS: Final = (
    "..",
    ".",
    "",
    "../../outside/new",
    ABSOLUTE,
    "a/../../../outside/new",
    "../../../../outside/new",
    "../../../../../outside/new",
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


def _places(data: Any, wanted: Callable[[Any], bool]) -> list[tuple[Any, Any]]:
    """Return every container and key whose value is wanted."""
    found: list[tuple[Any, Any]] = []
    listed = enumerate(data) if isinstance(data, list) else ()
    for key, value in list(data.items() if isinstance(data, dict) else listed):
        if wanted(value):
            found.append((data, key))
        found += _places(value, wanted)
    return found


def _say(run: Path, chance: random.Random, words: tuple[str, ...]) -> None:
    """Put hostile text where the lab shows text: in the run's, its cells' and the tools' files."""
    word = chance.choice(words)

    def spoil(data: Any) -> Any:
        free = ("title", "question", "notes", "says", "detail", "reason", "url", "author")
        free += ("scenario", "started", "host")  # any text is valid, so the run is still readable
        known = [(d, k) for d, k in _places(data, lambda v: isinstance(v, str)) if k in free]
        known += _places(data.get("environment", {}), lambda v: isinstance(v, str))
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

    for path in {run / "run.json", *chance.sample(documents(run), min(2, len(documents(run))))}:
        edit(path, spoil)
    for path in chance.sample(texts(run), min(3, len(texts(run)))):
        text = path.read_text(encoding="utf-8", errors="replace")
        at = chance.randint(0, len(text))
        path.write_text(text[:at] + word + text[at:], encoding="utf-8")
    for cell in chance.sample(sorted((run / "cells").glob("*/raw")), 1) if texts(run) else ():
        (cell / "console.txt").write_text(f"[ 0.0] {word}\n", encoding="utf-8")


def terminal(run: Path, chance: random.Random, _outside: Path) -> None:
    _say(run, chance, TERMINAL)


def markup(run: Path, chance: random.Random, _outside: Path) -> None:
    _say(run, chance, MARKUP)


def formula(run: Path, chance: random.Random, _outside: Path) -> None:
    _say(run, chance, FORMULAS)


def shell(run: Path, chance: random.Random, _outside: Path) -> None:
    _say(run, chance, SHELL)

    def image(data: Any) -> Any:
        for cell in data["cells"]:
            cell["cell"]["guest"]["image"] = chance.choice(SHELL)
        return data

    if chance.random() < 0.3:
        edit(run / "run.json", image)


def cell_ids(run: Path, chance: random.Random, outside: Path) -> None:
    """Change a cell's id to a path, with its files there."""
    named = chance.choice((*PATHS, "../../outside", str(outside)))

    def spoil(data: Any) -> Any:
        cell = chance.choice(data["cells"])
        old, cell["id"] = cell["id"], named
        if named != ABSOLUTE:  # no file is written outside of the test's own directory
            with suppress(OSError, ValueError):
                (run / "cells" / old).rename(run / "cells" / named)
        return data

    edit(run / "run.json", spoil)


def run_id(run: Path, chance: random.Random, _outside: Path) -> None:
    named = chance.choice((*PATHS, "javascript:alert(1)//", "//evil.example/x", "last"))
    for name in ("run.json", "result.json"):
        edit(run / name, lambda data: data | {"id": named, "scenario": named})


def fio_names(run: Path, chance: random.Random, _outside: Path) -> None:
    """Put paths into fio's report as values, and into its logs as names."""
    named = chance.choice(PATHS)
    option = chance.choice(("rw", "bs", "iodepth", "numjobs", "rwmixread"))
    options = chance.choice(OTHERS) if chance.random() < 0.2 else {}

    def ask(data: Any) -> Any:
        for cell in data["cells"]:
            for workload in cell["cell"]["workloads"]:
                if workload["tool"] == "fio":
                    workload["parameters"]["write_bw_log"] = 1
                cell["cell"]["axes"][f"workloads.{workload['name']}.{named}"] = named
        return data

    edit(run / "run.json", ask)
    for path in texts(run):
        text = path.read_text(encoding="utf-8", errors="replace")
        if '"jobs"' not in text:
            continue
        document = json.loads(text[text.index("{\n") :].partition(CUT)[0])
        document["jobs"][0].setdefault("job options", {})[option] = named
        if options != {}:
            document["jobs"][0]["job options"] = options
        log = "" if "\n" in named else f"{CUT} log_{named}\n1000, 5, 0, 4096\n{CUT} end\n"
        path.write_text(json.dumps(document, indent=1) + "\n" + log, encoding="utf-8")


def wrong_types(run: Path, chance: random.Random, _outside: Path) -> None:
    for path in chance.sample(documents(run), min(3, len(documents(run)))):

        def spoil(data: Any) -> Any:
            places = _places(data, lambda _: True)
            for holder, key in chance.sample(places, min(len(places), chance.randint(1, 3))):
                holder[key] = chance.choice(OTHERS)
            return data

        edit(path, spoil)


def loose_types(run: Path, chance: random.Random, _outside: Path) -> None:
    """Put wrong types where a model accepts any: the environment, a workload's parameters."""

    def spoil(data: Any) -> Any:
        loose = [data["environment"]]
        loose += [w["parameters"] for c in data["cells"] for w in c["cell"]["workloads"]]
        for holder in chance.sample(loose, chance.randint(1, len(loose))):
            for key in chance.sample(sorted(holder), min(len(holder), 2)):
                holder[key] = chance.choice(OTHERS)
        names = ("host", "guest", "image", "calibrations", "accelerator", "client", "libvirt")
        data["environment"][chance.choice(names)] = chance.choice(OTHERS)
        return data

    edit(run / "run.json", spoil)
    edit(run / "result.json", lambda d: d | {"environment": {"guest": chance.choice(OTHERS)}})


def numbers(run: Path, chance: random.Random, _outside: Path) -> None:
    """Put invalid or far too large numbers anywhere in a document."""
    for path in chance.sample(documents(run), min(2, len(documents(run)))):
        text = path.read_text(encoding="utf-8", errors="replace")
        found = list(re.finditer(r"(?<=: )-?\d+(\.\d+)?(?=[,\n}])", text))
        for match in sorted(chance.sample(found, min(len(found), 2)), key=lambda m: -m.start()):
            text = text[: match.start()] + chance.choice(NUMBERS) + text[match.end() :]
        path.write_text(text, encoding="utf-8")


def cell_numbers(run: Path, chance: random.Random, _outside: Path) -> None:
    """Change values that theory and measurement use: counts, sizes, rates, trials."""

    def spoil(data: Any) -> Any:
        for cell in data["cells"]:
            places = _places(cell["cell"], lambda v: isinstance(v, int) and not isinstance(v, bool))
            for holder, key in chance.sample(places, min(len(places), chance.randint(1, 3))):
                holder[key] = chance.choice((0, -1, 1, 7, 10**6, 10**9, 10**15, 10**18, 10**60))
        return data

    edit(run / "run.json", spoil)


def raw_numbers(run: Path, chance: random.Random, _outside: Path) -> None:
    """Put numbers that the tools never print into raw output."""
    for path in chance.sample(texts(run), min(8, len(texts(run)))):
        text = path.read_text(encoding="utf-8", errors="replace")
        for match in reversed(list(re.finditer(r"\d+(\.\d+)?", text))):
            if chance.random() < 0.2:
                text = text[: match.start()] + chance.choice(NUMBERS) + text[match.end() :]
        path.write_text(text, encoding="utf-8")


def raw_types(run: Path, chance: random.Random, _outside: Path) -> None:
    """Put wrong types into a tool's JSON."""
    for path in texts(run):
        text = path.read_text(encoding="utf-8", errors="replace")
        start = text.find("{\n")
        with suppress(ValueError):
            data, end = json.JSONDecoder().raw_decode(text[start:]) if start >= 0 else ({}, 0)
            places = _places(data, lambda _: True)
            for holder, key in chance.sample(places, min(len(places), 3)):
                holder[key] = chance.choice(OTHERS)
            if end:
                path.write_text(text[:start] + json.dumps(data, indent=1) + text[start + end :])


def twice(run: Path, chance: random.Random, _outside: Path) -> None:
    """Duplicate cells and claims, some under another name."""

    def spoil(data: Any) -> Any:
        for name in ("cells", "claims"):
            if data.get(name):
                data[name] = [*data[name], chance.choice(data[name])]
                if chance.random() < 0.5:
                    data[name][0]["id"] = data[name][-1]["id"]
        return data

    for name in ("run.json", "result.json"):
        edit(run / name, spoil)
