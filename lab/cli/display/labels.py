"""What cells are called on a screen: by the axis values that tell them apart, at a width. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size

from lab.compile.scenario.identity import cell_id
from lab.model.scenario.document import Cell
from lab.report.content.figures import axes_text, axis_heads, axis_value, telling


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Labels that fit a width, each at most once."""

    head: str
    """What to write above them."""
    of: Mapping[str, str]
    """A cell's label, by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The labels of a run's cells, by id, in the order of the file; no two are the same."""

    full: Mapping[str, str]
    values: Mapping[str, str]
    """Without the words around the values: ``parity-last 64KiB 5``."""
    heads: str
    """The names of these values."""
    _fitted: dict[int, Fitted] = field(default_factory=dict)

    def fitted(self, width: int) -> Fitted:
        """The longest form of which all labels fit; beyond that they lose their middle."""
        if width not in self._fitted:
            self._fitted[width] = self._fit(max(width, 0))
        return self._fitted[width]

    def _fit(self, width: int) -> Fitted:
        for head, labels in (("cell", self.full), (self.heads, self.values)):
            if all(cell_len(label) <= width for label in labels.values()):
                return Fitted(head=head, of=labels)
        for head, labels in ((self.heads, self.values), ("cell", self.full)):
            for tail in sorted(range(width), key=lambda tail: abs(2 * tail + 1 - width)):
                short = {
                    cell: _without_middle(label, width, tail) for cell, label in labels.items()
                }
                if _distinct(short.values()):
                    return Fitted(head=head, of=short)
        numbered = enumerate(self.full.items(), 1)
        return Fitted(
            head="cell",
            of={cell: cut(f"{number} {label}", width) for number, (cell, label) in numbered},
        )


def labels_of(cells: Sequence[Cell], scenario: str) -> Labels:
    """Labels of a run's cells; that of the only cell is the scenario's name."""
    ids = [cell_id(cell) for cell in cells]
    axes = list(telling([cell.axes for cell in cells]))
    heads = axis_heads(axes)
    values = [[axis_value(a, cell.axes.get(a)) for a in axes] for cell in cells]
    forms = (
        [axes_text({a: cell.axes.get(a) for a in axes}) or scenario for cell in cells],
        [", ".join(f"{h} {v}" for h, v in zip(heads, mine, strict=True)) for mine in values],
        ids,
    )
    full = next(form for form in forms if _distinct(form) or form is ids)
    short = [" ".join(mine) for mine in values]
    return Labels(
        full=dict(zip(ids, full, strict=True)),
        values=dict(zip(ids, short if axes and _distinct(short) else full, strict=True)),
        heads=" ".join(heads) or "cell",
    )


def cut(text: str, width: int) -> str:
    """The text, and ``…`` where it has to end early."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip(" ,") + "…" if width > 1 else "…"[:width]


def _without_middle(text: str, width: int, tail: int) -> str:
    """The text's first characters and its last ``tail``, with ``…`` between."""
    if cell_len(text) <= width:
        return text
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def _distinct(labels: Iterable[str]) -> bool:
    found = list(labels)
    return len(set(found)) == len(found)
