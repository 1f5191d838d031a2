"""What is foreign or broken among the runs and in them: a sentence for each, with its path.

Whoever shows runs says these, and shows everything else.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from lab import wording
from lab.errors import InputError
from lab.model.base import Model
from lab.model.procedure import Procedure
from lab.model.result import Result
from lab.model.scenario import Cell
from lab.model.stored import StoredOutcome

_WHOLE: Final[Mapping[str, type[Model]]] = {
    "cell.json": Cell,
    "procedure.json": Procedure,
    "outcome.json": StoredOutcome,
}
"""Files of a cell, and what must be in them."""
_OURS: Final = frozenset({"run.json", "scenario.yaml", "result.json", "report.html", "cells"})


def entries(directory: Path) -> list[Path]:
    """What lies in a directory, by name; nothing where there is none yet."""
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(
            f"'{directory}' cannot be read: {error.strerror}",
            hint="runs are kept there; LAB_HOME says where else",
        ) from error


def no_run(path: Path) -> str:
    """Why something that lies among the runs is none; empty: it is one."""
    try:
        (path / "run.json").stat()
    except NotADirectoryError:
        return f"'{path}' is no run: it is a file"
    except FileNotFoundError:
        return f"'{path}' is no run: it has no run.json"
    except OSError as error:
        return f"'{path}' cannot be read: {error.strerror}"
    return ""


def other_form(data: bytes, model: type[Model]) -> str:
    """Which other form a document says it has than the model's; empty: it says no such thing."""
    mine = model.model_fields["schema_"]
    try:
        said = json.loads(data)[mine.alias or "schema_"]
    except (ValueError, TypeError, KeyError):
        return ""
    if said == mine.default:
        return ""
    return f"has the form '{said}', and this lab reads '{mine.default}': another version wrote it"


def at_a_glance(directory: Path) -> Iterator[str]:
    """What of a run's kept result cannot be read, and whether its cells are there."""
    path = directory / "result.json"
    try:
        data = path.read_bytes()
        Result.model_validate_json(data)
    except FileNotFoundError:
        pass
    except OSError as error:
        yield f"'{path}' cannot be read: {error.strerror}: {_AGAIN}"
    except ValidationError:
        why = other_form(data, Result) or "is cut off or not the lab's"
        yield f"'{path}' {why}: {_AGAIN}"
    yield from closed(directory / "cells")


_AGAIN: Final = "it is made again from the raw output"


def in_run(directory: Path, cells: Collection[str]) -> Iterator[str]:
    """What is foreign or broken in a run; logs and files that begin with a dot are passed over."""
    yield from closed(directory)
    for path in listed(directory):
        if path.name not in _OURS and path.suffix != ".log":
            yield _foreign(path)
        if path.name == "result.json":
            yield from _unreadable(path, Result)
        if path.name == "scenario.yaml":
            yield from _unreadable(path, None)
    yield from closed(directory / "cells")
    for place in listed(directory / "cells"):
        if place.name not in cells or place.is_file():
            yield _foreign(place)
        elif sentences := tuple(closed(place)):
            yield from sentences
        else:
            yield from _in_cell(place)


def _in_cell(place: Path) -> Iterator[str]:
    for name, model in _WHOLE.items():
        yield from _unreadable(place / name, model)
    for path in listed(place):
        if path.name not in {*_WHOLE, "events.jsonl", "raw"}:
            yield _foreign(path)
    if (place / "raw").exists():  # a lost cell may have none
        yield from closed(place / "raw")
    for path in listed(place / "raw"):
        yield from _unreadable(path, None)


def listed(directory: Path) -> list[Path]:
    """What lies there, but for names that begin with a dot; nothing where ``closed`` speaks."""
    try:
        return [path for path in sorted(directory.iterdir()) if not path.name.startswith(".")]
    except OSError:
        return []


def closed(directory: Path) -> Iterator[str]:
    """A sentence where nobody can look into a directory, or it is not there."""
    try:
        for path in directory.iterdir():
            path.lstat()
            break
    except OSError as error:
        yield f"'{directory}' cannot be read: {error.strerror}"


def _foreign(path: Path) -> str:
    return f"'{path}' is none of this run's files, and is passed over"


def _unreadable(path: Path, model: type[Model] | None) -> Iterator[str]:
    """A sentence where a file is missing or holds something else: a model, or any text."""
    data = b""
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
        what = wording.reason(error, model)
        other = other_form(data, model) if model is Result else ""
        yield f"'{path}' {other or f'is cut off, or not what it should be: {what}'}"
