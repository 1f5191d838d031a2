"""What a worker tells while it runs: one JSON object on a line each, in this order.

``guest_started`` once per guest; then for each cell ``cell_started``, any number of ``step``,
``notice`` and ``check``, and one ``cell_finished``; at the end ``guest_kept`` or ``guest_gone``.
``trouble`` may come at any time, and is the last one before the end. ``pulse`` comes every few
seconds while a command runs in the guest, ``test`` when a test of a suite begins: for whoever
watches, and kept nowhere.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lab.core.base import Model
from lab.model.result.document import CellClock, Digest, Outcome, PhaseSeconds
from lab.model.result.measurement import Check


class Told(Model):
    """What every event carries."""

    at: float = 0.0
    """Seconds since the worker began."""


class GuestStarted(Told):
    """SSH answers."""

    kind: Literal["guest_started"] = "guest_started"
    guest: str
    seconds: float


class CellStarted(Told):
    """A cell's first step begins."""

    kind: Literal["cell_started"] = "cell_started"
    cell: str


class StepStarted(Told):
    """A step begins; ``expected_seconds`` where somebody knows."""

    kind: Literal["step"] = "step"
    cell: str | None
    label: str
    expected_seconds: float | None = None


class Sample(Told):
    """What the guest did in the last moment; of the guest, so that no cell's log has it."""

    kind: Literal["pulse"] = "pulse"
    seconds: float
    """How long that moment was."""
    processor: float
    """Seconds of processor time that QEMU had in it."""
    read_bytes: int
    """By all data disks, as QEMU counts what it has completed."""
    written_bytes: int


class TestStarted(Told):
    """A test of a suite begins in the guest; as ``pulse`` for whoever watches."""

    __test__ = False  # pytest takes classes of such names for tests

    kind: Literal["test"] = "test"
    test: str = Field(pattern=r"^[\w./+-]+$")
    number: int
    """From 1 on."""
    of: int


class Notice(Told):
    """Something did not go as it should, and the cell goes on in another way."""

    kind: Literal["notice"] = "notice"
    cell: str | None
    message: str


class Checked(Told):
    """A precondition was read back."""

    kind: Literal["check"] = "check"
    cell: str | None
    check: Check


class CellFinished(Told):
    """A cell came to its end, one way or another."""

    kind: Literal["cell_finished"] = "cell_finished"
    cell: str
    outcome: Outcome
    reason: str = ""
    seconds: PhaseSeconds = PhaseSeconds()
    clock: CellClock | None = None
    """``None``: the host's, or its worker could not say."""
    digest: Digest | None = None
    """Of a cell in a sealed guest."""


class CellAgain(Told):
    """A cell that ended gets another turn: told by who gives the orders, not by a worker."""

    kind: Literal["cell_again"] = "cell_again"
    cell: str


class GuestKept(Told):
    """The guest stays up, as it was asked to."""

    kind: Literal["guest_kept"] = "guest_kept"
    guest: str


class GuestGone(Told):
    """The guest was taken down and nothing of it is left."""

    kind: Literal["guest_gone"] = "guest_gone"
    guest: str
    left: str = ""
    """What could not be taken away; empty: nothing."""


class Trouble(Told):
    """The worker cannot go on."""

    kind: Literal["trouble"] = "trouble"
    message: str
    hint: str = ""
    exit_status: int
    full: bool = False
    """A disk of the host is full: the run cannot go on either."""
    unread: bool = False
    """The lab itself was stopped for too long: nothing is wrong with the guest."""


Event = Annotated[
    GuestStarted
    | CellStarted
    | StepStarted
    | Sample
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
