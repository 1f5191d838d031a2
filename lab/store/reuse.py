"""Finds results of sealed cells that ran on this host, by the digest of their inputs.

There is one small file per digest, ``STATE/reuse/INPUTS.json``, replaced by rename: of two writers
the last one wins, and a killed one changes nothing. An entry is only a hint: results are taken only
if the stored cell still has these inputs, these results, and raw output with the same digest.

Only cells that ran here get entries. So a run that was copied from another host has none before it
was reproduced here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationError

from lab.core.base import Model
from lab.host.system import files, leftovers, paths, untrusted
from lab.model.result.document import SHA256, CellClock, Outcome
from lab.store.runs import FinishedCell, RunStore, StoredOutcome

ENTRY: Final = 1 << 16
"""Most bytes of an entry."""


class Entry(Model):
    """A cell that ran on this host."""

    schema_: Literal["lab.reuse/1"] = Field(default="lab.reuse/1", alias="schema")
    inputs: str = Field(pattern=SHA256)
    results: str = Field(pattern=SHA256)
    raw: str = Field(pattern=SHA256)
    """Digest of its raw output."""
    directory: str = Field(pattern=r"^/")
    """Directory of its run."""
    cell: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A stored cell with the inputs."""

    store: RunStore
    cell: str
    finished: FinishedCell

    @property
    def run(self) -> str:
        """Id of the run in which it ran."""
        return self.finished.outcome.reused_from or self.store.id


def raw_digest(raw: Mapping[str, str]) -> str:
    """Return the SHA-256 of raw output by name."""
    return hashlib.sha256(json.dumps(dict(raw), sort_keys=True).encode()).hexdigest()


def add(store: RunStore, cell: str) -> None:
    """Add an entry for a finished cell; does nothing unless it is sealed and done."""
    finished = store.load_cell(cell)
    if finished is None or not _counts(finished.outcome):
        return
    assert finished.outcome.digest is not None
    entry = Entry(
        inputs=finished.outcome.digest.inputs,
        results=finished.outcome.digest.results,
        raw=raw_digest(finished.raw),
        directory=str(store.directory.absolute()),
        cell=cell,
    )
    files.make_directory(paths.reuse())
    text = entry.model_dump_json(by_alias=True, indent=1)
    files.write(paths.reuse() / f"{entry.inputs}.json", text, durable=False)


def entry_of(inputs: str) -> Entry | None:
    """Return the entry for these inputs; ``None``: there is none, or it cannot be read."""
    try:
        data = untrusted.read(paths.reuse(), f"{inputs}.json", limit=ENTRY)
        found = Entry.model_validate_json(data)
    except (OSError, ValidationError):
        return None
    return found if found.inputs == inputs else None


def find(inputs: str) -> Found | None:
    """Return the cell that ran here with these inputs; ``None``: none, or its files were
    changed."""
    entry = entry_of(inputs)
    if entry is None or untrusted.wrong_name(entry.cell):
        return None
    store = RunStore(Path(entry.directory))
    finished = store.load_cell(entry.cell)
    if finished is None or not _counts(finished.outcome) or store.warnings():
        return None
    digest = finished.outcome.digest
    assert digest is not None
    if (digest.inputs, digest.results) != (inputs, entry.results):
        return None
    if raw_digest(finished.raw) != entry.raw:
        return None
    return Found(store=store, cell=entry.cell, finished=finished)


def _counts(outcome: StoredOutcome) -> bool:
    return (
        outcome.outcome is Outcome.DONE
        and outcome.clock is CellClock.SEALED
        and outcome.digest is not None
    )


def collect_garbage() -> list[str]:
    """Remove unreadable entries and those without a cell; return their names."""
    if not paths.reuse().is_dir():
        return []
    removed = leftovers.remove(paths.reuse().glob(".*"))
    for path in paths.reuse().glob("*.json"):
        entry = entry_of(path.stem)
        if entry is None or not RunStore(Path(entry.directory)).has_cell(entry.cell):
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return removed
