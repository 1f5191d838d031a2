"""Series of a metric over stored runs: change points, and one branch against another. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from lab.analysis.change_points import SIDE, Split, change_points, difference, fewest
from lab.analysis.compare import CERTAIN, each
from lab.analysis.noise import SEALED, spread_of
from lab.core.statistics import Spread
from lab.model.result.history import BranchDifference, ChangePoint, History, Point

NEWEST = 60
"""Most runs of a series; older ones are shown, and not searched for change points."""

_Key = tuple[str, str, str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    points: Sequence[Point]

    @property
    def logs(self) -> list[float]:
        return [math.log(point.median) for point in self.points]

    @property
    def noise(self) -> Spread | None:
        """The noise of a value on the newest run's host."""
        last = self.points[-1]
        return spread_of(last.noise, last.disks, last.metric)

    @property
    def side(self) -> int:
        """A value that nothing random reaches is never an outlier."""
        return 1 if self.points[-1].disks == SEALED else SIDE

    def splits(self, chance: float) -> tuple[Split, ...]:
        return change_points(self.logs, chance, self.noise, self.side)

    def change(self, split: Split, key: _Key) -> ChangePoint:
        values = [point.median for point in self.points]
        before = median(values[split.start : split.at])
        after = median(values[split.at : split.end])
        return ChangePoint(
            scenario=key[0],
            cell=key[1],
            workload=key[2],
            branch=key[3],
            run=self.points[split.at].run,
            previous=self.points[split.at - 1].run,
            before=before,
            after=after,
            change=after / before - 1,
            chance=split.chance,
            runs=(split.at - split.start, split.end - split.at),
        )


def history(
    metric: str, points: Sequence[Point], branch: str | None = None, against: str = ""
) -> History:
    """Return a metric's values with their change points, one series for each cell, workload and
    branch.

    All reported changes together are right with the probability ``CERTAIN``: each series has its
    share of the error. ``branch``: compare its runs with those of ``against`` since the last change
    point; only these two are kept.
    """
    if branch is not None:
        points = [point for point in points if point.branch in (branch, against)]
    series = _series(points)
    pairs = [] if branch is None else _pairs(series, branch, against)
    chance = 1 - each(CERTAIN, len(series) + len(pairs))
    found = {key: one.splits(chance) for key, one in series.items()}
    changes = [series[key].change(split, key) for key, splits in found.items() for split in splits]
    place = {point.run: n for n, point in enumerate(points)}
    least = fewest(chance)
    return History(
        metric=metric,
        level=CERTAIN,
        points=tuple(points),
        changes=tuple(sorted(changes, key=lambda c: place[c.run])),
        differences=tuple(
            _difference(series[one], series[other], found[one], chance) for one, other in pairs
        ),
        too_short=sum(s.noise is None and len(s.points) < least for s in series.values()),
        fewest=least,
    )


def _series(points: Sequence[Point]) -> dict[_Key, _Series]:
    """Return the newest usable points by scenario, cell, workload and branch."""
    found: dict[_Key, list[Point]] = {}
    for point in points:
        if not point.contended and point.median > 0:
            key = (point.scenario, point.cell, point.workload, point.branch)
            found.setdefault(key, []).append(point)
    return {key: _Series(points=own[-NEWEST:]) for key, own in found.items()}


def _pairs(series: dict[_Key, _Series], branch: str, against: str) -> list[tuple[_Key, _Key]]:
    """Return each series of the other branch that the branch has too, with that of the branch."""
    both = ((key, (*key[:3], branch)) for key in series if key[3] == against)
    return [(one, other) for one, other in both if other in series]


def _difference(
    base: _Series, branch: _Series, splits: Sequence[Split], chance: float
) -> BranchDifference:
    start = splits[-1].at if splits else 0
    before = median(point.median for point in base.points[start:])
    after = median(point.median for point in branch.points)
    found = difference(base.logs[start:], branch.logs, chance, branch.noise)
    last = branch.points[-1]
    return BranchDifference(
        scenario=last.scenario,
        cell=last.cell,
        axes=last.axes,
        workload=last.workload,
        branch=str(last.branch),
        against=str(base.points[-1].branch),
        before=before,
        after=after,
        change=after / before - 1,
        chance=found,
        differs=found <= chance,
        runs=(len(base.points) - start, len(branch.points)),
    )
