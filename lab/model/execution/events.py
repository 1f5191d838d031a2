"""Events of a worker: one JSON object per line, in this order.

``guest_started`` once per guest; then for each cell ``cell_started``, any number of ``step``,
``notice`` and ``check``, and one ``cell_finished``; at the end ``guest_kept`` or ``guest_gone``.
``trouble`` may come at any time, and is the last one before the end. ``pulse`` (a sample) comes
every few seconds while a command runs in the guest, ``guest_time`` while a sealed guest runs, and
``test`` when a test of a suite begins. These three are for display and are not stored.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.result.document import CellClock, Digest, Outcome, PhaseSeconds
from lab.model.result.measurement import Check


class Told(Model):
    """Fields common to all events."""

    at: float = 0.0
    """Seconds since the worker's start."""


class GuestStarted(Told):
    """The guest accepts connections on SSH."""

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
    """The guest's activity since the previous sample. No cell's log contains it: it belongs to the
    guest."""

    kind: Literal["pulse"] = "pulse"
    seconds: float
    """Length of the sample."""
    processor: float
    """CPU seconds of QEMU during it."""
    read_bytes: int
    """Completed by all data disks, as QEMU counts them."""
    written_bytes: int


class GuestTime(Told):
    """Progress of a sealed guest's clock since its cell began."""

    kind: Literal["guest_time"] = "guest_time"
    seconds: float
    """Of the guest's clock, summed over all guests of the cell."""
    host_seconds: float
    """Of the host's clock, during the same time."""


class TestStarted(Told):
    """A test of a suite begins in the guest. For display, as ``pulse``."""

    __test__ = False  # pytest collects classes with such names

    kind: Literal["test"] = "test"
    test: str = Field(pattern=r"^[\w./+-]+$")
    number: int
    """From 1."""
    of: int


class Notice(Told):
    """A step failed, and the cell continues without it."""

    kind: Literal["notice"] = "notice"
    cell: str | None
    message: str


class Checked(Told):
    """A precondition was verified in the guest."""

    kind: Literal["check"] = "check"
    cell: str | None
    check: Check


class CellFinished(Told):
    """A cell ended, with any result."""

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
    """Digest of the raw output; only for a cell in a sealed guest."""


class CellAgain(Told):
    """A finished cell is run again. The scheduler emits this, not a worker."""

    kind: Literal["cell_again"] = "cell_again"
    cell: str


class GuestKept(Told):
    """The guest stays up, as requested."""

    kind: Literal["guest_kept"] = "guest_kept"
    guest: str


class GuestGone(Told):
    """The guest and its files were removed."""

    kind: Literal["guest_gone"] = "guest_gone"
    guest: str
    left: str = ""
    """Files that could not be removed; empty: none."""


class Trouble(Told):
    """The worker cannot continue."""

    kind: Literal["trouble"] = "trouble"
    message: str
    hint: str = ""
    exit_status: int
    full: bool = False
    """A disk of the host is full, so the whole run stops."""
    unread: bool = False
    """The lab itself was stopped for too long. The guest is not the cause."""
    silent: bool = False
    """The guest never answered. Another of its configuration would not either."""


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
