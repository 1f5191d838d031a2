"""Runs a stored run's sealed cells again, and compares the results byte for byte."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from typing_extensions import override

from lab.analysis.reproduction import PROGRAMS, image_advice, other_inputs, other_programs
from lab.compile.scenario.compiler import Compiled, compile_document
from lab.compile.scenario.identity import cell_id
from lab.core.errors import InputError, TroubleError, unwritable
from lab.core.yaml import parse_override, read_file
from lab.host import images
from lab.host.images import virtual_time as sealed_kit
from lab.host.system import files, paths, unfinished, untrusted
from lab.model.image.manifest import Image
from lab.model.result.reproduction import CellState, ReproducedCell, Reproduction
from lab.model.scenario.document import AutoTrials
from lab.model.scenario.guest import Guest
from lab.results.agreement import difference_of, not_sealed
from lab.run.execute import Executor, LocalExecutor, run_scenario
from lab.run.options import RunOptions
from lab.run.preparation import systems
from lab.run.preparation.platforms import Platform
from lab.run.worker_pool import Say, Watch
from lab.store import reuse
from lab.store.runs import FinishedCell, RunStore, StoredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A stored run, or the run in a bundle."""

    id: str
    about: StoredRun
    scenario: str
    """Text of the scenario's file."""
    cells: dict[str, FinishedCell]
    """Finished cells by stored id."""
    run: RunStore
    is_here: bool
    """It is stored on this host. ``False``: it is in a bundle."""


def source_of(run: RunStore, *, is_here: bool = True) -> Source:
    """Return what is reproduced of a run."""
    about = run.load_run()
    found = {stored.id: run.load_cell(stored.id) for stored in about.cells}
    return Source(
        id=run.id,
        about=about,
        scenario=run.scenario_text(),
        cells={id_: cell for id_, cell in found.items() if cell is not None},
        run=run,
        is_here=is_here,
    )


def skipped(source: Source, only: str | None = None) -> dict[str, str]:
    """Return the cells that cannot be compared, with the reason for each."""
    found = {}
    for stored in source.about.cells:
        if only is not None and stored.id != only:
            found[stored.id] = "another cell was chosen"
        elif why := not_sealed(stored, source.cells.get(stored.id)):
            found[stored.id] = why
    return found


def booted(source: Source, wanted: set[str]) -> bool:
    """Return whether the guests of these cells booted (``--cold``) instead of being restored."""
    digests = [source.cells[cell].outcome.digest for cell in wanted]
    return not any(digest is not None and digest.snapshot for digest in digests)


def compiled_of(source: Source, path: Path, wanted: set[str]) -> Compiled:
    """Compile the run's scenario with only the wanted cells; ``path`` is its file.

    ``InputError``: this version of the lab makes other cells from it.
    """
    overrides = [parse_override(text) for text in source.about.overrides]
    whole = compile_document(path, read_file(path), overrides=overrides)
    seeds = {stored.cell.seed for stored in source.about.cells}
    if isinstance(whole.scenario.trials, AutoTrials) or seeds != {whole.scenario.seed}:
        whole = whole.with_seeds(seeds)  # `trials: auto`, or a hunt
    cells = tuple(cell for cell in whole.cells if cell_id(cell) in wanted)
    if missing := wanted - {cell_id(cell) for cell in cells}:
        there = source.about.environment.get("lab", "an unknown version")
        raise InputError(
            f"this lab makes other cells of the run's scenario: {', '.join(sorted(missing))} is"
            f" missing; lab {there} made the run",
            hint="use that version of the lab",
        )
    return replace(whole, cells=cells)


@contextmanager
def workplace(source: Source) -> Iterator[Path]:
    """Yield a directory for the new run, with the scenario's file; remove it at the end."""
    name = source.about.scenario
    if untrusted.wrong_name(name) or untrusted.wrong_name(f"{name}.yaml"):
        raise InputError(f"the run '{source.id}' has no name of a scenario: {name[:80]!r}")
    if not source.scenario:
        raise InputError(
            f"the run '{source.id}' has no scenario.yaml that can be read",
            hint="only a whole run can be reproduced",
        )
    place = unfinished.name(paths.runs() / "reproduce")
    try:
        files.make_directory(place)
        files.write(place / f"{name}.yaml", source.scenario, durable=False)
        yield place
    except OSError as error:
        raise unwritable(place, error) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedExecutor(LocalExecutor):
    """Runs cells on this host, with the image that the stored run used."""

    digest: str
    """Of the run's image."""
    contents: str
    """Digest of its bytes, as in the run's ``sealed`` facts; empty: unknown."""

    @override
    def place(self, guest: Guest, progress: images.Progress) -> Platform:
        """Return the stored run's image, if it exists here; otherwise the current one."""
        if guest.system[1:] != (None, None):
            return self.placed(guest, progress, None)
        pinned = self._pinned(guest, progress)
        if pinned is None:
            instead = "this host has another one" if systems.find(guest) else _BUILT
            self.say(
                f"the run's image '{guest.image}' is not on this host: {instead}, and the results"
                f" may differ. Better: {image_advice(guest.image)}"
            )
        return self.placed(guest, progress, pinned)

    def _pinned(self, guest: Guest, progress: images.Progress) -> Image | None:
        """Return the image with the run's bytes; ``None``: it is not here."""
        named = [image for image in images.list_images().images if image.name == guest.image]
        named.sort(key=lambda image: image.digest != self.digest)
        if not self.contents:
            return next((image for image in named if image.digest == self.digest), None)
        for image in named:
            if image.kernel is None:
                continue
            with suppress(TroubleError):  # it cannot be read
                files.make_directory(paths.sealed())
                if sealed_kit.base_digest(image, progress) == self.contents:
                    return image
        return None


_BUILT: Final = "another one is built, which takes minutes"


def executor_of(source: Source, options: RunOptions, watch: Watch, say: Say) -> PinnedExecutor:
    """Return the executor of a reproduction."""
    image = source.about.environment.get("image") or {}
    sealed = source.about.environment.get("sealed") or {}
    return PinnedExecutor(
        options=options,
        watch=watch,
        say=say,
        digest=str(image.get("digest", "")),
        contents=str(sealed.get("image", "")),
    )


def reproduce(
    source: Source,
    compiled: Compiled,
    place: Path,
    *,
    options: RunOptions,
    executor: Executor,
    progress: images.Progress,
    ready: Callable[[RunStore, Platform], None],
    left_out: Mapping[str, str],
) -> Reproduction:
    """Run the cells in ``place`` and compare them.

    If all are identical, later runs may take the stored run's results, and the new run is removed.
    Otherwise it is stored with the other runs.
    """
    done = run_scenario(
        compiled,
        texts=source.about.overrides,
        out=place,
        options=options,
        executor=executor,
        resume=None,
        progress=progress,
        ready=ready,
    )
    facts = done.store.load_run().environment
    inputs = list(other_inputs(source.about.environment, facts))
    cells = [
        ReproducedCell(id=stored.id, state=CellState.SKIPPED, reason=left_out[stored.id])
        if stored.id in left_out
        else _compared(source, done.store, stored.id, [one.what for one in inputs])
        for stored in source.about.cells
    ]
    if not inputs and (other := next((c for c in cells if c.state is _OTHER), None)):
        inputs = [other_programs(other.stored, other.here)]
    identical = all(cell.state in (CellState.IDENTICAL, CellState.SKIPPED) for cell in cells)
    kept = None
    if not identical:
        kept = _keep(done.store)
    elif source.is_here:
        for cell in cells:
            if cell.state is CellState.IDENTICAL:
                reuse.add(source.run, cell.id)
    return Reproduction(
        run=source.id,
        identical=identical,
        cells=tuple(cells),
        inputs=tuple(inputs),
        kept=kept.id if kept else None,
    )


_OTHER: Final = CellState.OTHER_INPUTS


def _compared(source: Source, store: RunStore, cell: str, others: Sequence[str]) -> ReproducedCell:
    """Compare a cell; ``others``: names of inputs of this host that differ from the run's."""
    stored, finished = source.cells[cell], store.load_cell(cell)
    assert finished is not None
    difference = difference_of(cell, source.run, stored, finished)
    was, now = stored.outcome.digest, finished.outcome.digest
    found = ReproducedCell(
        id=cell,
        state=CellState.DIFFERENT if difference else CellState.IDENTICAL,
        stored=was,
        here=now,
        difference=difference,
    )
    if not difference:
        return found
    # A cell that failed before its guest ended has no digest.
    other = was.inputs != now.inputs if was and now else bool({*others} - {"lab"})
    if not other:
        return found
    names = ", ".join(others) or PROGRAMS
    return found.model_copy(update={"state": _OTHER, "reason": names})


def _keep(store: RunStore) -> RunStore:
    """Move the run to the directory of all runs."""
    for number in range(1000):
        name = store.id + (f"-r{number}" if number else "")
        target = paths.runs() / name
        if not target.exists():
            about = store.load_run()
            store.save_run(about.model_copy(update={"id": name}))
            files.publish(store.directory, target)
            return RunStore(target)
    raise InputError(f"there are a thousand runs called '{store.id}'")
