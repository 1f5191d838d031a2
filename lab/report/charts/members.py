"""What each member of a cell's array read and wrote: a parity disk's load is seen at once."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any, Final

from lab.core.units import MIB
from lab.model.result.document import MemberCounters
from lab.report.charts.draw import INK, READS, WRITES, Picture
from lab.report.charts.points import slug
from lab.report.content.document import PageCell
from lab.report.content.figures import axes_text

INNER: Final = 370
"""Pixels of the bars' longest."""


def members(cell: PageCell) -> Picture | None:
    """Bytes by member and workload; ``None`` where nothing was counted."""
    values = [*_counted(cell)]
    if not any(v["amount"] for v in values):
        return None
    expected = [*_expected(cell)]
    workloads = list(dict.fromkeys(v["workload"] for v in values))
    disks = list(dict.fromkeys(v["disk"] for v in values))
    y = {
        "field": "disk",
        "type": "nominal",
        "sort": disks,
        "axis": {"title": None, "domain": False, "ticks": False},
    }
    x: dict[str, Any] = {
        "type": "quantitative",
        "title": "MiB, median of the trials",
        "axis": {"tickCount": 6},
    }
    names, colours = ["read", "written"], [READS, WRITES]
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "bar"},
            "encoding": {
                "y": y,
                "x": {**x, "field": "amount", "stack": "zero"},
                "color": {
                    "field": "way",
                    "type": "nominal",
                    "scale": {"domain": names, "range": colours},
                },
                "order": {"field": "order", "type": "ordinal"},
                "description": {"field": "tip", "type": "nominal"},
            },
        }
    ]
    if expected:
        layers.append(
            {
                "transform": [{"filter": "datum.way == 'theory'"}],
                "mark": {"type": "tick", "color": INK, "thickness": 2.5},
                "encoding": {
                    "y": y,
                    "x": {**x, "field": "expected"},
                    "description": {"field": "tip", "type": "nominal"},
                },
            }
        )
        layers[0]["transform"] = [{"filter": "datum.way != 'theory'"}]
    where = axes_text(cell.result.axes)
    said = "from the guest's /proc/diskstats" + (" · line across: theory" if expected else "")
    return Picture(
        name=slug("members", cell.result.id),
        title=f"Bytes by disk: {where}" if where else "Bytes by disk",
        subtitle=said,
        caption="; ".join(v["tip"] for v in values if v["amount"]),
        spec={
            "data": {"values": [*values, *expected]},
            "facet": {
                "row": {
                    "field": "workload",
                    "type": "nominal",
                    "sort": workloads,
                    "header": {
                        "title": None,
                        "labelAngle": 0,
                        "labelAlign": "left",
                        "labelOrient": "top",
                        "labelAnchor": "start",
                        "labelFontWeight": "bold",
                    },
                }
            },
            "spec": {"width": INNER, "height": {"step": 18}, "layer": layers},
            "spacing": 8,
        },
    )


def _counted(cell: PageCell) -> Iterator[dict[str, Any]]:
    found: dict[tuple[str, str], list[MemberCounters]] = {}
    for counters in cell.result.counters:
        found.setdefault((counters.workload, counters.serial), []).append(counters)
    for (workload, serial), trials in found.items():
        read = median(c.read_bytes for c in trials) / MIB
        written = median(c.written_bytes for c in trials) / MIB
        for order, (way, amount) in enumerate((("read", read), ("written", written))):
            yield {
                "workload": workload,
                "disk": serial,
                "way": way,
                "order": order,
                "amount": amount,
                "tip": f"{workload}, {serial}: {amount:.1f} MiB {way}",
            }


def _expected(cell: PageCell) -> Iterator[dict[str, Any]]:
    for explanation in cell.explanations:
        for member in explanation.members:
            amount = (member.read_bytes + member.written_bytes) / MIB
            yield {
                "workload": explanation.workload,
                "disk": member.serial,
                "way": "theory",
                "expected": amount,
                "tip": f"{explanation.workload}, {member.serial}: theory {amount:.1f} MiB",
            }
