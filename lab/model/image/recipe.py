"""The recipe of a guest image, the files that it needs, and their digests. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from lab.core.base import Says, Size, wrong_key
from lab.core.stable import Stable, named
from lab.model.image.manifest import IMAGE, NAME, ImageFacts

Package = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9][a-z0-9.+-]+$"),
    Says("a package's name, such as mdadm"),
]
"""A package's name, Debian Policy 5.6.1."""

Unit = Annotated[
    str,
    StringConstraints(pattern=r"^[\w@.:-]+\.(service|socket|timer|mount|automount|path|target)$"),
    Says("a systemd unit with its suffix, such as apt-daily.timer"),
]
"""A systemd unit with its suffix."""

NEEDED: Final = frozenset({"systemd-sysv", "openssh-server", "cloud-init", "initramfs-tools"})
"""Packages that a guest needs to boot and to accept the lab's login."""

MDADM_CONF: Final = "/etc/mdadm/mdadm.conf"

KERNEL_PREFIX: Final = "linux-image-"
"""Debian's kernel packages; their headers are ``linux-headers-`` with the same name."""


class ModulesRecipe(Stable):
    """Kernel modules built for the image's kernel, outside the image: it gets no compiler."""

    ALWAYS: ClassVar[frozenset[str]] = named("source packages options patches build")

    source: Package
    """A package with the kernel's source (``linux-source``), or one for DKMS (``zfs-dkms``)."""
    packages: tuple[Package, ...] = ()
    """Packages needed for building, in addition to compiler, make and headers."""
    options: dict[str, str] = {}
    """Kernel options (``CONFIG_MD_LLBITMAP: y``) for these modules."""
    patches: tuple[str, ...] = ()
    """Files for ``patch -p1``, in this order; relative paths begin at the recipe."""
    build: tuple[str, ...] = ()
    """Parts of the kernel's source: directories with all their modules (``drivers/md``), or single
    modules (``drivers/md/md-mod.ko``)."""

    @property
    def dkms(self) -> bool:
        """Whether DKMS builds them. Then DKMS supplies sources, options and patches."""
        return self.source.endswith("-dkms")

    @field_validator("options", mode="before", json_schema_input_type=dict[str, str | int])
    @classmethod
    def _option_words(cls, options: object) -> object:
        if not isinstance(options, dict):
            return options
        numbers = {k: str(v) for k, v in options.items() if type(v) is int}
        return {**options, **numbers}

    @field_validator("options")
    @classmethod
    def _kernel_options(cls, options: dict[str, str]) -> dict[str, str]:
        for name, value in options.items():
            if not re.fullmatch(r"CONFIG_[A-Z0-9_]+", name):
                raise ValueError(f"'{name}' is not a kernel option, such as CONFIG_MD_LLBITMAP")
            if not re.fullmatch(r"[ymn]|-?\d+|0x[0-9a-fA-F]+", value):
                raise ValueError(f"'{name}' is '{value}': write y, m, n or a number")
        return options

    @field_validator("build")
    @classmethod
    def _inside_the_source(cls, build: tuple[str, ...]) -> tuple[str, ...]:
        for path in build:
            if not re.fullmatch(r"[a-z0-9][\w-]*(/[\w-]+)*(/[\w-]+\.ko)?", path):
                raise ValueError(
                    f"'{path}' is not a directory of the kernel's source, such as drivers/md, or a "
                    "module in one, such as drivers/md/raid456.ko"
                )
        return build

    @model_validator(mode="after")
    def _one_way(self) -> ModulesRecipe:
        if self.dkms and (self.options or self.patches or self.build):
            raise ValueError(
                f"DKMS builds '{self.source}' by its own rules: remove options, patches and build, "
                "or set source to linux-source"
            )
        if not self.dkms and not self.build:
            raise wrong_key("this key is missing: expected a list such as [drivers/md]", "build")
        return self


class ImageRecipe(Stable):
    """The recipe of an image; one file ``images/NAME.yaml``."""

    ALWAYS: ClassVar[frozenset[str]] = named(
        "description base suite variant components check_valid_until disk_size kernel_package",
        "kernel_file package_files modules packages excluded_paths files enabled_units",
        "masked_units script",
    )

    description: str = Field(min_length=1)
    """One line for ``lab image list``; it does not affect the image."""
    base: Annotated[str | None, IMAGE] = Field(default=None, pattern=NAME)
    """The recipe that this one extends: lists are appended, files are added by path, the script
    runs after the base's, and every other key replaces the base's."""
    suite: Annotated[str, Says("a release's code name, such as bookworm")] = Field(
        pattern=r"^[a-z][a-z0-9-]*$"
    )
    """Debian's code name of the release: ``bookworm``, ``trixie``, ``sid``."""
    variant: Literal["minbase", "apt", "required", "important", "standard"] = "minbase"
    """The initial set of packages, ``mmdebstrap(1)``."""
    components: tuple[str, ...] = Field(default=("main",), min_length=1)
    """Parts of the archive: ``main``, ``contrib``, …"""
    check_valid_until: bool = True
    """``false`` accepts an archive whose Release file has expired."""
    disk_size: Size = 3 * 1024**3
    """Size of the root file system as the guest sees it."""
    kernel_package: Package
    kernel_suite: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9-]*$")
    """Another suite of the same archive, for the kernel only: ``trixie-backports``."""
    kernel_file: str | None = None
    """A ``.deb`` with your own kernel, instead of ``kernel_package``."""
    package_files: tuple[str, ...] = ()
    """``.deb`` files that are used instead of the archive's packages of the same names."""
    modules: ModulesRecipe | None = None
    packages: tuple[Package, ...] = Field(min_length=1)
    excluded_paths: tuple[str, ...] = ()
    """Globs of paths that dpkg skips, ``path-exclude`` of ``dpkg(1)``."""
    files: dict[str, str] = {}
    """Content by absolute path; replaces files of packages."""
    enabled_units: tuple[Unit, ...] = ()
    masked_units: tuple[Unit, ...] = ()
    script: str = ""
    """Shell commands run as root in the image, before the initrd is made."""

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
            raise ValueError(f"{size} bytes: expected at least 1GiB, in whole MiB")
        return size

    @field_validator("packages")
    @classmethod
    def _what_the_lab_needs(cls, packages: tuple[str, ...]) -> tuple[str, ...]:
        missing = NEEDED - set(packages)
        if missing:
            raise ValueError(f"a guest needs the package '{min(missing)}' too: add it")
        twice = {p for p in packages if packages.count(p) > 1}
        if twice:
            raise ValueError(f"the package '{min(twice)}' is listed twice: remove one")
        return packages

    @field_validator("excluded_paths")
    @classmethod
    def _absolute_globs(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not path.startswith("/") or not path.isprintable():
                raise ValueError(f"'{path}' is not an absolute path, such as /usr/share/doc/*")
        return paths

    @field_validator("files")
    @classmethod
    def _plain_paths(cls, files: dict[str, str]) -> dict[str, str]:
        for path in files:
            plain = str(PurePosixPath(path)) == path and ".." not in PurePosixPath(path).parts
            if not re.fullmatch(r"/[\w@.:+/-]+", path) or not plain:
                raise ValueError(
                    f"'{path}' is not an absolute path of plain characters, such as /etc/motd"
                )
        return files

    @model_validator(mode="after")
    def _modules_have_headers(self) -> ImageRecipe:
        if self.modules and self.kernel_file:
            raise ValueError(
                f"modules need the kernel's headers, and '{self.kernel_file}' has none: build "
                f"'{self.modules.source}' into that kernel, or use kernel_package"
            )
        if self.modules and not self.kernel_package.startswith(KERNEL_PREFIX):
            raise ValueError(
                f"modules need a Debian kernel ({KERNEL_PREFIX}…), and kernel_package is"
                f" '{self.kernel_package}'"
            )
        return self

    @model_validator(mode="after")
    def _no_array_by_itself(self) -> ImageRecipe:
        if "mdadm" in self.packages and not says_auto_all(self.files.get(MDADM_CONF, "")):
            raise ValueError(
                f"an image with mdadm needs the line 'AUTO -all' in the file '{MDADM_CONF}', so "
                "that the guest assembles no arrays by itself: add it to files"
            )
        return self


def added(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's data merged into its base's, by the rule of ``base``.

    A list's own items come first, so that messages give their indices in the recipe's own file.
    """
    whole = dict(base)
    for key, value in own.items():
        there = base.get(key)
        if isinstance(there, list) and isinstance(value, list):
            whole[key] = [*value, *there]
        elif key == "files" and isinstance(there, dict) and isinstance(value, dict):
            whole[key] = {**there, **value}
        elif key == "script" and isinstance(there, str) and isinstance(value, str):
            whole[key] = there + value
        else:
            whole[key] = value
    return whole


def says_auto_all(text: str) -> bool:
    """Return whether this ``mdadm.conf`` forbids automatic assembly."""
    return any(line.split() == ["AUTO", "-all"] for line in text.splitlines())


def facts_asked_for(recipe: ImageRecipe) -> ImageFacts:
    """Return the facts that a recipe guarantees before it is built; versions depend on the archive.

    Kernel options are known only for the recipe's own modules; all others count as off.
    """
    modules = recipe.modules
    return ImageFacts(
        packages=frozenset(recipe.packages),
        kernel_options=modules.options if modules else {},
        own_modules=(modules.source.removesuffix("-dkms"),) if modules and modules.dkms else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtPackage:
    """A ``.deb``."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """Files that an image is made from, in addition to recipe and packages."""

    hooks: Mapping[str, str]
    """The lab's scripts, by name."""
    patches: tuple[str, ...] = ()
    """Contents of the recipe's patches, in order."""
    kernel_sha256: str | None = None
    """SHA-256 of the recipe's ``kernel_file``."""
    package_files: tuple[BroughtPackage, ...] = ()
    """The recipe's ``package_files``, in their order."""


def recipe_digest(recipe: ImageRecipe, brought: Brought) -> str:
    """Return the digest of the recipe's keys that affect the image, and of the files it uses."""
    return _digest(_decisive(recipe, brought))


def _decisive(recipe: ImageRecipe, brought: Brought) -> dict[str, object]:
    """Return the data to digest: patches by content, without the archives' validity."""
    aside: dict[str, Any] = {"description": True, "base": True, "check_valid_until": True}
    aside |= {"kernel_file": True, "package_files": True}
    aside |= {"modules": {"patches"}} if recipe.modules else {}
    files = sorted(one.sha256 for one in brought.package_files)
    return {
        "recipe": recipe.model_dump(mode="json", exclude=aside),
        "hooks": dict(brought.hooks),
        "patches": list(brought.patches),
        "kernel": brought.kernel_sha256,
        **({"package_files": files} if files else {}),
    }


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
