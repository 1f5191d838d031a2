"""A metric over all runs, with its change points."""

from __future__ import annotations

from lab.analysis.counted import figures_of
from lab.analysis.history import history
from lab.analysis.noise import disks_of
from lab.compile.cell.metrics import COUNTS, SHAPES, similar
from lab.core.errors import InputError
from lab.model.result.document import contended
from lab.model.result.history import History, Point
from lab.results.documents import understood
from lab.results.judged import result_of
from lab.store import runs as store
from lab.store.runs import RunStore


def history_of(
    metric: str, scenario: str | None, branch: str | None = None, against: str = "main"
) -> History:
    """Return values of a metric in every run, including stopped ones.

    ``branch``: compare its runs with those of the branch ``against``. ``InputError``: no such
    metric, no run of that scenario, or none of a branch.
    """
    found: list[Point] = []
    broken: list[str] = []
    for run in store.every():
        try:
            found += _points(run, metric)
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
        near = similar(metric, names)
        guess = f"did you mean '{near}'? " if near else ""
        raise InputError(f"no run has the metric '{metric}': {guess}there are {', '.join(names)}")
    chosen.sort(key=lambda p: (p.started, p.run, p.cell, p.workload))
    if branch is not None:
        known = sorted({point.branch for point in chosen if point.branch})
        for name in (branch, against):
            if chosen and name not in known:
                raise InputError(
                    f"no run has the branch '{name}' (there are: {', '.join(known) or 'none'})",
                    hint="set LAB_BRANCH when you run; GitHub and GitLab set the branch by"
                    " themselves",
                )
    whole = history(metric, chosen, branch, against)
    return whole.model_copy(update={"broken": tuple(broken)})


@understood
def _points(run: RunStore, metric: str) -> list[Point]:
    """Return a run's values; those that its disks counted and the array's shape if the metric is
    one of them."""
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
            branch=result.environment.get("branch"),
        )
        for cell in result.cells
        for one in (
            *(figures_of(cell) if metric in COUNTS else cell.measurements),
            *(cell.shapes if metric in SHAPES else ()),
        )
    ]
