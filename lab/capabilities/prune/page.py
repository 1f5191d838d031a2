"""What `lab clean` removes, for a terminal of 80 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from lab.capabilities.prune.model import Item, Pruning
from lab.core.units import format_amount
from lab.report.content.plain_table import plain_table


def prune_page(found: Pruning) -> RenderableType:
    """Return the plan as a table, or what is left after a removal; then what holds the rest."""
    parts: list[RenderableType] = []
    gone = [item for item in found.items if item.remove]
    if gone and not found.done:
        table = plain_table("remove", "space", "last use", "name", "why")
        for one in gone:
            table.add_row(
                one.kind.value, format_amount(one.bytes), _day(one.used), one.name, one.why
            )
        parts.append(table)
    if not gone:
        parts.append(Text("There is nothing to remove."))
    verb = "is" if found.done else "would be"
    parts.append(
        Text(
            f"{format_amount(found.before)} in use, {format_amount(found.after)} {verb} left;"
            f" wanted: at most {format_amount(found.keep)}."
        )
    )
    if found.after > found.keep:
        parts += [Text(line) for line in _rest(found)]
    return Group(*parts)


def item_line(item: Item) -> Text:
    """Return a line about a removed item."""
    return Text(f"removed {item.kind.value} {item.name}: {format_amount(item.bytes)}")


def _rest(found: Pruning) -> list[str]:
    """Return what stays, by reason, the largest first."""
    sums: dict[tuple[str, str], int] = {}
    for item in found.items:
        if not item.remove:
            key = (item.kind.value, item.why)
            sums[key] = sums.get(key, 0) + item.bytes
    ordered = sorted(sums.items(), key=lambda pair: -pair[1])
    return [f"  {kind}s: {format_amount(size)} stay: {why}" for (kind, why), size in ordered]


def _day(when: str) -> str:
    return when.partition("T")[0]
