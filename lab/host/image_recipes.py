"""Where image recipes lie, and reading one."""

from __future__ import annotations

from pathlib import Path

import lab
from lab import catalog, decode
from lab.model.image import ImageRecipe


def directory() -> Path:
    """``images/`` of a checkout, or what was installed of it."""
    package = Path(lab.__file__).parent
    installed = package / "data" / "images"
    return installed if installed.is_dir() else package.parent / "images"


def recipes() -> dict[str, Path]:
    """Every recipe by its name, which is its file's."""
    return catalog.image_recipes()


def load(name_or_path: str) -> tuple[str, ImageRecipe]:
    """The name and the recipe, of a name in ``images/`` or of a YAML file."""
    path = catalog.image_recipe_path(name_or_path)
    return path.stem, read(path)


def read(path: Path) -> ImageRecipe:
    """The recipe in a file; ``InputError`` names the file, line and key that is wrong."""
    return decode.validate(ImageRecipe, decode.read_file(path))


def customize_script() -> str:
    """The hook that turns packages into a guest, ``images/customize.sh``."""
    return (directory() / "customize.sh").read_text(encoding="utf-8")
