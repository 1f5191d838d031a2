"""What a guest image is made of: its recipe, what is brought beside it, their digests. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from lab.core.base import Model, Says, Size, wrong_key
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
"""Without these a guest does not boot, or does not let the lab in."""

MDADM_CONF: Final = "/etc/mdadm/mdadm.conf"

KERNEL_PREFIX: Final = "linux-image-"
"""Debian's kernel packages; the headers of each are ``linux-headers-`` and the same name."""


class ModulesRecipe(Model):
    """Kernel modules built for the image's kernel, beside the image: no compiler stays in it."""

    source: Package
    """A package with the kernel's source (``linux-source``), or one for DKMS (``zfs-dkms``)."""
    packages: tuple[Package, ...] = ()
    """Packages that building needs beside compiler, make and headers."""
    options: dict[str, str] = {}
    """The kernel's options (``CONFIG_MD_LLBITMAP: y``) as these modules see them."""
    patches: tuple[str, ...] = ()
    """Files for ``patch -p1``, in this order; relative ones lie beside the recipe."""
    build: tuple[str, ...] = ()
    """What of the kernel's source: directories with all their modules (``drivers/md``), or single
    modules of them (``drivers/md/md-mod.ko``)."""

    @property
    def dkms(self) -> bool:
        """Whether DKMS builds them: it has sources, options and patches of its own."""
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
                raise ValueError(f"'{name}' is no option of the kernel, such as CONFIG_MD_LLBITMAP")
            if not re.fullmatch(r"[ymn]|-?\d+|0x[0-9a-fA-F]+", value):
                raise ValueError(f"'{name}' is '{value}': write y, m, n or a number")
        return options

    @field_validator("build")
    @classmethod
    def _inside_the_source(cls, build: tuple[str, ...]) -> tuple[str, ...]:
        for path in build:
            if not re.fullmatch(r"[a-z0-9][\w-]*(/[\w-]+)*(/[\w-]+\.ko)?", path):
                raise ValueError(
                    f"'{path}' is neither a directory of the kernel's source, such as drivers/md, "
                    "nor a module in one, such as drivers/md/raid456.ko"
                )
        return build

    @model_validator(mode="after")
    def _one_way(self) -> ModulesRecipe:
        if self.dkms and (self.options or self.patches or self.build):
            raise ValueError(
                f"DKMS builds '{self.source}' by its own rules: leave options, patches and build "
                "out, or name linux-source"
            )
        if not self.dkms and not self.build:
            raise wrong_key("this key is missing: expected a list such as [drivers/md]", "build")
        return self


class ImageRecipe(Model):
    """What an image is built from; one file ``images/NAME.yaml``."""

    description: str = Field(min_length=1)
    """One line for ``lab image list``; changing it makes no other image."""
    base: Annotated[str | None, IMAGE] = Field(default=None, pattern=NAME)
    """The recipe that this one is added to: lists get longer, files are added by their path, the
    script is run after the other's, and every other key is put in its place."""
    suite: Annotated[str, Says("a release's code name, such as bookworm")] = Field(
        pattern=r"^[a-z][a-z0-9-]*$"
    )
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
    kernel_suite: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9-]*$")
    """A further suite of the same archive from which the kernel comes, and nothing else:
    ``trixie-backports``."""
    kernel_file: str | None = None
    """A ``.deb`` with a kernel of one's own, in place of ``kernel_package``."""
    modules: ModulesRecipe | None = None
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
            raise ValueError(f"{size} bytes: a root file system is at least 1GiB, in whole MiB")
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
                f"there are no headers for the kernel in '{self.kernel_file}' to build "
                f"'{self.modules.source}' with: put the modules into the kernel, or name a package"
            )
        if self.modules and not self.kernel_package.startswith(KERNEL_PREFIX):
            raise ValueError(
                f"modules are built with the headers of Debian's kernels, and '"
                f"{self.kernel_package}' is none of them ({KERNEL_PREFIX}…)"
            )
        return self

    @model_validator(mode="after")
    def _no_array_by_itself(self) -> ImageRecipe:
        if "mdadm" in self.packages and not says_auto_all(self.files.get(MDADM_CONF, "")):
            raise ValueError(
                f"an image with mdadm needs the line 'AUTO -all' in the file '{MDADM_CONF}', "
                "or the guest assembles arrays by itself"
            )
        return self


def added(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's data over those of its base, by the rule of ``base``.

    A list's own items come first, so that they keep their numbers in messages.
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
    """Whether this ``mdadm.conf`` forbids automatic assembly."""
    return any(line.split() == ["AUTO", "-all"] for line in text.splitlines())


def facts_asked_for(recipe: ImageRecipe) -> ImageFacts:
    """What a recipe itself makes sure of, before anybody has built it; versions are the archive's.

    The kernel's options are those of its own modules only, as if all others were off.
    """
    modules = recipe.modules
    return ImageFacts(
        packages=frozenset(recipe.packages),
        kernel_options=modules.options if modules else {},
        own_modules=(modules.source.removesuffix("-dkms"),) if modules and modules.dkms else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What an image is made of beside its recipe and the archive's packages: files' contents."""

    hooks: Mapping[str, str]
    """The lab's own scripts, by name."""
    patches: tuple[str, ...] = ()
    """Content of each of the recipe's patches, in their order."""
    kernel_sha256: str | None = None
    """Of the recipe's ``kernel_file``."""


def recipe_digest(recipe: ImageRecipe, brought: Brought) -> str:
    """What of a recipe decides the image: all but its description, and what is brought."""
    return _digest(_decisive(recipe, brought))


def image_digest(recipe: ImageRecipe, brought: Brought, packages: Mapping[str, str]) -> str:
    """The image's own name: its recipe, and every package with its version."""
    return _digest({**_decisive(recipe, brought), "packages": dict(packages)})


def _decisive(recipe: ImageRecipe, brought: Brought) -> dict[str, object]:
    """Not where patches lie but what is in them, and not which archives are accepted."""
    aside: dict[str, Any] = {"description": True, "base": True, "check_valid_until": True}
    if recipe.kernel_suite is None:  # images keep the names that they had before there was one
        aside["kernel_suite"] = True
    aside |= {"kernel_file": True, **({"modules": {"patches"}} if recipe.modules else {})}
    return {
        "recipe": recipe.model_dump(mode="json", exclude=aside),
        "hooks": dict(brought.hooks),
        "patches": list(brought.patches),
        "kernel": brought.kernel_sha256,
    }


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
