"""Runs a stored run's sealed cells again, and compares the results byte for byte."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from lab.analysis.reproduction import first_difference
from lab.compile.scenario.document import Compiled, compile_document
from lab.compile.scenario.identity import cell_id
from lab.core.errors import InputError, unwritable
from lab.core.yaml import parse_override, read_file
from lab.host import images
from lab.host.system import files, paths, untrusted
from lab.model.execution.procedure import Procedure
from lab.model.result.document import CellClock, Outcome
from lab.model.result.reproduction import CellState, OtherInput, ReproducedCell, Reproduction
from lab.model.scenario.document import AutoTrials
from lab.model.scenario.guest import Clock, Guest
from lab.run.execute import Executor, LocalExecutor, run_scenario
from lab.run.options import RunOptions
from lab.run.preparation.platforms import Platform
from lab.run.worker_pool import Say, Watch
from lab.store import reuse
from lab.store.files import RunFiles
from lab.store.runs import RunStore, StoredOutcome, StoredRun

BUNDLE = ("run.json", "cell.json", "outcome.json")
"""Files at the top of a bundle (``lab results export --format bundle``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A stored cell."""

    outcome: StoredOutcome
    raw: Mapping[str, str]
    procedure: Procedure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A stored run, or a bundle of one of its cells."""

    id: str
    about: StoredRun
    scenario: str
    """Text of the scenario's file."""
    cells: dict[str, Stored]
    """Finished cells by stored id."""
    run: RunStore | None
    """``None``: the source is a bundle."""


def source_of(name: str, find: Callable[[str], RunStore]) -> Source:
    """Return a stored run by name or directory, or a bundle by directory."""
    directory = Path(name)
    if all((directory / file).is_file() for file in BUNDLE):
        return _bundle(directory)
    store = find(name)
    about = store.load_run()
    cells = {}
    for stored in about.cells:
        finished = store.load_cell(stored.id)
        if finished is not None:
            place = store.cell_directory(stored.id)
            cells[stored.id] = Stored(
                outcome=finished.outcome, raw=finished.raw, procedure=store.load_procedure(place)
            )
    return Source(id=store.id, about=about, scenario=store.scenario_text(), cells=cells, run=store)


def _bundle(directory: Path) -> Source:
    found = RunFiles(directory)
    about = found.require(StoredRun, "run.json", "bundle")
    if len(about.cells) != 1:
        raise InputError(f"'{directory / 'run.json'}' has {len(about.cells)} cells, expected one")
    stored = Stored(
        outcome=found.require(StoredOutcome, "outcome.json", "bundle"),
        raw=found.texts("raw"),
        procedure=found.document(Procedure, "procedure.json"),
    )
    return Source(
        id=about.id,
        about=about,
        scenario=found.text("scenario.yaml") or "",
        cells={about.cells[0].id: stored},
        run=None,
    )


def skipped(source: Source, only: str | None = None) -> dict[str, str]:
    """Return the cells that cannot be compared, with the reason for each."""
    found = {}
    for stored in source.about.cells:
        cell = source.cells.get(stored.id)
        if only is not None and stored.id != only:
            found[stored.id] = "another cell was chosen"
        elif cell is None:
            found[stored.id] = "it did not finish"
        elif stored.cell.guest.clock is Clock.REAL:
            found[stored.id] = "it ran in real time: its values depend on the host"
        elif cell.outcome.digest is None or cell.outcome.clock is not CellClock.SEALED:
            found[stored.id] = "it was not sealed: it has no digest"
        elif cell.outcome.outcome is Outcome.LOST:
            found[stored.id] = "its guest was lost"
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
    place = paths.runs() / f".reproduce.{os.getpid()}"
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

    @override
    def place(self, guest: Guest, progress: images.Progress) -> Platform:
        """Return the stored run's image, if it exists here; otherwise the current one."""
        pinned = next(
            (
                image
                for image in images.list_images().images
                if (image.name, image.digest) == (guest.image, self.digest)
            ),
            None,
        )
        return self.placed(guest, progress, pinned if guest.kernel is None else None)


def executor_of(source: Source, options: RunOptions, watch: Watch, say: Say) -> PinnedExecutor:
    """Return the executor of a reproduction."""
    image = source.about.environment.get("image") or {}
    return PinnedExecutor(
        options=options, watch=watch, say=say, digest=str(image.get("digest", ""))
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
    cells = [
        ReproducedCell(id=stored.id, state=CellState.SKIPPED, reason=left_out[stored.id])
        if stored.id in left_out
        else _compared(source.cells[stored.id], done.store, stored.id)
        for stored in source.about.cells
    ]
    identical = all(cell.state is not CellState.DIFFERENT for cell in cells)
    kept = None
    if not identical:
        kept = _keep(done.store)
    elif source.run is not None:
        for cell in cells:
            if cell.state is CellState.IDENTICAL:
                reuse.add(source.run, cell.id)
    environment = (kept or done.store).load_run().environment
    return Reproduction(
        run=source.id,
        identical=identical,
        cells=tuple(cells),
        inputs=tuple(other_inputs(source.about.environment, environment)),
        kept=kept.id if kept else None,
    )


def _compared(stored: Stored, store: RunStore, cell: str) -> ReproducedCell:
    finished = store.load_cell(cell)
    assert finished is not None
    difference = first_difference(
        stored.procedure, (stored.outcome, stored.raw), (finished.outcome, finished.raw)
    )
    return ReproducedCell(
        id=cell,
        state=CellState.DIFFERENT if difference else CellState.IDENTICAL,
        stored=stored.outcome.digest,
        here=finished.outcome.digest,
        difference=difference,
    )


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


def other_inputs(stored: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[OtherInput]:
    """Yield the inputs that differ between two runs' environments, with advice."""
    image = (stored.get("image") or {}).get("name", "IMAGE")
    advice = {
        "image": f"export it where the run was made (`lab image export {image} FILE`), and import"
        " it here (`lab image import FILE`)",
        "kernel": "the image has it: use the run's image",
        "driver": "use the run's version of the lab: it builds the driver and `init`",
        "initramfs": "use the run's version of the lab: it builds the driver and `init`",
        "qemu": f"install the run's QEMU: {stored.get('qemu', 'version unknown')}",
        "firmware": "install the packages with QEMU's firmware (seabios) in the run's version",
    }
    old, new = stored.get("sealed") or {}, here.get("sealed") or {}
    for what, text in advice.items():
        was, now = old.get(what), new.get(what)
        if what == "image" and was is None:
            was, now = ((one.get("image") or {}).get("digest") for one in (stored, here))
        if was is not None and was != now:
            yield OtherInput(what=what, stored=str(was), here=str(now), advice=text)
    if stored.get("lab") != here.get("lab"):
        yield OtherInput(
            what="lab",
            stored=str(stored.get("lab")),
            here=str(here.get("lab")),
            advice="use the run's version of the lab if the cells' programs differ",
        )
