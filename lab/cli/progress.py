"""Progress on standard error: what is happening now, and how long it should take.

On a terminal a live display of two lines, which vanishes at the end; elsewhere nothing. With
``--verbose`` a line per event, on both.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.cells import set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lab.cli.estimate import Estimate
from lab.model.events import (
    CellFinished,
    CellStarted,
    Checked,
    Event,
    GuestKept,
    GuestStarted,
    StepStarted,
    Trouble,
)
from lab.units import format_seconds

if TYPE_CHECKING:
    from lab.app.dispatch import How
    from lab.app.place import Place
    from lab.compile.scenario import Compiled
    from lab.store import RunStore

BOOT_SECONDS = {"kvm": 8.0, "tcg": 27.0}
TITLE_WIDTH, CLOCK_WIDTH, BAR_WIDTH = 20, 24, 30
SHORT = 2.0
"""Seconds; a step that takes less needs no clock."""


def clock(seconds: float) -> str:
    """``1:24``, as a stopwatch shows it."""
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


class Display:
    """Two lines: all of it, with a bar, and below it the step of the moment."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._title = "getting ready"
        self._since = time.monotonic()
        self._expected: float | None = None
        self._fraction: float | None = None
        self._step = ""
        self._step_since = self._since
        self._step_expected: float | None = None
        self._live = Live(
            get_renderable=self.render,
            console=self.console,
            transient=True,
            refresh_per_second=4,
        )
        self._shown = sys.stderr.isatty() and not self.console.is_dumb_terminal

    def __enter__(self) -> Display:
        if self._shown:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            self._live.stop()

    def begin(self, title: str) -> None:
        """Something new, its clock at zero."""
        self._title, self._since = title, time.monotonic()
        self._expected = self._fraction = None

    def go_on(self, title: str, left: float) -> None:
        """Still the same; it should take so many seconds more."""
        self._title = title
        self._expected = time.monotonic() - self._since + left

    def step(
        self, text: str, *, expected: float | None = None, fraction: float | None = None
    ) -> None:
        """What is being done: the seconds it should take, or how far all of it is (0 to 1)."""
        if text != self._step:
            self._step, self._step_since = text, time.monotonic()
        self._step_expected, self._fraction = expected, fraction

    def render(self) -> RenderableType:
        """Both lines, as wide as the terminal."""
        now = time.monotonic()
        elapsed = now - self._since
        fraction, expected = self._fraction, self._expected
        if fraction is not None and fraction > 0.1:
            expected = elapsed / fraction
        elif fraction is None and expected is not None:
            fraction = min(elapsed / max(expected, 1.0), 1.0)
        said = clock(elapsed)
        if expected is not None and expected >= elapsed:
            said += f" of about {clock(round(expected / 5) * 5 if expected > 60 else expected)}"
        room = self.console.width - TITLE_WIDTH - CLOCK_WIDTH - 2
        bar = ProgressBar(
            total=None if fraction is None else 1.0,
            completed=fraction or 0.0,
            width=min(BAR_WIDTH, max(room, 1)),
        )
        line = Table.grid(padding=(0, 1))
        title = Text(set_cell_size(self._title, TITLE_WIDTH), no_wrap=True)
        line.add_row(*([title, bar] if room >= 4 else [title]), Text(said, no_wrap=True))
        below = f"  {self._step}"
        spent = now - self._step_since
        if self._step and (spent >= SHORT or self._step_expected is not None):
            below += f", {spent:.0f} s"
        if self._step_expected is not None and spent <= self._step_expected:
            below += f" of about {self._step_expected:.0f} s"
        return Group(line, Text(below, no_wrap=True, overflow="ellipsis"))


class Spinner:
    """One piece of work that says itself how far it is."""

    def __init__(self, title: str) -> None:
        self._display = Display()
        self._display.begin(title)

    def __enter__(self) -> Spinner:
        self._display.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._display.__exit__(kind, error, trace)

    def show(self, text: str, fraction: float | None) -> None:
        """What is being done, and how far it is: 0 to 1, or ``None``."""
        self._display.step(text, fraction=fraction)


class Progress:
    """A run: all cells above, the step of the moment below."""

    def __init__(self, compiled: Compiled, *, how: How, verbose: bool) -> None:
        self._verbose = verbose
        self._cells = compiled.cells if how.workloads else ()
        self._done: set[str] = set()
        self._names = {
            cell_id: ", ".join(str(v) for v in axes.values()) or compiled.name
            for cell_id, axes in _axes(compiled)
        }
        self._started = time.monotonic()
        self._kind = "tcg"
        self._display = Display()
        self._estimate: Estimate | None = None
        self._building = False

    def __enter__(self) -> Progress:
        self._display.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._display.__exit__(kind, error, trace)

    def image(self, text: str, fraction: float | None) -> None:
        """The image is being built."""
        if not self._building:
            self._building = True
            self._display.begin("building the image")
        self._display.step(text, fraction=fraction)

    def ready(self, store: RunStore, place: Place) -> None:
        """The run has its directory and its accelerator."""
        self._kind = place.accelerator.kind
        self.say(f"{place.accelerator.reason}; run {store.id}")
        self._estimate = Estimate(self._cells, self._kind)
        self._display.begin(self.title())
        self._display.step("starting a guest")
        self._go_on(self._estimate)

    def watch(self, event: Event) -> None:
        """One event of a worker."""
        if self._estimate is None:  # there is nothing to watch before `ready`
            return
        at = time.monotonic()
        match event:
            case GuestStarted():
                self.say(f"guest {event.guest} is up after {format_seconds(event.seconds)}")
                self._estimate.guest_is_up(at)
            case CellStarted():
                self._done.discard(event.cell)  # it is repeated
                self._display.step(self._name(event.cell))
                self._estimate.cell_starts(event.cell, at)
            case StepStarted() if event.cell is not None:
                text = f"{self._name(event.cell)}: {event.label}"
                self._display.step(text, expected=event.expected_seconds)
            case StepStarted():
                booting = event.label == "booting"
                expected = BOOT_SECONDS[self._kind] if booting else None
                text = "booting a guest" if booting else event.label
                self._display.step(text, expected=expected)
                self._estimate.guest_starts(at)
            case Checked() if not event.check.passed:
                self.say(f"the check '{event.check.name}' failed: {event.check.detail}")
            case CellFinished():
                seconds = format_seconds(event.seconds.total)
                why = f": {event.reason.splitlines()[0]}" if event.reason else ""
                self.say(f"{self._name(event.cell)}: {event.outcome.value} after {seconds}{why}")
                self._done.add(event.cell)
                self._estimate.cell_ends(event.cell, at)
            case GuestKept():
                self.say(f"guest {event.guest} stays up")
            case Trouble():
                self.say(event.message)
            case _:
                pass
        self._go_on(self._estimate)

    def _name(self, cell: str) -> str:
        return self._names.get(cell, cell)

    def title(self) -> str:
        """How far the run is."""
        if not self._cells:
            return "building the array"
        return f"{len(self._done)} of {len(self._cells)} cells done"

    def _go_on(self, estimate: Estimate) -> None:
        self._display.go_on(self.title(), estimate.left(time.monotonic()))

    def say(self, text: str) -> None:
        """A line for those who follow."""
        if self._verbose:
            self._display.console.print(
                f"{time.monotonic() - self._started:7.1f} s  {text}", highlight=False, markup=False
            )


def _axes(compiled: Compiled) -> list[tuple[str, dict[str, object]]]:
    from lab.compile.scenario import cell_id

    return [(cell_id(c), dict(c.axes)) for c in (*compiled.cells, compiled.base)]
