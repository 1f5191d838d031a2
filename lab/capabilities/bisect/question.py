"""A bisection before its first step: its versions, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from lab.capabilities.bisect.logic import search
from lab.capabilities.bisect.logic.search import Expected
from lab.capabilities.bisect.model import Bisection, Series, Tree
from lab.compile.cell.metrics import metrics_of, similar
from lab.compile.image import packages as lists
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.compile.scenario.fields import fields_of
from lab.core.errors import InputError
from lab.core.units import MIB
from lab.core.versions import age
from lab.core.yaml import parse_override
from lab.host.images import packages
from lab.model.image.axis import Axis
from lab.model.image.package import Version
from lab.model.scenario.claim import Claim, matches
from lab.model.scenario.document import AutoTrials, Cell
from lab.model.scenario.guest import Clock, Guest
from lab.plugins import catalog
from lab.run.preparation import systems
from lab.run.task import seconds_of
from lab.store.runs import now

IMAGE_SECONDS: Final = 90.0
"""Seconds for an image with another kernel, assumed; a plain one takes about a minute."""
DRIVER_SECONDS: Final = 60.0
"""Seconds for the driver of virtual time, assumed; its compiler is fetched each time."""
PATCH_SECONDS: Final = 40.0
"""Seconds for modules with a patch, their image and its snapshot, assumed."""
COMMIT_SECONDS: Final = 60.0
"""Seconds for a kernel of a commit and its driver, assumed; the first takes minutes."""
FETCH_RATE: Final = 4 * MIB
"""Bytes per second of an archive, assumed."""
FETCH_SECONDS: Final = 10.0
"""Seconds for an archive's lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be found."""

    claim: str
    scenario: str
    """A scenario's name, or the path of its file."""
    overrides: tuple[str, ...]
    """As for ``--set``."""
    trials: str | None
    """``auto``, a number, or ``None``: auto in virtual time, else the scenario's own."""
    axis: Axis
    good: str
    bad: str
    metric: str | None = None
    series: Series | None = None
    """With ``axis`` patch."""
    tree: Tree | None = None
    """With ``axis`` commit."""
    versions: tuple[Version, ...] = ()
    """With ``axis`` patch or commit; ``good`` and ``bad`` are not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The expected effort."""

    steps: Expected
    seconds: float
    """Of an average number of steps."""
    most_seconds: float


def overrides_of(record: Bisection, version: str, built: str | None = None) -> tuple[str, ...]:
    """Return the overrides of a version's run; ``built``: the image or kernel built for it."""
    value = built if record.axis.built else version
    return (*record.overrides, *((f"{record.axis.key}={value}",) if value else ()))


def compiled_of(record: Bisection, version: str, built: str | None = None) -> Compiled:
    """Return the scenario with this version."""
    given = overrides_of(record, version, built)
    return _compiled(Path(record.file), given, record.trials)


def _compiled(path: Path, overrides: Sequence[str], trials: str | None) -> Compiled:
    number = AutoTrials() if trials == "auto" else int(trials) if trials else None
    return compile_scenario(
        path, overrides=[parse_override(text) for text in overrides], trials=number
    )


def begun(request: Request) -> Bisection:
    """Return the record of a new bisection, without an id.

    ``InputError``: no such claim, version or metric; the ends are in the wrong order.
    """
    path = catalog.scenario_path(request.scenario)
    compiled = _compiled(path, request.overrides, None)
    claim = _claim(compiled, request.claim)
    if request.metric is not None:
        _check_metric(compiled, claim, request.metric)
    if request.axis.built:
        _check_guests(request.axis, compiled)
    virtual = all(cell.guest.clock is Clock.VIRTUAL for cell in compiled.cells)
    trials = request.trials or ("auto" if virtual else None)
    versions = list(request.versions) or between(request.axis, request.good, request.bad)
    unusable = {
        one.version: reason for one in versions if (reason := _unusable(one, compiled.cells))
    }
    for end in (versions[0], versions[-1]):
        if end.version in unusable:
            raise InputError(
                f"the end {end.title} cannot be measured: {unusable[end.version]}",
                hint="`lab kernel list` shows the versions that can be",
            )
    return Bisection(
        id="",
        claim=claim.id,
        says=claim.says,
        scenario=compiled.name,
        file=str(path.resolve()),
        overrides=request.overrides,
        trials=trials,
        axis=request.axis,
        series=request.series,
        tree=request.tree,
        metric=request.metric,
        started=now(),
        versions=tuple(one for one in versions if one.version not in unusable),
        unusable=unusable,
    )


def _check_guests(axis: Axis, compiled: Compiled) -> None:
    """``InputError``: a series is built for one image, with the kernel and mdadm that it has, and a
    commit replaces the kernel."""
    guests = {(cell.guest.image, cell.guest.kernel, cell.guest.mdadm) for cell in compiled.cells}
    if axis is Axis.COMMIT:
        if any(kernel for _, kernel, _ in guests):
            raise InputError(
                f"--tree: '{compiled.name}' sets guest.kernel, which each commit replaces",
                hint="leave it out: --set guest.kernel=null",
            )
        return
    if len(guests) > 1 or any(guests.pop()[1:]):
        raise InputError(
            f"--series: '{compiled.name}' sets guest.kernel or guest.mdadm, or has several images,"
            " and a series is built for one image with its own kernel and mdadm",
            hint="leave them out, and choose an image: --set guest.image=debian-13",
        )


def _claim(compiled: Compiled, name: str) -> Claim:
    claims = {claim.id: claim for claim in compiled.scenario.claims}
    if name not in claims:
        near = get_close_matches(name, claims, n=1)
        guess = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(claims) or 'none'}"
        raise InputError(f"the scenario '{compiled.name}' has no claim '{name}': {guess}")
    return claims[name]


def _check_metric(compiled: Compiled, claim: Claim, metric: str) -> None:
    """``InputError``: no workload or fault of the claim has this metric."""
    known = set[str]()
    for cell in compiled.cells:
        fields = fields_of(cell, compiled.scenario.claims)
        named = {v.workload for v in claim.values if matches(v.where, fields)}
        known |= {metric for workload, metric in metrics_of(cell) if workload in named}
    if metric not in known:
        near = similar(metric, sorted(known))
        guess = f"did you mean '{near}'?" if near else f"known are {', '.join(sorted(known))}"
        raise InputError(f"--metric: the claim '{claim.id}' is about no '{metric}': {guess}")


def between(axis: Axis, good: str, bad: str) -> list[Version]:
    """Return the versions from ``good`` to ``bad``, oldest first, each source once.

    ``InputError``: one of them is unknown, or ``good`` is not older.
    """
    known = packages.known(axis)
    if not known:
        raise InputError(
            f"no version of {axis.value} is known here",
            hint=f"read the archives' lists: lab kernel list --axis {axis.value}",
        )
    ends = [packages.matching(known, name)[-1] for name in (good, bad)]
    if age(ends[0].version) >= age(ends[1].version):
        raise InputError(
            f"--good {ends[0].version} is not older than --bad {ends[1].version}",
            hint="good is the older end: to find a fix, exchange the two names",
        )
    low, high = age(ends[0].version), age(ends[1].version)
    mine = {lists.source_version(end.version) for end in ends}
    inner = [
        one
        for one in lists.axis_of(known, axis)
        if low < age(one.version) < high and lists.source_version(one.version) not in mine
    ]
    return [ends[0], *inner, ends[1]]


def _unusable(version: Version, cells: Sequence[Cell]) -> str:
    """Return why a version cannot be measured; empty: it can."""
    if version.missing:
        return "the archive has dropped packages that it needs"
    if not version.headers and any(cell.guest.clock is Clock.VIRTUAL for cell in cells):
        return "the archive has dropped the headers that virtual time needs (--clock real)"
    return ""


def estimate(record: Bisection) -> Estimate:
    """Return the expected number of steps, and seconds. Versions are measured one after another."""
    steps = search.expected([one.branch for one in record.versions])
    cells = compiled_of(record, record.versions[0].name).cells
    virtual = any(cell.guest.clock is Clock.VIRTUAL for cell in cells)
    run = sum(seconds_of(cell) for cell in cells)
    each = []
    for one in record.versions:
        if one.axis.built:
            each.append(run + (PATCH_SECONDS if one.axis is Axis.PATCH else COMMIT_SECONDS))
            continue
        guest = cells[0].guest.model_copy(update={record.axis.value: one.name})
        each.append(run + _making(one, guest, virtual=virtual))
    average = sum(each) / len(each)
    return Estimate(steps=steps, seconds=steps.steps * average, most_seconds=steps.most * max(each))


def _making(version: Version, guest: Guest, *, virtual: bool) -> float:
    """Return the seconds for fetching a version and building its image."""
    if packages.find(version.axis, version.name) is None:
        seconds = FETCH_SECONDS + version.size / FETCH_RATE + IMAGE_SECONDS
    elif systems.find(guest) is not None:
        return 0.0
    else:
        seconds = IMAGE_SECONDS
    return seconds + (DRIVER_SECONDS if virtual and version.axis is Axis.KERNEL else 0.0)
