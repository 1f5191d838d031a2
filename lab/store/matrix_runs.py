"""Nights: one directory for each time that a matrix was run, which names its runs.

::

    NIGHT/night.json      the parts, and what became of each; lab.night/1
    NIGHT/matrix.yaml     the file as it was
    NIGHT/PART.log        where a mistake in the lab itself broke a part

The runs themselves lie with all others: a night is a list of them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from lab.core.errors import HostError, unwritable
from lab.host.system import files, paths
from lab.model.matrix.record import Night
from lab.store import names
from lab.store.files import RunFiles


def create(matrix: str, text: str) -> Path:
    """A new night's directory."""
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
    raise HostError(f"there are a thousand nights called '{matrix}-{stamp}'")


def save(directory: Path, night: Night) -> None:
    """Keep what became of it so far."""
    files.write(directory / "night.json", night.model_dump_json(by_alias=True, indent=1))


def load(directory: Path) -> Night:
    """What became of it; ``InputError`` where the file is missing or not ours."""
    return RunFiles(directory).require(Night, "night.json", "run of a matrix")


def every() -> list[Path]:
    """Every night's directory, the newest first."""
    found = [d for d in paths.nights().glob("*") if (d / "night.json").exists()]
    return sorted(found, key=lambda directory: names.age(directory.name), reverse=True)


def find(name: str) -> Path:
    """A night's directory by its path, or by a name that `names.resolve` knows."""
    if "/" in name or Path(name, "night.json").exists():
        return Path(name)
    nights = {directory.name: directory for directory in every()}
    hint = f"matrix runs are kept in '{paths.nights()}'"
    return nights[names.resolve(name, list(nights), what="matrix run", hint=hint)]
