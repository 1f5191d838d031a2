"""Directories of bisections.

::

    CLAIM-TIME/bisect.json     the request, what was measured, the result; lab.bisect/1
    CLAIM-TIME/changelog.txt   the Debian changelog between the last good and the first bad version

The runs themselves are stored with all others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lab.capabilities.bisect.model import Bisection
from lab.host.system import files, paths
from lab.store.records import Records

CHANGELOG: Final = "changelog.txt"
BISECTIONS: Final = Records(Bisection, "bisect.json", "bisection", paths.bisects)


def create(record: Bisection) -> Path:
    """Make a directory with the record, which gets its id; return its path."""
    directory = BISECTIONS.create(record.claim, {})
    BISECTIONS.save(directory, record.model_copy(update={"id": directory.name}))
    return directory


def save_changelog(directory: Path, text: str) -> None:
    """Write the changelog between the two versions of the result."""
    files.write(directory / CHANGELOG, text)
