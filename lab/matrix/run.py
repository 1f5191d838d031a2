"""Running a matrix: part by part, whatever becomes of each."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Final

from lab.analysis.known_failures import endings, expired, systems
from lab.compile.scenario.document import Compiled
from lab.core.errors import EXIT_DONE, EXIT_REFUTED, EXIT_TROUBLE, FullError, InputError, LabError
from lab.host import images
from lab.host.system import clock, makers
from lab.matrix.file import CompiledMatrix, Part
from lab.model.matrix.record import Night, NightPart, NightResult, PartResult, State
from lab.model.result.document import Outcome
from lab.results.documents import result_of
from lab.results.trend import regressions_of
from lab.run import execute
from lab.run.execute import Executor
from lab.run.options import RunOptions
from lab.run.preparation.platforms import Platform
from lab.run.resume import stored
from lab.store import matrix_runs as nights
from lab.store.runs import RunStore, every, now

LATEST: Final = 150
"""Runs of the night's scenarios that trends are made of: a page is made of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """Who runs a part, and who is told of it meanwhile."""

    hands: Executor
    progress: images.Progress
    ready: Callable[[RunStore, Platform], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How parts are run, and who follows them."""

    how: RunOptions
    out: Path | None
    follow: Callable[[NightPart, Compiled], AbstractContextManager[Follower]]
    """A part begins, and ends."""
    ended: Callable[[NightPart], None]
    """What became of a part, when the night is saved with it."""


def begin(compiled: CompiledMatrix, planned: Night) -> Path:
    """The night's directory, with its plan in it."""
    directory = nights.create(compiled.name, compiled.path.read_text(encoding="utf-8"))
    nights.save(directory, planned.model_copy(update={"id": directory.name}))
    return directory


def again(compiled: CompiledMatrix, directory: Path) -> Night:
    """A night to go on with: what is not done waits again, but for what its budget left out.

    ``InputError`` where it is of another matrix, or its parts are not there any more.
    """
    night = nights.load(directory)
    if night.matrix != compiled.name:
        raise InputError(
            f"the run '{night.id}' is of the matrix '{night.matrix}', not '{compiled.name}'"
        )
    known = {part.id for part in compiled.parts}
    for part in night.parts:
        if part.id not in known:
            raise InputError(
                f"the run '{night.id}' has the part '{part.id}', which the matrix has no more",
                hint="begin a new run; the file may have changed",
            )
    waiting = {"state": State.WAITING, "reason": ""}
    parts = tuple(
        p.model_copy(update=waiting) if p.state in (State.BROKEN, State.WAITING) else p
        for p in night.parts
    )
    return night.model_copy(update={"parts": parts, "finished": None})


def run_night(compiled: CompiledMatrix, directory: Path, night: Night, ways: Ways) -> Night:
    """Run every part that waits; one that breaks leaves the others alone.

    A budget that is used up leaves out what would end after it. A full disk ends all.
    ``InputError`` where another process is running it.
    """
    with makers.hold(directory):
        return _run_night(compiled, directory, night, ways)


def _run_night(compiled: CompiledMatrix, directory: Path, night: Night, ways: Ways) -> Night:
    began, first = clock.now(), True
    parts = {part.id: part for part in compiled.parts}
    for number, planned in enumerate(night.parts):
        if planned.state is not State.WAITING:
            continue
        spent = clock.now() - began
        if night.budget is not None and not first and spent + planned.seconds > night.budget:
            reason = "the budget was used up by parts that took longer than planned"
            update = {"state": State.LEFT_OUT, "reason": reason}
            night = _put(directory, night, number, planned.model_copy(update=update))
        else:
            night, first = _one(directory, night, number, parts[planned.id], ways), False
        ways.ended(night.parts[number])
    night = night.model_copy(update={"finished": now()})
    nights.save(directory, night)
    return night


def _put(directory: Path, night: Night, number: int, part: NightPart) -> Night:
    parts = (*night.parts[:number], part, *night.parts[number + 1 :])
    night = night.model_copy(update={"parts": parts})
    nights.save(directory, night)
    return night


def _one(directory: Path, night: Night, number: int, part: Part, ways: Ways) -> Night:
    planned, since = night.parts[number], clock.now()
    run = [planned.run]

    def ended(state: State, reason: str = "") -> Night:
        took = clock.now() - since
        update = {"state": state, "reason": reason, "run": run[0], "took": round(took, 1)}
        return _put(directory, night, number, planned.model_copy(update=update))

    try:
        if part.compiled is None:
            raise InputError(part.broken)
        texts = [one.text for one in part.overrides]
        store = stored(planned.run, part.compiled, texts) if planned.run else None
        with ways.follow(planned, part.compiled) as follower:

            def ready(begun: RunStore, place: Platform) -> None:
                run[0] = str(begun.directory.absolute())
                _put(directory, night, number, planned.model_copy(update={"run": run[0]}))
                follower.ready(begun, place)

            execute.run_scenario(
                part.compiled,
                texts=texts,
                out=ways.out,
                options=ways.how,
                executor=follower.hands,
                resume=store,
                progress=follower.progress,
                ready=ready,
            )
    except FullError:
        raise
    except LabError as error:
        return ended(State.BROKEN, str(error))
    except Exception as error:  # a mistake of the lab in one part is no reason to lose the others
        log = directory / f"{part.id}.log"
        log.write_text(traceback.format_exc(), encoding="utf-8")
        words = f"{type(error).__name__}: {error}"
        return ended(State.BROKEN, f"a mistake in the lab itself: {words} (see '{log}')")
    return ended(State.DONE)


def runs_of(night: Night, known: Sequence[RunStore]) -> list[RunStore]:
    """The night's own runs, and the latest ones of its scenarios, the newest first."""
    scenarios = {part.scenario for part in night.parts if part.run}
    found = [run for run in known if run.scenario_name in scenarios][:LATEST]
    there = {run.directory.absolute() for run in found}
    own = [RunStore(Path(part.run)) for part in night.parts if part.run]
    return [*(run for run in own if run.directory.absolute() not in there), *found]


def night_result(directory: Path, *, trends: bool = True) -> NightResult:
    """A night with its runs' results; expectations count as on the day on which it began.

    Without ``trends`` no other run is read.
    """
    night = nights.load(directory)
    today = datetime.fromisoformat(night.started).date()
    known = runs_of(night, list(every())) if trends else []
    return NightResult(
        night=night,
        directory=str(directory),
        parts=tuple(_part(part, night, today) for part in night.parts),
        regressions=regressions_of(known, night.started),
        remarks=expired(night.expected, today),
    )


def _part(part: NightPart, night: Night, today: date) -> PartResult:
    if part.run is None:
        return PartResult(part=part)
    run = RunStore(Path(part.run))
    try:
        result = (run.load_result() if part.state is State.DONE else None) or result_of(run)
    except InputError as error:
        told = part.reason or str(error)
        return PartResult(part=part.model_copy(update={"state": State.BROKEN, "reason": told}))
    kernel, mdadm = systems(result)
    return PartResult(
        part=part,
        kernel=kernel,
        mdadm=mdadm,
        claims=endings(part, result, night.expected, today),
        failed_cells=tuple(
            f"{cell.id}: {cell.outcome.value}: {cell.reason.partition(chr(10))[0]}"
            for cell in result.cells
            if cell.outcome in (Outcome.FAILED, Outcome.LOST)
        ),
    )


def exit_status(result: NightResult) -> int:
    """1 where a claim fails the matrix or a cell failed, else 3 where a part could not be run."""
    if any(p.failed_cells or any(c.fails for c in p.claims) for p in result.parts):
        return EXIT_REFUTED
    unfinished = any(p.part.state in (State.BROKEN, State.WAITING) for p in result.parts)
    return EXIT_TROUBLE if unfinished else EXIT_DONE
