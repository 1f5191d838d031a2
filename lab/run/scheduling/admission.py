"""How many guests run concurrently, and what each counts for."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Final

from lab.compile import schedule
from lab.host.system import accelerator, load
from lab.run.task import Task

GUESTS_PER_CPU: Final = {"tcg": 3, "kvm": 4}
"""Guests per CPU with ``--jobs auto``: a throttled guest waits more than it computes."""
FAULTS: Final = 0.5
"""CPUs that a cell with faults counts for: a fault comes at its time whoever computes."""


def limit(kind: str, jobs: int | None) -> int:
    """Guests in real time at once, at most, on an accelerator; ``jobs``: as the user has it."""
    return jobs or GUESTS_PER_CPU[kind] * accelerator.cpus()


def virtual_limit(jobs: int | None) -> int:
    """Guests with virtual time at once, at most: each keeps a CPU busy, and waits for nothing."""
    return jobs or accelerator.cpus()


def need(task: Task, kind: str) -> schedule.Need:
    """What a cell takes of the host."""
    if task.need.virtual:
        return task.need
    return replace(task.need, cores=FAULTS if task.cell.faults else 1 / GUESTS_PER_CPU[kind])


def room(jobs: int | None) -> schedule.Room:
    """What the host has to give now; with ``jobs``, CPU does not matter."""
    return schedule.Room(
        memory=load.available_memory(),
        space=load.free_space(),
        rate=load.throughput(),
        cores=inf if jobs else accelerator.cpus() + 1e-6,  # sums of thirds
    )
