"""Guest images: the recipe, what was made of it, and where it lies. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from lab.model.base import Model, Size

NAME: Final = r"^[a-z0-9][a-z0-9.+-]*$"
"""How an image may be called, here and in a scenario's ``guest.image``."""

Package = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.+-]+$")]
"""A package's name, Debian Policy 5.6.1."""

Unit = Annotated[
    str,
    StringConstraints(pattern=r"^[\w@.:-]+\.(service|socket|timer|mount|automount|path|target)$"),
]
"""A systemd unit with its suffix."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

NEEDED: Final = frozenset({"systemd-sysv", "openssh-server", "cloud-init", "initramfs-tools"})
"""Without these a guest does not boot, or does not let the lab in."""

MDADM_CONF: Final = "/etc/mdadm/mdadm.conf"


class ImageRecipe(Model):
    """What an image is built from; one file ``images/NAME.yaml``."""

    description: str = Field(min_length=1)
    """One line for ``lab image list``; changing it makes no other image."""
    suite: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    """Debian's code name of the release: ``bookworm``, ``trixie``, ``sid``."""
    variant: Literal["minbase", "apt", "required", "important", "standard"] = "minbase"
    """The packages to begin with, ``mmdebstrap(1)``."""
    components: tuple[str, ...] = Field(default=("main",), min_length=1)
    """Parts of the archive: ``main``, ``contrib``, …"""
    check_valid_until: bool = True
    """``false`` accepts an archive whose Release file has expired; to be asked for."""
    disk_size: Size = 3 * 1024**3
    """Size of the root file system as the guest sees it."""
    kernel_package: Package
    packages: tuple[Package, ...] = Field(min_length=1)
    excluded_paths: tuple[str, ...] = ()
    """Globs of paths that dpkg leaves out, ``path-exclude`` of ``dpkg(1)``."""
    files: dict[str, str] = {}
    """Content by absolute path; written over what the packages brought."""
    enabled_units: tuple[Unit, ...] = ()
    masked_units: tuple[Unit, ...] = ()
    script: str = ""
    """Shell commands run inside the image as root, before the initrd is made."""

    @field_validator("components")
    @classmethod
    def _components(cls, components: tuple[str, ...]) -> tuple[str, ...]:
        for component in components:
            if not re.fullmatch(r"[a-z][a-z0-9./-]*", component):
                raise ValueError(f"'{component}' is not the name of a component, such as main")
        return components

    @field_validator("disk_size")
    @classmethod
    def _whole_mebibytes(cls, size: int) -> int:
        if size < 1024**3 or size % 1024**2:
            raise ValueError("a root file system is at least 1GiB, in whole MiB")
        return size

    @field_validator("packages")
    @classmethod
    def _what_the_lab_needs(cls, packages: tuple[str, ...]) -> tuple[str, ...]:
        missing = NEEDED - set(packages)
        if missing:
            raise ValueError(f"a guest needs the package '{min(missing)}' too")
        twice = {p for p in packages if packages.count(p) > 1}
        if twice:
            raise ValueError(f"the package '{min(twice)}' is listed twice")
        return packages

    @field_validator("excluded_paths")
    @classmethod
    def _absolute_globs(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not path.startswith("/") or not path.isprintable():
                raise ValueError(f"'{path}' is not an absolute path")
        return paths

    @field_validator("files")
    @classmethod
    def _plain_paths(cls, files: dict[str, str]) -> dict[str, str]:
        for path in files:
            plain = str(PurePosixPath(path)) == path and ".." not in PurePosixPath(path).parts
            if not re.fullmatch(r"/[\w@.:+/-]+", path) or not plain:
                raise ValueError(f"'{path}' is not an absolute path of plain characters")
        return files

    @model_validator(mode="after")
    def _no_array_by_itself(self) -> ImageRecipe:
        if "mdadm" in self.packages and not says_auto_all(self.files.get(MDADM_CONF, "")):
            raise ValueError(
                f"an image with mdadm needs the line 'AUTO -all' in the file '{MDADM_CONF}', "
                "or the guest assembles arrays by itself"
            )
        return self


def says_auto_all(text: str) -> bool:
    """Whether this ``mdadm.conf`` forbids automatic assembly."""
    return any(line.split() == ["AUTO", "-all"] for line in text.splitlines())


class ImageSource(StrEnum):
    """Where an image comes from."""

    BUILT = "built"
    IMPORTED = "imported"


class ImageBoot(StrEnum):
    """How a guest starts from it."""

    KERNEL = "kernel"
    """QEMU loads kernel and initrd; the disk is one file system with the label ``root``."""
    DISK = "disk"
    """The disk has its own boot loader."""


class ImageFile(Model):
    """What a file of the image was when the image was made."""

    size: int
    """Bytes."""
    sha256: Sha256


class ImageManifest(Model):
    """``manifest.json`` beside an image."""

    format: Literal[1] = 1
    name: str = Field(pattern=NAME)
    digest: Sha256
    """Of the recipe and of every package's version; of the disk, when imported."""
    recipe_digest: Sha256 | None = None
    """``None`` when imported."""
    built: datetime
    """When it was built or imported."""
    source: ImageSource
    boot: ImageBoot
    files: dict[str, ImageFile]
    """By file name."""
    packages: dict[str, str] = {}
    """Version by name; empty when imported."""
    kernel_version: str | None = None
    mdadm_version: str | None = None
    origin: str | None = None
    """The file or URL that was imported."""
    checksum: str | None = None
    """``sha512:HEX`` or ``sha256:HEX`` of what was imported, as it was given."""

    @model_validator(mode="after")
    def _files_of_its_kind(self) -> ImageManifest:
        for file in boot_files(self.boot):
            if file not in self.files:
                raise ValueError(f"the file '{file}' is not listed")
        for file in self.files:
            if "/" in file or file.startswith("."):
                raise ValueError(f"'{file}' is not the name of a file beside the manifest")
        return self


def boot_files(boot: ImageBoot) -> tuple[str, ...]:
    """The files that an image of this kind is made of."""
    return ("disk.qcow2", "kernel", "initrd") if boot is ImageBoot.KERNEL else ("disk.qcow2",)


class Image(Model):
    """An image that is there."""

    name: str
    digest: str
    directory: Path
    disk: Path
    """qcow2; guests write to overlays, never to it."""
    kernel: Path | None
    """``None``: boots from its disk."""
    initrd: Path | None
    manifest: ImageManifest


def image_at(directory: Path, manifest: ImageManifest) -> Image:
    """The image that this manifest describes, in that directory."""
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
    """``debian-12-0123456789ab``."""
    return f"{name}-{digest[:12]}"


def recipe_digest(recipe: ImageRecipe, customize: str) -> str:
    """What of a recipe decides the image: all but its description, and the customize hook."""
    return _digest({"recipe": _decisive(recipe), "customize": customize})


def image_digest(recipe: ImageRecipe, customize: str, packages: Mapping[str, str]) -> str:
    """The image's own name: its recipe, and every package with its version."""
    return _digest(
        {"recipe": _decisive(recipe), "customize": customize, "packages": dict(packages)}
    )


def _decisive(recipe: ImageRecipe) -> object:
    return recipe.model_dump(mode="json", exclude={"description"})


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
