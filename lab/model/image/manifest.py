"""Guest images: the recipe's result, its features and its files. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from lab.core.base import Model, Says

NAME: Final = r"^[a-z0-9][a-z0-9.+-]*$"
"""A valid image name, here and in ``guest.image``."""

IMAGE: Final = Says("an image's name, such as debian-12")

_RELEASE: Final = r"^[A-Za-z0-9][A-Za-z0-9.+~:_-]*$"
"""A version of a kernel or a package. It is a word of commands, and archives are untrusted."""

_PACKAGE: Final = r"^[a-z0-9][a-z0-9+.:-]*$"
"""The name of a Debian package, with its architecture if that is another one."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

RECORDED: Final = re.compile(r"CONFIG_(BLK_DEV_MD|MD_\w+|BLK_DEV_DM|DM_RAID|HZ|PREEMPT\w*)")
"""Kernel options that are recorded with an image: features of md, and timer and preemption."""


class ImageSource(StrEnum):
    """Where an image comes from."""

    BUILT = "built"
    IMPORTED = "imported"


class ImageBoot(StrEnum):
    """How a guest boots from it."""

    KERNEL = "kernel"
    """QEMU loads kernel and initrd; the disk is one file system with the label ``root``."""
    DISK = "disk"
    """The disk has its own boot loader."""


class ImageFile(Model):
    """Size and hash of an image's file when it was made."""

    size: int
    """Size in bytes."""
    sha256: Sha256


def contents_digest(files: Mapping[str, ImageFile]) -> str:
    """Return the digest of an image's files: of two builds with other bytes it differs."""
    lines = [f"{file.sha256}  {name}\n" for name, file in sorted(files.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class ArchiveRelease(Model):
    """Dates of the archive's Release file when an image was built from it."""

    suite: str
    """Its code name: ``sid``, ``trixie-backports``."""
    date: datetime
    valid_until: datetime | None = None
    """``None``: it does not expire."""


class ImageFacts(Model):
    """Known facts about an image's kernel and programs; ``None``: unknown."""

    kernel_version: str | None = None
    mdadm_version: str | None = None
    packages: frozenset[str] | None = None
    """Names of the installed packages."""
    kernel_options: dict[str, str] | None = None
    own_modules: tuple[str, ...] = ()


class ImageManifest(Model):
    """``manifest.json`` of an image."""

    format: Literal[1] = 1
    name: str = Field(pattern=NAME)
    digest: Sha256
    """`contents_digest` of its files."""
    recipe_digest: Sha256 | None = None
    """``None`` when imported."""
    built: datetime
    """Time when it was built or imported."""
    source: ImageSource
    boot: ImageBoot
    files: dict[str, ImageFile]
    """By name of the file."""
    packages: dict[
        Annotated[str, StringConstraints(pattern=_PACKAGE)],
        Annotated[str, StringConstraints(pattern=_RELEASE)],
    ] = {}
    """Version by name; empty when imported."""
    kernel_version: Annotated[str, StringConstraints(pattern=_RELEASE)] | None = None
    mdadm_version: Annotated[str, StringConstraints(pattern=_RELEASE)] | None = None
    kernel_options: dict[str, str] | None = None
    """The kernel options in `RECORDED`, from its configuration, overridden by those of modules
    built for the image; disabled options are absent. ``None``: unknown."""
    own_modules: tuple[str, ...] = ()
    """Names of the modules that were built for the image."""
    releases: tuple[ArchiveRelease, ...] = ()
    """Releases of the archive's suites; empty: imported, or built by an early version."""
    accept_expired: bool = False
    """It was built with ``--accept-expired``."""
    origin: str | None = None
    """The file or URL that was imported."""
    checksum: str | None = None
    """``sha512:HEX`` or ``sha256:HEX`` of the imported file, as given."""
    unread: str = ""
    """What could not be read of an imported disk, as a sentence; empty: all that a guest needs was
    found."""
    imported: datetime | None = None
    """Time when an archive of another host was imported."""

    @property
    def arrived(self) -> datetime:
        """When the image came to this host: the newest of a name is used."""
        return self.imported or self.built

    @property
    def expired(self) -> tuple[ArchiveRelease, ...]:
        """Release files that had already expired when the image was built."""
        return tuple(r for r in self.releases if r.valid_until and r.valid_until < self.built)

    @model_validator(mode="after")
    def _files_of_its_kind(self) -> ImageManifest:
        for file in boot_files(self.boot):
            if file not in self.files:
                raise ValueError(f"the file '{file}' is not listed")
        for file in self.files:
            if "/" in file or file.startswith("."):
                raise ValueError(f"'{file}' is not the name of a file in the manifest's directory")
        return self


def facts_of(manifest: ImageManifest) -> ImageFacts:
    """Return the known facts about an existing image."""
    return ImageFacts(
        kernel_version=manifest.kernel_version,
        mdadm_version=manifest.mdadm_version,
        packages=frozenset(manifest.packages) if manifest.packages else None,
        kernel_options=manifest.kernel_options,
        own_modules=manifest.own_modules,
    )


def boot_files(boot: ImageBoot) -> tuple[str, ...]:
    """Return the names of the files of an image that boots this way."""
    return ("disk.qcow2", "kernel", "initrd") if boot is ImageBoot.KERNEL else ("disk.qcow2",)


class Image(Model):
    """An existing image."""

    name: str
    digest: str
    directory: Path
    disk: Path
    """qcow2. It is the read-only base of the guests' overlays."""
    kernel: Path | None
    """``None``: the image has its own boot loader."""
    initrd: Path | None
    manifest: ImageManifest


def image_at(directory: Path, manifest: ImageManifest) -> Image:
    """Return the image in that directory, with this manifest."""
    direct = manifest.boot is ImageBoot.KERNEL
    return Image(
        name=manifest.name,
        digest=manifest.digest,
        directory=directory,
        disk=directory / "disk.qcow2",
        kernel=directory / "kernel" if direct else None,
        initrd=directory / "initrd" if direct else None,
        manifest=manifest,
    )


def directory_name(name: str, digest: str) -> str:
    """Return a name such as ``debian-12-0123456789ab``."""
    return f"{name}-{digest[:12]}"
