"""Runs a scenario with seed after seed until something goes wrong, and makes it smaller."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lab.capabilities.hunt.logic.findings import findings
from lab.capabilities.hunt.logic.smaller import only, proposals
from lab.capabilities.hunt.model import Finding, FindingKind, Found, Hunt, Smaller
from lab.compile.scenario.compiler import Compiled, compile_document
from lab.compile.scenario.identity import cell_id
from lab.core.errors import InputError
from lab.core.yaml import Document, written
from lab.host import images
from lab.host.system import files, paths, unfinished
from lab.model.result.document import Outcome
from lab.model.scenario.document import Cell
from lab.run.execute import Executor, run_scenario
from lab.run.more_trials import Run
from lab.run.options import RunOptions
from lab.run.preparation.platforms import Platform
from lab.run.worker_pool import Say
from lab.store.runs import RunStore, StoredCell

SETS: Final = ("guest.clock=virtual", "guest.disturb=true", "trials=1")
"""Overrides that make a scenario's cells cells of a hunt."""
ROUND: Final = 8
"""Most cells of a round, as a multiple of the guests that run at once: a round runs to its end."""
SEEDS: Final = 8
"""Seeds that a smaller scenario gets. It has other times, so the race may need another seed."""
SMALLER: Final = "smaller.yaml"
"""File in the run's directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HuntOptions:
    """Options of a hunt."""

    seeds: int
    """Number of seeds."""
    first: int = 1
    kinds: frozenset[FindingKind] = frozenset(FindingKind)
    """Findings that end the hunt."""
    shrink: int = 60
    """Most guests that run to make the scenario smaller."""


def rounds(first: int, seeds: int, cells: int, at_once: int) -> Iterator[range]:
    """Yield the seeds of each round: few at first, since many mistakes show with the first seeds.

    ``cells``: cells of each seed.
    """
    end, most = first + seeds, max(1, ROUND * at_once // cells)
    count = max(1, at_once // cells)
    while first < end:
        yield range(first, min(first + count, end))
        first, count = first + count, min(2 * count, most)


def looked_at(
    store: RunStore, cells: Iterable[Cell], kinds: frozenset[FindingKind]
) -> tuple[Found | None, tuple[int, ...]]:
    """Return the lowest seed with a finding, and the seeds that the host lost."""
    found: list[Found] = []
    lost = set()
    for cell in cells:
        name = cell_id(cell)
        finished = store.load_cell(name)
        if finished is None:
            continue
        outcome = finished.outcome
        seen = findings(cell, outcome.outcome, outcome.reason, finished.raw)
        if wanted := tuple(one for one in seen if one.kind in kinds):
            found.append(Found(seed=cell.seed, cell=name, findings=wanted))
        elif outcome.outcome is Outcome.LOST and not seen:
            lost.add(cell.seed)
    return min(found, key=lambda one: one.seed, default=None), tuple(sorted(lost))


@dataclass(slots=True, kw_only=True)
class Hunting:
    """A hunt in progress; after an interrupt, what it has found."""

    compiled: Compiled
    options: HuntOptions
    say: Say
    store: RunStore | None = None
    last: int = 0
    found: Found | None = None
    lost: tuple[int, ...] = ()
    smaller: Smaller | None = None

    def run(
        self,
        executor: Executor,
        *,
        texts: Sequence[str],
        run_options: RunOptions,
        out: Path | None,
        progress: images.Progress,
        ready: Callable[[RunStore, Platform], None],
    ) -> None:
        """Run seeds until one has a finding; ``texts``: the values of ``--set``."""
        options, cells = self.options, self.compiled.cells
        self.last = options.first - 1
        each = rounds(options.first, options.seeds, len(cells), executor.at_once)

        def seeds_of(seeds: range) -> tuple[Cell, ...]:
            return tuple(c.model_copy(update={"seed": s}) for s in seeds for c in cells)

        def judged(store: RunStore, seeds: range) -> bool:
            self.found, lost = looked_at(store, seeds_of(seeds), options.kinds)
            self.last, self.lost = seeds[-1], (*self.lost, *lost)
            if self.found is not None:
                self.say(f"seed {self.found.seed}: {self.found.findings[0].says}")
            return self.found is not None

        first = next(each)

        def then(store: RunStore, more: Run) -> None:
            over = judged(store, first)
            for seeds in each if not over else ():
                self.say(f"seeds to {self.last} show nothing; next: {seeds[0]} to {seeds[-1]}")
                run, new = store.load_run(), seeds_of(seeds)
                added = tuple(StoredCell(id=cell_id(c), cell=c, published=False) for c in new)
                store.save_run(run.model_copy(update={"cells": (*run.cells, *added)}))
                more(new)
                if judged(store, seeds):
                    return

        def begun(store: RunStore, place: Platform) -> None:
            self.store = store
            ready(store, place)

        self.store = run_scenario(
            self.compiled.with_seeds(first),
            texts=texts,
            out=out,
            options=run_options,
            executor=executor,
            resume=None,
            progress=progress,
            ready=begun,
            then=then,
        ).store

    # -- a smaller scenario

    def shrink(self, executor: Executor, run_options: RunOptions) -> None:
        """Make the scenario of the finding smaller while it still fails, and write it to a file.

        Each step takes the first proposal that fails with the same kind of finding, until none does
        or :attr:`HuntOptions.shrink` guests have run.
        """
        found, store = self.found, self.store
        assert found is not None
        assert store is not None
        cell = next(c for c in self.compiled.cells if self._is(c, found))
        data, seed, seen = only(self.compiled, cell, found.seed), found.seed, found.findings
        kinds = frozenset(one.kind for one in found.findings)
        removed: list[str] = []
        tried, failed = 0, set[str]()
        with workplace() as place:
            while True:
                for what, less in proposals(data):
                    text = written(less)
                    if text in failed or (candidate := self._compiled(less)) is None:
                        continue
                    if tried >= self.options.shrink:
                        break
                    budget = min(SEEDS, self.options.shrink - tried)
                    hit, ran = _fails(candidate, seed, budget, kinds, place, executor, run_options)
                    tried += ran
                    if hit is None:
                        failed.add(text)
                        self.say(f"smaller: {what}: seeds {seed} to {seed + ran - 1} show nothing")
                        continue
                    data, seed, seen = {**less, "seed": hit.seed}, hit.seed, hit.findings
                    removed.append(what)
                    self.say(f"smaller: {what}: seed {seed} still fails")
                    self._write(store, data, seed, removed, tried, seen)
                    break
                else:
                    break
                if tried >= self.options.shrink:
                    break
        self._write(store, data, seed, removed, tried, seen)

    def _is(self, cell: Cell, found: Found) -> bool:
        return cell_id(cell.model_copy(update={"seed": found.seed})) == found.cell

    def _compiled(self, data: dict[str, Any]) -> Compiled | None:
        """Return a proposal's cell; ``None``: it is not valid."""
        source = self.compiled.document.source
        try:
            return compile_document(self.compiled.path, Document(source=source, data=data))
        except InputError:
            return None

    def _write(
        self,
        store: RunStore,
        data: dict[str, Any],
        seed: int,
        removed: Sequence[str],
        tried: int,
        seen: tuple[Finding, ...],
    ) -> None:
        path = store.directory / SMALLER
        files.write(path, written(data))
        self.smaller = Smaller(
            file=str(path), seed=seed, removed=tuple(removed), tried=tried, findings=seen
        )

    def result(self) -> Hunt:
        """Return what the hunt has done so far."""
        store = self.store
        return Hunt(
            scenario=self.compiled.name,
            run=store.id if store else "",
            directory=str(store.directory) if store else "",
            first=self.options.first,
            last=self.last,
            found=self.found,
            lost=self.lost,
            smaller=self.smaller,
        )


def _fails(
    compiled: Compiled,
    seed: int,
    seeds: int,
    kinds: frozenset[FindingKind],
    place: Path,
    executor: Executor,
    options: RunOptions,
) -> tuple[Found | None, int]:
    """Return the first seed that fails in a smaller scenario, and how many seeds ran."""
    ran = 0
    for some in rounds(seed, seeds, 1, executor.at_once):
        whole = compiled.with_seeds(some)
        ran += len(some)
        try:
            done = run_scenario(
                whole,
                texts=(),
                out=place,
                options=options,
                executor=executor,
                resume=None,
                progress=lambda _text, _part: None,
                ready=lambda _store, _place: None,
            )
        except InputError:
            return None, ran  # an image or a program does not fit the smaller scenario
        found, _ = looked_at(done.store, whole.cells, kinds)
        shutil.rmtree(done.store.directory, ignore_errors=True)
        if found is not None:
            return found, ran
    return None, ran


@contextmanager
def workplace() -> Iterator[Path]:
    """Yield a directory for runs of smaller scenarios; remove it at the end."""
    place = unfinished.name(paths.runs() / "hunt")
    try:
        files.make_directory(place)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def quiet(options: RunOptions) -> RunOptions:
    """Return the options of a smaller scenario's runs: no later run takes their results."""
    return replace(options, fresh=True, remember=False)
