"""Names of cells: the axis values that differ between them, in the syntax of ``--set``. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size

from lab.compile.scenario.identity import cell_id
from lab.model.scenario.document import AxisValue, Cell
from lab.report.content.figures import axis_heads, axis_value, telling


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Unique labels of cells for a given width."""

    head: str
    """Heading of the column."""
    of: Mapping[str, str]
    """Label by cell id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Unique names of a run's cells by id, in the order of the file."""

    full: Mapping[str, str]
    """With their axes, as in ``array.layout=parity-last disks.count=5``."""
    values: Mapping[str, str]
    """Without their axes, as in ``parity-last 5``."""
    heads: Sequence[str]
    """Headings: the axes, and their last parts for a narrow column."""
    noun: str = "cells"
    """What is named; ``trials`` if cells differ in their seeds."""
    _fitted: dict[int, Fitted] = field(default_factory=dict)

    def fitted(self, width: int) -> Fitted:
        """Return the longest form in which all names fit; if none fits, cut the names in the
        middle."""
        if width not in self._fitted:
            self._fitted[width] = self._fit(max(width, 0))
        return self._fitted[width]

    def _fit(self, width: int) -> Fitted:
        short = self.heads[-1]
        for head in (*self.heads, short):
            rows = (head, *self.values.values()) if head != short else self.values.values()
            if all(cell_len(row) <= width for row in rows):
                return Fitted(head=head, of=self.values)
        for tail in sorted(range(width), key=lambda tail: abs(2 * tail + 1 - width)):
            cut_ = {c: _without_middle(name, width, tail) for c, name in self.values.items()}
            if _distinct(cut_.values()):
                return Fitted(head=short, of=cut_)
        numbered = enumerate(self.values.items(), 1)
        return Fitted(
            head="cell",
            of={cell: cut(f"{number} {name}", width) for number, (cell, name) in numbered},
        )

    def named(self, text: str) -> str:
        """Replace ids of cells in the text with their names."""
        for cell, name in self.full.items():
            text = text.replace(cell, name)
        return text


def labels_of(cells: Sequence[Cell], scenario: str) -> Labels:
    """Return names of a run's cells; a single cell has the scenario's name."""
    ids = [cell_id(cell) for cell in cells]
    seeds = len({cell.seed for cell in cells}) > 1
    places = [{**c.axes, "seed": c.seed} if seeds else c.axes for c in cells]
    axes = list(telling(places))
    points = [{a: v for a, v in p.items() if v is not None or a in axes} for p in places]
    full = [_assignments(point) or scenario for point in points]
    values = [" ".join(_written(a, place.get(a)) for a in axes) for place in places]
    return Labels(
        full=dict(zip(ids, full, strict=True)),
        values=dict(zip(ids, values if axes and _distinct(values) else full, strict=True)),
        heads=[" ".join(axes), " ".join(axis_heads(axes))] if axes else ["cell"],
        noun="trials" if seeds else "cells",
    )


def _assignments(point: Mapping[str, AxisValue]) -> str:
    """Return the arguments of ``--set`` for a point of the matrix."""
    return " ".join(shlex.quote(f"{axis}={_written(axis, v)}") for axis, v in point.items())


def _written(axis: str, value: AxisValue) -> str:
    """Return an axis value as a scenario writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return axis_value(axis, value)


def cut(text: str, width: int) -> str:
    """Return the text, shortened to the width with ``…`` at its end if necessary."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip(" ,") + "…" if width > 1 else "…"[:width]


def _without_middle(text: str, width: int, tail: int) -> str:
    """Return the text's first characters and its last ``tail``, with ``…`` between."""
    if cell_len(text) <= width:
        return text
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def _distinct(labels: Iterable[str]) -> bool:
    found = list(labels)
    return len(set(found)) == len(found)
