"""Parameters of workloads that name a text file of the host: the file's text takes their place."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lab.core import regular
from lab.core.units import KIB
from lab.core.wording import shown
from lab.core.yaml import SET, Document
from lab.plugins import catalog

LARGEST: Final = 64 * KIB
"""Most bytes of such a file: it goes to the guest in a command."""


def with_texts(document: Document, beside: Path) -> Document:
    """Return the scenario with the files' texts; ``InputError``: one cannot be read.

    Relative paths begin at the scenario's file, or for ``--set`` at the working directory.
    """
    workloads = document.data.get("workloads")
    if not isinstance(workloads, list):
        return document
    lines = dict(document.lines)
    found = []
    for number, entry in enumerate(workloads):
        named = {key: into for key, into in _files_of(entry).items() if key in entry}
        if not named:
            found.append(entry)
            continue
        changed = {key: value for key, value in entry.items() if key not in named}
        for key, into in named.items():
            at = ("workloads", number, key)
            if into in changed:
                raise document.wrong(at, f"{into} is given too: remove one of them")
            changed[into] = _read(document, at, entry[key], beside)
            if at in lines:
                lines[*at[:-1], into] = lines[at]
        found.append(changed)
    return replace(document, data={**document.data, "workloads": found}, lines=lines)


def _files_of(entry: Any) -> Mapping[str, str]:
    """Return the parameters of a workload as written that name files."""
    tool = entry.get("tool") if isinstance(entry, dict) else None
    if not isinstance(tool, str) or catalog.missing_plugin("workloads", tool):
        return {}
    return catalog.workload(tool).files


def _read(document: Document, at: tuple[str | int, ...], given: object, beside: Path) -> str:
    if not isinstance(given, str) or not given:
        raise document.wrong(at, f"expected the path of a text file, found {shown(given)}")
    typed = document.place(at).startswith(SET)
    named = Path(given)
    with suppress(RuntimeError):  # the home of an unknown user
        named = named.expanduser()
    path = (Path() if typed else beside) / named
    try:
        return regular.read(path, LARGEST).decode()
    except OSError as error:
        raise document.wrong(at, f"the file '{path}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        message = f"the file '{path}' is not UTF-8 text (byte {error.start})"
        raise document.wrong(at, message) from error
