"""The result of ``lab hunt``, as ``--json`` prints it."""

from __future__ import annotations

from enum import StrEnum

from lab.core.base import Model


class FindingKind(StrEnum):
    """What went wrong."""

    CHECK = "check"
    """A check of the lab failed: array or disks are not as the scenario says."""
    LOST = "lost"
    """Blocks acknowledged as durable before a fault are missing after it."""
    MISMATCH = "mismatch"
    """md's check counted mismatches."""
    HANG = "hang"
    """A command, or the guest, did not end within its limit of guest time."""
    KERNEL = "kernel"
    """The kernel's log has a warning, a bug, an oops, a lockdep report or a hung task."""
    FAILED = "failed"
    """A command failed, for example fio's verification."""


class Finding(Model):
    """One thing that went wrong with a seed."""

    kind: FindingKind
    says: str


class Found(Model):
    """The first seed with a finding."""

    seed: int
    cell: str
    """Id of the cell in the hunt's run."""
    findings: tuple[Finding, ...]


class Smaller(Model):
    """A smaller scenario in which a seed still fails."""

    file: str
    seed: int
    removed: tuple[str, ...]
    """The steps that made it smaller, in order."""
    tried: int
    """Guests that ran for it."""
    findings: tuple[Finding, ...]


class Hunt(Model):
    """What `lab hunt` did."""

    scenario: str
    run: str
    """Id of the run with a cell for each seed."""
    directory: str
    first: int
    """First seed."""
    last: int
    """Last seed that ran in all cells."""
    found: Found | None = None
    lost: tuple[int, ...] = ()
    """Seeds whose guest was lost by the host: they show nothing."""
    smaller: Smaller | None = None
    again: tuple[str, ...] = ()
    """Commands that repeat the finding."""
    more: str = ""
    """Command that continues with the next seed."""


class Debugged(Model):
    """A sealed cell that ran again up to a time, as ``lab debug --json`` prints it."""

    run: str
    seed: int
    seconds: float
    """Time of the guest's clock at which it stopped."""
    events: int
    """Events in the log of requests."""
    forgotten: int
    """Earlier events that the driver did not keep."""
    log: str | None
    """File with the log of requests."""
    core: str | None
    """File with the guest's memory."""
    same: bool | None
    """Whether the stored run's kernel messages begin with those so far; ``None``: it has none."""
    kernel: str
    """Kernel messages so far."""
    output: str
    """Output of the guest's commands so far."""
