"""Real disks, for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from lab.core.units import format_rate, format_size
from lab.md.theory.certificate import Errors, certificate, errors
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
    """Return the page of ``lab disk calibrate`` and ``lab disk fit``: measured and modelled values,
    parameters, and the certificate."""
    few = [p for p in profile.points if " jobs" not in p.name and p.unit != "seconds"]
    if any("jump" in p.group for p in profile.points):
        few = list(profile.points)
    table = plain_table("load", "measured", "modelled", "off by", "fitted")
    for point in few:
        table.add_row(
            point.name,
            _figure(point, point.measured),
            _figure(point, point.model),
            f"{point.error:+.1%}",
            "yes" if point.fitted else "no",
        )
    figures = getattr(profile, profile.kind).model_dump(exclude_none=True)
    words = ", ".join(f"{name} {value:.6g}" for name, value in figures.items())
    return Group(
        Text(f"A model of the kind {profile.kind}: {words}."),
        Text(f"Not shown by the results, and assumed: {', '.join(profile.assumed) or 'nothing'}."),
        table,
        Text(f"The model is off by {profile.score:.1%} (median)."),
        certificate_table(profile.points),
    )


def certificate_table(points: Sequence[Point]) -> RenderableType:
    """Return the errors of a model by group: of values that it was fitted to, and of the others."""
    lines = certificate(points)
    table = plain_table("certificate", "fitted", "RMS", "worst", "not fitted", "RMS", "worst")
    for line in lines:
        table.add_row(line.group, *_errors(line.fitted), *_errors(line.tested))
    tested = [p for p in points if not p.fitted and p.unit != "seconds"] or [
        p for p in points if not p.fitted
    ]
    end = f"Values that were not fitted: {errors(tested)}." if tested else NOTHING_TESTED
    return Group(table, Text(end))


NOTHING_TESTED: Final = "No value was left to test the model: all were fitted."


def _errors(found: Errors) -> tuple[str, str, str]:
    if not found.count:
        return "0", "", ""
    return str(found.count), f"{found.rms:.1%}", f"{found.worst:+.1%}"


def _figure(point: Point, value: float) -> str:
    if point.unit == "seconds":
        return f"{value * 1000:.2f} ms"
    return format_rate(value) if point.unit == "bytes_per_second" else f"{value:.1f}/s"
