"""The image that a guest boots, with the kernel and the mdadm that the scenario names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lab.core import wording
from lab.core.errors import InputError
from lab.host import images
from lab.host.images import build as image_build
from lab.host.images import kernel as image_kernel
from lab.host.images import packages as image_packages
from lab.host.images import recipes as image_recipes
from lab.model.image.axis import Axis
from lab.model.image.manifest import Image, ImageFacts, facts_of
from lab.model.image.recipe import ImageRecipe, facts_asked_for
from lab.model.scenario.guest import Guest, is_file


def find(guest: Guest) -> Image | None:
    """Return the image with its kernel, if it exists; ``InputError``: no such kernel file."""
    variant = _variant(guest)
    image = images.find(*variant) if variant else images.find(guest.image)
    return _with_loaded(guest, image) if image else None


def kernel_of(guest: Guest) -> str | None:
    """Return the version of a guest's kernel, if its image is built or imported."""
    try:
        image = find(guest)
    except InputError:
        return None
    return image.manifest.kernel_version if image else None


def build(guest: Guest, progress: images.Progress, *, accept_expired: bool = False) -> Image:
    """Build an image within minutes. ``accept_expired``: also from an expired archive."""
    name, recipe = _variant(guest) or image_recipes.load(guest.image)
    recipe = image_recipes.as_accepted(recipe, accept_expired=accept_expired)
    return _with_loaded(guest, image_build.build(recipe, name=name, progress=progress))


def _with_loaded(guest: Guest, image: Image) -> Image:
    """Return the image with the kernel that QEMU loads from its file, if the guest has one."""
    loaded = guest.kernel is not None and _is_loaded(guest.kernel)
    return image_kernel.with_kernel(image, Path(guest.kernel or "")) if loaded else image


def recipe_of(guest: Guest) -> ImageRecipe:
    """Return the recipe of a guest's image with its kernel.

    ``InputError``: the image was imported, or its kernel is a file without headers.
    """
    if guest.kernel is not None and is_file(guest.kernel):
        raise InputError(
            f"guest.kernel: '{guest.kernel}' is a file without headers: name a Debian package, such"
            " as linux-image-cloud-amd64"
        )
    if (variant := _variant(guest)) is not None:
        return variant[1]
    if guest.image not in image_recipes.recipes() and images.find(guest.image) is not None:
        raise InputError(f"the image '{guest.image}' was imported, so its headers are unknown")
    return image_recipes.load(guest.image)[1]


def _is_loaded(kernel: str) -> bool:
    """Return whether QEMU loads the kernel from its file, so that the image has none of it."""
    return is_file(kernel) and not kernel.endswith(".deb")


def _variant(guest: Guest) -> tuple[str, ImageRecipe] | None:
    """Return name and recipe of the image with another kernel or mdadm installed; ``None``: it is
    the image itself."""
    kernel = guest.kernel if guest.kernel and not _is_loaded(guest.kernel) else None
    if kernel is None and guest.mdadm is None:
        return None
    key, value = ("guest.kernel", kernel) if kernel else ("guest.mdadm", guest.mdadm)
    if guest.image not in image_recipes.recipes():
        stays = "kernel" if kernel else "mdadm"
        loads = ", or name the file of a kernel that QEMU loads" if kernel else ""
        raise InputError(
            f"{key}: the image '{guest.image}' was not built here, and its {stays} stays: leave "
            f"'{value}' out{loads}"
        )
    _, recipe = image_recipes.load(guest.image)
    asked, short = _kernel(kernel) if kernel else ({}, [])
    files = [*recipe.package_files, *asked.pop("package_files", ())]
    if guest.mdadm:
        files.append(_mdadm_file(guest.mdadm, recipe))
        short.append(f"mdadm-{Path(guest.mdadm).name.removesuffix('.deb').removeprefix('mdadm_')}")
    try:
        changed = ImageRecipe.model_validate(recipe.model_dump() | asked | {"package_files": files})
    except ValidationError as error:
        said = wording.reason(error, ImageRecipe)
        raise InputError(f"{key}: '{value}' in the image '{guest.image}': {said}") from None
    return re.sub(r"[^a-z0-9.+-]", "-", "+".join((guest.image, *short)).lower()), changed


def _kernel(kernel: str) -> tuple[dict[str, Any], list[str]]:
    """Return keys of a recipe with this kernel, and its part of the image's name."""
    short = [Path(kernel).name.removesuffix(".deb")]
    if is_file(kernel):
        return {"kernel_file": str(Path(kernel).resolve())}, short
    kept = image_packages.find(Axis.KERNEL, kernel)
    files = [str(deb) for deb in image_packages.debs(kept)] if kept else []
    return {"kernel_package": kernel, "package_files": files}, short


def _mdadm_file(mdadm: str, recipe: ImageRecipe) -> str:
    """Return the ``.deb`` of this mdadm."""
    if is_file(mdadm):
        path = Path(mdadm).resolve()
        name = image_recipes.brought_package(path).name
        if name != "mdadm":
            raise InputError(f"guest.mdadm: '{mdadm}' is the package '{name}': expected mdadm")
        return str(path)
    kept = image_packages.find(Axis.MDADM, mdadm)
    if kept is None:
        there = [one.name for one in image_packages.fetched() if one.axis is Axis.MDADM]
        raise InputError(
            f"guest.mdadm: '{mdadm}' is not fetched (here are: {', '.join(there) or 'none'})",
            hint=f"lab kernel fetch --axis mdadm {mdadm}",
        )
    if "mdadm" not in recipe.packages:
        raise InputError(f"guest.mdadm: the image has no mdadm that '{mdadm}' could replace")
    return str(image_packages.debs(kept)[0])


Does = Callable[[ImageFacts], bool]


def able(*, here: Does, asked_for: Does) -> list[str]:
    """Return the names of images with a feature: existing ones, and recipes that would have it."""
    built = {i.name: i for i in reversed(images.list_images().images)}
    names = [name for name, image in built.items() if here(facts_of(image.manifest))]
    for name in image_recipes.recipes():
        if name not in built and asked_for(facts_asked_for(image_recipes.load(name)[1])):
            names.append(f"{name} (`lab image build {name}`)")
    return names
