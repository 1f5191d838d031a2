"""Running scenarios: cells to guests, guests to workers, what they tell to the run directory."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from lab import catalog, measure
from lab.app.crew import Crew, Heard, Member
from lab.app.environment import host_facts
from lab.app.results import result_of
from lab.compile import schedule
from lab.compile.cloud_init import Identity
from lab.compile.domain_xml import domain_xml
from lab.compile.procedure import (
    Saved,
    Site,
    bake_procedure,
    cell_procedure,
    guest_procedure,
    machine_of,
    memory_of,
    restore_procedure,
)
from lab.compile.scenario import Compiled, cell_id, identity
from lab.disks import guest_path
from lab.errors import TroubleError
from lab.host import (
    accelerator,
    guests,
    hypervisor,
    image_recipes,
    images,
    keys,
    load,
    paths,
    warm,
)
from lab.host.accelerator import Accelerator
from lab.host.process import uninterrupted
from lab.host.warm import WarmState
from lab.model.events import CellFinished, CellStarted, Checked, Event, GuestStarted
from lab.model.image import Image
from lab.model.job import CellJob, End, GuestJob, Keep
from lab.model.measurement import Check
from lab.model.result import Outcome, Result
from lab.model.scenario import Cell, Guest
from lab.predict import predictions, streams
from lab.store import RunStore, StoredCell, StoredOutcome, StoredRun, now

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
GUESTS_PER_CPU = {"tcg": 3, "kvm": 4}
"""With ``--jobs auto``. A throttled guest waits more than it computes: about a tenth of a core."""

Watch = Callable[[Event], None]
Say = Callable[[str], None]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a run is to be done."""

    keep: bool = False
    """Leave the base cell's guest up."""
    workloads: bool = True
    """``False``: only make the base cell's array."""
    jobs: int | None = None
    """Guests at once; ``None``: as many as the host has room for."""
    cold: bool = False
    """Boot every guest, and neither use nor make a warm state."""


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
    how: How,
    resume: RunStore | None,
    watch: Watch,
    say: Say,
    progress: images.Progress,
    ready: Callable[[RunStore, Place], None],
) -> Done:
    """Run every cell that is not finished yet.

    ``texts`` are the ``--set`` as given. With ``resume`` the run goes on in its own directory, and
    the cells that are finished there are left alone.
    """
    check_images(compiled)
    guests.collect_garbage()
    warm.collect_garbage()
    cells = compiled.cells if how.workloads else ()
    place = prepare(compiled.base.guest.image, progress)
    places = {compiled.base.guest.image: place}
    for cell in cells:
        if cell.guest.image not in places:
            places[cell.guest.image] = prepare(cell.guest.image, progress)
    if resume is None:
        text = compiled.path.read_text(encoding="utf-8")
        store = RunStore.create(compiled.name, text, out)
        run = _stored_run(store, compiled, cells, texts, place)
    else:
        store = resume
        run = store.load_run()
    store.save_run(run)
    ready(store, place)
    left = [c for c in cells if not store.has_cell(cell_id(c))]
    execution = _Execution(
        store=store, compiled=compiled, places=places, watch=watch, say=say, how=how
    )
    kept = execution.run(left)
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


def by_guest(cells: Sequence[Cell]) -> dict[Guest, list[Cell]]:
    """Cells by the kind of guest that they need."""
    groups: dict[Guest, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.guest, []).append(cell)
    return groups


@dataclass(slots=True, kw_only=True)
class _Task:
    """A cell that waits for its turn, or has it."""

    cell: Cell
    id: str
    seconds: float
    """What its workloads should take."""
    need: schedule.Need
    alone: bool = False
    """It was contended, and is repeated with nothing beside it."""
    retry: bool = False
    """Its guest died once already."""
    directory: Path = Path()
    started: bool = False
    checks: list[Check] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Execution:
    """One run under way."""

    store: RunStore
    compiled: Compiled
    places: dict[str, Place]
    watch: Watch
    say: Say
    how: How
    _crew: Crew = field(init=False)
    _pending: list[_Task] = field(default_factory=list)
    _running: dict[str, _Task] = field(default_factory=dict)
    """By the id of the guest that has it."""
    _cold: set[Guest] = field(default_factory=set)
    """Kinds of guest whose state did not restore."""
    _base: str = ""

    def run(self, cells: Sequence[Cell]) -> str | None:
        """Every cell; the id of the guest that was left up."""
        self._crew = Crew(directory=self.store.directory)
        base = self.compiled.base
        self._base = next((cell_id(c) for c in cells if identity(c) == identity(base)), "")
        self._pending = sorted((self._task(c) for c in cells), key=lambda t: -t.seconds)
        kinds = set(by_guest(cells)) | ({base.guest} if self.how.keep else set())
        try:
            if not self.how.cold:
                for kind in kinds:
                    self._bake(kind)
            self._work()
            return self._keep() if self.how.keep else None
        finally:
            # However it ended, every worker gets to clean up, and what one leaves goes.
            with uninterrupted():
                self._crew.stop()
                for task in self._running.values():
                    if not task.started:
                        shutil.rmtree(task.directory, ignore_errors=True)

    # -- the cells

    def _task(self, cell: Cell) -> _Task:
        known = {p.workload: p.value for p in predictions(cell) if p.metric == "seconds"}
        flows = streams(cell)
        seconds = sum(known.get(w.name, schedule.UNKNOWN_SECONDS) for w in cell.workloads)
        written = [s.total for s in flows.values() if s.direction.value == "write"]
        whole = sum(written) * cell.trials if len(flows) == len(cell.workloads) else 0
        return _Task(
            cell=cell,
            id=cell_id(cell),
            seconds=seconds * cell.trials,
            need=schedule.need_of(cell, memory_of(cell.guest), whole),
        )

    def _work(self) -> None:
        """Give cells to guests until none is left."""
        self._fill()
        while self._pending or self._running:
            if not self._crew.members:
                raise TroubleError("there are cells left, and no guest that could run them")
            self._hear(*self._crew.heard.get())
            self._fill()

    def _jobs(self) -> int:
        if self.how.jobs is not None:
            return self.how.jobs
        place = next(iter(self.places.values()))
        return GUESTS_PER_CPU[place.accelerator.kind] * accelerator.cpus()

    def _fill(self) -> None:
        """Start what fits: in guests that stand idle, or in new ones; end what nobody needs."""
        while (task := self._next()) is not None:
            idle = [m for m in self._crew.members if not m.busy and m.kind == task.cell.guest]
            free = [m for m in idle if not m.reserved or task.alone]
            if free:
                self._pending.remove(task)
                self._give(free[0], task)
                continue
            coming = [m for m in self._crew.members if not m.up and m.kind == task.cell.guest]
            wanted = [t for t in self._pending if t.cell.guest == task.cell.guest]
            room = len(self._crew.members) < self._jobs() and self._memory_for(task.cell.guest)
            if len(coming) < len(wanted) and (room or not self._crew.members):
                self._start(task.cell.guest)
                continue
            break
        kinds = {t.cell.guest for t in self._pending}
        for member in self._crew.members:
            if not member.busy and not member.reserved and member.kind not in kinds:
                spare = self.how.keep and member.kind == self.compiled.base.guest
                if not (
                    spare and not self._running and not any(m.reserved for m in self._crew.members)
                ):
                    member.order(End())

    def _next(self) -> _Task | None:
        """The longest cell that fits beside those that run."""
        running = list(self._running.values())
        if any(t.alone for t in running):
            return None
        room = schedule.Room(
            memory=load.available_memory(), space=load.free_space(), rate=load.throughput()
        )
        for task in self._pending:
            if task.alone and running:
                continue
            if schedule.fits(task.need, [t.need for t in running], room):
                return task
        return None

    def _memory_for(self, kind: Guest) -> bool:
        coming = sum(memory_of(m.kind) for m in self._crew.members if not m.up)
        return load.available_memory() - coming > memory_of(kind) + schedule.RESERVE

    def _give(self, member: Member, task: _Task) -> None:
        directory = str(paths.guests() / member.job.guest)
        seconds = {p.workload: p.value for p in predictions(task.cell) if p.metric == "seconds"}
        procedure = cell_procedure(task.cell, directory, seconds)
        task.directory = self.store.begin_cell(task.id, task.cell, procedure)
        task.started, task.checks = False, []
        self._running[member.job.guest] = task
        member.order(
            CellJob(
                id=task.id,
                procedure=procedure,
                directory=str(task.directory),
                target=target_of(task.cell),
            )
        )

    # -- what workers tell

    def _hear(self, member: Member, event: Event | None) -> None:
        task = self._running.get(member.job.guest)
        if task is not None and event is not None and getattr(event, "cell", None) == task.id:
            with (task.directory / "events.jsonl").open("ab") as file:
                file.write(_EVENT.dump_json(event) + b"\n")
        self._crew.note(member, event)
        match event:
            case None:
                self._ended(member, task)
            case GuestStarted():
                member.up, member.busy = True, False
            case CellStarted() if task is not None:
                task.started = True
            case Checked() if task is not None:
                task.checks.append(event.check)
            case CellFinished() if task is not None:
                member.busy = event.outcome is not Outcome.DONE  # its guest is not used again
                del self._running[member.job.guest]
                self._finished(member, task, event)
            case _:
                pass
        if event is not None:
            self.watch(event)

    def _finished(self, member: Member, task: _Task, event: CellFinished) -> None:
        """A cell came to its end: it is kept, or it gets another turn and this one is evidence."""
        checks = list(task.checks)
        again = False
        if event.outcome is Outcome.DONE:
            contention = measure.contention(task.cell, self.store.raw(task.directory))
            checks += contention
            if any(not c.passed for c in contention) and not task.alone:
                self.say(f"{task.id} is repeated alone: {contention[0].detail}")
                task.alone = again = True
        elif event.outcome is Outcome.LOST and not task.retry:
            first = event.reason.splitlines()[0]
            self.say(f"{task.id} is tried once more in a fresh guest: {first}")
            task.retry = again = True
        outcome = StoredOutcome(
            outcome=event.outcome,
            reason=event.reason,
            seconds=event.seconds,
            checks=tuple(checks),
        )
        if again:
            self.store.keep_attempt(task.directory, outcome)
            self._pending.append(task)
            return
        self.store.finish_cell(task.id, task.directory, outcome)
        if self.how.keep and task.id == self._base and event.outcome is Outcome.DONE:
            member.reserved = True

    def _ended(self, member: Member, task: _Task | None) -> None:
        """A worker is gone: as it should be, or before its time."""
        if task is not None:
            # It died in the middle of a cell, and could not even say so.
            del self._running[member.job.guest]
            reason = str(member.trouble or "the worker of its guest ended in the middle")
            lost = CellFinished(cell=task.id, outcome=Outcome.LOST, reason=reason)
            self._finished(member, task, lost)
            self.watch(lost)
            return
        if member.trouble is None:
            return
        if member.up:
            raise member.trouble
        state = warm.find(member.job.warm) if member.job.warm else None
        if state is None:
            raise member.trouble
        warm.discard(state)
        self._cold.add(member.kind)
        self.say(
            "a saved guest did not restore and is thrown away; booting cold"
            f" ({member.trouble.message})"
        )

    # -- the guests

    def _start(self, kind: Guest) -> None:
        state = None if self.how.cold or kind in self._cold else warm.find(self._key(kind))
        self._crew.start(self._job(kind, state), kind)

    def _key(self, kind: Guest) -> str:
        """Everything that a restored guest must share with the one that was saved."""
        place = self.places[kind.image]
        site = site_of(place, "/guest", as_root=accelerator.is_root())
        return warm.key_of(
            {
                "domain": domain_xml(machine_of(kind, site)),
                "image": place.image.digest,
                "qemu": accelerator.qemu_identity(),
                "libvirt": hypervisor.version(),
                "key": keys.lab_key().public,
            }
        )

    def _job(self, kind: Guest, state: WarmState | None, bake: str = "") -> GuestJob:
        place = self.places[kind.image]
        name = guests.new_id()
        site = site_of(place, str(paths.guests() / name), as_root=accelerator.is_root())
        image = f"{place.image.name}-{place.image.digest[:12]}"
        scale = accelerator.slowness(place.accelerator.kind)
        if state is not None:
            saved = Saved(
                key=state.key,
                memory=str(state.memory),
                root=str(state.root),
                seed=str(state.seed),
                saved_directory=state.saved_directory,
            )
            return GuestJob(
                guest=name,
                scenario=self.compiled.name,
                image=image,
                warm=state.key,
                host_key=state.host_key,
                private_key=str(keys.lab_key_path()),
                procedure=restore_procedure(name, site, saved, scale),
                captures=state.captures,
                scale=scale,
            )
        host_key = keys.make()
        known = Identity(
            guest=name,
            host_name="lab",
            host_key_private=host_key.private,
            host_key_public=host_key.public,
            authorized_key=keys.lab_key().public,
        )
        # Boots compute: as many at once as there are guests take that much longer.
        slow = scale if bake else scale * max(1.0, self._jobs() / accelerator.cpus())
        return GuestJob(
            guest=name,
            scenario=self.compiled.name,
            image=image,
            host_key=host_key.public,
            private_key=str(keys.lab_key_path()),
            procedure=bake_procedure(kind, site, known, bake, slow)
            if bake
            else guest_procedure(kind, site, known, slow),
            scale=scale,
        )

    def _bake(self, kind: Guest) -> None:
        """Boot a guest of this kind and save it, if no state is there; without one, boot cold."""
        key = self._key(kind)
        if warm.find(key) is not None:
            return
        with warm.baking(key):
            if warm.find(key) is not None:
                return
            self.say("booting a guest once, and saving it for all others of its kind")
            member = self._crew.start(self._job(kind, None, bake=key), kind)
            while member in self._crew.members:
                _, event = self._heard()
                if isinstance(event, GuestStarted):
                    member.order(End())
            state = warm.find(key)
        if state is None:
            self._cold.add(kind)
            why = member.trouble.message if member.trouble else "no reason was given"
            self.say(f"the guest could not be saved, so each boots cold: {why}")
        else:
            place = self.places[kind.image]
            accelerator.remember_boot(place.accelerator.kind, state.boot_seconds)

    def _heard(self) -> Heard:
        member, event = self._crew.heard.get()
        self._crew.note(member, event)
        if event is not None:
            self.watch(event)
        return member, event

    def _keep(self) -> str:
        """Leave one guest up with the base cell's array; its id."""
        base = self.compiled.base
        reserved = [m for m in self._crew.members if m.reserved]
        if reserved:
            member = reserved[0]
        else:
            idle = [m for m in self._crew.members if not m.busy and m.kind == base.guest]
            if not idle:
                self._start(base.guest)
            member = idle[0] if idle else self._crew.members[-1]
            self._wait_up(member)
            self._array_only(member, base.model_copy(update={"workloads": ()}))
        member.order(Keep())
        while member in self._crew.members:
            self._heard()
        if not member.kept:
            raise member.trouble or TroubleError("the guest could not be left up")
        return member.job.guest

    def _wait_up(self, member: Member) -> None:
        while not member.up:
            heard, event = self._heard()
            if heard is member and event is None:
                raise member.trouble or TroubleError("the worker ended without a word")
            if heard is member and isinstance(event, GuestStarted):
                member.up, member.busy = True, False

    def _array_only(self, member: Member, cell: Cell) -> None:
        """Make an array in a guest and run nothing on it."""
        place = self.store.directory / f"array-{member.job.guest}"
        place.mkdir()
        procedure = cell_procedure(cell, str(paths.guests() / member.job.guest))
        order = CellJob(
            id="array", procedure=procedure, directory=str(place), target=target_of(cell)
        )
        member.order(order)
        while True:
            heard, event = self._heard()
            if heard is not member:
                continue
            if event is None:
                raise member.trouble or TroubleError("the worker ended without a word")
            if isinstance(event, CellFinished):
                if event.outcome is not Outcome.DONE:
                    raise TroubleError(event.reason)
                return


def target_of(cell: Cell) -> str:
    """Path in the guest of what the workloads are aimed at."""
    if cell.array is not None:
        return catalog.array_kind(cell.array.kind).target(cell.array)
    return guest_path(cell.each_disk[0][1], cell.each_disk[0][0]) if cell.each_disk else ""
