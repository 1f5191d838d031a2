"""Arrays for tests of theory, with mdadm's names and defaults."""

from __future__ import annotations

from collections.abc import Iterable

from lab.md.facts.geometry import Geometry
from lab.md.facts.levels import Level, layout_number
from lab.md.facts.sizes import DEFAULT_CHUNK


def geometry(
    level: Level,
    members: int,
    component_size: int,
    *,
    layout: str | None = None,
    chunk: int = DEFAULT_CHUNK,
    failed: Iterable[int] = (),
) -> Geometry:
    """Return an array with mdadm's name of its layout; ``None``: the level's default."""
    return Geometry(
        level=level,
        layout=layout_number(level, layout),
        members=members,
        component_size=component_size,
        chunk=chunk if level.striped else 0,
        failed=frozenset(failed),
    )
