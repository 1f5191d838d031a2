"""Bisects each claim of a matrix run that held in the run before and is refuted now."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from lab.analysis.regressions import systems
from lab.capabilities.bisect import question as plan
from lab.capabilities.bisect import record as bisections
from lab.capabilities.bisect import run as bisecting
from lab.capabilities.bisect.logic.flips import Judgement, axes_between, held_before
from lab.capabilities.bisect.model import Bisection, Ending
from lab.capabilities.bisect.page import result_sentence
from lab.capabilities.bisect.question import Request
from lab.capabilities.bisect.record import BISECTIONS
from lab.capabilities.matrix.file import CompiledMatrix, MatrixJob
from lab.capabilities.matrix.model import Flip, JobState, MatrixRun
from lab.capabilities.matrix.record import MATRIX_RUNS
from lab.capabilities.matrix.run import matrix_result
from lab.compile.scenario.identity import identity
from lab.core.errors import InputError, LabError
from lab.host import images
from lab.host.images import packages
from lab.model.image.axis import Axis
from lab.results.documents import result_of, understood
from lab.run.options import RunOptions
from lab.run.preparation import versions
from lab.store.runs import RunStore, every


def kernel_package(kernel: str) -> str:
    """Return the package of a kernel that calls itself so (``uname -r``)."""
    return f"linux-image-{kernel}"


def keep_packages(directory: Path, progress: images.Progress, *, accept_expired: bool) -> list[str]:
    """Fetch the kernels and mdadm versions of the run, since archives drop them; return problems.

    A later bisection needs them as its good end.
    """
    wanted = dict[tuple[Axis, str], None]()
    for job in matrix_result(directory, trends=False).jobs:
        if job.kernel is not None:
            wanted[Axis.KERNEL, kernel_package(job.kernel)] = None
        if job.mdadm is not None:
            wanted[Axis.MDADM, job.mdadm] = None
    problems = []
    for axis, name in wanted:
        try:
            version = packages.matching(packages.known(axis), name)[-1]
            packages.fetch(version, progress, accept_expired=accept_expired)
        except LabError as error:
            problems.append(f"{name} is not kept: {error.message}")
    return problems


def after(
    compiled: CompiledMatrix, directory: Path, how: RunOptions, *, verbose: bool
) -> list[str]:
    """Do what ``lab run matrix --bisect`` asks for; return the problems, a sentence each.

    Bisects what became refuted, and keeps the packages of this run for the next one.
    """
    from lab.capabilities.bisect.command import options_of
    from lab.cli.display.progress import Spinner

    accept = how.accept_expired
    try:
        with Spinner("reading the archives") as spinner:
            versions.current(spinner.show, refresh=False, accept_expired=accept)
            problems = keep_packages(directory, spinner.show, accept_expired=accept)
        bisect_flips(compiled, directory, options_of(how, verbose=verbose))
    except LabError as error:  # the verdicts of the jobs are what the run is for
        problems = [f"the bisection ended early: {error.message}"]
    return problems


def bisect_flips(compiled: CompiledMatrix, directory: Path, options: bisecting.Options) -> None:
    """Bisect every claim that became refuted, and store the results in the matrix run's record.

    What cannot be bisected is stored with the reason. Finished ones are not repeated.
    """
    record = MATRIX_RUNS.load(directory)
    jobs = {job.id: job for job in compiled.jobs}
    known = [one for run in every() for one in _judgements(run)]
    done = {(flip.job, flip.claim) for flip in record.bisections if flip.result}
    for planned in record.jobs:
        if planned.state is not JobState.DONE or planned.run is None:
            continue
        for now in _judgements(RunStore(Path(planned.run))):
            before = held_before(now, known)
            if before is None or (planned.id, now.claim) in done:
                continue
            record = _bisect(directory, record, jobs[planned.id], before, now, options)


def _bisect(
    directory: Path,
    record: MatrixRun,
    job: MatrixJob,
    good: Judgement,
    bad: Judgement,
    options: bisecting.Options,
) -> MatrixRun:
    """Bisect the kernel if it differs, then mdadm if that was not the reason."""
    flip = Flip(
        job=job.id,
        claim=bad.claim,
        good=f"Linux {good.kernel}, mdadm {good.mdadm}",
        bad=f"Linux {bad.kernel}, mdadm {bad.mdadm}",
    )
    begun = {one.axis: one for one in _unfinished(record, flip)}
    pairs = axes_between(good, bad)
    said = "" if pairs else "Linux and mdadm are the same, so neither is the reason"
    for axis, older, newer in pairs:
        names = (older, newer)
        if axis is Axis.KERNEL:
            names = (kernel_package(older), kernel_package(newer))
        try:
            place = _place(begun.get(axis), job, bad.claim, axis, names)
            flip = flip.model_copy(update={"bisection": str(place)})
            record = _put(directory, record, flip)
            found = bisecting.run(place, options)
        except InputError as error:
            said = f"it could not be bisected over {axis.value}: {error.message}"
            continue
        said = result_sentence(found)
        if found.ending is not Ending.SAME:
            break
    return _put(directory, record, flip.model_copy(update={"result": said}))


def _unfinished(record: MatrixRun, flip: Flip) -> Iterator[Bisection]:
    """Yield the bisection that an interrupted matrix run has begun."""
    for one in record.bisections:
        if (one.job, one.claim) == (flip.job, flip.claim) and one.bisection and not one.result:
            with suppress(InputError):
                yield BISECTIONS.load(Path(one.bisection))


def _place(
    begun: Bisection | None, job: MatrixJob, claim: str, axis: Axis, ends: tuple[str, str]
) -> Path:
    if begun is not None:
        return BISECTIONS.find(begun.id)
    assert job.compiled is not None
    given = [one.text for one in job.overrides if ".".join(one.path) != axis.key]
    request = Request(
        claim=claim,
        scenario=str(job.compiled.path),
        overrides=tuple(given),
        trials=None,
        axis=axis,
        good=ends[0],
        bad=ends[1],
    )
    return bisections.create(plan.begun(request))


def _put(directory: Path, record: MatrixRun, flip: Flip) -> MatrixRun:
    key = (flip.job, flip.claim)
    others = tuple(one for one in record.bisections if (one.job, one.claim) != key)
    record = record.model_copy(update={"bisections": (*others, flip)})
    MATRIX_RUNS.save(directory, record)
    return record


def _judgements(run: RunStore) -> Sequence[Judgement]:
    """Return the verdicts of a run; none if it is unreadable, or its system is unknown."""
    try:
        return _of_run(run)
    except InputError:
        return ()


@understood
def _of_run(run: RunStore) -> Sequence[Judgement]:
    stored = run.load_run()
    result = run.load_result() or result_of(run)
    kernel, mdadm = systems(result)
    image = (stored.environment.get("image") or {}).get("name")
    if kernel is None or mdadm is None or stored.finished is None:
        return ()
    firsts = [first.cell for first, *_ in stored.points]
    cells = sorted(f"{cell.guest.clock} {identity(cell)}" for cell in firsts)
    digest = hashlib.sha256("\n".join(cells).encode()).hexdigest()
    return [
        Judgement(
            scenario=stored.scenario,
            claim=claim.id,
            image=str(image).split("+")[0],
            cells=digest,
            kernel=kernel,
            mdadm=mdadm,
            started=stored.started,
            verdict=claim.verdict,
        )
        for claim in result.claims
    ]
