"""A metric over all runs, with what changed from each run to the next."""

from __future__ import annotations

from difflib import get_close_matches

from lab import archive, store
from lab.app.results import result_of
from lab.compare import LEAST, verdict_of
from lab.errors import InputError
from lab.model.history import History, Point
from lab.model.result import CellResult, Run
from lab.stats import Interval, ratio
from lab.store import RunStore


def history_of(metric: str, scenario: str | None) -> History:
    """Figures of a metric in every run; those of a run that stopped are made from its raw output.

    ``InputError`` where there is no such metric, or no run of that scenario.
    """
    runs = list(store.every())
    documents = {run.directory / "result.json": run for run in runs}
    found, unread = archive.points([file for file in documents if file.is_file()])
    broken = list(store.strays())
    for file, run in documents.items():
        if file in unread or not file.is_file():
            again, sentences = _again(run)
            found += again
            broken += sentences
    if scenario is not None:
        known = sorted({point.scenario for point in found})
        found = [point for point in found if point.scenario == scenario]
        if not found:
            raise InputError(
                f"there is no run of '{scenario}' (there are runs of: {', '.join(known) or 'none'})"
            )
    chosen = [point for point in found if point.metric == metric]
    if found and not chosen:
        names = sorted({point.metric for point in found})
        near = get_close_matches(metric, names, n=1)
        guess = f"did you mean '{near[0]}'? " if near else ""
        raise InputError(f"no run has the metric '{metric}': {guess}there are {', '.join(names)}")
    chosen.sort(key=lambda p: (p.started, p.run, p.cell, p.workload))
    return History(metric=metric, points=_with_changes(chosen), broken=tuple(broken))


def _again(run: RunStore) -> tuple[list[Point], list[str]]:
    """A run's figures from its raw output, and what is wrong with its files."""
    try:
        result = result_of(run)
    except InputError as error:
        return [], [error.message]
    found = [p for c in result.cells for p in _points(result.run, c)]
    return found, [sentence for sentence in (run.complaint(),) if sentence]


def _points(run: Run, cell: CellResult) -> list[Point]:
    return [
        Point(
            run=run.id,
            scenario=run.scenario,
            started=run.started,
            cell=cell.id,
            axes=cell.axes,
            workload=one.workload,
            metric=one.metric,
            unit=one.unit,
            median=one.median,
            low=one.low,
            high=one.high,
            trials=len(one.values),
        )
        for one in cell.measurements
    ]


def _with_changes(points: list[Point]) -> tuple[Point, ...]:
    last: dict[tuple[str, str, str], Point] = {}
    found = []
    for point in points:
        key = (point.scenario, point.cell, point.workload)
        found.append(_after(last[key], point) if key in last else point)
        last[key] = point
    return tuple(found)


def _after(before: Point, point: Point) -> Point:
    if before.median <= 0 or point.median <= 0:
        return point
    change = point.median / before.median - 1
    intervals = [_interval(p) for p in (point, before)]
    if intervals[0] is None or intervals[1] is None:
        return point.model_copy(update={"change": change})
    verdict = verdict_of(ratio(intervals[0], intervals[1]), LEAST)
    return point.model_copy(update={"change": change, "verdict": verdict})


def _interval(point: Point) -> Interval | None:
    if point.low is None or point.high is None:
        return None
    return Interval(middle=point.median, low=point.low, high=point.high)
