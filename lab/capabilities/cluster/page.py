"""The hosts of a cluster, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.capabilities.cluster.logic import CPUS, DISK, IMAGE, MEMORY, SPACE
from lab.core.units import GIB
from lab.report.content.plain_table import PlainTable, plain_table


def cluster_table(rows: Sequence[Mapping[str, Any]]) -> PlainTable:
    """Return the table of ``lab cluster status``."""
    table = plain_table("host", "accelerator", "guests", "memory", "space", "images, disks")
    for row in rows:
        if "problem" in row:
            table.add_row(row["problem"])
            continue
        has = row["offers"]
        sizes = (f"{has.get(name, 0) / GIB:.1f} GiB" for name in (MEMORY, SPACE))
        there = [
            name.removeprefix(kind)
            for kind in (IMAGE, DISK)
            for name in sorted(has)
            if name.startswith(kind)
        ]
        guests = f"{has.get(CPUS, 0):g}"
        kind = row["accelerator"].upper()
        table.add_row(row["host"], kind, guests, *sizes, ", ".join(there) or "–")
    return table
