"""Runs all cells of a scenario, and stores the result in a run directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from lab.compile.scenario.compiler import Compiled
from lab.compile.scenario.identity import cell_id, identity
from lab.core.errors import InputError
from lab.host import images
from lab.host.guest import registry as guests
from lab.host.guest import snapshots
from lab.model.image.manifest import Image
from lab.model.result.document import Result
from lab.model.scenario.document import AutoTrials, Cell
from lab.model.scenario.guest import Guest, System
from lab.results import judged
from lab.results.documents import result_of
from lab.results.noise_floors import noise_of
from lab.run.environment import host_facts, image_facts, source_facts
from lab.run.guests import sweep
from lab.run.more_trials import Run, until_decided
from lab.run.options import RunOptions
from lab.run.preparation import engines
from lab.run.preparation.fitting import check_arrays, check_images
from lab.run.preparation.platforms import Platform, prepare
from lab.run.preparation.real import check_real
from lab.run.preparation.suites import check_suites
from lab.run.reuse import inputs_of, take
from lab.run.scheduling import admission
from lab.run.scheduling.executor import Execution
from lab.run.worker_pool import Say, Watch
from lab.store.runs import RunStore, StoredCell, StoredRun, now


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of `run_scenario`."""

    store: RunStore
    result: Result
    kept: str | None
    """Id of the guest that was left running; ``None``: none was."""


class Executor(Protocol):
    """Runs the cells of a run on this host or on a cluster."""

    @property
    def say(self) -> Say:
        """Show a message to the user."""

    @property
    def at_once(self) -> int:
        """Most guests in virtual time that run at once."""

    def place(self, guest: Guest, progress: images.Progress) -> Platform:
        """Return image and accelerator of a guest configuration."""

    def check_disks(self, cells: Sequence[Cell], erase: Sequence[str]) -> bool:
        """Return whether cells have real disks; ``InputError``: the guard refuses one of them."""

    def environment(self, place: Platform) -> dict[str, Any]:
        """Return facts about the hosts of the run, for its result."""

    def take(
        self,
        store: RunStore,
        platforms: Mapping[System, Platform],
        cells: Sequence[Cell],
    ) -> set[str]:
        """Take the results of cells that ran before with the same inputs; return their ids."""

    def run(
        self,
        store: RunStore,
        compiled: Compiled,
        platforms: Mapping[System, Platform],
        cells: Sequence[Cell],
        *,
        real: bool,
    ) -> str | None:
        """Run and store every cell; return the id of the guest that was left running.

        ``real``: cells have real disks. Each real disk is in one guest at a time.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """The executor of one run of several, and the receivers of its progress."""

    hands: Executor
    progress: images.Progress
    ready: Callable[[RunStore, Platform], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalExecutor:
    """Runs cells on this host."""

    options: RunOptions
    watch: Watch
    say: Say

    @property
    def at_once(self) -> int:
        """Most guests in virtual time that run at once."""
        return admission.virtual_limit(self.options.jobs)

    def place(self, guest: Guest, progress: images.Progress) -> Platform:
        """Return image, QEMU and accelerator; build a missing image."""
        return self.placed(guest, progress, None)

    def placed(self, guest: Guest, progress: images.Progress, image: Image | None) -> Platform:
        """As `place`, with a given image; ``None``: the current one."""
        expired = self.options.accept_expired
        return prepare(guest, progress, accept_expired=expired, image=image)

    def check_disks(self, cells: Sequence[Cell], erase: Sequence[str]) -> bool:
        """Return whether cells have real disks; ``InputError``: the guard refuses one of them."""
        return check_real(cells, erase)

    def environment(self, place: Platform) -> dict[str, Any]:
        """Return facts about this host."""
        facts = host_facts(place.accelerator) | {"image": image_facts(place.image)}
        facts |= source_facts()
        return facts | ({"sealed": place.sealed.digests} if place.sealed else {})

    def take(
        self,
        store: RunStore,
        platforms: Mapping[System, Platform],
        cells: Sequence[Cell],
    ) -> set[str]:
        """Take the results of sealed cells that ran on this host."""
        if self.options.fresh:
            return set()
        return take(store, cells, inputs_of(cells, platforms, self.options), self.say)

    def run(
        self,
        store: RunStore,
        compiled: Compiled,
        platforms: Mapping[System, Platform],
        cells: Sequence[Cell],
        *,
        real: bool,
    ) -> str | None:
        """Run every cell in guests of this host."""
        execution = Execution(
            store=store,
            compiled=compiled,
            platforms=dict(platforms),
            watch=self.watch,
            say=self.say,
            options=replace(self.options, jobs=1) if real else self.options,
        )
        return execution.run(cells)


def run_scenario(
    compiled: Compiled,
    *,
    texts: Sequence[str],
    out: Path | None,
    options: RunOptions,
    executor: Executor,
    resume: RunStore | None,
    progress: images.Progress,
    ready: Callable[[RunStore, Platform], None],
    then: Callable[[RunStore, Run], None] | None = None,
) -> Done:
    """Run every cell that is not finished yet.

    ``texts``: the values of ``--set`` as given. ``resume``: continue in that run's directory with
    the unfinished cells; ``InputError``: another process uses it. ``ready`` is called when the
    run's cells are stored: at its start, and for each further round of trials. ``then`` gets a
    function that runs further cells, which it has added to the run.
    """
    with ExitStack() as held:
        if resume is not None:
            held.enter_context(resume.hold())
        done = _run_scenario(
            compiled,
            texts=texts,
            out=out,
            options=options,
            executor=executor,
            resume=resume,
            held=held,
            progress=progress,
            ready=ready,
            then=then,
        )
    judged.keep(done.store, done.result)
    return done


def _run_scenario(
    compiled: Compiled,
    *,
    texts: Sequence[str],
    out: Path | None,
    options: RunOptions,
    executor: Executor,
    resume: RunStore | None,
    held: ExitStack,
    progress: images.Progress,
    ready: Callable[[RunStore, Platform], None],
    then: Callable[[RunStore, Run], None] | None,
) -> Done:
    check_images(compiled, {})
    if options.workloads:
        check_suites(compiled)
    sweep()
    snapshots.trim({r.warm for r in guests.every() if guests.is_alive(r)})
    compiled, reasons = engines.by_scenario(compiled, options)
    cells = compiled.cells if options.workloads else ()
    if cells and resume is not None:  # seeds that `trials: auto` has added
        cells += tuple(s.cell for _, *seeds in resume.load_run().points for s in seeds)
    if isinstance(compiled.scenario.trials, AutoTrials) and options.keep and options.workloads:
        raise InputError(
            "a guest that stays up is not sealed, and trials: auto needs sealed guests",
            hint="`lab run scenario` runs them; --trials 1 keeps a guest",
        )
    real = executor.check_disks(cells or (compiled.base,), options.erase)
    place = executor.place(compiled.base.guest, progress)
    platforms = {compiled.base.guest.system: place}
    for cell in cells:
        if cell.guest.system not in platforms:
            platforms[cell.guest.system] = executor.place(cell.guest, progress)
    check_arrays(compiled, cells or (compiled.base,), {})  # images were built since
    images_of = {system: platform.image for system, platform in platforms.items()}
    compiled, further = engines.by_image(compiled, images_of)
    cells = (*compiled.cells, *cells[len(compiled.cells) :]) if cells else ()
    for reason in (reasons := (*reasons, *further)):
        executor.say(reason)
    if resume is None:
        environment = executor.environment(place) | ({"engine": reasons} if reasons else {})
        if cells and all(cell.guest.native for cell in cells):
            environment |= {"accelerator": "native", "accelerator_reason": engines.NATIVE}
        run = _stored_run(compiled, cells, texts, environment)
        store = RunStore.create(compiled.name, _text_of(compiled), out)
        held.enter_context(store.hold())
        store.save_run(run.model_copy(update={"id": store.id, "started": now()}))
    else:
        store = resume
    finished = store.finished_cells()
    left = [c for c in cells if cell_id(c) not in finished]
    if left and resume is not None:
        store.go_on()
    taken = executor.take(store, platforms, left) if left else set()
    left = [c for c in left if cell_id(c) not in taken]
    ready(store, place)
    kept = executor.run(store, compiled, platforms, left, real=real)

    def more(cells: Sequence[Cell]) -> None:
        taken = executor.take(store, platforms, cells)
        left = [c for c in cells if cell_id(c) not in taken]
        ready(store, place)
        executor.run(store, compiled, platforms, left, real=False)

    auto = compiled.scenario.trials
    if isinstance(auto, AutoTrials) and cells:
        until_decided(store, auto, executor.at_once, more, executor.say)
    if then is not None:
        then(store, more)
    store.save_run(store.load_run().model_copy(update={"finished": now()}))
    result = result_of(store)
    store.save_result(result)
    return Done(store=store, result=result, kept=kept)


def _stored_run(
    compiled: Compiled,
    cells: Sequence[Cell],
    texts: Sequence[str],
    environment: dict[str, Any],
) -> StoredRun:
    scenario = compiled.scenario
    return StoredRun(
        id="",
        scenario=compiled.name,
        title=scenario.title,
        question=scenario.question,
        source=scenario.source,
        notes=scenario.notes,
        overrides=tuple(texts),
        started="",
        environment=environment,
        noise=noise_of(environment),
        cells=tuple(
            StoredCell(id=cell_id(c), cell=c, published=identity(c) in compiled.published)
            for c in cells
        ),
        claims=scenario.claims,
    )


def _text_of(compiled: Compiled) -> str:
    """The scenario's file as it is; one that extends another as JSON, which is YAML, with both."""
    if not compiled.whole.files:
        return compiled.path.read_text(encoding="utf-8")
    return json.dumps(compiled.whole.data, indent=1, ensure_ascii=False) + "\n"
