"""Image recipes: their directory, and reading one."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Final

import lab
from lab.compile.image.build import HOOKS
from lab.compile.image.log import ACCEPT_EXPIRED
from lab.core import regular
from lab.core import yaml as decode
from lab.core.errors import InputError, ToolError
from lab.core.units import GIB, MIB
from lab.core.yaml import Document
from lab.host.images import debs as image_debs
from lab.model.image.recipe import Brought, BroughtPackage, ImageRecipe, added
from lab.plugins import catalog

PACKAGE: Final = 2 * GIB
"""Most bytes of a package file."""
_PATCH: Final = 64 * MIB
"""Most bytes of a recipe's patch."""


def directory() -> Path:
    """Return ``images/`` of a checkout, or its installed copy."""
    package = Path(lab.__file__).parent
    installed = package / "data" / "images"
    return installed if installed.is_dir() else package.parent / "images"


def expired_accepted() -> bool:
    """Return whether ``LAB_ACCEPT_EXPIRED`` accepts an archive with expired Release files.

    ``InputError``: it is neither 1 nor 0.
    """
    said = os.environ.get(ACCEPT_EXPIRED, "")
    if said not in ("", "0", "1"):
        raise InputError(f"{ACCEPT_EXPIRED}={said}: expected 1, or 0 as if it were not set")
    return said == "1"


def as_accepted(recipe: ImageRecipe, *, accept_expired: bool) -> ImageRecipe:
    """Return the recipe; ``accept_expired`` or the environment accepts expired Release files.

    This does not change the image's digest.
    """
    accepted = expired_accepted() or accept_expired
    return recipe.model_copy(update={"check_valid_until": False}) if accepted else recipe


def recipes() -> dict[str, Path]:
    """Return the paths of all recipes, by name."""
    return catalog.image_recipes()


def load(name_or_path: str) -> tuple[str, ImageRecipe]:
    """Return name and recipe, from a name in ``images/`` or a YAML file's path."""
    path = catalog.image_recipe_path(name_or_path)
    return path.stem, read(path)


def read(path: Path) -> ImageRecipe:
    """Return the recipe in a file, merged with its base; paths of patches are absolute.

    ``InputError`` names file, line and key.
    """
    recipe = decode.validate(ImageRecipe, _added_up(path, ()))
    if recipe.modules is None:
        return recipe
    patches = tuple(str((path.parent / p).resolve()) for p in recipe.modules.patches)
    return recipe.model_copy(
        update={"modules": recipe.modules.model_copy(update={"patches": patches})}
    )


def _added_up(path: Path, above: tuple[str, ...]) -> Document:
    document = decode.read_file(path, first="description")
    name = document.data.get("base")
    if not isinstance(name, str):
        return document
    if name in (path.stem, *above):
        raise document.wrong(("base",), f"'{name}' is its own base")
    known = recipes()
    if name not in known:
        raise document.wrong(("base",), f"there is no image '{name}': known are {', '.join(known)}")
    below = _added_up(known[name], (path.stem, *above))
    decode.validate(ImageRecipe, below)  # checked alone first, so that an error names that file
    return dataclasses.replace(document, data=added(below.data, document.data))


def brought(recipe: ImageRecipe) -> Brought:
    """Return the files that an image is made from, in addition to recipe and archive;
    ``InputError``: one is missing."""
    patches = recipe.modules.patches if recipe.modules else ()
    return Brought(
        hooks={name: (directory() / name).read_text(encoding="utf-8") for name in HOOKS},
        patches=tuple(_patch(Path(path)) for path in patches),
        kernel_sha256=_sha256(Path(recipe.kernel_file)) if recipe.kernel_file else None,
        package_files=tuple(brought_package(Path(path)) for path in recipe.package_files),
    )


def brought_package(path: Path) -> BroughtPackage:
    """Return name, version and hash of a ``.deb``; ``InputError``: it is none."""
    sha256 = _sha256(path)
    try:
        name, version = image_debs.fields(path, "Package", "Version")
    except ToolError as error:
        raise InputError(f"'{path}' is not a Debian package: {error.message}") from error
    return BroughtPackage(name=name, version=version, sha256=sha256)


def _patch(path: Path) -> str:
    try:
        return regular.read(path, _PATCH).decode()
    except OSError as error:
        raise InputError(f"the patch '{path}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the patch '{path}' is not UTF-8 text (byte {error.start})") from error


def _sha256(path: Path) -> str:
    try:
        regular.check(path, PACKAGE)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"the package '{path}' cannot be read: {error.strerror}") from error
