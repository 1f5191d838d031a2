"""Plan of a matrix: its jobs, their estimated times, and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from lab.capabilities.matrix.file import CompiledMatrix, MatrixJob
from lab.capabilities.matrix.logic.known_failures import expired
from lab.capabilities.matrix.logic.shards import Estimate, Reason, parse_shard, shards, within
from lab.capabilities.matrix.model import JobRecord, JobState, MatrixRun
from lab.compile import schedule
from lab.compile.guest.steps import memory_of
from lab.compile.scenario.identity import cell_id, digest_of
from lab.compile.schedule import CELL_SECONDS, GUEST_SECONDS, Room
from lab.core.errors import HostError, InputError
from lab.host.system import accelerator
from lab.model.result.document import Outcome, Result
from lab.model.result.regression import SYSTEM
from lab.model.scenario.claim import Verdict
from lab.results.documents import understood
from lab.run.preparation import systems
from lab.run.preparation.fitting import Known, check_images
from lab.run.preparation.suites import check_suites
from lab.run.scheduling import admission
from lab.run.task import need_of, seconds_of
from lab.store import runs as store
from lab.store.runs import RunStore, now

SAMPLED: Final = 5
"""Number of a scenario's cells whose time is predicted; the average stands for the others."""
LATEST: Final = 400
"""Most stored runs to read, newest first."""
PAUSE: Final = 600.0
"""Seconds for boots, calibrations and repetitions of a run. A run with a longer gap was resumed."""
SHARD_GUESTS: Final = 6
"""Concurrent guests assumed for shards on every host: those of two CPUs without KVM."""
WORDS: Final = {
    Reason.NEVER: "never run here",
    Reason.CHANGED: "system has changed",
    Reason.UNCLEAR: "unclear last time",
    Reason.FLIPPED: "flipped last time",
    Reason.KNOWN: "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """A finished run of a job's cells on this host."""

    run: str
    started: str
    seconds: float
    accelerator: str
    image: tuple[str | None, ...]
    """Digest, kernel and mdadm."""
    verdicts: Mapping[str, Verdict]
    failed: bool
    """A cell did not finish."""


@dataclass(slots=True, kw_only=True)
class HostLimits:
    """Accelerator and limits of this host, and a cache of predicted times."""

    kind: str
    room: Room
    limit: int
    """Most concurrent guests in real time."""
    virtual_limit: int
    """Most concurrent guests in virtual time."""
    facts: Known = field(default_factory=dict)
    _followed: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    def cell_seconds(self, job: MatrixJob) -> tuple[float, float, float]:
        """Return seconds of all workloads and of the longest cell, and bytes of one cell's
        disks."""
        texts = [o.text for o in job.overrides if ".".join(o.path) not in SYSTEM]
        key = f"{job.compiled and job.compiled.path} {len(job.cells)} {texts}"
        if key not in self._followed:
            step = max(1, len(job.cells) // SAMPLED)
            some = job.cells[::step][:SAMPLED]
            times = [seconds_of(cell) for cell in some]
            spaces = [need_of(cell).space for cell in some]
            average = sum(times) / max(len(times), 1)
            self._followed[key] = (
                average * len(job.cells),
                max(times, default=0.0),
                max(spaces, default=0),
            )
        return self._followed[key]


def host_of(jobs: int | None) -> HostLimits:
    """Return this host's limits for runs with this ``--jobs``."""
    try:
        kind = accelerator.find(None).kind
    except HostError:
        kind = "tcg"
    return HostLimits(
        kind=kind,
        room=admission.room(jobs),
        limit=admission.limit(kind, jobs),
        virtual_limit=admission.virtual_limit(jobs),
    )


def plan_of(
    compiled: CompiledMatrix,
    host: HostLimits,
    *,
    shard: str | None = None,
    budget: float | None = None,
    clock: str | None = None,
    accept_expired: bool = False,
    runs: Sequence[RunStore] | None = None,
) -> MatrixRun:
    """Return the jobs in their order, and those that do not fit the budget.

    ``InputError``: no such shard. ``runs``: earlier ones, newest first. ``accept_expired``: add a
    note that images may be built from an expired archive.
    """
    number, of = parse_shard(shard) if shard else (1, 1)
    # Every machine must make the same shards. So they depend on the files, and on no stored run.
    cut = shards([Estimate(id=p.id, seconds=_weight(p, host)) for p in compiled.jobs], of)
    mine = [job for job in compiled.jobs if job.id in set(cut[number - 1])]
    past = past_runs(list(store.every()) if runs is None else runs, {p.scenario for p in mine})
    planned = {job.id: _planned(job, host, past) for job in mine}
    estimates = [estimate for _, estimate in planned.values() if estimate is not None]
    order = [job.id for job in mine]
    left: list[str] = []
    if budget is not None:
        broken = [name for name, (_, estimate) in planned.items() if estimate is None]
        taken, left = within(estimates, budget)
        order = [*taken, *broken, *left]
    jobs = [planned[name][0] for name in order]
    told = {"state": JobState.LEFT_OUT, "reason": "the budget has no room for it"}
    day = datetime.fromisoformat(now()).date()
    return MatrixRun(
        id="",
        matrix=compiled.name,
        title=compiled.matrix.title,
        started=now(),
        shard=shard,
        budget=budget,
        clock=clock,
        jobs=tuple(p.model_copy(update=told) if p.id in left else p for p in jobs),
        expected=compiled.matrix.expected,
        notes=(
            *_notes([p for p in mine if planned[p.id][1]], accept_expired=accept_expired),
            *expired(compiled.matrix.expected, day),
        ),
    )


def _notes(jobs: Sequence[MatrixJob], *, accept_expired: bool) -> list[str]:
    """Return a note for each image that must be built first."""
    found = {}
    for job in jobs:
        if job.compiled:
            guest = job.compiled.base.guest
            if guest.system not in found:
                found[guest.system] = systems.find(guest) is not None
    return [
        f"the image '{name}' is not built yet, and is built first"
        + (f", with the kernel '{kernel}'" if kernel else "")
        + (f", with mdadm '{mdadm}'" if mdadm else "")
        + (", from an expired archive too (--accept-expired)" if accept_expired else "")
        + "; the time for that is not counted"
        for (name, kernel, mdadm), there in found.items()
        if not there
    ]


def _planned(
    job: MatrixJob, host: HostLimits, past: Mapping[frozenset[str], Sequence[PastRun]]
) -> tuple[JobRecord, Estimate | None]:
    made = JobRecord(
        id=job.id,
        scenario=job.scenario,
        image=job.image,
        kernel=job.kernel,
        cells=len(job.cells),
        seconds=0.0,
        basis="",
    )
    reason = job.broken or _unfit(job, host.facts)
    if reason or job.compiled is None:
        return made.model_copy(update={"state": JobState.BROKEN, "reason": reason}), None
    mine: Sequence[PastRun] = ()
    if any(len(ids) == len(job.cells) for ids in past):
        mine = past.get(frozenset(digest_of(cell_id(cell)) for cell in job.cells), ())
    at_once = _at_once(job, host)
    seconds, basis = _time(job, host, mine, at_once)
    why = _reason(job, mine)
    _, _, space = host.cell_seconds(job)
    planned = made.model_copy(
        update={
            "seconds": seconds,
            "basis": basis,
            "why": WORDS[why] or f"last run {mine[0].started[:10]}",
            "memory": at_once * memory_of(job.compiled.base.guest),
            "space": int(at_once * space),
        }
    )
    last = mine[0].started if mine else ""
    return planned, Estimate(id=job.id, seconds=seconds, reason=why, last=last)


def _unfit(job: MatrixJob, facts: Known) -> str:
    try:
        if job.compiled:
            check_images(job.compiled, facts)
            check_suites(job.compiled)
    except InputError as error:
        return str(error)
    return ""


def _time(
    job: MatrixJob, host: HostLimits, past: Sequence[PastRun], at_once: int
) -> tuple[float, str]:
    for one in past:
        if one.accelerator == host.kind and one.seconds > 0:
            return one.seconds, f"a run: {one.run}"
    if job.seconds is not None:
        return job.seconds, "the file"
    return _by_theory(job, host, host.kind, at_once), "theory"


def _weight(job: MatrixJob, host: HostLimits) -> float:
    """Return the estimated seconds from the files alone; equal on every host."""
    if job.seconds is not None:
        return job.seconds
    return _by_theory(job, host, "tcg", min(SHARD_GUESTS, max(len(job.cells), 1)))


def _by_theory(job: MatrixJob, host: HostLimits, kind: str, at_once: int) -> float:
    total, longest, _ = host.cell_seconds(job)
    sealed = any(need_of(cell).virtual for cell in job.cells[:1])
    around = 0.0 if sealed else CELL_SECONDS[kind]
    return GUEST_SECONDS[kind] + max((total + around * len(job.cells)) / at_once, longest + around)


def _at_once(job: MatrixJob, host: HostLimits) -> int:
    """Return the number of concurrent guests, if all cells are like the first."""
    need = need_of(job.cells[0])
    most = host.virtual_limit if need.virtual else host.limit
    beside: list[schedule.Need] = []
    left = host.room.memory
    while len(beside) < min(most, len(job.cells)):
        room = Room(memory=left, space=host.room.space, rate=host.room.rate, cores=host.room.cores)
        if not schedule.fits(need, beside, room):
            break
        beside.append(need)
        left -= need.memory
    return max(1, len(beside))


def _reason(job: MatrixJob, past: Sequence[PastRun]) -> Reason:
    if not past:
        return Reason.NEVER
    image = systems.find(job.compiled.base.guest) if job.compiled else None
    if image is not None:
        manifest = image.manifest
        if past[0].image != (image.digest, manifest.kernel_version, manifest.mdadm_version):
            return Reason.CHANGED
    if past[0].failed or Verdict.INCONCLUSIVE in past[0].verdicts.values():
        return Reason.UNCLEAR
    if len(past) > 1:
        before, after = past[1].verdicts, past[0].verdicts
        if any(before[name] is not after[name] for name in before.keys() & after.keys()):
            return Reason.FLIPPED
    return Reason.KNOWN


def past_runs(runs: Sequence[RunStore], scenarios: set[str]) -> dict[frozenset[str], list[PastRun]]:
    """Return finished runs by their cells, newest first."""
    found: dict[frozenset[str], list[PastRun]] = {}
    for run in [r for r in runs if r.scenario_name in scenarios][:LATEST]:
        with suppress(InputError):
            if known := _past(run):
                found.setdefault(known[0], []).append(known[1])
    return found


@understood
def _past(run: RunStore) -> tuple[frozenset[str], PastRun] | None:
    stored, result = run.load_run(), run.load_result()
    if stored.finished is None or result is None:
        return None
    image = stored.environment.get("image") or {}
    past = PastRun(
        run=stored.id,
        started=stored.started,
        seconds=_took(stored.started, stored.finished, result),
        accelerator=str(stored.environment.get("accelerator")),
        image=(image.get("digest"), image.get("kernel"), image.get("mdadm")),
        verdicts={claim.id: claim.verdict for claim in result.claims},
        failed=any(cell.outcome is not Outcome.DONE for cell in result.cells),
    )
    return frozenset(digest_of(first.id) for first, *_ in stored.points), past


def _took(started: str, finished: str, result: Result) -> float:
    """Return seconds from start to end; for a resumed run, the sum over its cells."""
    ended, began = (datetime.fromisoformat(text) for text in (finished, started))
    wall = (ended - began).total_seconds()
    busy = sum(cell.seconds.total for cell in result.cells)
    return wall if wall <= busy + PAUSE else busy
