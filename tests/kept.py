"""Stored runs that were measured, kept whole: ``python -m tests.kept RUN...`` keeps one more.

Each is an archive in ``golden/runs`` with every file of the run directory but the logs of its
workers, which no reader of runs looks at. Three things are written over, as far as they tell where
it was: the directory of the run, that of its guests, and the host's name. The archive of a run is
always the same, byte by byte.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from lab.analysis.sequential import LEAST
from lab.compile.scenario.identity import cell_id
from lab.model.execution.events import CellAgain, Event
from lab.model.result.document import Basis, ClaimResult
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import Cell
from lab.store.runs import RunStore

PLACE: Final = Path(__file__).parent / "golden" / "runs"
NAMES: Final = tuple(path.name.partition(".")[0] for path in sorted(PLACE.glob("*.tar.xz")))
"""Scenarios with a kept run."""

_WRITTEN_OVER: Final = (
    (re.compile(rb'("directory": ")[^"]*/'), rb"\1/lab/runs/"),
    (re.compile(rb"/[\w./-]+/guests/(?=g[0-9a-f]{6}/)"), rb"/lab/guests/"),
    (re.compile(rb'("host": \{\s*"name": ")[^"]*'), rb"\1host"),
)
TELLTALE: Final = re.compile(rb"/(?:root|home|tmp)/[^\s\"']*|PRIVATE KEY")
"""What no kept file may have in it."""


def keep(run: Path, place: Path = PLACE) -> Path:
    """The archive of a run; ``ValueError`` names a file that would tell too much."""
    store = RunStore(run)
    path = place / f"{store.scenario_name}.tar.xz"
    place.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:xz", preset=9, format=tarfile.PAX_FORMAT) as archive:
        for file, data in files_of(run):
            entry = tarfile.TarInfo(f"{store.id}/{file}")
            entry.size = len(data)
            archive.addfile(entry, BytesIO(data))
    return path


def files_of(run: Path) -> Iterator[tuple[str, bytes]]:
    """What is kept of a run, by its name in the run's directory."""
    for path in sorted(p for p in run.rglob("*") if p.is_file()):
        if path.parent == run and (path.suffix == ".log" or path.name == "report.html"):
            continue
        data = path.read_bytes()
        for wanted, instead in _WRITTEN_OVER:
            data = wanted.sub(instead, data)
        if found := TELLTALE.search(data):
            raise ValueError(f"'{path}' has {found[0]!r} in it")
        yield str(path.relative_to(run)), data


def unfounded(claim: ClaimResult) -> str:
    """Why a decided verdict has no ground; empty: it has."""
    if claim.verdict not in (Verdict.HOLDS, Verdict.REFUTED):
        return ""
    said = [part.holds for part in claim.parts]
    if not said or not (all(said) if claim.verdict is Verdict.HOLDS else False in said):
        return f"{claim.id} {claim.verdict.value}: {claim.parts}"
    unknown = [
        p for p in claim.parts if p.basis in (Basis.SEEDS, Basis.TRIALS) and p.trials < LEAST
    ]
    return f"{claim.id} stands on too few trials: {unknown}" if unknown else ""


def unpacked(name: str, parent: Path) -> RunStore:
    """A kept run, as a run directory below ``parent``."""
    with tarfile.open(PLACE / f"{name}.tar.xz") as archive:
        for entry in archive:
            data = archive.extractfile(entry)
            assert data is not None
            path = parent / entry.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.read())
    return RunStore(parent / entry.name.partition("/")[0])


Story = tuple[tuple[Cell, ...], list[tuple[float, str, Event | None]]]
"""Cells, and events with their time and their guest; ``None``: its worker has exited."""
EVENT: Final[TypeAdapter[Event]] = TypeAdapter(Event)


def story(store: RunStore) -> Story:
    """A kept run as its workers told of it; which guest had which cell is not kept."""
    stored = store.load_run().cells
    ids = {s.id: cell_id(s.cell) for s in stored}  # what cells are called has changed since then
    found: list[tuple[float, str, Event | None]] = []
    for path in sorted((store.directory / "cells").glob("*/events.jsonl")):
        guest, lines = path.parent.name, path.read_text().splitlines()
        for line in lines:
            told = json.loads(line)
            told["cell"] = ids.get(told["cell"], told["cell"])
            found.append((told["at"], guest, EVENT.validate_python(told)))
        if guest.startswith(".") and told["cell"] in ids.values():
            found.append((told["at"], guest, CellAgain(cell=told["cell"])))
        found.append((told["at"], guest, None))
    return tuple(s.cell for s in stored), sorted(found, key=lambda told: told[0])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m tests.kept RUN...")
    for directory in sys.argv[1:]:
        print(keep(Path(directory)))
