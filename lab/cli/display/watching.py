"""State of a running run from its workers' events: the step of each guest, the state of each
cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lab.cli.display.estimate import Estimate, Left
from lab.cli.display.labels import Labels
from lab.model.execution.events import (
    CellAgain,
    CellFinished,
    CellStarted,
    Event,
    GuestKept,
    GuestStarted,
    GuestTime,
    Sample,
    StepStarted,
    TestStarted,
)
from lab.model.result.document import Outcome
from lab.model.scenario.document import Cell

BOOT_SECONDS: Final = {"kvm": 8.0, "tcg": 27.0}
RESTORE_SECONDS: Final = 3.0
"""Seconds from a snapshot to SSH; in the last two thirds the step is ``booting``."""
FRESH: Final = 5.0
"""Age in seconds up to which a sample is current."""
OTHERS: Final = {"calibration-": "bare disks", "array": "the base cell"}
"""Names of tasks that are not cells, by the beginning of their id."""
AT_MOST: Final = 0.5
"""Seconds of the previous step that a sample may include."""


@dataclass(slots=True, kw_only=True)
class Working:
    """A guest and its current step."""

    guest: str
    cell: str | None = None
    step: str = "starting"
    since: float
    """Start time of the step."""
    expected: float | None = None
    """Expected seconds of the step."""
    idle: bool = False
    restored: bool = False
    """It is restored from a snapshot and does not boot."""
    pulse: Sample | None = None
    pulsed: float = 0.0
    guest_time: GuestTime | None = None
    """Progress of a sealed guest's clock in its cell."""

    def now(self, at: float) -> Sample | None:
        """Return the last sample, if it is current and belongs to this step only."""
        if self.pulse is None or at - self.pulsed > FRESH:
            return None
        return self.pulse if self.pulsed - self.pulse.seconds >= self.since - AT_MOST else None


@dataclass(slots=True, kw_only=True)
class Watched:
    """A running run."""

    labels: Labels
    """Names of its cells."""
    kind: str
    """``kvm`` or ``tcg``."""
    began: float
    """Start time, on the clock of all other times here."""
    estimate: Estimate
    guests: dict[str, Working] = field(default_factory=dict)
    ended: dict[str, Outcome] = field(default_factory=dict)
    _guest_seconds: float = 0.0
    """Seconds of sealed guests' clocks, in ended cells."""

    def add(self, labels: Labels, cells: Sequence[Cell], finished: Iterable[str]) -> None:
        """Receive the names of all cells, those that will run, and those that ended well."""
        self.labels = labels
        self.estimate.add(cells)
        self.ended = dict.fromkeys(finished, Outcome.DONE) | self.ended

    def take(self, at: float, guest: str, event: Event | None) -> None:
        """Receive an event; ``None``: the guest's worker has exited."""
        if event is None:
            self.guests.pop(guest, None)
            return
        known = self.guests.setdefault(guest, Working(guest=guest, since=at))
        match event:
            case GuestStarted():
                self.estimate.guest_is_up(at)
                known.idle, known.step, known.since, known.expected = True, "up", at, None
            case CellStarted():
                self.ended.pop(event.cell, None)  # it will be repeated
                self.estimate.cell_starts(event.cell, at)
                known.cell, known.step = event.cell, "starting"
                known.idle, known.since, known.expected = False, at, None
                known.guest_time = None
            case StepStarted():
                known.step, known.since, known.idle = event.label, at, False
                known.expected = event.expected_seconds
                if event.cell is None:
                    known.restored |= event.label == "restoring the guest"
                    if event.label == "booting":
                        boots = BOOT_SECONDS[self.kind]
                        known.expected = RESTORE_SECONDS if known.restored else boots
                    self.estimate.guest_starts(at)
                    if known.restored:
                        self.estimate.guest_restores(RESTORE_SECONDS)
                else:
                    self.estimate.step_starts(event.cell, event.expected_seconds, at)
            case Sample():
                known.pulse, known.pulsed = event, at
            case GuestTime():
                known.guest_time = event
            case TestStarted():
                known.step = f"test {event.test} ({event.number} of {event.of})"
                known.since, known.expected, known.idle = at, None, False
            case CellFinished():
                whole = event.outcome is Outcome.DONE
                self.estimate.cell_ends(event.cell, at, whole=whole)
                if event.cell in self.names:
                    self.ended[event.cell] = event.outcome
                known.cell, known.idle, known.since = None, True, at
                known.guest_time = None
                self._guest_seconds += event.guest_seconds or 0.0
                known.step, known.expected = "up" if whole else "ending", None
            case CellAgain():
                self.ended.pop(event.cell, None)
                self.estimate.cell_again(event.cell)
            case GuestKept():
                known.idle, known.step = True, "stays up"
            case _:
                pass

    @property
    def names(self) -> Mapping[str, str]:
        """Names of its cells by id, in the order of the file."""
        return self.labels.full

    @property
    def guest_seconds(self) -> float:
        """Seconds of all sealed guests' clocks so far; 0: there was none."""
        running = (g.guest_time.seconds for g in self.guests.values() if g.guest_time)
        return self._guest_seconds + sum(running)

    def left(self, at: float) -> Left:
        """Return its remaining time."""
        return self.estimate.left(at)

    @property
    def busy(self) -> list[Working]:
        """Return guests that are not idle, those with a cell first."""
        found = [g for g in self.guests.values() if not g.idle]
        return sorted(found, key=lambda g: g.cell is None)

    @property
    def running(self) -> list[str]:
        """Return running cells."""
        return [g.cell for g in self.busy if g.cell in self.names and g.cell is not None]

    @property
    def waiting(self) -> list[str]:
        """Return waiting cells."""
        under_way = set(self.running)
        return [c for c in self.names if c not in self.ended and c not in under_way]

    @property
    def done(self) -> int:
        """Number of cells that finished with outcome ``done``."""
        return sum(outcome is Outcome.DONE for outcome in self.ended.values())

    def name(self, cell: str) -> str:
        """Return the name of a cell, or of another task."""
        return self.names.get(cell) or _other(cell)

    def row(self, guest: Working, width: int) -> str:
        """Return the unique name of a guest's row."""
        if guest.cell is None:
            return f"guest {guest.guest}"
        if label := self.labels.fitted(width).of.get(guest.cell):
            return label
        name = _other(guest.cell)
        others = [g.cell for g in self.busy if g is not guest and g.cell not in self.names]
        return f"{name} {guest.guest}" if name in map(_other, filter(None, others)) else name


def _other(cell: str) -> str:
    return next((name for start, name in OTHERS.items() if cell.startswith(start)), cell)
