"""Directories with one record each, such as those of matrix runs: ``NAME-TIME/RECORD``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

from lab.core.base import Model
from lab.core.errors import HostError, unwritable
from lab.host.system import files
from lab.store import names
from lab.store.run_files import RunFiles

M = TypeVar("M", bound=Model)


def new_directory(parent: Path, name: str, what: str) -> Path:
    """Make the directory ``NAME-TIME``, or ``NAME-TIME-N``, of a ``what``; return its path."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        directory = parent / (f"{name}-{stamp}" + (f"-{number}" if number else ""))
        try:
            files.make_directory(parent)
            directory.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise unwritable(directory, error, "made") from error
        return directory
    raise HostError(f"there are a thousand {what}s called '{name}-{stamp}' in '{parent}'")


@dataclass(frozen=True, slots=True)
class Records(Generic[M]):
    """All records of one kind."""

    model: type[M]
    file: str
    what: str
    """The kind in messages, such as ``matrix run``."""
    parent: Callable[[], Path]

    def create(self, name: str, texts: Mapping[str, str]) -> Path:
        """Make a directory with these files; return its path."""
        directory = new_directory(self.parent(), name, self.what)
        for file, text in texts.items():
            files.write(directory / file, text)
        files.sync(directory)
        return directory

    def save(self, directory: Path, record: M) -> None:
        """Write the record in its present state."""
        files.write(directory / self.file, record.model_dump_json(by_alias=True, indent=1))

    def load(self, directory: Path) -> M:
        """Return the record; ``InputError``: it is missing or invalid."""
        return RunFiles(directory).require(self.model, self.file, self.what)

    def every(self) -> list[Path]:
        """Return every directory, newest first."""
        found = [d for d in self.parent().glob("*") if (d / self.file).exists()]
        return sorted(found, key=lambda directory: names.age(directory.name), reverse=True)

    def find(self, name: str) -> Path:
        """Return a directory by its path, or by a name that `names.resolve` accepts."""
        if "/" in name or Path(name, self.file).exists():
            return Path(name)
        known = {directory.name: directory for directory in self.every()}
        hint = f"{self.what}s are kept in '{self.parent()}'"
        return known[names.resolve(name, list(known), what=self.what, hint=hint)]
