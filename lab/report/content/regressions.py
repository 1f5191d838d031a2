"""A value that got worse, in a sentence."""

from __future__ import annotations

from lab.core.units import format_values
from lab.model.result.regression import Regression
from lab.report.content.figures import axes_text


def regression_sentence(one: Regression) -> str:
    """Return the first bad version, with its values."""
    where = axes_text(one.axes)
    change = "from 0" if one.change is None else f"{one.change:+.1%}"
    before, after = format_values([one.before, one.after], one.unit)
    also = f"; but {', '.join(one.also)}" if one.also else ""
    unknown = f"; of {', '.join(one.between)} noise hides it" if one.between else ""
    return (
        f"{one.scenario}{f' ({where})' if where else ''}: {one.claim}: {one.workload} "
        f"{one.metric.replace('_', ' ')} {before} → {after} ({change}): first bad: {one.named}; "
        f"good before: {one.good}{unknown}{also}"
    )
