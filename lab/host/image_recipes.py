"""Where image recipes lie, and reading one."""

from __future__ import annotations

from pathlib import Path

import lab
from lab import decode
from lab.errors import InputError
from lab.model.image import ImageRecipe


def directory() -> Path:
    """``images/`` of a checkout, or what was installed of it."""
    package = Path(lab.__file__).parent
    installed = package / "data" / "images"
    return installed if installed.is_dir() else package.parent / "images"


def recipes() -> dict[str, Path]:
    """Every recipe by its name, which is its file's."""
    return {path.stem: path for path in sorted(directory().glob("*.yaml"))}


def load(name_or_path: str) -> tuple[str, ImageRecipe]:
    """The name and the recipe, of a name in ``images/`` or of a YAML file."""
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
    else:
        known = recipes()
        if name_or_path not in known:
            raise InputError(
                f"there is no recipe for an image '{name_or_path}' (known: {', '.join(known)})",
                hint=f"a recipe is one file, '{directory()}/NAME.yaml'",
            )
        path = known[name_or_path]
    return path.stem, read(path)


def read(path: Path) -> ImageRecipe:
    """The recipe in a file; ``InputError`` names the file, line and key that is wrong."""
    return decode.validate(ImageRecipe, decode.read_file(path))


def customize_script() -> str:
    """The hook that turns packages into a guest, ``images/customize.sh``."""
    return (directory() / "customize.sh").read_text(encoding="utf-8")
