"""Runs a bisection version by version; a version that cannot be measured is skipped."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from lab.capabilities.bisect import commits
from lab.capabilities.bisect import patches as series
from lab.capabilities.bisect import record as bisections
from lab.capabilities.bisect.logic import search, sides
from lab.capabilities.bisect.logic.search import Ended, Measure, State
from lab.capabilities.bisect.logic.sides import Observed
from lab.capabilities.bisect.model import Bisection, Ending, Pair, Side, Step
from lab.capabilities.bisect.observed import observed
from lab.capabilities.bisect.question import compiled_of, overrides_of
from lab.capabilities.bisect.record import BISECTIONS
from lab.compile.image import packages as lists
from lab.compile.scenario.compiler import Compiled
from lab.core.errors import (
    EXIT_DONE,
    EXIT_REFUTED,
    GuestError,
    InputError,
    ToolError,
)
from lab.host import images
from lab.host.images import packages
from lab.host.system import clock, makers
from lab.model.image.axis import Axis
from lab.model.image.package import Version
from lab.results.documents import result_of
from lab.run import execute
from lab.run.execute import Follower
from lab.run.options import RunOptions
from lab.run.preparation.platforms import Platform
from lab.run.resume import stored
from lab.store.runs import RunStore, now

SKIPS = (InputError, GuestError, ToolError)
"""Errors of one version: it cannot be installed, built, booted or measured. A host that lacks
space or an archive that is not reached would fail for all of them, and ends the bisection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options and callbacks for all steps."""

    how: RunOptions
    follow: Callable[[Version, Compiled], AbstractContextManager[Follower]]
    """Context manager that is entered when a step begins and left when it ends."""
    fetching: Callable[[Version], AbstractContextManager[images.Progress]]
    ended: Callable[[Bisection, Step], None]
    """Called with each ended step, after the record was saved."""


def run(directory: Path, options: Options) -> Bisection:
    """Measure version after version until the pair is found; return the finished record.

    A finished bisection is returned as it is. ``InputError``: another process is running it.
    ``HostError``: the host or an archive failed; the finished steps are kept.
    """
    with makers.hold(directory):
        record = BISECTIONS.load(directory)
        if record.ending is not None:
            return record
        while isinstance(step := _next(record), Measure):
            record = _measure(directory, record, record.versions[step.version], options)
            options.ended(record, record.steps[-1])
        return _finish(directory, record, step)


def _next(record: Bisection) -> Measure | Ended:
    positions = {one.name: number for number, one in enumerate(record.versions)}
    answers = {positions[s.version]: s.side for s in record.steps if s.side is not None}
    return search.following(State(branches=[v.branch for v in record.versions], answers=answers))


def _measure(directory: Path, record: Bisection, version: Version, options: Options) -> Bisection:
    """Measure one version, or continue its run; return the record with the answer."""
    since = clock.now()
    begun = record.step(version.name) or Step(version=version.name)

    def put(**update: object) -> Bisection:
        others = tuple(one for one in record.steps if one.version != version.name)
        made = record.model_copy(update={"steps": (*others, begun.model_copy(update=update))})
        BISECTIONS.save(directory, made)
        return made

    record = put()
    run, image = begun.run, begun.image

    def ended(**update: object) -> Bisection:
        took = round((begun.took or 0.0) + clock.now() - since, 1)
        return put(run=run, image=image, took=took, **update)

    try:
        with options.fetching(version) as progress:
            image = _prepared(record, version, progress, options.how)
        compiled = compiled_of(record, version.name, image)
        resumed = stored(run, compiled, record.overrides) if run else None
        with options.follow(version, compiled) as follower:

            def ready(store: RunStore, place: Platform) -> None:
                nonlocal run
                run = str(store.directory.absolute())
                put(run=run, image=image)
                follower.ready(store, place)

            done = execute.run_scenario(
                compiled,
                texts=overrides_of(record, version.name, image),
                out=None,
                options=options.how,
                executor=follower.hands,
                resume=resumed,
                progress=follower.progress,
                ready=ready,
            )
    except SKIPS as error:
        return ended(side=Side.SKIPPED, reason=str(error))
    one = observed(done.store, done.result, record.claim, record.metric)
    record, side, reason = _answer(record, version, one)
    values = _values(record, one)
    return ended(side=side, reason=reason, verdict=one.verdict, values=values)


def _prepared(
    record: Bisection, version: Version, progress: images.Progress, how: RunOptions
) -> str | None:
    """Fetch a version's packages, or return the image or the kernel that is built for it."""
    expired = how.accept_expired
    if record.series is None and record.tree is None:
        packages.fetch(version, progress, accept_expired=expired)
        return None
    guest = compiled_of(record, version.name).base.guest
    if record.tree is not None:
        return commits.kernel_of(record.tree, version, guest, progress, accept_expired=expired)
    assert record.series is not None
    return series.image_with(record.series, version, guest, progress, accept_expired=expired)


def _answer(record: Bisection, version: Version, one: Observed) -> tuple[Bisection, Side, str]:
    """Return the record with its subject, the side of a measurement, and the reason."""
    first, last = record.versions[0].name, record.versions[-1].name
    why = sides.undecided(one, record.metric)
    if version.name == first:
        return record, Side.SKIPPED if why else Side.GOOD, why or one.reason
    good = _again(record, first)
    if version.name == last:
        if why:
            return record, Side.SKIPPED, why
        subject = sides.subject_of(good, one) if record.metric else None
        record = record.model_copy(update={"subject": subject})
        equal = sides.equal(good, one, record.metric)
        return record, Side.GOOD if equal else Side.BAD, one.reason
    found = sides.side_of(one, good, _again(record, last), record.subject)
    if isinstance(found, Side):
        return record, found, one.reason
    return record, Side.SKIPPED, found


def _again(record: Bisection, name: str) -> Observed:
    """Return what was measured with a version, from its run."""
    step = record.step(name)
    assert step is not None
    store = RunStore(Path(step.run or ""))
    result = store.load_result() or result_of(store)
    return observed(store, result, record.claim, record.metric)


def _values(record: Bisection, one: Observed) -> tuple[float, ...]:
    if record.subject is not None and (seen := one.of(record.subject)) is not None:
        return seen.figure.values
    return (one.measured,) if one.measured is not None and record.metric is None else ()


def _finish(directory: Path, record: Bisection, end: Ended) -> Bisection:
    """Store the result, with the changelog and the commands."""
    update: dict[str, object] = {"ending": end.ending, "finished": now()}
    good, bad = record.versions[end.good], record.versions[end.bad]
    if end.ending in (Ending.FOUND, Ending.BRANCH):
        names = tuple(record.versions[n].name for n in end.between)
        update["pair"] = Pair(good=good.name, bad=bad.name, between=names)
    if end.ending is Ending.BRANCH:
        update["branches"] = (good.branch, bad.branch)
    if end.ending is Ending.FOUND and record.tree is not None:
        changes = commits.changes(record.tree, good, bad)
        update["changelog"] = changes if len(changes) > 1 else ()
        bisections.save_changelog(directory, "".join(f"{line}\n" for line in changes))
    elif end.ending is Ending.FOUND and record.axis is not Axis.PATCH:
        found = lists.between(packages.changelog(bad), good.version, bad.version)
        lines = [line.strip() for one in found for line in one.lines]
        if record.axis is Axis.KERNEL:
            lines = [line for one in found for line in lists.about_md(one)]
        update["changelog"] = tuple(lines)
        text = "\n\n".join(
            f"{one.version} ({one.date or 'no date'})\n" + "\n".join(one.lines) for one in found
        )
        bisections.save_changelog(directory, text + "\n")
    update["commands"] = {one.name: command_of(record, one.name) for one in (good, bad)}
    record = record.model_copy(update=update)
    BISECTIONS.save(directory, record)
    return record


def command_of(record: Bisection, version: str) -> str:
    """Return the command that measures a version again."""
    step = record.step(version)
    texts = overrides_of(record, version, step.image if step else None)
    sets = [word for text in texts for word in ("--set", text)]
    trials = ["--trials", record.trials] if record.trials else []
    return shlex.join(["lab", "run", "scenario", record.file, *sets, *trials])


def exit_status(record: Bisection) -> int:
    """Return 0 if the change was found, 1 if there is none or an end is undecided."""
    found = record.ending in (Ending.FOUND, Ending.BRANCH)
    return EXIT_DONE if found else EXIT_REFUTED
