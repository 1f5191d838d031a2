"""Documents made of a stored run, kept with a key of all that they depend on.

::

    CACHE/judged/DIGEST.KIND    a line of JSON with directory, key and SHA-256; the document

A document is used only if its key is today's: the run's files (name, size, times, inode of each),
the code that judges, the versions of what it imports, and whether a process writes the run. Files
are replaced by rename: of two writers the last one wins, and a killed one changes nothing. A file
that is cut off or changed is ignored. Nothing here is needed: all of it is made again.

This module imports no models, so that `lab results list` starts fast.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

import drive
import lab
from lab.core.errors import HostError, InputError
from lab.host.system import clock, files, makers, paths
from lab.plugins import catalog
from lab.store import names

CODE: Final = (
    "analysis",
    "compile",
    "core",
    "md",
    "model",
    "plugins",
    "report",
    "results",
    "store",
)
"""Packages of the lab that judge, and `drive`. The others run cells."""
LIBRARIES: Final = ("pydantic", "pydantic-core")
"""Libraries that parse stored documents. Statistics use none."""
RESULT: Final = "result"
EXPLANATION: Final = "explanation"
SUMMARY: Final = "summary"
"""Kind of a run's entry in lists, with verdicts by this version."""
RECORDED: Final = "recorded"
"""The same with the verdicts in its ``result.json``, for a run that was not judged here yet."""
TICK: Final = 0.05
"""Seconds. Two changes of a file within a tick of the kernel's clock (at most 10 ms) may have equal
times, so a file is left alone for this long before its times count."""


def directories(parents: Sequence[Path] = ()) -> list[Path]:
    """Return all directories of runs, newest first; ``InputError``: they cannot be listed."""
    found = [
        path for parent in parents or (paths.runs(),) for path in _there(parent) if path.is_dir()
    ]
    return sorted(found, key=lambda directory: names.age(directory.name), reverse=True)


def _there(directory: Path) -> list[Path]:
    """Return the entries of a directory of runs; empty: it does not exist."""
    try:
        return sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(
            f"'{directory}' cannot be read: {error.strerror}",
            hint="runs are stored there; LAB_HOME names another place",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a document of a run is kept, and the key that it must have now."""

    path: Path
    directory: str
    key: str

    def read(self) -> bytes | None:
        """Return the kept document; ``None``: there is none, or it is stale or corrupt."""
        try:
            head, _, document = self.path.read_bytes().partition(b"\n")
            about = json.loads(head)
            fits = about["key"] == self.key and about["sha256"] == _sha256(document)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return document if fits else None

    def write(self, document: bytes) -> None:
        """Keep a document. A cache that cannot be written is no error."""
        about = {"directory": self.directory, "key": self.key, "sha256": _sha256(document)}
        with suppress(HostError):
            files.make_directory(self.path.parent)
            head = json.dumps(about).encode()
            files.write(self.path, head + b"\n" + document, mode=0o600, durable=False)


def path_of(directory: Path, kind: str) -> Path:
    """Return the file that keeps a document of this run, if it is kept."""
    return paths.judged() / f"{_sha256(os.fsencode(directory.absolute()))[:32]}.{kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a run's files."""

    directory: Path
    digest: str
    """Of name, size, times and inode of each file that a judgement reads."""
    recorded: str
    """The same of its ``result.json``."""
    age: float
    """Seconds since the last change of a file, when this was read; negative: the clock was put
    back."""

    def place(self, kind: str) -> Place | None:
        """Return the place of a document; ``None``: a process writes the run, or just did.

        A file may then change once more without another time; also if the clock was put back.
        """
        if self.age < TICK or makers.holder(self.directory) is not None:
            return None
        recorded = self.recorded if kind == RECORDED else ""
        own = os.fsencode(self.directory).hex()
        return Place(
            path=path_of(self.directory, kind),
            directory=str(self.directory.absolute()),
            key=_sha256(" ".join((code(), self.digest, recorded, own, kind)).encode()),
        )


def settled(directory: Path) -> State | None:
    """Return the state of a run's files; ``None``: they cannot be listed.

    If a file has just been changed, wait until its time counts.
    """
    state = state_of(directory)
    if state is not None and 0 <= state.age < TICK:
        clock.pause(TICK)
        return state_of(directory)
    return state


def state_of(directory: Path) -> State | None:
    """Return the state of a run's files; ``None``: they cannot be listed.

    The time of a change (ctime) is set by the kernel alone, so a file whose size and time of
    modification were restored is seen too.
    """
    found: list[str] = []
    now, newest, recorded = time.time(), 0, ""
    left = [(os.fspath(directory), "")]
    try:
        while left:
            path, below = left.pop()
            with os.scandir(path) as entries:
                for entry in entries:
                    name = entry.name
                    if name[0] == "." or (not below and name == "report.html"):
                        continue
                    about = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        left.append((entry.path, f"{below}{name}/"))
                    newest = max(newest, about.st_ctime_ns)
                    line = (
                        f"{below}{name}\0{about.st_mode} {about.st_size} {about.st_mtime_ns}"
                        f" {about.st_ctime_ns} {about.st_ino}"
                    )
                    if below or name != "result.json":
                        found.append(line)
                    else:
                        recorded = line
    except OSError:
        return None
    found.sort()
    digest = _sha256("\0\0".join(found).encode(errors="surrogateescape"))
    return State(directory=directory, digest=digest, recorded=recorded, age=now - newest / 1e9)


@cache
def code() -> str:
    """Return a digest of the code that judges, and of the versions that it runs with."""
    total = hashlib.sha256(platform.python_version().encode())
    for library in LIBRARIES:
        total.update(f" {library} {metadata.version(library)}".encode())
    package = Path(lab.__file__).parent
    for top in (*(package / name for name in CODE), Path(drive.__file__).parent):
        for path in sorted(top.rglob("*.py")):
            total.update(f"\n{path.relative_to(top.parent)}\n".encode() + path.read_bytes())
    for path in sorted(catalog.user_plugins().rglob("*.py")):
        total.update(f"\n{path}\n".encode() + path.read_bytes())
    total.update(repr(catalog.installed_plugins()).encode())
    return total.hexdigest()


def kept() -> Iterator[tuple[Path, str]]:
    """Yield each file of the cache with the directory of its run; empty: it is unreadable."""
    try:
        entries = sorted(paths.judged().iterdir())
    except OSError:
        return
    for path in entries:
        if path.name.startswith("."):
            continue
        directory = ""
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            directory = str(json.loads(_first_line(path))["directory"])
        yield path, directory


def clear() -> None:
    """Remove all kept documents."""
    for path, _ in kept():
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _first_line(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.readline(1 << 16)


def collect_garbage() -> list[str]:
    """Remove documents of runs that are gone; return their names."""
    removed = []
    for path, directory in kept():
        if not directory or not os.path.lexists(os.path.join(directory, "run.json")):  # noqa: PTH118
            with suppress(OSError):
                path.unlink(missing_ok=True)
                removed.append(path.name)
    return removed


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
