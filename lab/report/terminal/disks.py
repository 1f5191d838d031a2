"""Real disks, for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lab.core.units import format_rate, format_size
from lab.model.scenario.profile import Point, Profile


def disk_table(rows: Sequence[dict[str, Any]]) -> Table:
    """One row for each disk, with every name, and everything that forbids it."""
    table = Table(box=SIMPLE, pad_edge=False)
    for heading in ("disk", "what", "may be passed through"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        about = [row["model"], format_size(row["size"])]
        about.append("turns" if row["rotational"] else "solid state")
        if row["serial"]:
            about.append(f"serial {row['serial']}")
        reasons = [f"{o['rule']}: {o['evidence']}" for o in row["forbidden"]]
        table.add_row(
            "\n".join([row["device"], *row["names"]]),
            "\n".join(word for word in about if word),
            "\n".join(["no", *reasons]) if reasons else "yes",
        )
    return table


def profile_page(profile: Profile) -> RenderableType:
    """What was measured beside what the model does, and the model's figures."""
    table = Table(box=SIMPLE, pad_edge=False)
    for heading in ("reads", "disk", "model", "off by"):
        table.add_column(heading, justify="left" if heading == "reads" else "right")
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
