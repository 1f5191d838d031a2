"""Nights: one directory for each time that a matrix was run, which names its runs.

::

    NIGHT/night.json      the parts, and what became of each; lab.night/1
    NIGHT/matrix.yaml     the file as it was
    NIGHT/PART.log        where a mistake in the lab itself broke a part

The runs themselves lie with all others: a night is a list of them.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from lab.core.errors import HostError, InputError, unwritable
from lab.host.system import files, paths
from lab.model.matrix.record import Night
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


def _parts(name: str) -> tuple[str, str, int]:
    """Matrix, time and number of a night, from the name that ``create`` gave it."""
    match = re.fullmatch(r"(.+)-(\d{8}-\d{6})(?:-(\d+))?", name)
    return (match[1], match[2], int(match[3] or 0)) if match else (name, "", 0)


def every() -> list[Path]:
    """Every night's directory, the newest first."""
    found = [d for d in paths.nights().glob("*") if (d / "night.json").exists()]
    return sorted(found, key=lambda d: (*_parts(d.name)[1:], d.name), reverse=True)


def find(name: str) -> Path:
    """A night by its id, its directory, ``last``, or the last one of a matrix by its name."""
    if "/" in name or Path(name, "night.json").exists():
        return Path(name)
    for directory in every():
        if name in ("last", directory.name, _parts(directory.name)[0]):
            return directory
    raise InputError(
        f"no matrix was run as '{name}'", hint=f"what was run lies in '{paths.nights()}'"
    )
