"""Runs in a guest: writes finished cells with the lab's store, and reads them after a power cut.

``write RUNS SYNC`` makes runs below a directory, and prints each cell's run and id after
`finish_cell` has returned; ``SYNC`` is ``sync``, or ``nosync`` for a store that syncs nothing.
``check RUNS`` reads such lines from standard input, and prints those whose cell is not there whole.
``stored_run.json`` beside this file is what the runs are about.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from lab.core.errors import InputError
from lab.model.execution.procedure import Procedure
from lab.model.result.document import Outcome
from lab.store.runs import RunStore, StoredOutcome, StoredRun, save_raw

RUN = Path(__file__).with_name("stored_run.json")


def outputs(cell: str) -> dict[str, str]:
    """The raw files of a cell: small ones, and a log of some 40 kB."""
    names = [
        f"{tool}.{n}.{end}.txt" for tool in ("write", "read") for n in (1, 2, 3) for end in "oe"
    ]
    found = {name: f"{cell} {name}\n" * 20 for name in names}
    return {**found, "write.1.log.txt": f"0, 1048576, 1, 0 of {cell}\n" * 1500}


def write(runs: Path) -> None:
    """Finished cells, one after the other, until the power goes."""
    about = StoredRun.model_validate_json(RUN.read_bytes())
    while True:
        store = RunStore.create("q", "title: T\n", runs)
        store.save_run(about.model_copy(update={"id": store.id}))
        for stored in about.cells:
            attempt = store.begin_cell(stored.id, stored.cell, Procedure(name="q", steps=()))
            for name, text in outputs(stored.id).items():
                save_raw(attempt, name, text)
            with (attempt / "events.jsonl").open("ab") as file:
                file.write(b'{"kind": "step"}\n' * 40)
            store.finish_cell(stored.id, attempt, StoredOutcome(outcome=Outcome.DONE))
            print(f"{store.id} {stored.id}", flush=True)


def wrong(runs: Path, run: str, cell: str) -> str:
    """What is missing or broken of a cell; empty: it is there whole."""
    store = RunStore(runs / run)
    try:
        known = {one.id for one in store.load_run().cells}
    except InputError as error:
        return f"run: {error.message}"
    found = store.load_cell(cell)
    place = store.cell_directory(cell)
    if found is None:
        return "outcome.json is missing" if place.is_dir() else "the directory is missing"
    if cell not in known or found.outcome.outcome is not Outcome.DONE:
        return found.outcome.reason
    if sentences := store.warnings():
        return sentences[0]
    if found.raw != outputs(cell):
        return "raw output is not what it was"
    lines = (place / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return "" if len(lines) == 40 and all(map(json.loads, lines)) else "events.jsonl is cut off"


if __name__ == "__main__":
    what, place = sys.argv[1], Path(sys.argv[2])
    if what == "write":
        if sys.argv[3] == "nosync":
            os.fsync = lambda _descriptor: None
        print("ready", flush=True)
        write(place)
    for line in sys.stdin:
        if why := wrong(place, *line.split()):
            print(f"{line.strip()}: {why}")
