"""The benchmark's file: facts about the machine, and every unit that was measured, as JSON.

It holds no path and no name of the machine, so that it can be kept beside the table made from it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.plan import Unit

SCHEMA = "lab.bench/1"


class BenchError(Exception):
    """The benchmark cannot go on: a sentence for whoever started it."""


@dataclass(slots=True, kw_only=True)
class Document:
    """Everything that is known of a benchmark."""

    facts: dict[str, Any] = field(default_factory=dict)
    """Of the machine, the image, the tools and the scenario; all units have them in common."""
    ideal: dict[str, float] = field(default_factory=dict)
    """Seconds that a cell's workloads take in theory (`lab scenario predict`), by cell."""
    units: list[dict[str, Any]] = field(default_factory=list)
    prepared: list[dict[str, Any]] = field(default_factory=list)
    """What each start of the benchmark had to run before it could measure, and how long it took."""

    def done(self) -> list[Unit]:
        """What has been measured, failed units left out: they are tried again."""
        return [unit_of(u) for u in self.units if not u.get("error")]

    def good(self, *arms: str) -> list[dict[str, Any]]:
        """The units of these arms that did not fail."""
        return [u for u in self.units if u["arm"] in arms and not u.get("error")]

    def accept(self, facts: dict[str, Any], ideal: dict[str, float]) -> None:
        """Take facts in; units of another machine, image or scenario do not go into one table."""
        other = sorted(k for k in {*facts, *self.facts} if self.facts.get(k) != facts.get(k))
        if self.units and (other or self.ideal != ideal):
            told = "; ".join(f"{k} was {self.facts.get(k)!r}, is {facts.get(k)!r}" for k in other)
            raise BenchError(
                "the file holds units that were measured with something else"
                f" ({told or 'another prediction'}): begin anew, without --append and --resume"
            )
        self.facts, self.ideal = facts, ideal


def unit_of(stored: dict[str, Any]) -> Unit:
    """Which unit a stored one is."""
    return Unit(
        arm=stored["arm"], round=stored["round"], repeat=stored["repeat"], cell=stored["cell"]
    )


def load(path: Path) -> Document:
    """Read a file; ``BenchError`` says what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(f"'{path}' cannot be read: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise BenchError(f'\'{path}\' is not a benchmark: expected "schema": "{SCHEMA}"')
    return Document(
        facts=data["facts"],
        ideal=data["ideal"],
        units=data["units"],
        prepared=data["prepared"],
    )


def save(document: Document, path: Path) -> None:
    """Write the file by rename: whoever reads it sees all units or all but the newest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    data = {
        "schema": SCHEMA,
        "facts": document.facts,
        "ideal": document.ideal,
        "prepared": document.prepared,
        "units": document.units,
    }
    with part.open("w", encoding="utf-8") as file:
        file.write(json.dumps(data, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
