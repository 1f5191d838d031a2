"""Directories of bisections.

::

    CLAIM-TIME/bisect.json     the request, what was measured, the result; lab.bisect/1
    CLAIM-TIME/changelog.txt   the Debian changelog between the last good and the first bad version

The runs themselves are stored with all others.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from lab.capabilities.bisect.model import Bisection
from lab.core.errors import HostError, unwritable
from lab.host.system import files, paths
from lab.store import names
from lab.store.run_files import RunFiles

RECORD = "bisect.json"
CHANGELOG = "changelog.txt"


def create(record: Bisection) -> Path:
    """Make a directory with the record, which gets its id; return its path."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        name = f"{record.claim}-{stamp}" + (f"-{number}" if number else "")
        directory = paths.bisects() / name
        try:
            files.make_directory(directory.parent)
            directory.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise unwritable(directory, error, "made") from error
        save(directory, record.model_copy(update={"id": name}))
        return directory
    raise HostError(f"there are a thousand bisections named '{record.claim}-{stamp}'")


def save(directory: Path, record: Bisection) -> None:
    """Write the record in its present state."""
    files.write(directory / RECORD, record.model_dump_json(by_alias=True, indent=1))


def save_changelog(directory: Path, text: str) -> None:
    """Write the changelog between the two versions of the result."""
    files.write(directory / CHANGELOG, text)


def load(directory: Path) -> Bisection:
    """Return the record; ``InputError``: it is missing or invalid."""
    return RunFiles(directory).require(Bisection, RECORD, "bisection")


def every() -> list[Path]:
    """Return every directory, newest first."""
    found = [d for d in paths.bisects().glob("*") if (d / RECORD).exists()]
    return sorted(found, key=lambda directory: names.age(directory.name), reverse=True)


def find(name: str) -> Path:
    """Return a directory by its path, or by a name that `names.resolve` accepts."""
    if "/" in name or Path(name, RECORD).exists():
        return Path(name)
    known = {directory.name: directory for directory in every()}
    hint = f"bisections are kept in '{paths.bisects()}'"
    return known[names.resolve(name, list(known), what="bisection", hint=hint)]
