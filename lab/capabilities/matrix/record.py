"""Directories of matrix runs.

::

    MATRIX-TIME/night.json    the jobs and their results; lab.night/1
    MATRIX-TIME/matrix.yaml   a copy of the matrix file
    MATRIX-TIME/JOB.log       traceback of a job that a bug of the lab broke

The runs themselves are stored with all others.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from lab.capabilities.matrix.model import MatrixRun
from lab.core.errors import HostError, unwritable
from lab.host.system import files, paths
from lab.store import names
from lab.store.run_files import RunFiles


def create(matrix: str, text: str) -> Path:
    """Make a directory for a new matrix run; return its path."""
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
    """Write the record in its present state."""
    files.write(directory / "night.json", record.model_dump_json(by_alias=True, indent=1))


def load(directory: Path) -> MatrixRun:
    """Return the record; ``InputError``: it is missing or invalid."""
    return RunFiles(directory).require(MatrixRun, "night.json", "matrix run")


def every() -> list[Path]:
    """Return every directory, newest first."""
    found = [d for d in paths.nights().glob("*") if (d / "night.json").exists()]
    return sorted(found, key=lambda directory: names.age(directory.name), reverse=True)


def find(name: str) -> Path:
    """Return a directory by its path, or by a name that `names.resolve` accepts."""
    if "/" in name or Path(name, "night.json").exists():
        return Path(name)
    runs = {directory.name: directory for directory in every()}
    hint = f"matrix runs are kept in '{paths.nights()}'"
    return runs[names.resolve(name, list(runs), what="matrix run", hint=hint)]
