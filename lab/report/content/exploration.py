"""The answer of a run without claims: its cells in order, and which axes decide. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from lab.core.units import format_times, format_value
from lab.model.result.document import Answer, CellMeasurement, CellResult, ComparedValue, Outcome
from lab.model.scenario.document import AxisValue
from lab.report.content.answer import MOST
from lab.report.content.figures import SHOWN, axes_text, axis_heads, percent, rows_of, telling

EQUAL: Final = 0.01
"""Relative difference below which two values without an interval count as equal."""
DECIDES: Final = 1.05
"""Least factor between cells for which an axis is said to decide."""
_SECONDS: Final = "seconds"

_Key = tuple[str, str]
_Values = dict[str, CellMeasurement]


def explored(question: str, cells: Sequence[CellResult], workloads: Collection[str]) -> Answer:
    """Return what a run without claims shows; ``workloads``: names, since faults have values too.

    Cells are ordered by the geometric mean, over the workloads that all of them have, of their
    speed relative to the fastest. Cells that failed, and values that are doubted, are left out.
    """
    said = ["The scenario has no claims, so nothing is judged."]
    values: list[ComparedValue] = []
    measured = _measured(cells, workloads)
    names = _names([cell for cell in cells if any(cell.id in v for v in measured.values())])
    if not measured:
        pass
    elif all(len(found) == 1 for found in measured.values()):
        texts = (f"{key[0]} {_text(v)}" for key, found in measured.items() for v in found.values())
        said = [f"No claims, only values: {', '.join(texts)}."]
        values = [_value(key, c, v) for key, found in measured.items() for c, v in found.items()]
    else:
        scores = _scores(measured)
        order = sorted(scores, key=lambda cell: -scores[cell])
        key = next(iter(measured))
        said = [_ranking(order, scores, names, measured)]
        if left := len(cells) - len(order):
            verb = "is" if left == 1 else "are"
            said[0] = (
                f"{said[0].removesuffix('.')}; {left} of {len(cells)} cells {verb} not ranked."
            )
        if axes := _axes(cells, scores):
            said.append(axes)
        shown = order if len(order) <= MOST else [*order[: MOST - 1], order[-1]]
        values = [_value(key, cell, measured[key][cell]) for cell in shown]
    return Answer(
        question=" ".join(question.split()), sentences=tuple(said), values=tuple(values[:MOST])
    )


def _measured(cells: Sequence[CellResult], workloads: Collection[str]) -> dict[_Key, _Values]:
    """Return the main value of each workload in each cell, for cells that have all of them.

    A workload whose main metric differs between cells, since its requests have other sizes, is
    compared by throughput. If fewer than two cells have all workloads, only the one that most cells
    have is left.
    """
    rows = [
        row
        for cell in cells
        if cell.outcome is Outcome.DONE
        for row in rows_of(cell, all_=True)
        if row.workload in workloads and row.measured and row.measured > 0 and not row.doubted
    ]
    chosen: dict[str, set[str]] = {}
    for row in (row for cell in cells for row in rows_of(cell)):
        if row.metric in SHOWN:
            chosen.setdefault(row.workload, set()).add(row.metric)
    metrics = {w: own.pop() if len(own) == 1 else SHOWN[0] for w, own in chosen.items()}
    found: dict[_Key, _Values] = {}
    for row in rows:
        if row.measurement is not None and metrics.get(row.workload) == row.metric:
            found.setdefault((row.workload, row.metric), {})[row.cell.id] = row.measurement
    if not found:
        return {}
    shared = set.intersection(*(set(values) for values in found.values()))
    most = max(found, key=lambda key: len(found[key]))
    if len(found[most]) == 1:
        return found
    if len(shared) < 2:
        return {most: found[most]}
    return {key: {c: v for c, v in own.items() if c in shared} for key, own in found.items()}


def _names(cells: Sequence[CellResult]) -> dict[str, str]:
    axes = telling([cell.axes for cell in cells])
    return {cell.id: axes_text({a: cell.axes.get(a) for a in axes}) for cell in cells}


def _scores(measured: Mapping[_Key, _Values]) -> dict[str, float]:
    """Return the geometric mean of each cell's speed relative to the fastest of each workload."""
    scores = dict.fromkeys(next(iter(measured.values())), 1.0)
    for (_, metric), values in measured.items():
        speeds = {c: 1 / v.median if metric == _SECONDS else v.median for c, v in values.items()}
        best = max(speeds.values())
        scores = {cell: score * speeds[cell] / best for cell, score in scores.items()}
    return {cell: score ** (1 / len(measured)) for cell, score in scores.items()}


def _ranking(
    order: Sequence[str],
    scores: Mapping[str, float],
    names: Mapping[str, str],
    measured: Mapping[_Key, _Values],
) -> str:
    """Return one sentence: the fastest and the slowest, and whether the order may be chance."""
    (workload, _), values = next(iter(measured.items()))
    best, worst = order[0], order[-1]
    equal = [c for c in order if all(_alike(v[best], v[c]) for v in measured.values())]
    if len(equal) == len(order):
        said = f"All {len(order)} cells are equally fast, within {1 / scores[worst] - 1:.1%}"
    else:
        first = names[best] if len(equal) == 1 else _listed([names[c] for c in equal])
        share = format_times(scores[worst] / scores[best])
        if len(measured) == 1:
            said = f"Fastest: {first}, {_text(values[best])}. Slowest: {names[worst]}, "
            said += f"{_text(values[worst])}, {share} times as fast"
        else:
            said = f"Fastest over {len(measured)} workloads: {first}. Slowest: {names[worst]}, "
            said += f"{share} times as fast in the geometric mean"
    single = any(_unknown(v) for found in measured.values() for v in found.values())
    chance = "; with one trial, small differences may be chance" if single else ""
    name = f" ({workload})" if len(measured) == 1 and len(equal) == len(order) else ""
    return f"{said}{name}{chance}."


def _axes(cells: Sequence[CellResult], scores: Mapping[str, float]) -> str:
    """Return one sentence: by how much cells differ that differ in one axis alone."""
    points = {cell.id: cell.axes for cell in cells if cell.id in scores}
    axes = list(telling(list(points.values())))
    factors: dict[str, float] = {}
    for axis, head in zip(axes, axis_heads(axes), strict=True):
        groups: dict[tuple[AxisValue, ...], list[float]] = {}
        for cell, point in points.items():
            rest = tuple(point.get(other) for other in axes if other != axis)
            groups.setdefault(rest, []).append(scores[cell])
        pairs = [max(group) / min(group) for group in groups.values() if len(group) > 1]
        if pairs:
            factors[head] = max(pairs)
    if not factors or len(axes) < 2:
        return ""
    decides = [f"{a}, up to {f:.3g} times" for a, f in factors.items() if f >= DECIDES]
    little = [
        f"{a}, at most {percent(f - 1).lstrip('+')}" for a, f in factors.items() if f < DECIDES
    ]
    said = [f"What decides: {'; '.join(decides)}."] if decides else []
    said += [f"What does not: {'; '.join(little)}."] if little else []
    return " ".join(said)


def _alike(one: CellMeasurement, other: CellMeasurement) -> bool:
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return abs(one.median - other.median) <= EQUAL * one.median
    return one.low <= other.high and other.low <= one.high


def _unknown(value: CellMeasurement) -> bool:
    return value.low is None and not value.no_seed_changes_it


def _listed(names: Sequence[str], most: int = 3) -> str:
    """Return names in a sentence, with the number of those that are left out."""
    more = len(names) - most
    shown = [*names[:most], f"{more} more"] if more > 0 else names
    return f"{'; '.join(shown)} (equally fast)"


def _text(value: CellMeasurement) -> str:
    return format_value(value.median, value.unit)


def _value(key: _Key, cell: str, value: CellMeasurement) -> ComparedValue:
    workload, metric = key
    return ComparedValue(
        workload=workload, metric=metric, cell=cell, measured=value.median, unit=value.unit
    )
