"""Real disks, for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from lab.core.units import format_rate, format_size
from lab.model.scenario.profile import Point, Profile
from lab.report.content.plain_table import PlainTable, plain_table


def disk_table(rows: Sequence[dict[str, Any]]) -> PlainTable:
    """Return the table of ``lab disk list``: names of each disk, and why it cannot be passed."""
    table = PlainTable("disk", "model", "size", "allowed", "names and reasons", prose=True)
    for row in rows:
        serial = [f"serial {row['serial']}"] if row["serial"] else []
        reasons = [f"{one['rule']}: {one['evidence']}" for one in row["forbidden"]]
        turns = "turns" if row["rotational"] else "solid state"
        model = ", ".join(filter(None, (row["model"], turns)))
        more = "\n".join([*row["names"], *serial, *reasons])
        size = format_size(row["size"])
        table.add_row(row["device"], model, size, "no" if reasons else "yes", more)
    return table


def profile_page(profile: Profile) -> RenderableType:
    """Return the page of ``lab disk calibrate``: measured and modelled values, and parameters."""
    table = plain_table("read", "measured", "predicted", "off by")
    for point in profile.points:
        table.add_row(
            point.name,
            _figure(point, point.measured),
            _figure(point, point.model),
            f"{point.error:+.1%}",
        )
    figures = getattr(profile, profile.kind).model_dump(exclude_none=True)
    words = ", ".join(f"{name} {value:.6g}" for name, value in figures.items())
    worst = max((abs(p.error) for p in profile.points), default=0.0)
    return Group(
        Text(f"A model of the kind {profile.kind}: {words}."),
        Text(f"Reading does not show, and the preset says: {', '.join(profile.assumed)}."),
        table,
        Text(f"The model is off by {profile.score:.1%} (median), {worst:.1%} at worst."),
    )


def _figure(point: Point, value: float) -> str:
    if point.unit == "seconds":
        return f"{value * 1000:.2f} ms"
    return format_rate(value) if point.unit == "bytes_per_second" else f"{value:.1f}/s"
