"""Run directories. No other module reads or writes them.

::

    RUN/.maker                         the process that writes the run, and its lock
    RUN/run.json                       environment, overrides, cells and claims; lab.run/1
    RUN/scenario.yaml                  a copy of the scenario's file
    RUN/cells/ID/cell.json             the cell, everything fixed
    RUN/cells/ID/procedure.json        every command, as run
    RUN/cells/ID/events.jsonl          the worker's events
    RUN/cells/ID/outcome.json          outcome, reason, seconds, checks, digests; source if reused
    RUN/cells/ID/raw/…                 exact output of the tools: the primary record
    RUN/cells/.ID.N/                   an attempt that is not the cell's result: evidence
    RUN/result.json                    lab.result/1, made from the above
    RUN/report.html                    its report, if `lab report` made one

Files are written by rename; a finished cell is never written again. `save_run`, `finish_cell`,
`keep_attempt` and `save_result` return when their files are on the disk. The files of an attempt
are synced together at its end: a power cut during the attempt may take any of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lab.compile.scenario.identity import cell_id
from lab.core.errors import HostError, InputError, unwritable
from lab.core.printable import path_below
from lab.core.units import is_digits
from lab.host.system import files, leftovers, makers, paths, unfinished
from lab.model.execution.procedure import Procedure
from lab.model.result.document import Outcome, Result, RunState
from lab.model.result.stored import StoredCell as StoredCell
from lab.model.result.stored import StoredOutcome as StoredOutcome
from lab.model.result.stored import StoredRun as StoredRun
from lab.model.scenario.document import Cell
from lab.store import judgements, names, records
from lab.store.run_files import RunFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCell:
    """A finished cell as stored."""

    outcome: StoredOutcome
    raw: dict[str, str]


def now() -> str:
    """Return the current time, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def save_raw(directory: Path, name: str, text: str) -> None:
    """Store a tool's output in the directory of an attempt."""
    raw = directory / "raw"
    try:
        raw.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(raw, error, "made") from error
    files.write(raw / name, text, durable=False)


class RunStore:
    """One run directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = RunFiles(directory)
        self._notes: list[str] = []

    @classmethod
    def create(cls, scenario: str, text: str, out: Path | None = None) -> RunStore:
        """Make a run directory, below ``out`` or in the directory of all runs."""
        directory = records.new_directory(out or paths.runs(), scenario, "run")
        files.make_directory(directory / "cells")
        files.write(directory / "scenario.yaml", text)
        files.sync(directory)
        return cls(directory)

    @property
    def id(self) -> str:
        """The run's id, its directory's name."""
        return self.directory.name

    @property
    def scenario_name(self) -> str:
        """The scenario's name, from the run's id: no file is read."""
        return names.parts(self.id)[0]

    @property
    def is_run(self) -> bool:
        """Whether there is a ``run.json``, readable or not."""
        return os.path.lexists(self.directory / "run.json")

    def save_run(self, run: StoredRun) -> None:
        """Write the run's description."""
        files.write(self.directory / "run.json", run.model_dump_json(indent=1))

    def has_lost_attempts(self) -> bool:
        """Return whether a guest was lost during an attempt at a cell."""
        outcomes = self.directory.glob("cells/.*/outcome.json")
        return any('"lost"' in outcome.read_text(encoding="utf-8") for outcome in outcomes)

    def discard(self) -> None:
        """Remove the run; no process sees half of it."""
        aside = unfinished.name(self.directory)
        files.move(self.directory, aside)
        leftovers.discard(aside)

    def hold(self) -> AbstractContextManager[None]:
        """Lock the run as its writer; ``InputError``: another process has locked it."""
        return makers.hold(self.directory)

    def load_state(self) -> tuple[StoredRun, RunState]:
        """Return the run's description and its state; ``InputError`` as in `load_run`."""
        held = makers.holder(self.directory) is not None  # first: the run may end in between
        run = self.load_run()
        if run.finished:
            return run, RunState.FINISHED
        return run, RunState.RUNNING if held else RunState.STOPPED

    def load_run(self) -> StoredRun:
        """Return the run's description; ``InputError``: it is missing or invalid."""
        return self.files.require(StoredRun, "run.json", "run")

    def begin_cell(self, cell_id: str, cell: Cell, procedure: Procedure) -> Path:
        """Make a directory for an attempt at a cell, with cell and procedure; return its path."""
        directory = self._attempt(cell_id)
        files.write(directory / "cell.json", cell.model_dump_json(indent=1), durable=False)
        secretless = json.dumps(procedure.model_dump(mode="json"), indent=1)
        files.write(directory / "procedure.json", secretless, durable=False)
        return directory

    def _attempt(self, cell_id: str) -> Path:
        for attempt in range(1, 100):
            directory = self.directory / "cells" / f".{cell_id}.{attempt}"
            try:
                directory.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                raise unwritable(directory, error, "made") from error
            return directory
        raise HostError(f"a hundred attempts at the cell '{cell_id}' lie in '{self.directory}'")

    def take_in(self, cell_id: str, back: Mapping[str, bytes]) -> Path:
        """Store another host's files of a cell in a new directory, for `finish_cell`.

        ``HostError``: a path leads out of that directory; then no file is written.
        """
        try:
            below = {path_below(name): data for name, data in back.items()}
        except ValueError as error:
            raise HostError(
                f"a host sent a file of the cell '{cell_id}' that would lie outside of it: {error}"
            ) from None
        place = self._attempt(cell_id)
        for path, data in below.items():
            target = place / path
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise unwritable(target, error) from error
            files.write(target, data, durable=False)
        return place

    def has_cell(self, cell_id: str) -> bool:
        """Return whether the cell is finished."""
        return (self.directory / "cells" / cell_id / "outcome.json").exists()

    def keep_attempt(self, attempt: Path, outcome: StoredOutcome) -> None:
        """Store the outcome of an attempt that is not the cell's result; it remains as evidence."""
        files.write(attempt / "outcome.json", outcome.model_dump_json(indent=1), durable=False)
        files.sync(attempt)

    def raw(self, directory: Path) -> dict[str, str]:
        """Return raw output in the directory of a cell or of an attempt."""
        return self.files.texts(*directory.relative_to(self.directory).parts, "raw")

    def finish_cell(self, cell_id: str, attempt: Path, outcome: StoredOutcome) -> None:
        """Make an attempt the cell's result; it is on the disk when this returns."""
        files.write(attempt / "outcome.json", outcome.model_dump_json(indent=1), durable=False)
        files.publish(attempt, self.directory / "cells" / cell_id)

    def take_finished(self, cell_id: str, cell: Cell, other: RunStore, name: str) -> None:
        """Copy another run's finished cell into this run."""
        found = other.load_cell(name)
        assert found is not None
        texts = other.texts(name) | {"cell.json": cell.model_dump_json(indent=1)}
        del texts["outcome.json"]
        place = self.take_in(cell_id, {path: text.encode() for path, text in texts.items()})
        origin = found.outcome.reused_from or other.id
        self.finish_cell(cell_id, place, found.outcome.model_copy(update={"reused_from": origin}))

    def load_attempt(self, directory: Path) -> StoredOutcome:
        """Return an attempt's outcome; an attempt without a readable outcome is lost."""
        names = directory.relative_to(self.directory).parts
        found = self.files.document(StoredOutcome, *names, "outcome.json")
        reason = f"'{directory / 'outcome.json'}' is missing or cannot be read"
        return found or StoredOutcome(outcome=Outcome.LOST, reason=reason)

    def load_cell(self, cell_id: str) -> FinishedCell | None:
        """Return a finished cell, without unreadable raw files; ``None``: it is not finished."""
        outcome = self.files.document(StoredOutcome, "cells", cell_id, "outcome.json")
        if outcome is None:
            if not self.files.is_unread("cells", cell_id, "outcome.json"):
                return None
            reason = f"'{self.cell_directory(cell_id)}/outcome.json' cannot be read"
            outcome = StoredOutcome(outcome=Outcome.FAILED, reason=reason)
        return FinishedCell(outcome=outcome, raw=self.raw(self.cell_directory(cell_id)))

    def texts(self, cell_id: str) -> dict[str, str]:
        """Return every readable file of a finished cell by its path in the cell's directory."""
        raw = self.files.texts("cells", cell_id, "raw")
        own = ("cell.json", "procedure.json", "events.jsonl", "outcome.json")
        found = {name: self.files.text("cells", cell_id, name) for name in own}
        return {k: v for k, v in found.items() if v is not None} | {
            f"raw/{name}": text for name, text in raw.items()
        }

    def scenario_text(self) -> str:
        """Return the stored scenario file; empty: it is unreadable."""
        return self.files.text("scenario.yaml") or ""

    def load_procedure(self, directory: Path) -> Procedure | None:
        """Return the commands of a cell or an attempt, as run; ``None``: they are unreadable."""
        names = directory.relative_to(self.directory).parts
        return self.files.document(Procedure, *names, "procedure.json")

    def cell_directory(self, cell_id: str) -> Path:
        """Return the directory of a finished cell."""
        return self.directory / "cells" / cell_id

    def attempts(self, cell_id: str) -> tuple[Path, ...]:
        """Return attempts at a cell that are not its result, oldest first."""
        found = [n for n in self.files.entries("cells") if n.startswith(f".{cell_id}.")]
        numbers = sorted(int(n) for name in found if is_digits(n := name.rpartition(".")[2]))
        return tuple(self.directory / "cells" / f".{cell_id}.{number}" for number in numbers)

    def warnings(self) -> tuple[str, ...]:
        """Return what is wrong with the run, and one warning about files that could not be read."""
        return (*self._notes, *self.files.warnings())

    def note(self, sentence: str) -> None:
        """Add a sentence to the warnings, once."""
        if sentence not in self._notes:
            self._notes.append(sentence)

    def save_report(self, text: str) -> Path:
        """Store the run's report; return its path."""
        path = self.directory / "report.html"
        files.write(path, text.encode(errors="backslashreplace"))
        return path

    def load_result(self) -> Result | None:
        """Return the stored result document; ``None``: it is missing or unreadable."""
        return self.files.document(
            Result, "result.json", instead="it is made again from the raw output"
        )

    def finished_cells(self) -> frozenset[str]:
        """Return ids of finished cells as this version makes them; earlier versions made others."""
        cells = self.load_run().cells
        return frozenset(cell_id(stored.cell) for stored in cells if self.has_cell(stored.id))

    def go_on(self) -> None:
        """Mark the run as unfinished, since more cells will run.

        New cells get the ids that this version makes. Finished ones keep theirs.
        """
        run = self.load_run()
        cells = tuple(
            c if self.has_cell(c.id) else c.model_copy(update={"id": cell_id(c.cell)})
            for c in run.cells
        )
        self.save_run(run.model_copy(update={"finished": None, "cells": cells}))
        (self.directory / "result.json").unlink(missing_ok=True)

    def save_result(self, result: Result) -> None:
        """Store the result document."""
        text = result.model_dump_json(by_alias=True, indent=1)
        files.write(self.directory / "result.json", text)


def every(directories: Sequence[Path] = ()) -> Iterator[RunStore]:
    """Yield every directory of a run, newest first; reading a directory that is no run is an error.

    ``InputError``: the directory of all runs cannot be read.
    """
    yield from (RunStore(d) for d in judgements.directories(directories))


def collect_garbage() -> list[str]:
    """Remove partial files of killed processes in unfinished runs; return their names."""
    stopped = [r for r in every() if r.is_run and not (r.directory / "result.json").exists()]
    return [name for run in stopped for name in leftovers.remove(run.directory.rglob(".*.part"))]


def find(name: str, scenario: str = "") -> RunStore:
    """Return a run by its directory, or by a name that `names.resolve` accepts.

    ``scenario``: ``last`` means the last run of this scenario, if it has any.
    """
    if name.endswith(names.BUNDLE):
        raise InputError(
            f"'{name}' is a bundle, and no run that is stored here",
            hint=f"store its run: lab results import {name}",
        )
    named = RunStore(Path(name))
    if "/" in name or named.is_run:
        return named
    runs = {run.id: run for run in every() if run.is_run}
    if names.is_last(name) and any(run.scenario_name == scenario for run in runs.values()):
        name = scenario + name.removeprefix(names.LAST)
    hint = "`lab results list` shows what there is"
    return runs[names.resolve(name, list(runs), what="run", hint=hint)]
