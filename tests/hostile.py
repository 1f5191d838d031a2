"""Run directories of an attacker: stored runs, changed by a seed."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests import hostile_files as files
from tests import hostile_values as values
from tests import kept
from tests.hostile_files import edit

Change = Callable[[Path, random.Random, Path], None]
CHANGES: Final[dict[str, Change]] = {
    change.__name__: change
    for change in (
        values.terminal,
        values.markup,
        values.formula,
        values.shell,
        values.cell_ids,
        values.run_id,
        values.fio_names,
        files.links,
        files.linked_directories,
        files.fifos,
        files.sockets_and_devices,
        files.directories_for_files,
        files.huge,
        files.deep,
        files.deep_within,
        values.wrong_types,
        values.loose_types,
        values.numbers,
        values.cell_numbers,
        values.raw_numbers,
        values.raw_types,
        files.no_utf8,
        files.cut_off,
        values.twice,
        files.thousands,
        files.file_names,
    )
}
"""Changes of a run; arguments: the run, a random generator, a directory outside of the run."""


def build(seed: int, kept_runs: list[Path], parent: Path, outside: Path) -> tuple[Path, list[str]]:
    """Return the run of a seed and the names of its changes; seeds use all changes in turn."""
    chance = random.Random(seed)
    first = list(CHANGES)[seed % len(CHANGES)]
    sources = [r for r in kept_runs if first != "fio_names" or _has_fio(r)]
    source = sources[seed // len(CHANGES) % len(sources)]
    run = parent / source.name
    shutil.copytree(source, run)
    names = [first]
    names += chance.sample(list(CHANGES), chance.choice((0, 0, 1, 2)))
    names.sort(key=lambda name: name == "huge")  # last, because other changes read or copy files
    for name in dict.fromkeys(names):
        try:
            CHANGES[name](run, chance, outside)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            if name == names[0]:
                raise  # only an earlier change may be the cause
    return run, names


def _has_fio(run: Path) -> bool:
    return '"tool": "fio"' in (run / "run.json").read_text(encoding="utf-8")


def few_cells(run: Path) -> None:
    """Reduce a stored run to its first two cells, since reports of many take long."""
    for name in ("run.json", "result.json"):
        edit(run / name, lambda data: data | {"cells": data["cells"][:2]})
    left = {c["id"] for c in json.loads((run / "run.json").read_text())["cells"]}
    for cell in (run / "cells").iterdir():
        if cell.name not in left:
            shutil.rmtree(cell)


def unpack(parent: Path) -> list[Path]:
    """Return every stored run, with two cells."""
    runs = [kept.unpacked(name, parent).directory for name in kept.NAMES]
    for run in runs:
        few_cells(run)
    return runs
