"""``extends``, ``set`` and ``profile``: several files and a chosen profile to one document.

Each part keeps the file and line that it was written in. No model is imported: completion reads
scenarios with this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lab.core.wording import choice, guess, shown
from lab.core.yaml import ENDINGS, Document, Override, Path_, override, read_file
from lab.plugins import catalog

MAX_FILES: Final = 5
"""Files in a chain of ``extends``."""
MERGED: Final = ("source", "guest", "disks", "array", "filesystem", "profiles")
"""Mappings that are merged key by key; any other key of the extending file replaces the value."""
CELLS: Final = ("matrix", "cases")
"""Together they say which cells there are, so one of them replaces both."""


Prepare = Callable[[Document, Path], Document]
"""Makes paths in a document independent of the directory that they are relative to."""


def inherited(document: Document, path: Path, prepare: Prepare) -> Document:
    """Return the document merged with the file that it ``extends``, and with its ``set``.

    ``path`` is its file; ``prepare`` is called for each other file.
    """
    return _inherited(document, path, prepare, (path,))


def _inherited(
    document: Document, path: Path, prepare: Prepare, chain: tuple[Path, ...]
) -> Document:
    if "extends" not in document.data:
        if isinstance(document.data.get("set"), dict):
            message = "it changes what extends brings, and there is no extends: write the fields"
            raise document.wrong(("set",), message)
        return document
    base = _base_of(document, path)
    if base.resolve() in [one.resolve() for one in chain]:
        names = " extends ".join(one.name for one in (*chain, base))
        raise document.wrong(("extends",), f"{names}, itself: end the circle")
    if len(chain) == MAX_FILES:
        names = ", ".join(one.name for one in chain)
        raise document.wrong(
            ("extends",), f"{MAX_FILES} files are the most, and there are more than {names}"
        )
    theirs = _inherited(read_file(base), base, prepare, (*chain, base))
    merged = _merged(document, prepare(theirs, base.parent))
    changed = override(merged, list(_fields(merged, merged.data.get("set"), ("set",))))
    data = {key: value for key, value in changed.data.items() if key not in ("extends", "set")}
    return replace(changed, data=data)


def _base_of(document: Document, path: Path) -> Path:
    name = document.data["extends"]
    if not isinstance(name, str) or not name:
        message = f"expected a scenario's name, or a path that ends in .yaml, found {shown(name)}"
        raise document.wrong(("extends",), message)
    if name.endswith(ENDINGS):
        found = [path.parent / name]
    else:
        folders = (path.parent, *catalog.scenario_directories())
        found = [folder / f"{name}.yaml" for folder in folders]
    # A file may extend the shipped scenario of its own name.
    others = [one for one in found if one.resolve() != path.resolve()]
    for one in others:
        if one.is_file():
            return one
    if not others or path in found:
        raise document.wrong(("extends",), f"'{name}' is this file: name another one")
    if len(found) == 1:
        raise document.wrong(("extends",), f"the file '{found[0]}' does not exist")
    here = {one.stem for one in path.parent.glob("*.yaml")} - {path.stem}
    raise document.wrong(
        ("extends",),
        f"there is no scenario '{name}', next to this file or in `lab scenario list`"
        + guess(name, sorted({*here, *catalog.scenarios()})),
    )


def _merged(own: Document, base: Document) -> Document:
    """Return the document with the base's keys, each with its own file and line."""
    kept: list[Path_] = []

    def merge(mine: dict[str, Any], theirs: dict[str, Any], at: Path_) -> dict[str, Any]:
        found = dict(mine)
        for key, value in theirs.items():
            path = (*at, key)
            if key not in mine:
                found[key] = value
                kept.append(path)
            elif path[0] in MERGED and isinstance(mine[key], dict) and isinstance(value, dict):
                found[key] = merge(mine[key], value, path)
        return found

    left_out = CELLS if any(key in own.data for key in CELLS) else ()
    theirs = {key: value for key, value in base.data.items() if key not in left_out}
    data = merge(own.data, theirs, ())

    def of_base(path: Path_) -> bool:
        return any(path[: len(part)] == part for part in kept)

    lines = {path: line for path, line in base.lines.items() if of_base(path)}
    files = {path: base.files.get(path, base.source) for path in lines}
    given = {path: place for path, place in base.overrides.items() if of_base(path)}
    return replace(
        own,
        data=data,
        lines={**lines, **own.lines},
        files={**files, **own.files},
        overrides={**given, **own.overrides},
    )


def with_profile(document: Document, overrides: Sequence[Override]) -> Document:
    """Return the document with its profile's values, then with the overrides."""
    sets = list(overrides)
    named = override(document, [one for one in sets if one.path[0] in ("profile", "profiles")])
    name, profiles = named.data.get("profile"), named.data.get("profiles")
    chosen: list[Override] = []
    if isinstance(name, str) and isinstance(profiles, dict | None):  # else the model refuses it
        if name not in (profiles or {}):
            known = choice(name, sorted(profiles)) if profiles else "write it, or leave this out"
            raise named.wrong(("profile",), f"the scenario has no profile '{name}': {known}")
        chosen += _fields(named, (profiles or {})[name], ("profiles", name))
    every = [*chosen, *sets]
    kept = document.data
    if any(one.path in (("matrix",), ("cases",)) for one in every):
        kept = {key: value for key, value in kept.items() if key not in CELLS}
    return override(replace(document, data=kept), every)


def _fields(document: Document, given: Any, at: Path_) -> Iterator[Override]:
    """Yield values by dotted name in a file as overrides; the model refuses other types."""
    for key, value in given.items() if isinstance(given, dict) else ():
        path = (*at, key)
        yield Override(
            text=f"{'.'.join(map(str, at))}.{key}",
            path=tuple(str(key).split(".")),
            value=value,
            line=document.place(path),
        )
