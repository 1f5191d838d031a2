"""Checks before the first build: images have the features that the scenario's arrays need."""

from __future__ import annotations

from collections.abc import Sequence

from lab.compile.scenario.checks import wrong_at
from lab.compile.scenario.compiler import Compiled
from lab.host import images
from lab.model.image.manifest import ImageFacts, facts_of
from lab.model.plugin import Problem
from lab.model.scenario.document import Array, Cell
from lab.model.scenario.guest import System
from lab.plugins import catalog
from lab.run.preparation import systems

Known = dict[System, ImageFacts | None]
"""Facts of each image with its kernel; ``None``: it is not built."""


def check_images(compiled: Compiled, facts: Known) -> None:
    """Check every image of the cells: it exists or can be built, and has what its arrays need.

    ``InputError`` names the key. Features of an unbuilt image are not checked. ``facts`` caches the
    results for the next scenario.
    """
    known = catalog.image_recipes()
    for cell in (compiled.base, *compiled.cells):
        name = cell.guest.image
        if name not in known and images.find(name) is None:
            places = compiled.point_of(cell).places
            raise compiled.document.wrong(
                places.get("guest.image", ("guest", "image")),
                f"there is no image '{name}': known are {', '.join(known)}; `lab image import` "
                "brings another",
            )
    check_arrays(compiled, compiled.cells, facts)


def check_arrays(compiled: Compiled, cells: Sequence[Cell], facts: Known) -> None:
    """``InputError``: a built image lacks a feature that a cell's array needs."""
    seen: set[tuple[int, System]] = set()
    for cell in cells:
        array, system = cell.array, cell.guest.system
        if array is None or (id(array), system) in seen:
            continue
        seen.add((id(array), system))
        if system not in facts:
            image = systems.find(cell.guest)
            facts[system] = facts_of(image.manifest) if image else None
        found = facts[system]
        kind = catalog.array_kind(array.kind)
        for problem in kind.lacks(array, found) if found else ():
            message = f"the image '{cell.guest.image}' cannot do this: {problem.message}"
            others = _who_can(array, problem)
            told = Problem(key=problem.key, message=f"{message} ({_in_words(found)}; {others})")
            raise wrong_at(told, compiled.document, compiled.point_of(cell))


def _in_words(facts: ImageFacts | None) -> str:
    kernel = (facts and facts.kernel_version) or "of unknown version"
    mdadm = (facts and facts.mdadm_version) or "of unknown version"
    return f"it has Linux {kernel} and mdadm {mdadm}"


def _who_can(array: Array, problem: Problem) -> str:
    """Name the existing images that have the feature, and the recipes that would have it."""
    kind = catalog.array_kind(array.kind)
    able = systems.able(
        here=lambda facts: not list(kind.lacks(array, facts)),
        asked_for=lambda facts: all(p.key != problem.key for p in kind.lacks(array, facts)),
    )
    return f"set guest.image to {' or '.join(able)}" if able else "no image that is here has it"
