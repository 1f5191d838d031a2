"""Events of a worker: one JSON object per line, in this order.

``guest_started`` once per guest; then for each cell ``cell_started``, any number of ``step``,
``notice`` and ``check``, and one ``cell_finished``; at the end ``guest_kept`` or ``guest_gone``.
``trouble`` may come at any time, and is the last one before the end. ``pulse``, a sample, comes
every few seconds while a command runs in the guest, ``guest_time`` while a sealed guest runs,
``test`` when a test of a suite begins; they are for display and not stored.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.result.document import CellClock, Digest, Outcome, PhaseSeconds
from lab.model.result.measurement import Check


class Told(Model):
    """Common to all events."""

    at: float = 0.0
    """Seconds since the worker's start."""


class GuestStarted(Told):
    """The guest answers on SSH."""

    kind: Literal["guest_started"] = "guest_started"
    guest: str
    seconds: float


class CellStarted(Told):
    """A cell's first step begins."""

    kind: Literal["cell_started"] = "cell_started"
    cell: str


class StepStarted(Told):
    """A step begins; ``expected_seconds`` if known."""

    kind: Literal["step"] = "step"
    cell: str | None
    label: str
    expected_seconds: float | None = None


class Sample(Told):
    """The guest's activity since the sample before. It belongs to the guest, so no cell's log has
    it."""

    kind: Literal["pulse"] = "pulse"
    seconds: float
    """Length of that time."""
    processor: float
    """CPU seconds of QEMU in it."""
    read_bytes: int
    """Completed by all data disks, as QEMU counts them."""
    written_bytes: int


class GuestTime(Told):
    """How far the clock of a sealed guest is, since its cell began."""

    kind: Literal["guest_time"] = "guest_time"
    seconds: float
    """Of the guest's clock, in all guests of the cell."""
    host_seconds: float
    """Of the host, in the same time."""


class TestStarted(Told):
    """A test of a suite begins in the guest; for display, as ``pulse``."""

    __test__ = False  # pytest collects classes with such names

    kind: Literal["test"] = "test"
    test: str = Field(pattern=r"^[\w./+-]+$")
    number: int
    """From 1."""
    of: int


class Notice(Told):
    """A step failed, and the cell continues in another way."""

    kind: Literal["notice"] = "notice"
    cell: str | None
    message: str


class Checked(Told):
    """A precondition was verified."""

    kind: Literal["check"] = "check"
    cell: str | None
    check: Check


class CellFinished(Told):
    """A cell ended, with whatever result."""

    kind: Literal["cell_finished"] = "cell_finished"
    cell: str
    outcome: Outcome
    reason: str = ""
    seconds: PhaseSeconds = PhaseSeconds()
    guest_seconds: float | None = None
    """Seconds of a sealed guest's clock, of all trials."""
    clock: CellClock | None = None
    """``None``: the host's clock, or unknown."""
    digest: Digest | None = None
    """Of a cell in a sealed guest."""


class CellAgain(Told):
    """A cell that ended is run again. The scheduler emits this, not a worker."""

    kind: Literal["cell_again"] = "cell_again"
    cell: str


class GuestKept(Told):
    """The guest stays up, as requested."""

    kind: Literal["guest_kept"] = "guest_kept"
    guest: str


class GuestGone(Told):
    """The guest and everything of it was removed."""

    kind: Literal["guest_gone"] = "guest_gone"
    guest: str
    left: str = ""
    """What could not be removed; empty: nothing."""


class Trouble(Told):
    """The worker cannot continue."""

    kind: Literal["trouble"] = "trouble"
    message: str
    hint: str = ""
    exit_status: int
    full: bool = False
    """A disk of the host is full: the run cannot continue either."""
    unread: bool = False
    """The lab itself was stopped for too long: the guest is fine."""


Event = Annotated[
    GuestStarted
    | CellStarted
    | StepStarted
    | Sample
    | GuestTime
    | TestStarted
    | Notice
    | Checked
    | CellFinished
    | CellAgain
    | GuestKept
    | GuestGone
    | Trouble,
    Field(discriminator="kind"),
]
