"""Ids and identities of all shipped cells: ``python -m tests.identities``.

The file in ``golden`` has a digest for each scenario. It changes only with a scenario: cells that
nobody changed keep their names, or resume, reuse and comparison end without a word.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from lab.compile.scenario.compiler import compile_scenario
from lab.compile.scenario.identity import cell_id, identities
from lab.host.images.recipes import load
from lab.model.image.recipe import Brought, recipe_digest
from lab.plugins import catalog

GOLDEN: Final = Path(__file__).parent / "golden" / "identities.json"


def scenarios() -> dict[str, Path]:
    """All shipped scenarios."""
    return catalog.scenarios()


def text_of(path: Path) -> str:
    """A digest of a scenario's file, and of those that it extends."""
    whole = [path.read_bytes()]
    for line in whole[0].decode().splitlines():
        if line.startswith("extends:"):
            name = line.partition(":")[2].strip().strip("'\"")
            whole.append((path.parent / f"{Path(name).stem}.yaml").read_bytes())
    return hashlib.sha256(b"\0".join(whole)).hexdigest()[:16]


def digest_of(path: Path) -> str:
    """A digest of each cell's id and identity."""
    cells = compile_scenario(path).cells
    lines = [f"{cell_id(c)} {i}" for c, i in zip(cells, identities(cells), strict=True)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def recipes() -> dict[str, list[str]]:
    """A digest of each recipe's file, and the recipe's digest without the files that it names."""
    found = {}
    for name, path in catalog.image_recipes().items():
        _, recipe = load(name)
        text = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        found[name] = [text, recipe_digest(recipe, Brought(hooks={}, patches=()))[:16]]
    return found


if __name__ == "__main__":
    made: dict[str, Any] = {
        name: {"text": text_of(path), "cells": digest_of(path)}
        for name, path in scenarios().items()
    }
    made["images"] = recipes()
    GOLDEN.write_text(json.dumps(made, indent=0, sort_keys=True) + "\n", encoding="utf-8")
