"""A bisection for a terminal: its plan, or its result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from lab.capabilities.bisect.logic.search import Expected
from lab.capabilities.bisect.model import Bisection, Ending, Side, Step
from lab.core.units import format_seconds, format_value
from lab.model.image.axis import Axis
from lab.report.content.figures import axes_text
from lab.report.content.plain_table import PlainTable, plain_table

LINES: Final = 20
"""Most lines of the changelog on the screen."""
PRODUCT: Final = {
    Axis.KERNEL: "Linux",
    Axis.MDADM: "mdadm",
    Axis.PATCH: "patch",
    Axis.COMMIT: "commit",
}


def plan_page(record: Bisection, steps: Expected, seconds: float) -> RenderableType:
    """Return the versions between the ends, and the expected effort."""
    count = len(record.versions)
    if record.axis is Axis.PATCH:
        table = plain_table("patch", "title")
        for one in record.versions:
            table.add_row(one.version, one.says)
        what = f"{count - 1} patches, and the source without them"
    elif record.axis is Axis.COMMIT:
        table = plain_table("commit", "date", "title")
        for one in record.versions:
            table.add_row(one.version, one.date or "", one.says)
        what = f"{count} commits"
    else:
        table = plain_table("version", "branch", "date", "release", "package")
        for one in record.versions:
            package = one.name if record.axis is Axis.KERNEL else ""
            table.add_row(one.version, one.branch, one.date or "", one.release, package)
        what = f"{count} versions of {PRODUCT[record.axis]}"
    effort = (
        f"{what}; about {steps.steps:.0f} of them are measured, {steps.most} at most, in about "
        f"{format_seconds(seconds)}."
    )
    return Group(
        Text(f"{record.claim}: {record.says}", style="bold"),
        Padding(table, (1, 0)),
        *_left_out(record),
        Text(effort),
    )


def _left_out(record: Bisection) -> Iterator[Text]:
    """Yield each reason with its versions."""
    reasons: dict[str, list[str]] = {}
    for version, why in record.unusable.items():
        reasons.setdefault(why, []).append(version)
    for why, versions in reasons.items():
        yield Text(f"Left out, since {why}: {', '.join(versions)}.")


def step_sentence(record: Bisection, step: Step) -> str:
    """Return what a version's measurement says."""
    side = step.side.value if step.side else "not finished"
    took = f", after {format_seconds(step.took)}" if step.took is not None else ""
    said = f" ({value_text(record, step)})" if step.side is not Side.SKIPPED else ""
    why = f": {step.reason.partition(chr(10))[0]}" if step.side is Side.SKIPPED else ""
    return f"{record.version(step.version).version}: {side}{said}{took}{why}"


def value_text(record: Bisection, step: Step) -> str:
    """Return a version's verdict or value."""
    if record.subject is not None and step.values:
        middle = sorted(step.values)[len(step.values) // 2]
        return f"{record.subject.metric} {format_value(middle, record.subject.unit)}"
    if record.metric is not None or step.verdict is None:
        return "no difference"
    measured = f", measured {step.values[0]:.4g}" if step.values else ""
    return f"{step.verdict.value.replace('_', ' ')}{measured}"


def result_sentence(record: Bisection) -> str:
    """Return the result in a sentence."""
    product = PRODUCT[record.axis]
    first, last = record.versions[0].version, record.versions[-1].version
    if record.ending is None:
        return "It is not finished."
    if record.ending is Ending.SAME:
        return f"{product} {first} and {last} give the same answer: nothing changed between them."
    if record.ending is Ending.OPEN or record.pair is None:
        step = next(one for one in record.steps if one.side is Side.SKIPPED)
        version = record.version(step.version).version
        reason = step.reason.partition("\n")[0]
        return f"{product} {version} is an end and could not be measured: {reason}."
    good, bad = record.version(record.pair.good), record.version(record.pair.bad)
    skipped = [record.version(name).version for name in record.pair.between]
    between = f" Skipped between them: {', '.join(skipped)}." if skipped else ""
    if record.branches is not None:
        return (
            f"The change is between the branches {record.branches[0]} and {record.branches[1]}: "
            f"{good.version} is the newest version that is good, and {bad.version} the first one "
            "of its branch that is bad. The branches part before both, so neither is the version "
            f"that brought it.{between}"
        )
    if record.axis is Axis.PATCH:
        return f"The first bad patch is {bad.version}: {bad.says}.{between}"
    if record.axis is Axis.COMMIT:
        return (
            f"The first bad commit is {bad.version} of {bad.date}: {bad.says}. The last good one is"
            f" {good.version}.{between}"
        )
    return (
        f"The first bad version is {product} {bad.version} ({bad.date or 'date unknown'}); the "
        f"last good one is {good.version} ({good.date or 'date unknown'}).{between}"
    )


def bisection_page(record: Bisection) -> RenderableType:
    """Return the result, the values of both sides, the path taken, and the changelog."""
    parts: list[RenderableType] = [
        Text(f"{record.claim}: {record.says}", style="bold"),
        Text(result_sentence(record)),
    ]
    if record.subject is not None:
        where = axes_text(record.subject.axes)
        cell = f" of {where}" if where else ""
        parts.append(Text(f"Compared: {record.subject.workload} {record.subject.metric}{cell}."))
    table = PlainTable("version", "side", "value", "time", "reason", prose=True)
    for step in record.steps:
        skipped = step.side is Side.SKIPPED
        table.add_row(
            record.version(step.version).version,
            step.side.value if step.side else "not finished",
            "" if skipped else value_text(record, step),
            format_seconds(step.took) if step.took is not None else "",
            step.reason.partition("\n")[0] if skipped else "",
        )
    parts.append(Padding(table, (1, 0)))
    parts += list(_left_out(record))
    parts += list(_changelog(record))
    if record.commands:
        parts.append(Text("Measure either side again:"))
        parts += [Text(f"  {command}") for command in record.commands.values()]
    return Group(*parts)


def _changelog(record: Bisection) -> Iterator[Text]:
    if record.ending is not Ending.FOUND or record.axis is Axis.PATCH:
        return
    about = " about md and block devices" if record.axis is Axis.KERNEL else ""
    if record.axis is Axis.COMMIT:
        if not record.changelog:
            return
        yield Text("The commits between them, the newest first:")
    elif not record.changelog:
        yield Text(f"The changelog between them has no line{about}.")
        return
    else:
        yield Text(f"The changelog between them{about}:")
    yield from (Text(f"  {line}") for line in record.changelog[:LINES])
    if len(record.changelog) > LINES:
        yield Text(f"  and {len(record.changelog) - LINES} more lines in changelog.txt")
