"""Admission control: concurrency limits of guests, and the resources that each needs."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Final

from lab.compile import schedule
from lab.host.system import accelerator, load
from lab.run.task import Task

GUESTS_PER_CPU: Final = {"tcg": 3, "kvm": 4}
"""Guests per CPU with ``--jobs auto``: a throttled guest mostly waits."""
FAULTS: Final = 0.5
"""CPU use of a cell with faults: a fault does not wait for a CPU slot."""


def limit(kind: str, jobs: int | None) -> int:
    """Return the most concurrent guests in real time on an accelerator; ``jobs``: the user's
    limit."""
    return jobs or GUESTS_PER_CPU[kind] * accelerator.cpus()


def virtual_limit(jobs: int | None) -> int:
    """Return the most concurrent guests in virtual time: each keeps a CPU busy and never waits."""
    return jobs or accelerator.cpus()


def need(task: Task, kind: str) -> schedule.Need:
    """Return the resources of the host that a cell needs."""
    if task.need.virtual:
        return task.need
    return replace(task.need, cores=FAULTS if task.cell.faults else 1 / GUESTS_PER_CPU[kind])


def room(jobs: int | None) -> schedule.Room:
    """Return the free resources of the host; with ``jobs``, CPU is not limited."""
    return schedule.Room(
        memory=load.available_memory(),
        space=load.free_space(),
        rate=load.throughput(),
        cores=inf if jobs else accelerator.cpus() + 1e-6,  # the margin allows for sums of thirds
    )
