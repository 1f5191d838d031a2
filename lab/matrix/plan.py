"""What a matrix would do: its parts, what they take, and which of them come first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from lab.analysis.known_failures import expired
from lab.analysis.predict import durations, written
from lab.compile import schedule
from lab.compile.guest.steps import memory_of
from lab.compile.scenario.identity import cell_id
from lab.compile.schedule import CELL_SECONDS, GUEST_SECONDS, UNKNOWN_SECONDS, Room
from lab.core.errors import HostError, InputError
from lab.host.system import accelerator
from lab.matrix.file import CompiledMatrix, Part
from lab.matrix.shards import Piece, Reason, parse_shard, shares, within
from lab.model.matrix.file import SYSTEM
from lab.model.matrix.record import Night, NightPart, State
from lab.model.result.document import Outcome, Result
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import Cell
from lab.results.documents import understood
from lab.run.preparation import systems
from lab.run.preparation.fitting import Known, check_images
from lab.run.preparation.suites import check_suites
from lab.run.scheduling import admission
from lab.store import runs as store
from lab.store.runs import RunStore, now

SAMPLED: Final = 5
"""Cells of a scenario whose time theory is asked for; the others take as long on average."""
LATEST: Final = 400
"""Runs that are looked at, the newest first."""
PAUSE: Final = 600.0
"""Seconds beyond its cells' that boots, calibrations and repetitions of a run may take; a run that
took longer was stopped and gone on with."""
SHARED: Final = 6
"""Guests at once by which shares are cut, on whatever host: those of two processors without KVM."""
WORDS: Final = {
    Reason.NEVER: "never run here",
    Reason.CHANGED: "system has changed",
    Reason.UNCLEAR: "unclear last time",
    Reason.FLIPPED: "flipped last time",
    Reason.KNOWN: "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A run of the same cells that came to its end here."""

    run: str
    started: str
    seconds: float
    accelerator: str
    image: tuple[str | None, ...]
    """Digest, kernel and mdadm."""
    verdicts: Mapping[str, Verdict]
    failed: bool
    """A cell of it did not finish."""


@dataclass(slots=True, kw_only=True)
class Host:
    """What is asked of this host once for all parts."""

    kind: str
    room: Room
    limit: int
    """Guests at once, at most."""
    facts: Known = field(default_factory=dict)
    _followed: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    def cell_seconds(self, part: Part) -> tuple[float, float, float]:
        """Seconds of all cells' workloads, of the longest, and bytes that one's disks may take."""
        texts = [o.text for o in part.overrides if ".".join(o.path) not in SYSTEM]
        key = f"{part.compiled and part.compiled.path} {len(part.cells)} {texts}"
        if key not in self._followed:
            step = max(1, len(part.cells) // SAMPLED)
            some = part.cells[::step][:SAMPLED]
            times = [_workloads(cell) for cell in some]
            spaces = [_need(cell).space for cell in some]
            average = sum(times) / max(len(times), 1)
            self._followed[key] = (
                average * len(part.cells),
                max(times, default=0.0),
                max(spaces, default=0),
            )
        return self._followed[key]


def host_of(jobs: int | None) -> Host:
    """This host, as runs will find it."""
    try:
        kind = accelerator.find(None).kind
    except HostError:
        kind = "tcg"
    return Host(kind=kind, room=admission.room(jobs), limit=admission.limit(kind, jobs))


def plan_of(
    compiled: CompiledMatrix,
    host: Host,
    *,
    shard: str | None = None,
    budget: float | None = None,
    accept_expired: bool = False,
    runs: Sequence[RunStore] | None = None,
) -> Night:
    """The parts in the order in which they are run, and those that are left out of a budget.

    ``InputError``: there is no such shard. ``runs``: earlier ones, the newest first.
    ``accept_expired``: images are built from an expired archive too, which a note says.
    """
    number, of = parse_shard(shard) if shard else (1, 1)
    # Every machine must cut the same shares: by what stands in the files, not by what it has seen.
    cut = shares([Piece(id=p.id, seconds=_weight(p, host)) for p in compiled.parts], of)
    mine = [part for part in compiled.parts if part.id in set(cut[number - 1])]
    past = pasts(list(store.every()) if runs is None else runs, {p.scenario for p in mine})
    planned = {part.id: _planned(part, host, past) for part in mine}
    pieces = [piece for _, piece in planned.values() if piece is not None]
    order = [part.id for part in mine]
    left: list[str] = []
    if budget is not None:
        broken = [name for name, (_, piece) in planned.items() if piece is None]
        taken, left = within(pieces, budget)
        order = [*taken, *broken, *left]
    parts = [planned[name][0] for name in order]
    told = {"state": State.LEFT_OUT, "reason": "the budget has no room for it"}
    day = datetime.fromisoformat(now()).date()
    return Night(
        id="",
        matrix=compiled.name,
        title=compiled.matrix.title,
        started=now(),
        shard=shard,
        budget=budget,
        parts=tuple(p.model_copy(update=told) if p.id in left else p for p in parts),
        expected=compiled.matrix.expected,
        notes=(
            *_notes([p for p in mine if planned[p.id][1]], accept_expired=accept_expired),
            *expired(compiled.matrix.expected, day),
        ),
    )


def _notes(parts: Sequence[Part], *, accept_expired: bool) -> list[str]:
    """Images that the parts need and that are not there yet."""
    found = {}
    for part in parts:
        if part.compiled:
            guest = part.compiled.base.guest
            if guest.system not in found:
                found[guest.system] = systems.find(guest) is not None
    return [
        f"the image '{name}' is not built yet, and is built first"
        + (f", with the kernel '{kernel}'" if kernel else "")
        + (", from an expired archive too (--accept-expired)" if accept_expired else "")
        + "; the time for that is not counted"
        for (name, kernel), there in found.items()
        if not there
    ]


def _planned(
    part: Part, host: Host, past: Mapping[frozenset[str], Sequence[Past]]
) -> tuple[NightPart, Piece | None]:
    made = NightPart(
        id=part.id,
        scenario=part.scenario,
        image=part.image,
        kernel=part.kernel,
        cells=len(part.cells),
        seconds=0.0,
        basis="",
    )
    reason = part.broken or _unfit(part, host.facts)
    if reason or part.compiled is None:
        return made.model_copy(update={"state": State.BROKEN, "reason": reason}), None
    mine: Sequence[Past] = ()
    if any(len(ids) == len(part.cells) for ids in past):
        mine = past.get(frozenset(cell_id(cell) for cell in part.cells), ())
    at_once = _at_once(part, host)
    seconds, basis = _estimate(part, host, mine, at_once)
    why = _reason(part, mine)
    _, _, space = host.cell_seconds(part)
    planned = made.model_copy(
        update={
            "seconds": seconds,
            "basis": basis,
            "why": WORDS[why] or f"last run {mine[0].started[:10]}",
            "memory": at_once * memory_of(part.compiled.base.guest),
            "space": int(at_once * space),
        }
    )
    last = mine[0].started if mine else ""
    return planned, Piece(id=part.id, seconds=seconds, reason=why, last=last)


def _unfit(part: Part, facts: Known) -> str:
    try:
        if part.compiled:
            check_images(part.compiled, facts)
            check_suites(part.compiled)
    except InputError as error:
        return str(error)
    return ""


def _estimate(part: Part, host: Host, past: Sequence[Past], at_once: int) -> tuple[float, str]:
    for one in past:
        if one.accelerator == host.kind and one.seconds > 0:
            return one.seconds, f"a run: {one.run}"
    if part.seconds is not None:
        return part.seconds, "the file"
    return _by_theory(part, host, host.kind, at_once), "theory"


def _weight(part: Part, host: Host) -> float:
    """What a part takes by the files alone, the same on every host."""
    if part.seconds is not None:
        return part.seconds
    return _by_theory(part, host, "tcg", min(SHARED, max(len(part.cells), 1)))


def _by_theory(part: Part, host: Host, kind: str, at_once: int) -> float:
    total, longest, _ = host.cell_seconds(part)
    around = CELL_SECONDS[kind]
    return GUEST_SECONDS[kind] + max((total + around * len(part.cells)) / at_once, longest + around)


def _workloads(cell: Cell) -> float:
    known = durations(cell)
    return cell.trials * sum(known.get(w.name, UNKNOWN_SECONDS) for w in cell.workloads)


def _need(cell: Cell) -> schedule.Need:
    return schedule.need_of(cell, memory_of(cell.guest), written(cell) * cell.trials)


def _at_once(part: Part, host: Host) -> int:
    """Guests that run side by side, if all cells are as the first."""
    need = _need(part.cells[0])
    beside: list[schedule.Need] = []
    left = host.room.memory
    while len(beside) < min(host.limit, len(part.cells)):
        room = Room(memory=left, space=host.room.space, rate=host.room.rate, cores=host.room.cores)
        if not schedule.fits(need, beside, room):
            break
        beside.append(need)
        left -= need.memory
    return max(1, len(beside))


def _reason(part: Part, past: Sequence[Past]) -> Reason:
    if not past:
        return Reason.NEVER
    image = systems.find(part.compiled.base.guest) if part.compiled else None
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


def pasts(runs: Sequence[RunStore], scenarios: set[str]) -> dict[frozenset[str], list[Past]]:
    """Runs that came to their end, by the cells that they are of, the newest first."""
    found: dict[frozenset[str], list[Past]] = {}
    for run in [r for r in runs if r.scenario_name in scenarios][:LATEST]:
        with suppress(InputError):
            if known := _past(run):
                found.setdefault(known[0], []).append(known[1])
    return found


@understood
def _past(run: RunStore) -> tuple[frozenset[str], Past] | None:
    stored, result = run.load_run(), run.load_result()
    if stored.finished is None or result is None:
        return None
    image = stored.environment.get("image") or {}
    past = Past(
        run=stored.id,
        started=stored.started,
        seconds=_took(stored.started, stored.finished, result),
        accelerator=str(stored.environment.get("accelerator")),
        image=(image.get("digest"), image.get("kernel"), image.get("mdadm")),
        verdicts={claim.id: claim.verdict for claim in result.claims},
        failed=any(cell.outcome is not Outcome.DONE for cell in result.cells),
    )
    return frozenset(cell.id for cell in stored.cells), past


def _took(started: str, finished: str, result: Result) -> float:
    """Seconds from beginning to end; what its cells took, of a run that stood still in between."""
    ended, began = (datetime.fromisoformat(text) for text in (finished, started))
    wall = (ended - began).total_seconds()
    busy = sum(cell.seconds.total for cell in result.cells)
    return wall if wall <= busy + PAUSE else busy
