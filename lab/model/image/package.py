"""Versions of what a guest runs: Debian's kernels and mdadm, patches of a series, commits of Linux.
Data only."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.image.axis import Axis
from lab.model.image.manifest import Sha256

PACKAGE: Final = r"^[a-z0-9][a-z0-9.+-]+$"
VERSION: Final = r"^[0-9][A-Za-z0-9.+~-]*$"
COMMIT: Final = r"^[0-9a-f]{12}$"


class PackageFile(Model):
    """One ``.deb`` of an archive, as its Packages file has it."""

    name: str = Field(pattern=PACKAGE)
    version: str = Field(pattern=VERSION)
    size: int = Field(ge=0)
    sha256: Sha256

    @property
    def file(self) -> str:
        """The file's name in the lab's own store."""
        return f"{self.name}_{self.version}.deb"


class Version(Model):
    """A version of Linux or of mdadm in an archive, or fetched from one; or a patch or a commit."""

    axis: Axis
    name: str = Field(pattern=PACKAGE)
    """What ``guest.kernel`` or ``guest.mdadm`` takes; of a patch ``patch-3``."""
    version: str = Field(pattern=rf"{VERSION}|{COMMIT}")
    """The package's version: ``6.12.117-1``; of a patch its number, 0 without any; of a commit the
    first 12 digits of its id."""
    branch: str
    """Versions of one branch descend from each other: ``6.12``."""
    date: str | None = None
    """Date of its changelog entry, ISO 8601; ``None``: the changelog that was read lacks it."""
    release: str
    """Code name of the release that it was built for: ``trixie``."""
    suites: tuple[str, ...] = ()
    """Suites that have it: ``trixie-security``."""
    packages: tuple[PackageFile, ...] = ()
    """The package itself, and those it needs of the same source. A kernel's have its headers. A
    patch and a commit have none."""
    says: str = ""
    """Title of a patch or a commit."""
    missing: tuple[str, ...] = ()
    """Packages that it cannot be installed without, and that the archive has dropped."""
    headers: bool = True
    """Whether the headers are there. Without them a kernel has no virtual time."""

    @property
    def directory(self) -> str:
        """Name of its directory in the store of fetched packages."""
        return f"{self.packages[0].name}_{self.version}"

    @property
    def title(self) -> str:
        """The package's name and version, or number or id, and title."""
        if self.axis.built:
            return f"{self.version} ({self.says})"
        return f"{self.packages[0].name} {self.version}"

    @property
    def size(self) -> int:
        """Bytes of all its packages."""
        return sum(one.size for one in self.packages)


class ReleaseRead(Model):
    """A release whose archive was read."""

    release: str
    error: str = ""
    """Why it could not be read; empty: it could."""


class PackageIndex(Model):
    """What the archives had when they were last read."""

    schema_: Literal["lab.packages/1"] = Field(default="lab.packages/1", alias="schema")
    read: str
    """ISO 8601, UTC."""
    releases: tuple[ReleaseRead, ...]
    versions: tuple[Version, ...]
