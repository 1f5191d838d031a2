"""Running scenarios: cells to guests, guests to workers, what they tell to the run directory."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from lab import catalog
from lab.app.environment import host_facts
from lab.app.results import result_of
from lab.compile.cloud_init import Identity
from lab.compile.procedure import Site, cell_procedure, guest_procedure
from lab.compile.scenario import Compiled, cell_id, identity
from lab.disks import guest_path
from lab.errors import EXIT_TROUBLE, HostError, InputError, LabError, TroubleError
from lab.host import accelerator, guests, hypervisor, image_recipes, images, keys, paths
from lab.host.accelerator import Accelerator
from lab.host.process import Child, uninterrupted
from lab.model.events import (
    CellFinished,
    CellStarted,
    Checked,
    Event,
    GuestGone,
    GuestKept,
    Trouble,
)
from lab.model.image import Image
from lab.model.job import CellJob, GuestJob
from lab.model.measurement import Check
from lab.model.result import Outcome, Result
from lab.model.scenario import Cell, Guest
from lab.predict import predictions
from lab.store import RunStore, StoredCell, StoredOutcome, StoredRun, now

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
STOP_SECONDS = 60.0
"""How long a worker may take to clean up before it is killed."""

Watch = Callable[[Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What every guest of a run needs, found once."""

    accelerator: Accelerator
    image: Image
    emulator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a run ended."""

    store: RunStore
    result: Result
    kept: str | None
    """Id of the guest that was left up."""


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """A cell under way in a worker."""

    id: str
    directory: Path
    started: bool = False
    checks: list[Check] = field(default_factory=list)


def check_images(compiled: Compiled) -> None:
    """Every image that a cell names is here, or can be built; ``InputError`` names the key."""
    known = catalog.image_recipes()
    for cell in (compiled.base, *compiled.cells):
        name = cell.guest.image
        if name not in known and images.find(name) is None:
            axis = ("matrix", "guest.image")
            path = axis if "guest.image" in cell.axes else ("guest", "image")
            raise compiled.document.wrong(
                path,
                f"there is no image '{name}': known are {', '.join(known)};"
                " `lab image import` brings another",
            )


def prepare(image_name: str, progress: images.Progress) -> Place:
    """Image, QEMU and accelerator; builds the image where it is missing."""
    emulator = accelerator.emulator()
    hypervisor.require()  # before a minute is spent on an image
    image = images.find(image_name)
    if image is None:
        name, recipe = image_recipes.load(image_name)
        image = images.build(recipe, name=name, progress=progress)
    images.verify(image)
    found = accelerator.find(image.kernel)
    return Place(accelerator=found, image=image, emulator=emulator)


def site_of(place: Place, directory: str, *, as_root: bool) -> Site:
    """Where a guest will run, for the compiler."""
    image = place.image
    return Site(
        directory=directory,
        accelerator=place.accelerator.kind,
        emulator=place.emulator,
        machine_type="pc",
        image_disk=str(image.disk),
        kernel=str(image.kernel) if image.kernel else None,
        initrd=str(image.initrd) if image.initrd else None,
        as_root=as_root,
    )


def run_scenario(
    compiled: Compiled,
    *,
    texts: Sequence[str],
    out: Path | None,
    keep: bool,
    workloads: bool,
    watch: Watch,
    progress: images.Progress,
    ready: Callable[[RunStore, Place], None],
) -> Done:
    """Run every cell; with ``keep``, leave the base cell's guest up.

    Without ``workloads`` only the base cell's array is made. ``texts`` are the ``--set`` as given.
    """
    check_images(compiled)
    guests.collect_garbage()
    cells = compiled.cells if workloads else ()
    place = prepare(compiled.base.guest.image, progress)
    places = {compiled.base.guest.image: place}
    for cell in cells:
        if cell.guest.image not in places:
            places[cell.guest.image] = prepare(cell.guest.image, progress)
    text = compiled.path.read_text(encoding="utf-8")
    store = RunStore.create(compiled.name, text, out)
    run = _stored_run(store, compiled, cells, texts, place)
    store.save_run(run)
    ready(store, place)
    execution = _Execution(store=store, compiled=compiled, places=places, watch=watch)
    kept: str | None = None
    for guest, members in by_guest(compiled, cells, keep=keep):
        stay = keep and guest == compiled.base.guest
        kept = execution.guest(guest, members, keep=stay) or kept
    run = run.model_copy(update={"finished": now()})
    store.save_run(run)
    result = result_of(store)
    store.save_result(result)
    return Done(store=store, result=result, kept=kept)


def _stored_run(
    store: RunStore,
    compiled: Compiled,
    cells: Sequence[Cell],
    texts: Sequence[str],
    place: Place,
) -> StoredRun:
    scenario = compiled.scenario
    return StoredRun(
        id=store.id,
        scenario=compiled.name,
        title=scenario.title,
        question=scenario.question,
        source=scenario.source,
        notes=scenario.notes,
        overrides=tuple(texts),
        started=now(),
        environment=host_facts(place.accelerator, place.image),
        cells=tuple(
            StoredCell(id=cell_id(c), cell=c, published=identity(c) in compiled.published)
            for c in cells
        ),
        claims=scenario.claims,
    )


def by_guest(
    compiled: Compiled, cells: Sequence[Cell], *, keep: bool
) -> list[tuple[Guest, list[Cell]]]:
    """Cells that can share a guest; with ``keep`` the base cell comes last of all."""
    groups: dict[Guest, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.guest, []).append(cell)
    if keep:
        base = compiled.base
        mine = groups.pop(base.guest, [])
        same = [c for c in mine if identity(c) == identity(base)]
        others = [c for c in mine if identity(c) != identity(base)]
        last = same or [base.model_copy(update={"workloads": ()})]
        groups[base.guest] = others + last
    return list(groups.items())


@dataclass(slots=True, kw_only=True)
class _Execution:
    """One run under way."""

    store: RunStore
    compiled: Compiled
    places: dict[str, Place]
    watch: Watch

    def guest(self, guest: Guest, cells: list[Cell], *, keep: bool) -> str | None:
        """Run cells in one guest; after a failed one, the rest in a fresh guest."""
        rest = cells
        while rest:
            done, kept, trouble = self._worker(guest, rest, keep=keep)
            if done == 0:
                # Not even the first cell came to an end: another guest would fare no better.
                raise trouble or TroubleError("the worker ended without a word")
            rest = rest[done:]
            if not rest:
                if trouble is not None:
                    raise trouble
                return kept
        return None

    def _worker(
        self, guest: Guest, cells: list[Cell], *, keep: bool
    ) -> tuple[int, str | None, LabError | None]:
        """Start a worker and listen to it: cells that came to an end, the guest kept, trouble."""
        job, attempts = self._job(guest, cells, keep=keep)
        child = Child(
            [sys.executable, "-m", "lab.worker"],
            first_line=job.model_dump_json(),
            log=self.store.directory / f"worker-{job.guest}.log",
            env={"LIBVIRT_LOG_OUTPUTS": "3:stderr"},  # libvirt reads it as it is loaded
        )
        listener = _Listener(store=self.store, attempts=attempts, watch=self.watch)
        try:
            for line in child.lines():
                listener.hear(_EVENT.validate_json(line))
        finally:
            # However the listening ended, the worker gets to clean up, and what it leaves goes.
            with uninterrupted():
                child.hang_up()
                status = child.end(STOP_SECONDS)
                directory = paths.guests() / job.guest
                if not listener.kept and directory.exists():
                    guests.remove(directory)
                for attempt in attempts.values():
                    if not attempt.started:
                        shutil.rmtree(attempt.directory, ignore_errors=True)
        if listener.trouble is None and status not in (0, EXIT_TROUBLE):
            log = self.store.directory / f"worker-{job.guest}.log"
            tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            listener.trouble = TroubleError(
                f"the worker of guest '{job.guest}' ended with status {status}",
                hint=f"its last words in '{log}': {tail[0] if tail else 'none'}",
            )
        return listener.done, job.guest if listener.kept else None, listener.trouble

    def _job(
        self, guest: Guest, cells: list[Cell], *, keep: bool
    ) -> tuple[GuestJob, dict[str, _Attempt]]:
        place = self.places[guest.image]
        name = guests.new_id()
        directory = str(paths.guests() / name)
        host_key = keys.make()
        own = keys.lab_key()
        site = site_of(place, directory, as_root=accelerator.is_root())
        known = Identity(
            guest=name,
            host_name="lab",
            host_key_private=host_key.private,
            host_key_public=host_key.public,
            authorized_key=own.public,
        )
        jobs, attempts = [], {}
        for cell in cells:
            seconds = {p.workload: p.value for p in predictions(cell) if p.metric == "seconds"}
            procedure = cell_procedure(cell, directory, seconds)
            this = cell_id(cell)
            if cell.workloads:
                where = self.store.begin_cell(this, cell, procedure)
                attempts[this] = _Attempt(id=this, directory=where)
            else:
                where = self.store.directory / f"array-{name}"
                where.mkdir()
            jobs.append(
                CellJob(id=this, procedure=procedure, directory=str(where), target=target_of(cell))
            )
        job = GuestJob(
            guest=name,
            scenario=self.compiled.name,
            image=f"{place.image.name}-{place.image.digest[:12]}",
            host_key=host_key.public,
            private_key=str(keys.lab_key_path()),
            procedure=guest_procedure(guest, site, known),
            cells=tuple(jobs),
            keep=keep,
        )
        return job, attempts


def target_of(cell: Cell) -> str:
    """Path in the guest of what the workloads are aimed at."""
    if cell.array is not None:
        return catalog.array_kind(cell.array.kind).target(cell.array)
    return guest_path(cell.each_disk[0][1], cell.each_disk[0][0]) if cell.each_disk else ""


@dataclass(slots=True, kw_only=True)
class _Listener:
    """Turns what a worker tells into files and progress."""

    store: RunStore
    attempts: dict[str, _Attempt]
    watch: Watch
    done: int = 0
    kept: bool = False
    trouble: LabError | None = None

    def hear(self, event: Event) -> None:
        """One event: kept with its cell, then shown."""
        cell = getattr(event, "cell", None)
        attempt = self.attempts.get(cell) if cell else None
        if attempt is not None:
            with (attempt.directory / "events.jsonl").open("ab") as file:
                file.write(_EVENT.dump_json(event) + b"\n")
        match event:
            case Checked() if attempt is not None:
                attempt.checks.append(event.check)
            case CellStarted() if attempt is not None:
                attempt.started = True
            case CellFinished():
                self.done += 1
                if attempt is not None:
                    outcome = StoredOutcome(
                        outcome=event.outcome,
                        reason=event.reason,
                        seconds=event.seconds,
                        checks=tuple(attempt.checks),
                    )
                    self.store.finish_cell(attempt.id, attempt.directory, outcome)
                elif event.outcome is not Outcome.DONE:
                    self.trouble = TroubleError(event.reason)
            case Trouble():
                kind = HostError if event.exit_status == EXIT_TROUBLE else InputError
                self.trouble = kind(event.message, hint=event.hint)
            case GuestKept():
                self.kept = True
            case GuestGone() if event.left:
                self.trouble = self.trouble or HostError(
                    f"the guest '{event.guest}' could not be taken down whole: {event.left}",
                    hint="`lab gc` tries again",
                )
            case _:
                pass
        self.watch(event)
