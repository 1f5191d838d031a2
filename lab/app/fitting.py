"""Whether a scenario's images have what its arrays need, before anything is built on them."""

from __future__ import annotations

from collections.abc import Sequence

from lab import catalog
from lab.app import systems
from lab.compile.scenario import Compiled, wrong_at
from lab.host import images
from lab.model.image import ImageFacts, facts_of
from lab.model.plugin import Problem
from lab.model.scenario import Array, Cell


def check_images(compiled: Compiled) -> None:
    """Every image that a cell names is here, or can be built, and has what the cell's array needs.

    ``InputError`` names the key. An image that is not built yet is not judged.
    """
    known = catalog.image_recipes()
    for cell in (compiled.base, *compiled.cells):
        name = cell.guest.image
        if name not in known and images.find(name) is None:
            axis = ("matrix", "guest.image")
            path = axis if "guest.image" in cell.axes else ("guest", "image")
            raise compiled.document.wrong(
                path,
                f"there is no image '{name}': known are {', '.join(known)};"
                " `lab image import` brings another",
            )
    check_arrays(compiled, compiled.cells)


def check_arrays(compiled: Compiled, cells: Sequence[Cell]) -> None:
    """No cell's array needs what its image, where it is built, lacks; ``InputError`` else."""
    facts: dict[tuple[str, str | None], ImageFacts | None] = {}
    seen: set[tuple[int, tuple[str, str | None]]] = set()
    for cell in cells:
        array, system = cell.array, cell.guest.system
        if array is None or (id(array), system) in seen:
            continue
        seen.add((id(array), system))
        if system not in facts:
            image = systems.find(cell.guest)
            facts[system] = facts_of(image.manifest) if image else None
        found = facts[system]
        for problem in catalog.array_kind(array.kind).lacks(array, found) if found else ():
            message = f"the image '{cell.guest.image}' cannot do this: {problem.message}"
            told = Problem(key=problem.key, message=f"{message} ({_in_words(found, array)})")
            raise wrong_at(told, compiled.document, cell.axes)


def _in_words(facts: ImageFacts | None, array: Array) -> str:
    """What the image has, and which ones have what the array needs."""
    kernel = (facts and facts.kernel_version) or "of unknown version"
    mdadm = (facts and facts.mdadm_version) or "of unknown version"
    has = f"it has Linux {kernel} and mdadm {mdadm}"
    able = systems.able(lambda found: not list(catalog.array_kind(array.kind).lacks(array, found)))
    if not able:
        return f"{has}; no image that is here has it"
    return f"{has}; set guest.image to {' or '.join(able)}"
