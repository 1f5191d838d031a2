"""Running a scenario: from its cells to a run directory with a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab.app.dispatch import Dispatch, How, Say, Watch
from lab.app.environment import host_facts
from lab.app.fitting import check_arrays, check_images
from lab.app.guests import sweep
from lab.app.noise import noise_of
from lab.app.place import Place, prepare
from lab.app.real import check_real
from lab.app.results import result_of
from lab.compile.scenario import Compiled, cell_id, identity
from lab.host import (
    guests,
    images,
    warm,
)
from lab.model.result import Result
from lab.model.scenario import Cell
from lab.store import RunStore, StoredCell, StoredRun, now


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a run ended."""

    store: RunStore
    result: Result
    kept: str | None
    """Id of the guest that was left up."""


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
    check_images(compiled, {})
    sweep()
    warm.trim({r.warm for r in guests.every() if guests.is_alive(r)})
    cells = compiled.cells if how.workloads else ()
    if check_real(cells or (compiled.base,), how.erase):
        how = replace(how, jobs=1)  # a real disk is in one guest at a time
    place = prepare(compiled.base.guest, progress)
    places = {compiled.base.guest.system: place}
    for cell in cells:
        if cell.guest.system not in places:
            places[cell.guest.system] = prepare(cell.guest, progress)
    check_arrays(compiled, cells or (compiled.base,), {})  # of images that had to be built
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
    execution = Dispatch(
        store=store, compiled=compiled, places=places, watch=watch, say=say, how=how
    )
    kept = execution.run(left)
    store.save_run(store.load_run().model_copy(update={"finished": now()}))
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
    environment = host_facts(place.accelerator, place.image)
    return StoredRun(
        id=store.id,
        scenario=compiled.name,
        title=scenario.title,
        question=scenario.question,
        source=scenario.source,
        notes=scenario.notes,
        overrides=tuple(texts),
        started=now(),
        environment=environment,
        noise=noise_of(environment),
        cells=tuple(
            StoredCell(id=cell_id(c), cell=c, published=identity(c) in compiled.published)
            for c in cells
        ),
        claims=scenario.claims,
    )
