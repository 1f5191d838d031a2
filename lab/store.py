"""Run directories: the only reader and writer of them.

::

    RUN/run.json                       environment, overrides, cells and claims; lab.run/1
    RUN/scenario.yaml                  the file as it was
    RUN/cells/ID/cell.json             the cell, everything fixed
    RUN/cells/ID/procedure.json        every command, as run
    RUN/cells/ID/events.jsonl          what the worker told
    RUN/cells/ID/outcome.json          outcome, reason, seconds, checks
    RUN/cells/ID/raw/…                 exactly what the tools printed: the primary record
    RUN/cells/.ID.N/                   a cell that did not finish, or its failed attempt: evidence
    RUN/result.json                    lab.result/1, made from the above
    RUN/report.html                    the page of it, where `lab report` was asked for one

Files are written by rename; a finished cell is never written again.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from lab.errors import HostError, InputError, unwritable
from lab.host import leftovers, paths
from lab.model.base import Model
from lab.model.calibration import Calibration
from lab.model.claim import Claim
from lab.model.measurement import Check
from lab.model.noise import NoiseFloor
from lab.model.procedure import Procedure
from lab.model.result import Outcome, PhaseSeconds, Result
from lab.model.scenario import Cell, Source


class StoredCell(Model):
    """One cell of a run, and whether published figures speak of it."""

    id: str
    cell: Cell
    published: bool


class StoredRun(Model):
    """What a run is about; everything else can be made again from it and the raw output."""

    schema_: str = "lab.run/1"
    id: str
    scenario: str
    title: str
    question: str
    source: Source | None = None
    notes: str = ""
    overrides: tuple[str, ...] = ()
    started: str
    finished: str | None = None
    environment: dict[str, Any]
    cells: tuple[StoredCell, ...]
    claims: tuple[Claim, ...]
    calibrations: tuple[Calibration, ...] = ()
    """What the scenario's disks did, bare."""
    noise: tuple[NoiseFloor, ...] = ()
    """How far the same cells came out differently on this host before."""


class StoredOutcome(Model):
    """How a cell ended."""

    outcome: Outcome
    reason: str = ""
    seconds: PhaseSeconds = PhaseSeconds()
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCell:
    """A finished cell as it lies on disk."""

    outcome: StoredOutcome
    raw: dict[str, str]


def now() -> str:
    """The time, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_json(path: Path, text: str) -> None:
    """Write by rename; ``HostError`` says where the disk is full."""
    write_whole(path, text.encode())


def write_whole(path: Path, data: bytes) -> None:
    """A file that is there whole or not at all; ``HostError`` says where the disk is full."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.rename(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise unwritable(path, error) from error


class RunStore:
    """One run directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def create(cls, scenario: str, text: str, out: Path | None = None) -> RunStore:
        """A new run directory, below ``out`` or the lab's own place."""
        parent = out or paths.runs()
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        for number in range(1000):
            name = f"{scenario}-{stamp}" + (f"-{number}" if number else "")
            directory = parent / name
            try:
                directory.mkdir(parents=True)
                (directory / "cells").mkdir()
                (directory / "scenario.yaml").write_text(text, encoding="utf-8")
            except FileExistsError:
                continue
            except OSError as error:
                raise unwritable(directory, error, "made") from error
            return cls(directory)
        raise HostError(f"there are a thousand runs called '{scenario}-{stamp}' in '{parent}'")

    @property
    def id(self) -> str:
        """The run's id is its directory's name."""
        return self.directory.name

    @property
    def scenario_name(self) -> str:
        """The scenario's name, as the run's id has it: what a listing can tell at once."""
        return _parts(self.id)[0]

    def save_run(self, run: StoredRun) -> None:
        """Keep what the run is about."""
        write_json(self.directory / "run.json", run.model_dump_json(indent=1))

    def load_run(self) -> StoredRun:
        """What the run is about; ``InputError`` where the file is missing or not ours."""
        path = self.directory / "run.json"
        try:
            return StoredRun.model_validate_json(path.read_bytes())
        except OSError as error:
            raise InputError(f"'{self.directory}' is no run: '{path}' cannot be read") from error
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(str(p) for p in first["loc"]) or "the file"
            raise InputError(
                f"'{path}' is not a run that this lab can read: {key}: {first['msg']}"
            ) from None

    def begin_cell(self, cell_id: str, cell: Cell, procedure: Procedure) -> Path:
        """An empty directory for one attempt at a cell."""
        for attempt in range(1, 100):
            directory = self.directory / "cells" / f".{cell_id}.{attempt}"
            try:
                directory.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                raise unwritable(directory, error, "made") from error
            write_json(directory / "cell.json", cell.model_dump_json(indent=1))
            secretless = procedure.model_dump(mode="json")
            write_json(directory / "procedure.json", json.dumps(secretless, indent=1))
            return directory
        raise HostError(f"a hundred attempts at the cell '{cell_id}' lie in '{self.directory}'")

    def has_cell(self, cell_id: str) -> bool:
        """Whether the cell is finished."""
        return (self.directory / "cells" / cell_id / "outcome.json").exists()

    def keep_attempt(self, attempt: Path, outcome: StoredOutcome) -> None:
        """Write down how an attempt ended that is not the cell; it stays as evidence."""
        write_json(attempt / "outcome.json", outcome.model_dump_json(indent=1))

    @staticmethod
    def raw(directory: Path) -> dict[str, str]:
        """Raw output in the directory of a cell, or of an attempt at one."""
        return {
            path.name: path.read_text(encoding="utf-8", errors="replace")
            for path in sorted((directory / "raw").glob("*"))
            if not path.name.startswith(".") and path.is_file() and os.access(path, os.R_OK)
        }

    def finish_cell(self, cell_id: str, attempt: Path, outcome: StoredOutcome) -> None:
        """Put an attempt in the cell's place; it is the cell from now on."""
        write_json(attempt / "outcome.json", outcome.model_dump_json(indent=1))
        place = self.directory / "cells" / cell_id
        try:
            attempt.rename(place)
        except OSError as error:
            raise HostError(f"'{place}' cannot be made: {error.strerror}") from error

    def load_attempt(self, directory: Path) -> StoredOutcome:
        """How an attempt ended; one that was cut off, or cannot be read, was lost."""
        try:
            return StoredOutcome.model_validate_json((directory / "outcome.json").read_bytes())
        except (OSError, ValidationError):
            reason = f"'{directory / 'outcome.json'}' is missing or cannot be read"
            return StoredOutcome(outcome=Outcome.LOST, reason=reason)

    def load_cell(self, cell_id: str) -> FinishedCell | None:
        """A finished cell, or ``None``; unreadable raw files are passed over as empty."""
        directory = self.directory / "cells" / cell_id
        try:
            outcome = StoredOutcome.model_validate_json((directory / "outcome.json").read_bytes())
        except OSError:
            return None
        except ValidationError:
            outcome = StoredOutcome(
                outcome=Outcome.FAILED, reason=f"'{directory}/outcome.json' cannot be read"
            )
        return FinishedCell(outcome=outcome, raw=self.raw(directory))

    def texts(self, cell_id: str) -> dict[str, str]:
        """Every file of a finished cell by its name below the cell's directory."""
        directory = self.directory / "cells" / cell_id
        return {
            str(path.relative_to(directory)): path.read_text(encoding="utf-8", errors="replace")
            for path in sorted(directory.rglob("*"))
            if path.is_file() and not path.name.startswith(".")
        }

    def scenario_text(self) -> str:
        """The scenario's file as it was; empty where somebody removed it."""
        path = self.directory / "scenario.yaml"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def load_procedure(self, directory: Path) -> Procedure | None:
        """Every command of a cell or an attempt, as run; ``None`` where it cannot be read."""
        try:
            return Procedure.model_validate_json((directory / "procedure.json").read_bytes())
        except (OSError, ValidationError):
            return None

    def cell_directory(self, cell_id: str) -> Path:
        """Where a finished cell lies."""
        return self.directory / "cells" / cell_id

    def attempts(self, cell_id: str) -> tuple[Path, ...]:
        """Attempts at a cell that are not the cell, the first one first."""
        found = [
            d
            for d in (self.directory / "cells").glob(f".{glob.escape(cell_id)}.*")
            if d.is_dir() and d.suffix[1:].isdecimal()
        ]
        return tuple(sorted(found, key=lambda d: int(d.suffix[1:])))

    def damage(self) -> tuple[str, ...]:
        """What is not the lab's in here, or cannot be read: a sentence for each, with its path."""
        ids = {cell.id for cell in self.load_run().cells}
        return tuple(_damage(self.directory, ids))

    def save_report(self, text: str) -> Path:
        """Keep the report page beside what it was made from; where it is."""
        path = self.directory / "report.html"
        write_whole(path, text.encode())
        return path

    def load_result(self) -> Result | None:
        """The result document as it was kept; ``None`` where there is none that can be read."""
        try:
            return Result.model_validate_json((self.directory / "result.json").read_bytes())
        except (OSError, ValidationError):
            return None

    def complaint(self) -> str:
        """Why the kept result is made again; empty where it can be read, or none was kept."""
        path = self.directory / "result.json"
        if not path.is_file() or self.load_result() is not None:
            return ""
        return f"'{path}' is cut off or not the lab's: it is made again from the raw output"

    def save_result(self, result: Result) -> None:
        """Keep the result document beside what it was made from."""
        text = result.model_dump_json(by_alias=True, indent=1)
        write_json(self.directory / "result.json", text)


def _parts(run_id: str) -> tuple[str, str, int]:
    """Scenario, time and number of a run, from the id that ``create`` gave it."""
    match = re.fullmatch(r"(.+)-(\d{8}-\d{6})(?:-(\d+))?", run_id)
    return (match[1], match[2], int(match[3] or 0)) if match else (run_id, "", 0)


_WHOLE: Final[Mapping[str, type[Model]]] = {
    "cell.json": Cell,
    "procedure.json": Procedure,
    "outcome.json": StoredOutcome,
}
"""Files of a cell, and what must be in them."""
_OURS: Final = frozenset({"run.json", "scenario.yaml", "result.json", "report.html", "cells"})


def _damage(directory: Path, cells: Collection[str]) -> Iterator[str]:
    """What is foreign or broken in a run; logs and files that begin with a dot are passed over."""
    for path in sorted(directory.iterdir()):
        if path.name not in _OURS and path.suffix != ".log" and not path.name.startswith("."):
            yield _foreign(path)
    if (directory / "result.json").exists():
        yield from _unreadable(directory / "result.json", Result)
    for place in sorted((directory / "cells").glob("*")):
        if place.name.startswith("."):
            continue
        if place.name not in cells or not place.is_dir():
            yield _foreign(place)
            continue
        for name, model in _WHOLE.items():
            yield from _unreadable(place / name, model)
        for path in sorted(place.iterdir()):
            if path.name not in {*_WHOLE, "events.jsonl", "raw"}:
                yield _foreign(path)
        for path in sorted((place / "raw").glob("*")):
            if not path.name.startswith("."):
                yield from _unreadable(path, None)


def _foreign(path: Path) -> str:
    return f"'{path}' is none of this run's files, and is passed over"


def _unreadable(path: Path, model: type[Model] | None) -> Iterator[str]:
    """A sentence where a file is missing or holds something else: a model, or any text."""
    try:
        data = path.read_bytes()
        if model is None:
            data.decode()
        else:
            model.model_validate_json(data)
    except OSError as error:
        yield f"'{path}' cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        yield f"'{path}' is no text: byte {error.start} is not UTF-8"
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = ": ".join(filter(None, (".".join(str(p) for p in first["loc"]), first["msg"])))
        yield f"'{path}' is cut off, or not what it should be: {what}"


def every(directories: Sequence[Path] = ()) -> Iterator[RunStore]:
    """Every run, newest first."""
    found = [
        d
        for parent in directories or (paths.runs(),)
        if parent.is_dir()
        for d in parent.iterdir()
        if (d / "run.json").exists()
    ]
    found.sort(key=lambda d: (*_parts(d.name)[1:], d.name), reverse=True)
    yield from (RunStore(d) for d in found)


def strays(directories: Sequence[Path] = ()) -> list[str]:
    """A sentence for everything that lies among the runs and is none."""
    return [
        f"'{path}' is no run: " + ("it has no run.json" if path.is_dir() else "it is a file")
        for parent in directories or (paths.runs(),)
        if parent.is_dir()
        for path in sorted(parent.iterdir())
        if not path.name.startswith(".") and not (path / "run.json").exists()
    ]


def collect_garbage() -> list[str]:
    """Remove files that a killed lab or worker was writing into runs that did not end; their names.

    A finished run is passed over: its files were all renamed into their places.
    """
    stopped = [run for run in every() if not (run.directory / "result.json").exists()]
    return [name for run in stopped for name in leftovers.remove(run.directory.rglob(".*.part"))]


def find(name: str) -> RunStore:
    """A run by its id, its directory, or ``last``; a scenario's name means its last run."""
    if "/" in name or Path(name, "run.json").exists():
        return RunStore(Path(name))
    runs = list(every())
    for run in runs:
        if name in ("last", run.id) or _parts(run.id)[0] == name:
            return run
    raise InputError(f"there is no run '{name}'", hint="`lab results list` shows what there is")
