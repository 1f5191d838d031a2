"""Tables without lines, as all lists of the command line are."""

from __future__ import annotations

from rich import box
from rich.table import Table

NUMBERS = (
    *("measured", "predicted", "published", "cells", "claims", "port"),
    *("holds", "refuted", "other", "first", "second", "change"),
    *("one run ±", "two runs ±"),
)
"""Columns that stand to the right."""


def plain_table(*headings: str) -> Table:
    """A table without lines between its rows; figures stand to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in headings:
        right = heading in NUMBERS
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    return table
