"""The anatomy of a write in words."""

from __future__ import annotations

from lab.core.units import format_value
from lab.model.result.explanation import Anatomy


def anatomy_words(found: Anatomy) -> str:
    """Return what md reads and writes for one write, such as ``2 reads, then 2 writes``."""
    reads, writes = found.counts
    size = format_value(found.block, "B")
    after = f"{reads} read{'s' * (reads != 1)}, then " if reads else ""
    return f"A write of {size}: {after}{writes} write{'s' * (writes != 1)} (r read, w written)"
