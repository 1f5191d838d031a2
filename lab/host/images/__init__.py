"""Guest images: find, list, verify, remove, prune; other modules build, export and import them."""

from __future__ import annotations

from lab.host.images import recipes as image_recipes
from lab.host.images import store as image_store
from lab.host.images.store import (
    Inventory,
    Progress,
    Removed,
    Skipped,
    list_images,
    prune,
    remove,
    verify,
)
from lab.host.images.workspace import TREE
from lab.model.image.manifest import Image
from lab.model.image.recipe import ImageRecipe, recipe_digest

__all__ = [
    "TREE",
    "Inventory",
    "Progress",
    "Removed",
    "Skipped",
    "find",
    "list_images",
    "prune",
    "remove",
    "verify",
]


def find(name: str, recipe: ImageRecipe | None = None) -> Image | None:
    """Return the image for a scenario's ``guest.image``; ``None``: it must be built or imported.

    For a recipe (given, or one in ``images/``): the newest image built from exactly that recipe, so
    a changed recipe never gets an old image. For any other name: the newest image.
    """
    if recipe is None:
        path = image_recipes.recipes().get(name)
        if path is None:
            return image_store.find_newest(name)
        recipe = image_recipes.read(path)
    return image_store.find_by_recipe(name, recipe_digest(recipe, image_recipes.brought(recipe)))
