"""What happened to an array, on one clock: states of its disks, md's work, faults."""

from __future__ import annotations

from enum import StrEnum

from lab.core.base import Model


class DiskState(StrEnum):
    """A disk's part in the array."""

    IN_SYNC = "in sync"
    REBUILDING = "rebuilding"
    """md writes its data, and does not read them yet."""
    SPARE = "spare"
    FAULTY = "faulty"
    GONE = "gone"
    """It is not in the array."""
    OFF = "no array"
    """The guest is off, or md has not started the array."""


class DiskSpan(Model):
    """A state of a disk. Times are seconds of the timeline's clock."""

    disk: str
    state: DiskState
    begin: float
    end: float


class Work(Model):
    """A resync, recovery, check, repair or reshape."""

    action: str
    begin: float
    end: float
    ended: bool = True
    """``False``: it still ran, or a fault interrupted it, at ``end``."""


class FaultAt(Model):
    """A fault."""

    name: str
    fault: str
    at: float
    idle: float
    """When md was idle after it, or was looked at if nothing waited for md."""


class Timeline(Model):
    """The first trial of a cell with faults.

    Its clock is the guest's. That begins anew at a power cut; here it goes on from the cut.
    """

    disks: tuple[str, ...]
    spans: tuple[DiskSpan, ...]
    works: tuple[Work, ...]
    faults: tuple[FaultAt, ...]
    boots: tuple[float, ...] = (0.0,)
    """Beginning of each boot."""
    begin: float
    end: float
