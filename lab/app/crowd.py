"""How many guests the host bears side by side: from what they took of its processors before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from lab import measure
from lab.app.task import Task
from lab.compile import schedule
from lab.host import accelerator, load

GUESTS_PER_CPU: Final = {"tcg": 3, "kvm": 4}
"""Guests side by side with ``--jobs auto``, where nothing is known of them or they take little.

A throttled guest waits more than it computes."""
BEARABLE: Final = 0.75
"""Part of the processors that timed steps may keep busy, until the host has shown what it bears.

Cells are counted with their busiest steps, which seldom meet. Six guests that took 0.34 of a
processor each left two processors no rest on one day (5 of 12 steps were contended, by up to 4.4 %
of their figure), and twelve steps of 0.32 to 0.42 were all quiet on another."""
YIELDS: Final = 0.95
"""Of the cells that ran beside a contended one, so many may run together from then on."""


@dataclass(slots=True, kw_only=True)
class Crowd:
    """What the guests of a run take of the host's processors, and what there is."""

    kind: str
    """The accelerator's: where the guest's instructions are translated, they cost more."""
    jobs: int | None
    """Guests at once, as the user has it; ``None``: as many as the host bears."""
    _known: dict[str, float] = field(init=False)
    """Processors that the busiest timed step of a cell kept busy, when it was last run."""
    _borne: float = field(init=False)
    """The sum of these of all cells that ran side by side, at most, with none contended."""

    def __post_init__(self) -> None:
        self._known = load.busy_cells(self.kind)
        self._borne = load.borne(self.kind)

    @property
    def limit(self) -> int:
        """Guests at once, at most."""
        return self.jobs or GUESTS_PER_CPU[self.kind] * accelerator.cpus()

    def usual(self, tasks: Iterable[Task]) -> float:
        """Processors that a cell takes which was never run: what others of its run do, at most."""
        known = [self._known[t.id] for t in tasks if t.id in self._known]
        return max(known, default=BEARABLE / GUESTS_PER_CPU[self.kind])

    def need(self, task: Task, usual: float) -> schedule.Need:
        """What a cell takes of the host; ``usual``: processors, where it was never run."""
        return replace(task.need, cores=self._known.get(task.id, usual))

    def room(self, *, modelled: bool = False) -> schedule.Room:
        """What the host has to give now; ``modelled``: to cells of which one has modelled drives.

        What throttled cells have borne says nothing of these, which have no time to lose.
        """
        borne = 0.0 if modelled else self._borne
        return schedule.Room(
            memory=load.available_memory(),
            space=load.free_space(),
            rate=load.throughput(),
            cores=inf if self.jobs else max(BEARABLE * accelerator.cpus(), borne),
        )

    def learn(
        self,
        task: Task,
        raw: Mapping[str, str],
        beside: Collection[Task] = (),
        *,
        usual: float,
        quiet: bool,
    ) -> bool:
        """Remember what a cell took, for this run and for later ones; whether that was more than
        was thought.

        ``beside``: the cells that ran beside it; ``usual``: processors that were thought of one
        that was never run; ``quiet``: none of its steps was contended.
        """
        took = measure.busy(task.cell, raw)
        if took is None:
            return False
        thought = self._known.get(task.id, usual)
        self._known[task.id] = took
        load.keep_busy_cell(self.kind, task.id, took)
        if beside and not any(t.modelled for t in (task, *beside)):
            together = took + sum(self._known.get(t.id, took) for t in beside)
            self._bore(together, quiet=quiet)
        return took > thought

    def _bore(self, together: float, *, quiet: bool) -> None:
        if quiet and together > self._borne:
            self._borne = together
        elif not quiet and YIELDS * together < self._borne:
            self._borne = YIELDS * together
        else:
            return
        load.keep_borne(self.kind, self._borne)
