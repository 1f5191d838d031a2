"""A metric over all runs, with the changes from run to run."""

from __future__ import annotations

from difflib import get_close_matches

from lab.analysis.compare import CERTAIN, each, figure_change
from lab.analysis.noise import disks_of, share_of
from lab.core.errors import InputError
from lab.model.result.document import CellMeasurement, contended
from lab.model.result.history import History, Point
from lab.results.documents import result_of, understood
from lab.store import runs as store
from lab.store.runs import RunStore


def history_of(metric: str, scenario: str | None) -> History:
    """Return values of a metric in every run, including stopped ones.

    ``InputError``: no such metric, or no run of that scenario.
    """
    found: list[Point] = []
    broken: list[str] = []
    for run in store.every():
        try:
            found += _points(run)
        except InputError as error:
            broken.append(str(error))
        broken += run.warnings()
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
    return History(metric=metric, level=CERTAIN, points=_with_changes(chosen), broken=tuple(broken))


@understood
def _points(run: RunStore) -> list[Point]:
    """Return a run's values."""
    stored = run.load_run()
    result = run.load_result() or result_of(run)
    disks = {cell.id: disks_of(cell.cell) for cell in stored.cells}
    return [
        Point(
            run=stored.id,
            scenario=stored.scenario,
            started=stored.started,
            cell=cell.id,
            axes=cell.axes,
            **one.model_dump(exclude={"no_seed_changes_it"}),
            contended=contended(cell.checks, one.workload) is not None,
            disks=disks[cell.id],
            noise=stored.noise,
        )
        for cell in result.cells
        for one in cell.measurements
    ]


def _with_changes(points: list[Point]) -> tuple[Point, ...]:
    """Add to each point its change from the same cell's previous point, at one level for all.

    Contended values are kept. No change is computed from or to them.
    """
    last: dict[tuple[str, str, str], Point] = {}
    pairs: list[tuple[Point | None, Point]] = []
    for point in points:
        key = (point.scenario, point.cell, point.workload)
        pairs.append((None if point.contended else last.get(key), point))
        if not point.contended:
            last[key] = point
    level = each(CERTAIN, sum(before is not None for before, _ in pairs))
    return tuple(_after(before, point, level) if before else point for before, point in pairs)


def _after(before: Point, point: Point, level: float) -> Point:
    noise = [share_of(p.noise, p.disks, p.metric, level) for p in (before, point)]
    pair = [CellMeasurement.model_validate(p, from_attributes=True) for p in (before, point)]
    found = figure_change(*pair, noise=(noise[0], noise[1]), level=level)
    if found is None:
        return point
    known = before.disks and point.disks
    update = {"change": found.change, "verdict": found.verdict if known else None}
    return point.model_copy(update=update)
