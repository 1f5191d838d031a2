"""Tables without lines: each record is on one line at every width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

NUMBERS: Final = frozenset(
    (
        *("measured", "predicted", "published", "cells", "claims", "port"),
        *("holds", "refuted", "other", "first", "second", "change"),
        *("one run ±", "two runs ±", "parts", "time", "guests", "memory", "space"),
        *("reads", "writes", "disk read", "disk wrote", "off by", "CPU", "read", "write"),
    )
)
"""Columns that are right-aligned, and are never shortened."""
IDENTIFIERS: Final = frozenset(
    ("run", "cell", "guest", "image", "scenario", "matrix", "part", "job", "host", "disk")
)
"""Columns that are neither shortened nor dropped, except that the first column always stays."""
LEAST: Final = 16
"""Least width of a shortened column; then the last column is dropped instead."""
NARROWEST: Final = 24
"""Least width for a column of prose; below it the prose is printed below its record."""
GAP: Final = "  "


class PlainTable:
    """A table that fits a narrow terminal: text is shortened, columns are dropped.

    Columns without a value are left out. ``prose``: the last column is wrapped on a terminal; in a
    pipe it stays on its line. ``least``: minimum widths of columns, by heading. A console with
    ``piped`` is a pipe, and ``limit`` its width.
    """

    def __init__(
        self,
        *headings: str,
        prose: bool = False,
        heads: bool = True,
        least: Mapping[str, int] | None = None,
    ) -> None:
        self.headings = headings
        self._least = least or {}
        self.rows: list[tuple[Text, ...]] = []
        self._prose = prose
        self._heads = heads

    def add_row(self, *cells: str | Text) -> None:
        """Add a record; cells that are not given are empty."""
        given = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        given += [Text()] * (len(self.headings) - len(given))
        self.rows.append(tuple(given))

    @property
    def width(self) -> int:
        """Width of the complete table, in columns of text."""
        return _total(self._widths())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render headings, then a line for each record."""
        piped = getattr(console, "piped", False)
        room = getattr(console, "limit", None) if piped else options.max_width
        last = len(self.headings) - 1 if self._prose else -1
        widths = self._widths()
        widths.pop(last, None)
        if room is not None:
            widths = _fitted(self.headings, widths, room)
        if self._heads:
            yield self._line([Text(h, style="bold") for h in self.headings], widths, last)
        for row in self.rows:
            line = self._line(row, widths, last if piped else -1)
            if self._prose and not piped:
                yield from _folded(console, line, row[last], _total(widths), options.max_width)
            else:
                yield line

    def _widths(self) -> dict[int, int]:
        """Return widths by the column's number, without columns that have no value."""
        found = {}
        for number, heading in enumerate(self.headings):
            widest = max((_width(row[number]) for row in self.rows), default=0)
            if widest or not self.rows:
                head = cell_len(heading) if self._heads else 0
                found[number] = max(widest, head, self._least.get(heading, 0))
        return found

    def _line(self, row: Sequence[Text], widths: dict[int, int], prose: int) -> Text:
        line = Text(no_wrap=True, overflow="ignore")
        for number, width in widths.items():
            cell = _one_line(row[number])
            if cell.cell_len > width:
                cell.truncate(width, overflow="ellipsis")
            pad = " " * (width - cell.cell_len)
            right = self.headings[number] in NUMBERS
            line.append_text(Text(pad) + cell if right else cell + Text(pad)).append(GAP)
        if prose >= 0:
            line.append_text(_one_line(row[prose]))
        line.rstrip()
        return line


def plain_table(*headings: str) -> PlainTable:
    """Return a table with these headings."""
    return PlainTable(*headings)


def _one_line(cell: Text) -> Text:
    return Text("; ").join(part for part in cell.split("\n") if part.plain)


def _width(cell: Text) -> int:
    return _one_line(cell).cell_len


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + len(GAP) * max(len(widths) - 1, 0)


def _fitted(headings: Sequence[str], natural: dict[int, int], room: int) -> dict[int, int]:
    """Return widths that fit; identifiers keep theirs even if there is not enough space."""
    columns = dict(natural)
    while True:
        widths = dict(columns)
        free = [n for n in columns if n and headings[n] not in IDENTIFIERS]
        while (over := _total(widths) - room) > 0:
            text = [n for n in free if headings[n] not in NUMBERS and widths[n] > LEAST]
            if not text:
                break
            widest = max(text, key=lambda n: widths[n])
            widths[widest] = max(widths[widest] - over, LEAST)
        if over <= 0 or not free:
            return widths
        del columns[free[-1]]


def _folded(console: Console, line: Text, prose: Text, before: int, width: int) -> Iterator[Text]:
    """Yield the record with its prose next to it, or below it if there is no space."""
    indent = before + len(GAP)
    if width - indent < NARROWEST:
        yield line
        indent, line = len(GAP) * 2, Text()
    for part in prose.split("\n"):
        whole = " " not in part.plain  # a name is not broken, even if it is longer than a line
        for wrapped in [part] if whole else part.wrap(console, max(width - indent, 1)):
            wrapped.rstrip()
            yield (
                Text(no_wrap=True, overflow="ignore")
                .append_text(line)
                .append(" " * (indent - line.cell_len))
                .append_text(wrapped)
            )
            line = Text()
