"""Finds values that got worse, and the first version of Linux or mdadm with the worse value. Pure.

Values are sorted by version, not by date. Versions that differ from the newest by more than noise
are good. The first version after the last good one is the first bad one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from lab.analysis.compare import CERTAIN, LEAST, count_change, each, figure_change
from lab.analysis.noise import share_of, spread_of
from lab.core.versions import age
from lab.model.result.comparison import Change, FigureChange
from lab.model.result.document import CellMeasurement, Result
from lab.model.result.measurement import Metric, MetricKind
from lab.model.result.noise import NoiseFloor
from lab.model.result.regression import Regression
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import AxisValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One value of one run that a claim uses."""

    scenario: str
    claim: str
    cell: str
    """The cell's identity, without its guest."""
    axes: Mapping[str, AxisValue]
    kernel: str
    mdadm: str
    run: str
    started: str
    """ISO 8601, UTC."""
    figure: CellMeasurement
    metric: Metric
    """What ``figure`` is a value of."""
    disks: str
    noise: Sequence[NoiseFloor]
    verdict: Verdict
    disk: str = ""
    """Serial of the disk whose counter it is; empty: of the whole cell."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Other possible reasons: QEMU, libvirt, the lab, the accelerator."""

    @property
    def subject(self) -> tuple[str, ...]:
        """The key of the value's history."""
        one = self.figure
        return (self.scenario, self.claim, self.cell, one.workload, one.metric, self.disk)


def systems(result: Result) -> tuple[str | None, str | None]:
    """Return versions of the guest's Linux and of mdadm; ``None``: unknown."""
    guest, image = (result.environment.get(name) or {} for name in ("guest", "image"))
    words = str(guest.get("mdadm") or "").removeprefix("mdadm - v").split()
    return guest.get("kernel") or image.get("kernel"), image.get("mdadm") or next(iter(words), None)


def regressions(sightings: Iterable[Sighting], since: str = "") -> tuple[Regression, ...]:
    """Return values that are worse with the newest version than with an older one, by more than
    noise.

    A change is reported if it is ``compare.LEAST`` or more, or if the claim held and is now
    refuted. It is not reported if runs of the same version differ, since the version is not the
    reason then. A regression first seen at ``since`` (ISO 8601) or later is new.
    """
    subjects: dict[tuple[str, ...], list[Sighting]] = {}
    for one in sightings:
        subjects.setdefault(one.subject, []).append(one)
    histories = {subject: _by_version(found) for subject, found in subjects.items()}
    level = each(CERTAIN, _questions(histories))
    found = [_regression(history, level, since) for history in histories.values()]
    return tuple(
        sorted(
            (one for one in found if one is not None),
            key=lambda r: (not r.new, r.scenario, r.claim, json.dumps(r.axes), r.workload),
        )
    )


def _by_version(sightings: Sequence[Sighting]) -> list[list[Sighting]]:
    """Return groups of one version each, oldest version first; runs in order of time."""
    groups: dict[tuple[str, str], list[Sighting]] = {}
    for one in sorted(sightings, key=lambda s: (s.started, s.run)):
        groups.setdefault((one.kernel, one.mdadm), []).append(one)
    return [groups[key] for key in sorted(groups, key=lambda k: (age(k[0]), age(k[1])))]


def _questions(histories: Mapping[tuple[str, ...], Sequence[Sequence[Sighting]]]) -> int:
    """Return the number of comparisons; claims that use the same value count once."""
    asked = {subject[:1] + subject[2:-2]: groups for subject, groups in histories.items()}
    return sum(
        len(groups) - 1 + sum(len(group) * (len(group) - 1) // 2 for group in groups)
        for groups in asked.values()
    )


def _regression(
    groups: Sequence[Sequence[Sighting]], level: float, since: str
) -> Regression | None:
    newest = groups[-1][-1]
    changes = [_change(group[-1], newest, level) for group in groups[:-1]]
    sides = [*(_side(change, newest.metric.better) for change in changes), "bad"]
    if "good" not in sides:
        return None
    last = len(sides) - 1 - sides[::-1].index("good")
    first = sides.index("bad", last)
    good, bad, change = groups[last][-1], groups[first], changes[last]
    if change is None:
        return None
    flipped = (good.verdict, newest.verdict) == (Verdict.HOLDS, Verdict.REFUTED)
    if not flipped and change.change is not None and abs(change.change) < LEAST:
        return None
    if not all(_steady(group, level) for group in (groups[last], *groups[first:])):
        return None
    seen = min(one.started for group in groups[first:] for one in group)
    return Regression(
        scenario=newest.scenario,
        claim=newest.claim,
        axes=dict(newest.axes),
        workload=newest.figure.workload,
        metric=newest.figure.metric,
        unit=newest.figure.unit,
        disk=newest.disk,
        good=_system(good),
        bad=_system(bad[0]),
        named=" or ".join(_differ(good, bad[0])),
        between=tuple(_system(groups[n][-1]) for n in range(last + 1, first)),
        also=tuple(_others(good, bad[0])),
        before=change.first,
        after=change.second,
        change=change.change,
        verdicts=(good.verdict, newest.verdict),
        seen=seen,
        new=seen >= since,
    )


def _change(first: Sighting, second: Sighting, level: float) -> FigureChange | None:
    """Return the change of a value; ``None``: none, or its noise is unknown. A count has none."""
    name, pair = first.figure.metric, (first, second)
    if first.metric.kind is MetricKind.COUNTED:
        return count_change(first.figure, second.figure)
    if any(spread_of(one.noise, one.disks, name) is None for one in pair):
        return None
    noise = [share_of(one.noise, one.disks, name, level) for one in pair]
    return figure_change(first.figure, second.figure, noise=(noise[0], noise[1]), level=level)


def _side(change: FigureChange | None, better: str) -> str:
    """Return ``good`` if the newest value is worse than this older one, else ``bad``."""
    if change is None or change.verdict is Change.UNCLEAR:
        return "unclear"
    worse = change.second < change.first if better == "higher" else change.second > change.first
    return "good" if change.verdict is Change.CHANGED and worse else "bad"


def _steady(group: Sequence[Sighting], level: float) -> bool:
    """Return whether runs of one version agree."""
    found = (_change(a, b, level) for a, b in combinations(group, 2))
    return all(c is None or c.verdict is not Change.CHANGED for c in found)


def _system(one: Sighting) -> str:
    return f"Linux {one.kernel}, mdadm {one.mdadm}"


def _differ(good: Sighting, bad: Sighting) -> Iterator[str]:
    if good.kernel != bad.kernel:
        yield f"Linux {bad.kernel}"
    if good.mdadm != bad.mdadm:
        yield f"mdadm {bad.mdadm}"


def _others(good: Sighting, bad: Sighting) -> Iterator[str]:
    for name in dict.fromkeys((*good.facts, *bad.facts)):
        before, after = good.facts.get(name), bad.facts.get(name)
        if before != after:
            yield f"{name} {after} in place of {before}"
