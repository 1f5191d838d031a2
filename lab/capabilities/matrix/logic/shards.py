"""Selection of a matrix's jobs: shards for several machines, and jobs that fit a budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from lab.core.errors import InputError

_SHARD: Final = re.compile(r"([1-9]\d{0,3})/([1-9]\d{0,3})")


class Reason(IntEnum):
    """Why a job runs at its position, in order of priority."""

    NEVER = 0
    """No finished run of these cells is stored."""
    CHANGED = 1
    """Image, kernel or mdadm differ from the last run's."""
    UNCLEAR = 2
    """A verdict of the last run was inconclusive, or a cell of it failed."""
    FLIPPED = 3
    """A verdict of the last run differs from that of the previous run."""
    KNOWN = 4
    """None of the above; the oldest run comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A job's id, and the values for ordering it."""

    id: str
    seconds: float
    """Estimated time."""
    reason: Reason = Reason.NEVER
    last: str = ""
    """When it was last run, ISO 8601; empty: never."""


def parse_shard(text: str) -> tuple[int, int]:
    """Return ``(2, 4)`` for ``2/4``; ``InputError``: no such shard."""
    found = _SHARD.fullmatch(text)
    number, of = (int(found[1]), int(found[2])) if found else (1, 0)
    if number > of:
        raise InputError(f"--shard {text}: expected K/N, the K-th of N shards, as in 2/4")
    return number, of


def shards(jobs: Sequence[Estimate], of: int) -> tuple[tuple[str, ...], ...]:
    """Distribute the jobs' ids over ``of`` shards of about equal time.

    The longest job goes first, each to the emptiest shard. The longest shard takes at most a third
    more than the optimum (Graham 1969, "Bounds on multiprocessing timing anomalies", SIAM Journal
    on Applied Mathematics 17). Ids keep their order.
    """
    loads = [0.0] * of
    shard: dict[str, int] = {}
    for job in sorted(jobs, key=lambda p: (-p.seconds, p.id)):
        least = min(range(of), key=lambda n: (loads[n], n))
        shard[job.id] = least
        loads[least] += job.seconds
    return tuple(tuple(p.id for p in jobs if shard[p.id] == n) for n in range(of))


def informative(jobs: Sequence[Estimate]) -> list[Estimate]:
    """Return jobs by reason, then shortest first; those of `Reason.KNOWN` oldest first."""

    def key(job: Estimate) -> tuple[int, str, float, str]:
        last = job.last if job.reason is Reason.KNOWN else ""
        return (job.reason, last, job.seconds, job.id)

    return sorted(jobs, key=key)


def within(jobs: Sequence[Estimate], budget: float) -> tuple[list[str], list[str]]:
    """Return ids that fit a budget of seconds, in order of `informative`, and the other ids.

    A job that does not fit is skipped; later, shorter ones may fit.
    """
    taken: list[str] = []
    left: list[str] = []
    spent = 0.0
    for job in informative(jobs):
        if spent + job.seconds <= budget:
            taken.append(job.id)
            spent += job.seconds
        else:
            left.append(job.id)
    return taken, left
