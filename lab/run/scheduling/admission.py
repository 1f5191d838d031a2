"""How many guests the host bears side by side: from what they took of its processors before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, log
from typing import Final

from lab.analysis import measure
from lab.compile import schedule
from lab.host.system import accelerator, load
from lab.run.task import Task

GUESTS_PER_CPU: Final = {"tcg": 3, "kvm": 4}
"""Guests side by side with ``--jobs auto``, where nothing is known of them or they take little.

A throttled guest waits more than it computes."""
BEARABLE: Final = 0.75
"""Part of the processors that cells may keep busy side by side whose steps cannot wait for each
other's: with faults, which come at their moment; or with modelled drives, which bear no company
that computes. Such a cell counts with its busiest step from its beginning to its end."""
TOGETHER: Final = 0.7
"""Part of the processors that timed steps may keep busy at one moment.

The twelve cells of ``bench/layouts.yaml`` on two processors, with an emulation made half as fast
(QEMU's ``-d nochain``: a write takes 0.4 to 0.55): three runs at 0.75 took 77, 122 and 124 s, 11
cells of 36 repeated; eleven at 0.7, two of them before small steps might pass large ones, took 70 s
in the median (65 to 104), 7 of 132 repeated."""


@dataclass(slots=True, kw_only=True)
class AdmissionControl:
    """What the guests of a run take of the host's processors, and what there is."""

    kind: str
    """The accelerator's: where the guest's instructions are translated, they cost more."""
    jobs: int | None
    """Guests at once, as the user has it; ``None``: as many as the host bears."""
    _known: dict[str, dict[str, float]] = field(init=False)
    """Processors that each workload of a kind of cell kept busy, when it was last run."""
    _measured: dict[str, Task] = field(default_factory=dict)
    """Cells that this run has measured, by their kinds."""
    _before: dict[str, float] = field(default_factory=dict)
    """What the busiest step of these took when they were last run, of those that were."""

    def __post_init__(self) -> None:
        self._known = load.busy_cells(self.kind)

    @property
    def limit(self) -> int:
        """Guests at once, at most."""
        return self.jobs or GUESTS_PER_CPU[self.kind] * accelerator.cpus()

    @property
    def share(self) -> float:
        """Processors that a guest has where all that there may be have as many."""
        return BEARABLE / GUESTS_PER_CPU[self.kind]

    @property
    def together(self) -> float:
        """Processors that timed steps may keep busy at one moment; 0: as many as they like."""
        return 0.0 if self.jobs else TOGETHER * accelerator.cpus()

    def steps(self, task: Task, tasks: Iterable[Task]) -> dict[str, float]:
        """Processors that each workload of a cell is thought to keep busy.

        A cell that was never run is taken for the greediest that was, of ``tasks`` and of this
        run, among those whose disks' limits are nearest to its own; by as much slower or faster.
        """
        known = [t for t in (*self._measured.values(), *tasks) if t.kind in self._known]
        found = {}
        for workload in (w.name for w in task.cell.workloads):
            if task.kind in self._known:
                like = [task]
            else:
                like = [t for t in known if workload in self._known[t.kind]]
            near = min((_apart(task, t) for t in like), default=0.0)
            took = [
                self._takes(t, workload) * _rate(task, t)
                for t in like
                if _apart(task, t) <= near + 1e-9
            ]
            found[workload] = max(took, default=self.share)
        return found

    def _takes(self, task: Task, workload: str) -> float:
        """What a workload of a cell is known to have taken, as it would today."""
        cores = self._known[task.kind].get(workload, self.share)
        return cores if task.kind in self._measured else cores * self._pace

    @property
    def _pace(self) -> float:
        """How much more this run's cells took than before: a host is not the same every day."""
        now = sum(_busiest(self._known[kind]) for kind in self._before)
        before = sum(self._before.values())
        return now / before if before else 1.0

    def usual(self, tasks: Iterable[Task]) -> float:
        """Processors that a cell takes which was never run: what others of its run do, at most."""
        known = [_busiest(self._known[t.kind]) for t in tasks if t.kind in self._known]
        return max(known, default=self.share)

    def need(self, task: Task, usual: float) -> schedule.Need:
        """What a cell takes of the host; ``usual``: processors, where it was never run.

        A cell whose steps wait until there is room for them takes no more than its share before.
        """
        if task.sealed:  # a processor each, and all of them may be busy
            return replace(task.need, cores=BEARABLE)
        cores = _busiest(self._known[task.kind]) if task.kind in self._known else usual
        return replace(task.need, cores=min(cores, self.share) if task.waits else cores)

    def room(self) -> schedule.Room:
        """What the host has to give now."""
        return schedule.Room(
            memory=load.available_memory(),
            space=load.free_space(),
            rate=load.throughput(),
            cores=inf if self.jobs else BEARABLE * accelerator.cpus(),
        )

    def learn(self, task: Task, raw: Mapping[str, str], tasks: Iterable[Task]) -> bool:
        """Remember what a cell took, for this run and for later ones; whether that was more than
        was thought. ``tasks``: the others that run or wait."""
        took = measure.busy(task.cell, raw)
        if not took:
            return False
        before = _busiest(self._known.get(task.kind, {}))
        thought = _busiest(self.steps(task, tasks))
        if before and task.kind not in self._measured:
            self._before[task.kind] = before
        self._known[task.kind] = took
        self._measured[task.kind] = task
        load.keep_busy_cell(self.kind, task.kind, took)
        return _busiest(took) > thought


def _busiest(steps: Mapping[str, float]) -> float:
    return max(steps.values(), default=0.0)


def _rate(task: Task, other: Task) -> float:
    """How many times the other's bytes per second a cell's disks let through; 1: nobody knows."""
    return task.need.rate / other.need.rate if task.need.rate and other.need.rate else 1.0


def _apart(task: Task, other: Task) -> float:
    """How far two cells' limits are from each other: 0 where they are the same."""
    return abs(log(_rate(task, other)))
