"""Many stored runs, from the kept ones: hard links, with an id of its own each."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lab.store.runs import RunStore
from tests import kept

_WITH_ID: Final = {"run.json": (), "result.json": ("run",)}
"""Files that have the run's id, and where."""


def many_runs(
    parent: Path, number: int, *, aside: Path, names: Sequence[str] = kept.NAMES
) -> list[RunStore]:
    """So many runs below ``parent``, of these scenarios in turn; ``aside``: for the originals."""
    originals = [kept.unpacked(name, aside) for name in names]
    runs = []
    for n in range(number):
        original = originals[n % len(originals)]
        stamp = f"2026{1 + n // 672:02}{1 + n // 24 % 28:02}-{n % 24:02}0000"
        store = RunStore(parent / f"{original.scenario_name}-{stamp}")
        for top, directories, files in os.walk(original.directory):
            below = store.directory / os.path.relpath(top, original.directory)
            below.mkdir(parents=True, exist_ok=True)
            del directories
            for file in files:
                if Path(top) != original.directory or file not in _WITH_ID:
                    os.link(os.path.join(top, file), below / file)  # noqa: PTH118
        for file, keys in _WITH_ID.items():
            data = json.loads((original.directory / file).read_text())
            place = data
            for key in keys:
                place = place[key]
            place["id"] = store.id
            (store.directory / file).write_text(json.dumps(data))
        runs.append(store)
    return runs
