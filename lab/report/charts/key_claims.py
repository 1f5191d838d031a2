"""The chart of the answer: what the key claims compare, with the range in which each holds."""

from __future__ import annotations

from lab.core.units import format_value
from lab.model.result.document import CellResult, ComparedValue
from lab.model.scenario.claim import Bound
from lab.report.charts.bars import Bar, bar_chart
from lab.report.charts.data import Scale, interval_marks, is_flag, scale
from lab.report.charts.render import MEASURED, Chart
from lab.report.content.answer import Range, allowed_values, answer_values, value_names
from lab.report.content.page_data import Page


def answer_chart(page: Page) -> Chart | None:
    """Return a bar for each value of the key claims that has the first one's metric.

    ``None``: nothing was measured, all values are 0 or yes and no, or there are too many.
    """
    values = answer_values(page.result)
    if all(not v.measured or is_flag(v.measured, v.unit) for v in values):
        return None
    names = dict(zip(values, value_names(page.result, values), strict=True))
    ranges = _ranges(page)
    unit = next(
        (m.unit for c in page.result.cells for m in c.measurements if _is(m, values[0])), ""
    )
    first = values[0]
    better = page.better.get(f"{first.workload}.{first.metric}", "")
    most = [v.measured for v in values] + [x for r in ranges.values() for x in r if x is not None]
    measure = scale(first.metric, unit, most, better)
    bars = [_bar(page, value, names[value], ranges.get(value), measure) for value in values]
    return Chart(
        name="answer",
        title="Values behind the answer",
        subtitle="",
        caption="; ".join(
            f"{name} {bar.text}" for name, bar in zip(names.values(), bars, strict=True)
        ),
        spec=bar_chart(bars, title=measure.title, series={"measured": MEASURED}),
    )


def _bar(page: Page, value: ComparedValue, name: str, allowed: Range | None, measure: Scale) -> Bar:
    cell = next(cell for cell in page.result.cells if cell.id == value.cell)
    doubted = bool(cell.doubts(value.workload))
    found = next((m for m in cell.measurements if _is(m, value) and value.disk is None), None)
    text = format_value(value.measured, value.unit)
    return Bar(
        label=name,
        parts={"measured": measure.of(value.measured)},
        text=f"{text} ?" if doubted else text,
        tip=f"{name}: {text}",
        doubted=doubted,
        **interval_marks(cell, found, measure, page),
        predicted=measure.maybe(_predicted(cell, value)),
        published=measure.maybe(_published(page, value)),
        allowed=(measure.maybe(allowed[0]), measure.maybe(allowed[1])) if allowed else None,
    )


def _is(found: object, value: ComparedValue) -> bool:
    return (getattr(found, "workload", ""), getattr(found, "metric", "")) == (
        value.workload,
        value.metric,
    )


def _predicted(cell: CellResult, value: ComparedValue) -> float | None:
    if value.disk is not None:
        return None
    return next((p.value for p in cell.predictions if _is(p, value)), None)


def _published(page: Page, value: ComparedValue) -> float | None:
    """Return the published value of a claim about this value alone."""
    claims = {claim.id: claim for claim in page.claims}
    for found in page.result.claims:
        claim = claims.get(found.id)
        if claim and isinstance(claim.expect, Bound) and value in found.values:
            return claim.published
    return None


def _ranges(page: Page) -> dict[ComparedValue, Range]:
    """Return the range of each value for which the answer's claims hold, at the other values."""
    claims = {claim.id: claim for claim in page.claims}
    ranges: dict[ComparedValue, Range] = {}
    for found in page.result.claims:
        if found.id in page.result.answer.claims and found.id in claims and found.values:
            for value, allowed in allowed_values(claims[found.id], found.values):
                ranges.setdefault(value, allowed)
    return ranges
