"""Directories of matrix runs.

::

    MATRIX-TIME/night.json    the jobs, and how each ended; lab.night/1
    MATRIX-TIME/matrix.yaml   the matrix file as it was
    MATRIX-TIME/JOB.log       traceback of a job that a bug of the lab broke

The runs themselves are stored with all others.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from lab.core.errors import HostError, InputError, unwritable
from lab.host.system import files, paths
from lab.model.matrix.record import MatrixRun
from lab.store.files import RunFiles


def create(matrix: str, text: str) -> Path:
    """Make a directory for a new matrix run."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        directory = paths.nights() / (f"{matrix}-{stamp}" + (f"-{number}" if number else ""))
        try:
            files.make_directory(directory.parent)
            directory.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise unwritable(directory, error, "made") from error
        files.write(directory / "matrix.yaml", text)
        files.sync(directory)
        return directory
    raise HostError(f"there are a thousand matrix runs named '{matrix}-{stamp}'")


def save(directory: Path, record: MatrixRun) -> None:
    """Write the record as it is so far."""
    files.write(directory / "night.json", record.model_dump_json(by_alias=True, indent=1))


def load(directory: Path) -> MatrixRun:
    """The record; ``InputError``: it is missing or invalid."""
    return RunFiles(directory).require(MatrixRun, "night.json", "matrix run")


def _parts(name: str) -> tuple[str, str, int]:
    """Matrix, time and number, from the name that ``create`` gave."""
    match = re.fullmatch(r"(.+)-(\d{8}-\d{6})(?:-(\d+))?", name)
    return (match[1], match[2], int(match[3] or 0)) if match else (name, "", 0)


def every() -> list[Path]:
    """Every directory, the newest first."""
    found = [d for d in paths.nights().glob("*") if (d / "night.json").exists()]
    return sorted(found, key=lambda d: (*_parts(d.name)[1:], d.name), reverse=True)


def find(name: str) -> Path:
    """A directory by id, path, ``last``, or a matrix' name for its last run."""
    if "/" in name or Path(name, "night.json").exists():
        return Path(name)
    for directory in every():
        if name in ("last", directory.name, _parts(directory.name)[0]):
            return directory
    raise InputError(
        f"there is no matrix run '{name}'", hint=f"matrix runs are stored in '{paths.nights()}'"
    )
