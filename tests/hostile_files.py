"""Hostile changes of a run's files: kinds, sizes, names and links."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

SECRET: Final = "TOP-SECRET-d41d8cd9"


def edit(path: Path, edit: Callable[[Any], Any]) -> None:
    """Replace the contents of a JSON file; skip one that another change has made invalid."""
    if path.is_symlink() or not path.is_file():
        return
    with suppress(ValueError, OSError, RecursionError):
        text = json.dumps(edit(json.loads(path.read_text(encoding="utf-8", errors="replace"))))
        path.write_text(text, encoding="utf-8")


def _files(run: Path) -> list[Path]:
    return sorted(p for p in run.rglob("*") if p.is_file() and not p.is_symlink())


def _some_file(run: Path, chance: random.Random) -> Path:
    """Return any file; those that are read first as often as all others together."""
    tops = [p for p in _files(run) if p.parent == run]
    parts = [p for p in _files(run) if p.name in ("outcome.json", "procedure.json")]
    return chance.choice([f for f in (tops, parts, _files(run)) if f][chance.randrange(3)])


def texts(run: Path) -> list[Path]:
    return [p for p in _files(run) if p.parent.name == "raw"]


def documents(run: Path) -> list[Path]:
    names = ("run.json", "result.json", "outcome.json", "procedure.json", "cell.json")
    return [p for p in _files(run) if p.name in names]


def links(run: Path, chance: random.Random, outside: Path) -> None:
    """Replace files by links to a secret, absolute or relative."""
    for _ in range(chance.randint(1, 4)):
        path = _some_file(run, chance)
        target = outside / "secret.txt"
        if path.name in ("result.json", "outcome.json", "run.json") and chance.random() < 0.7:
            target = outside / path.name  # a name that the lab would read
            if not target.exists():
                words = path.read_text(encoding="utf-8", errors="replace")
                target.write_text(words.replace('"title": "', f'"title": "{SECRET}'))
        path.unlink()
        there = os.path.relpath(target, path.parent) if chance.random() < 0.5 else target
        path.symlink_to(there)


def linked_directories(run: Path, chance: random.Random, outside: Path) -> None:
    """Move the cells, a cell or its raw output elsewhere."""
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


def fifos(run: Path, chance: random.Random, _outside: Path) -> None:
    for _ in range(chance.randint(1, 3)):
        path = _some_file(run, chance)
        path.unlink()
        os.mkfifo(path)


def sockets_and_devices(run: Path, chance: random.Random, _outside: Path) -> None:
    path = _some_file(run, chance)
    path.unlink()
    if os.geteuid() == 0 and chance.random() < 0.5:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # as /dev/zero: it never ends
        return
    before = Path.cwd()
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)  # names of sockets must be short
        made.bind(path.name)
        os.chdir(before)


def directories_for_files(run: Path, chance: random.Random, _outside: Path) -> None:
    path = _some_file(run, chance)
    path.unlink()
    (path / "within").mkdir(parents=True)


def huge(run: Path, chance: random.Random, _outside: Path) -> None:
    """Make a file sparse and much larger than memory."""
    os.truncate(_some_file(run, chance), 1 << 40)


def deep(run: Path, chance: random.Random, _outside: Path) -> None:
    """Write JSON that nests deeper than any parser's stack, or is one huge list."""
    text = chance.choice(("[" * 200_000, '{"a":' * 100_000, "[0" + ",0" * 500_000 + "]"))
    path = chance.choice([_some_file(run, chance), *texts(run)[:1]])
    path.write_text("{\n" * (path.suffix == ".txt") + text)


def deep_within(run: Path, chance: random.Random, _outside: Path) -> None:
    """Add a deeply nested value to a valid document, where any value is allowed."""
    levels = chance.choice((100, 190, 900))
    path = run / chance.choice(("run.json", "result.json"))
    if path.is_file() and not path.is_symlink():
        value = "[" * levels + "]" * levels
        text = path.read_text(encoding="utf-8", errors="replace")
        path.write_text(
            re.sub(r'"environment": ?\{', f'"environment": {{"x": {value}, ', text, count=1)
        )


def no_utf8(run: Path, chance: random.Random, _outside: Path) -> None:
    for _ in range(3):
        path = _some_file(run, chance)
        data = path.read_bytes()[: 1 << 20]
        at = chance.randint(0, len(data))
        path.write_bytes(
            data[:at] + chance.choice((b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80")) + data[at:]
        )


def cut_off(run: Path, chance: random.Random, _outside: Path) -> None:
    path = _some_file(run, chance)
    path.write_bytes(path.read_bytes()[: chance.randint(0, min(path.stat().st_size, 5000))])


def thousands(run: Path, chance: random.Random, _outside: Path) -> None:
    """Add thousands of entries to a directory."""
    places = [run, run / "cells", *run.glob("cells/*"), *run.glob("cells/*/raw")]
    place = chance.choice([p for p in places if p.is_dir() and not p.is_symlink()])
    for number in range(3000):
        (place / f"more.{number}.stderr.txt").touch()


def file_names(run: Path, chance: random.Random, _outside: Path) -> None:
    """Add files whose names are not UTF-8, or are hostile to a terminal or a page."""
    names = [b"\xff\xfe.txt", b"\x1b[31mred.stderr.txt", "\u202etxt.stderr.txt".encode()]
    names += [b"<script>alert(1)<x>.stderr.txt", b"a\nb.stderr.txt", b"=1+1.stderr.txt"]
    for place in [run, *run.glob("cells/*"), *run.glob("cells/*/raw")]:
        if place.is_dir() and not place.is_symlink():
            with suppress(OSError):
                (place / os.fsdecode(chance.choice(names))).write_text("a word\n")
    for path in run.glob("cells/*/outcome.json"):
        edit(path, lambda data: data | {"outcome": "lost", "reason": "gone"})
