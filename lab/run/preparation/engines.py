"""Chooses the engine of guests whose scenario leaves it to the lab (``guest.engine: auto``).

A cell that was chosen for has its engine as a field, so results of both engines have different
cell ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from lab.compile.guest.virtual_time import why_emulated
from lab.compile.scenario.compiler import Compiled
from lab.host.images import kits
from lab.model.image.manifest import Image
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Clock, Engine, System
from lab.run.options import RunOptions

NATIVE = "virtual time runs natively"
"""What is said if no reason against it was found."""


def undecided(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Return the cells in virtual time whose engine the lab chooses."""
    return tuple(
        c for c in cells if c.guest.engine is Engine.AUTO and c.guest.clock is Clock.VIRTUAL
    )


def by_scenario(compiled: Compiled, options: RunOptions) -> tuple[Compiled, tuple[str, ...]]:
    """Return it with emulation for the cells that need it whatever the image, and the reasons."""
    return _chosen(
        compiled, lambda cell: why_emulated(cell.guest, sealed=not options.unseals(cell))
    )


def by_image(
    compiled: Compiled, images: Mapping[System, Image]
) -> tuple[Compiled, tuple[str, ...]]:
    """Return it with an engine for each cell, and the reasons.

    ``images``: those of all cells.
    """
    systems = {cell.guest.system for cell in undecided((*compiled.cells, compiled.base))}
    why = {s: kits.why_emulated(images[s]) for s in sorted(systems, key=str) if s in images}
    made, reasons = _chosen(compiled, lambda cell: why.get(cell.guest.system, ""))
    if undecided((*made.cells, made.base)):
        made = _mapped(made, lambda _cell: Engine.NATIVE)
        reasons = (NATIVE, *reasons)
    return made, reasons


def _chosen(compiled: Compiled, why: Callable[[Cell], str]) -> tuple[Compiled, tuple[str, ...]]:
    """Return it with emulation where ``why`` has a reason, and the reasons."""
    cells = undecided(compiled.cells if compiled.axes else (compiled.base,))
    found = dict.fromkeys(filter(None, map(why, cells)))
    made = _mapped(compiled, lambda cell: Engine.EMULATED if why(cell) else Engine.AUTO)
    return made, tuple(f"virtual time is emulated: {reason}" for reason in found)


def _mapped(compiled: Compiled, engine: Callable[[Cell], Engine]) -> Compiled:
    def settled(cell: Cell) -> Cell:
        if not undecided([cell]):
            return cell
        guest = cell.guest.model_copy(update={"engine": engine(cell)})
        return cell.model_copy(update={"guest": guest})

    return dataclasses.replace(
        compiled, cells=tuple(map(settled, compiled.cells)), base=settled(compiled.base)
    )
