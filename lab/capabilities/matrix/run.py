"""Runs a matrix job by job; a broken job does not stop the others."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Final

from lab.analysis.regressions import systems
from lab.capabilities.matrix.file import CompiledMatrix, MatrixJob
from lab.capabilities.matrix.logic.known_failures import endings, expired
from lab.capabilities.matrix.model import (
    ClaimEnding,
    Ending,
    JobRecord,
    JobResult,
    JobState,
    MatrixResult,
    MatrixRun,
)
from lab.capabilities.matrix.record import MATRIX_RUNS
from lab.compile.scenario.compiler import Compiled
from lab.core.errors import EXIT_DONE, EXIT_REFUTED, EXIT_TROUBLE, FullError, InputError, LabError
from lab.host.system import clock, makers
from lab.model.result.document import Outcome
from lab.results.documents import result_of
from lab.results.trend import regressions_of
from lab.run import execute
from lab.run.execute import Follower
from lab.run.more_trials import Run
from lab.run.options import RunOptions
from lab.run.preparation.platforms import Platform
from lab.run.resume import stored
from lab.store.runs import RunStore, every, now

LATEST: Final = 150
"""Most runs of the same scenarios in trends; each gets a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options and callbacks for all jobs."""

    how: RunOptions
    out: Path | None
    follow: Callable[[JobRecord, Compiled], AbstractContextManager[Follower]]
    """Context manager that is entered when a job begins and left when it ends."""
    ended: Callable[[JobRecord], None]
    """Called with each ended job, after the record was saved."""
    then: Callable[[JobRecord, RunStore, Run], None] | None = None
    """Called when a job's cells have run; it may add cells to the run, and run them."""


def begin(compiled: CompiledMatrix, planned: MatrixRun) -> Path:
    """Create a directory with the planned record; return its path."""
    directory = MATRIX_RUNS.create(
        compiled.name, {"matrix.yaml": compiled.path.read_text(encoding="utf-8")}
    )
    MATRIX_RUNS.save(directory, planned.model_copy(update={"id": directory.name}))
    return directory


def resume(compiled: CompiledMatrix, directory: Path) -> MatrixRun:
    """Return the record to resume: broken jobs run again, left-out ones do not.

    ``InputError``: it is of another matrix, or the matrix no longer has one of its jobs.
    """
    record = MATRIX_RUNS.load(directory)
    if record.matrix != compiled.name:
        raise InputError(
            f"the run '{record.id}' is of the matrix '{record.matrix}', not '{compiled.name}'"
        )
    known = {job.id for job in compiled.jobs}
    for job in record.jobs:
        if job.id not in known:
            raise InputError(
                f"the run '{record.id}' has the job '{job.id}', which the matrix has no more",
                hint="begin a new run; the file may have changed",
            )
    broken = {p.id for p in record.jobs if p.state in (JobState.BROKEN, JobState.WAITING)}
    return again(record, broken)


def again(record: MatrixRun, jobs: Collection[str]) -> MatrixRun:
    """Return a record in which these jobs, by id, are to be run; their finished cells are kept."""
    waiting = {"state": JobState.WAITING, "reason": ""}
    all_ = tuple(p.model_copy(update=waiting) if p.id in jobs else p for p in record.jobs)
    return record.model_copy(update={"jobs": all_, "finished": None})


def run_jobs(
    compiled: CompiledMatrix, directory: Path, record: MatrixRun, options: Options
) -> MatrixRun:
    """Run every waiting job; a broken job does not stop the others.

    Jobs that would exceed the budget are left out. A full disk ends the matrix run.
    ``InputError``: another process is running it.
    """
    with makers.hold(directory):
        return _run_jobs(compiled, directory, record, options)


def _run_jobs(
    compiled: CompiledMatrix, directory: Path, record: MatrixRun, options: Options
) -> MatrixRun:
    began, first = clock.now(), True
    jobs = {job.id: job for job in compiled.jobs}
    for number, planned in enumerate(record.jobs):
        if planned.state is not JobState.WAITING:
            continue
        spent = clock.now() - began
        if record.budget is not None and not first and spent + planned.seconds > record.budget:
            reason = "the budget was used up by jobs that took longer than planned"
            update = {"state": JobState.LEFT_OUT, "reason": reason}
            record = _put(directory, record, number, planned.model_copy(update=update))
        else:
            record, first = _one(directory, record, number, jobs[planned.id], options), False
        options.ended(record.jobs[number])
    record = record.model_copy(update={"finished": now()})
    MATRIX_RUNS.save(directory, record)
    return record


def _put(directory: Path, record: MatrixRun, number: int, job: JobRecord) -> MatrixRun:
    jobs = (*record.jobs[:number], job, *record.jobs[number + 1 :])
    record = record.model_copy(update={"jobs": jobs})
    MATRIX_RUNS.save(directory, record)
    return record


def _one(
    directory: Path, record: MatrixRun, number: int, job: MatrixJob, options: Options
) -> MatrixRun:
    planned, since, then = record.jobs[number], clock.now(), options.then
    run = [planned.run]

    def ended(state: JobState, reason: str = "", reused: int = 0) -> MatrixRun:
        took = clock.now() - since
        update = {"state": state, "reason": reason, "run": run[0], "took": round(took, 1)}
        update["reused"] = reused
        return _put(directory, record, number, planned.model_copy(update=update))

    try:
        if job.compiled is None:
            raise InputError(job.broken)
        texts = [one.text for one in job.overrides]
        store = stored(planned.run, job.compiled, texts) if planned.run else None
        with options.follow(planned, job.compiled) as follower:

            def ready(begun: RunStore, place: Platform) -> None:
                run[0] = str(begun.directory.absolute())
                _put(directory, record, number, planned.model_copy(update={"run": run[0]}))
                follower.ready(begun, place)

            done = execute.run_scenario(
                job.compiled,
                texts=texts,
                out=options.out,
                options=options.how,
                executor=follower.hands,
                resume=store,
                progress=follower.progress,
                ready=ready,
                then=None if then is None else lambda store, run: then(planned, store, run),
            )
    except FullError:
        raise
    except LabError as error:
        return ended(JobState.BROKEN, str(error))
    except Exception as error:  # a bug of the lab in one job must not stop the others
        log = directory / f"{job.id}.log"
        log.write_text(traceback.format_exc(), encoding="utf-8")
        words = f"{type(error).__name__}: {error}"
        return ended(JobState.BROKEN, f"a mistake in the lab itself: {words} (see '{log}')")
    reused = sum(cell.reused_from is not None for cell in done.result.cells)
    return ended(JobState.DONE, reused=reused)


def runs_of(record: MatrixRun, known: Sequence[RunStore]) -> list[RunStore]:
    """Return the matrix run's own runs and the latest ones of its scenarios, newest first."""
    scenarios = {job.scenario for job in record.jobs if job.run}
    found = [run for run in known if run.scenario_name in scenarios][:LATEST]
    there = {run.directory.absolute() for run in found}
    own = [RunStore(Path(job.run)) for job in record.jobs if job.run]
    return [*(run for run in own if run.directory.absolute() not in there), *found]


def matrix_result(directory: Path, *, trends: bool = True) -> MatrixResult:
    """Return a record with its runs' results; known failures are those valid on its first day.

    ``trends``: compare with earlier runs too.
    """
    record = MATRIX_RUNS.load(directory)
    today = datetime.fromisoformat(record.started).date()
    known = runs_of(record, list(every())) if trends else []
    return MatrixResult(
        run=record,
        directory=str(directory),
        jobs=tuple(_job(job, record, today) for job in record.jobs),
        regressions=regressions_of(known, record.started),
        remarks=expired(record.expected, today),
    )


def _job(job: JobRecord, record: MatrixRun, today: date) -> JobResult:
    if job.run is None:
        return JobResult(job=job)
    run = RunStore(Path(job.run))
    try:
        result = (run.load_result() if job.state is JobState.DONE else None) or result_of(run)
    except InputError as error:
        told = job.reason or str(error)
        return JobResult(job=job.model_copy(update={"state": JobState.BROKEN, "reason": told}))
    kernel, mdadm = systems(result)
    return JobResult(
        job=job,
        kernel=kernel,
        mdadm=mdadm,
        claims=endings(job, result, record.expected, today),
        failed_cells=tuple(
            f"{cell.id}: {cell.outcome.value}: {cell.reason.partition(chr(10))[0]}"
            for cell in result.cells
            if cell.outcome in (Outcome.FAILED, Outcome.LOST)
        ),
    )


def exit_status(result: MatrixResult, *, strict: bool = False) -> int:
    """Return 1 if a claim or a cell failed, 3 if only a job could not run, else 0.

    ``strict``: an undecided claim failed too.
    """

    def fails(claim: ClaimEnding) -> bool:
        return claim.fails or (strict and claim.ending is Ending.UNDECIDED)

    if any(p.failed_cells or any(map(fails, p.claims)) for p in result.jobs):
        return EXIT_REFUTED
    unfinished = any(p.job.state in (JobState.BROKEN, JobState.WAITING) for p in result.jobs)
    return EXIT_TROUBLE if unfinished else EXIT_DONE
