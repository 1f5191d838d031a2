"""The image that a guest boots, with the kernel that ``guest.kernel`` names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from lab.core import wording
from lab.core.errors import InputError
from lab.host import images
from lab.host.images import kernel as image_kernel
from lab.host.images import recipes as image_recipes
from lab.model.image.manifest import Image, ImageFacts, facts_of
from lab.model.image.recipe import ImageRecipe, facts_asked_for
from lab.model.scenario.guest import Guest, is_file


def find(guest: Guest) -> Image | None:
    """Return the image with its kernel, if it exists; ``InputError``: no such kernel file."""
    if guest.kernel is None:
        return images.find(guest.image)
    if _is_loaded(guest.kernel):
        image = images.find(guest.image)
        return image_kernel.with_kernel(image, Path(guest.kernel)) if image else None
    return images.find(*_variant(guest.image, guest.kernel))


def build(guest: Guest, progress: images.Progress, *, accept_expired: bool = False) -> Image:
    """Build an image within minutes. ``accept_expired``: also from an expired archive."""
    if guest.kernel is None or _is_loaded(guest.kernel):
        name, recipe = image_recipes.load(guest.image)
        recipe = image_recipes.as_accepted(recipe, accept_expired=accept_expired)
        image = images.build(recipe, name=name, progress=progress)
        return image_kernel.with_kernel(image, Path(guest.kernel)) if guest.kernel else image
    name, recipe = _variant(guest.image, guest.kernel)
    recipe = image_recipes.as_accepted(recipe, accept_expired=accept_expired)
    return images.build(recipe, name=name, progress=progress)


def recipe_of(guest: Guest) -> ImageRecipe:
    """Return the recipe of a guest's image with its kernel.

    ``InputError``: the image was imported, or its kernel is a file without headers.
    """
    if guest.kernel is not None and is_file(guest.kernel):
        raise InputError(
            f"guest.kernel: '{guest.kernel}' is a file without headers: name a Debian package, such"
            " as linux-image-cloud-amd64"
        )
    if guest.kernel is not None:
        return _variant(guest.image, guest.kernel)[1]
    if guest.image not in image_recipes.recipes() and images.find(guest.image) is not None:
        raise InputError(f"the image '{guest.image}' was imported, so its headers are unknown")
    return image_recipes.load(guest.image)[1]


def _is_loaded(kernel: str) -> bool:
    """Return whether QEMU loads the kernel from its file, so that the image has none of it."""
    return is_file(kernel) and not kernel.endswith(".deb")


def _variant(image: str, kernel: str) -> tuple[str, ImageRecipe]:
    """Return name and recipe of the image with another kernel installed."""
    if image not in image_recipes.recipes():
        raise InputError(
            f"guest.kernel: the image '{image}' was not built here, and its kernel stays: leave "
            f"'{kernel}' out, or name the file of a kernel that QEMU loads"
        )
    _, recipe = image_recipes.load(image)
    short = re.sub(r"[^a-z0-9.+-]", "-", Path(kernel).name.removesuffix(".deb").lower())
    asked = (
        {"kernel_file": str(Path(kernel).resolve())}
        if is_file(kernel)
        else {"kernel_package": kernel}
    )
    try:
        changed = ImageRecipe.model_validate(recipe.model_dump() | asked)
    except ValidationError as error:
        said = wording.reason(error, ImageRecipe)
        raise InputError(f"guest.kernel: '{kernel}' in the image '{image}': {said}") from None
    return f"{image}+{short}", changed


Does = Callable[[ImageFacts], bool]


def able(*, here: Does, asked_for: Does) -> list[str]:
    """Return the names of images with a feature: existing ones, and recipes that would have it."""
    built = {i.name: i for i in reversed(images.list_images().images)}
    names = [name for name, image in built.items() if here(facts_of(image.manifest))]
    for name in image_recipes.recipes():
        if name not in built and asked_for(facts_asked_for(image_recipes.load(name)[1])):
            names.append(f"{name} (`lab image build {name}`)")
    return names
