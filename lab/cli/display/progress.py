"""Progress on standard error: current steps, and their expected time.

On a terminal: a display that is redrawn in place and removed at the end. Elsewhere: one line per
significant event, at least one a minute. With ``--verbose``: one line per event on both.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from rich.cells import set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment, SegmentLines
from rich.table import Table
from rich.text import Text

from lab.cli.display.estimate import Estimate
from lab.cli.display.labels import labels_of
from lab.cli.display.live import SHORT, clock, counts, log_line, screen, time_left
from lab.cli.display.watching import Watched
from lab.cli.options import console as console_of
from lab.compile.guest.virtual_time import is_sealed
from lab.compile.scenario.identity import cell_id
from lab.core.units import format_seconds, format_speed
from lab.host.system import load
from lab.model.execution.events import (
    CellFinished,
    Checked,
    Event,
    GuestKept,
    GuestStarted,
    Notice,
    TestStarted,
    Trouble,
)
from lab.model.result.document import Outcome

if TYPE_CHECKING:
    from lab.compile.scenario.compiler import Compiled
    from lab.run.options import RunOptions
    from lab.run.preparation.platforms import Platform
    from lab.store.runs import RunStore

TITLE_WIDTH, CLOCK_WIDTH, BAR_WIDTH = 20, 24, 30
NOTED: Final = 60.0
"""Seconds for which a notice is shown."""
ECHO: Final = 2
"""Columns kept free for the terminal's ``^C``, which would make the line wrap."""
QUIET: Final = 45.0
"""Seconds without a line after which a log gets a status line: with the start of the lab on a busy
host it is a minute."""
CLOSE: Final = 10.0
"""Least seconds between two lines about successful cells."""


class InPlace:
    """A display that is redrawn four times a second."""

    def __init__(self, render: Callable[[], RenderableType], console: Console | None) -> None:
        self.console = console or console_of(stderr=True)
        self._render = render
        self._width = self.console.width
        self._lengths: list[int] = []
        """Lengths of the lines on the screen."""
        self._live: Live | None = None
        # rich treats FORCE_COLOR as a terminal, which a CI log is not.
        self.shown = self.console.file.isatty() and not self.console.is_dumb_terminal

    def __enter__(self) -> InPlace:
        if self.shown:
            self._live = Live(
                get_renderable=self._drawn,
                console=self.console,
                transient=True,
                refresh_per_second=4,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _drawn(self) -> RenderableType:
        """Return the lines to draw.

        A terminal that became narrower has wrapped the lines on it. rich moves the cursor up by its
        number of lines, so that number is corrected here.
        """
        width = self.console.width
        drawn = self._live._live_render if self._live else None
        if drawn and drawn._shape and width < self._width:
            drawn._shape = (width, folded(self._lengths, width))
        lines = self.console.render_lines(self._render(), pad=False)
        self._width, self._lengths = width, [Segment.get_line_length(line) for line in lines]
        return SegmentLines(lines, new_lines=True)


def folded(lengths: Sequence[int], width: int) -> int:
    """Return the number of rows of lines with these lengths, after wrapping at a width."""
    return sum(max(-(-length // width), 1) for length in lengths)


class Display:
    """Two lines: a task with a bar, and its current step."""

    def __init__(self, console: Console | None = None) -> None:
        self._title = "getting ready"
        self._since = time.monotonic()
        self._fraction: float | None = None
        self._step = ""
        self._step_since = self._since
        self.place = InPlace(self.render, console)

    def begin(self, title: str) -> None:
        """Start a new task, its clock at zero."""
        self._title, self._since = title, time.monotonic()
        self._fraction = None

    def step(self, text: str, *, fraction: float | None = None) -> None:
        """Set the current step, and the fraction of the task that is done (0 to 1)."""
        if text != self._step:
            self._step, self._step_since = text, time.monotonic()
        self._fraction = fraction

    def line(self) -> str:
        """Return task, current step and time as one line, for a log."""
        now = time.monotonic()
        parts = [f"{self._title}, {clock(now - self._since)}"]
        if self._step:
            parts.append(f"{self._step}, {now - self._step_since:.0f} s")
        if self._fraction is not None:
            parts.append(f"{self._fraction:.0%} done")
        return "; ".join(parts)

    def render(self) -> RenderableType:
        """Return both lines."""
        now = time.monotonic()
        elapsed = now - self._since
        fraction = self._fraction
        said = clock(elapsed)
        if fraction is not None and fraction > 0.1:
            expected = elapsed / fraction
            said += f" of about {clock(round(expected / 5) * 5 if expected > 60 else expected)}"
        room = self.place.console.width - TITLE_WIDTH - CLOCK_WIDTH - 2
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
        if self._step and spent >= SHORT:
            below += f", {spent:.0f} s"
        return Group(line, Text(below, no_wrap=True, overflow="ellipsis"))


class Spinner:
    """Displays one task that reports its progress; elsewhere a line a minute."""

    def __init__(self, title: str) -> None:
        self._display = Display()
        self._display.begin(title)
        self._over = threading.Event()
        self._clerk = threading.Thread(target=self._keep_log, name="spinner-log", daemon=True)

    def _keep_log(self) -> None:
        while not self._over.wait(QUIET):
            self._display.place.console.print(self._display.line(), soft_wrap=True)

    def __enter__(self) -> Spinner:
        self._display.place.__enter__()
        if not self._display.place.shown:
            self._clerk.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._clerk.is_alive():
            self._clerk.join()
        self._display.place.__exit__(kind, error, trace)

    def show(self, text: str, fraction: float | None) -> None:
        """Set the current step, and the fraction that is done: 0 to 1, or ``None``."""
        self._display.step(text, fraction=fraction)


class Progress:
    """Displays a run: finished cells, the step of each guest, waiting cells."""

    def __init__(
        self, compiled: Compiled, *, how: RunOptions, verbose: bool, console: Console | None = None
    ) -> None:
        self._verbose = verbose
        self._scenario, base = compiled.name, compiled.base
        self._clock = "; virtual time" if is_sealed(base) else ""
        self._clock += ", unsealed" if how.unseals(base) else ""
        self._labels = labels_of(compiled.cells if how.workloads else (), compiled.name)
        self._began = self._said = time.monotonic()
        self._getting_ready = Display(console)
        self._place = InPlace(self.render, self._getting_ready.place.console)
        self._watched: Watched | None = None
        self._telling = threading.Lock()  # the display is drawn by another thread
        self._note, self._noted = "", 0.0
        self._stopping = self._building = False
        self._handlers: dict[signal.Signals, Any] = {}
        self._over = threading.Event()
        self._clerk = threading.Thread(target=self._keep_log, name="progress-log", daemon=True)

    def __enter__(self) -> Progress:
        self._place.__enter__()
        self._clerk.start()
        for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._handlers[kind] = signal.signal(kind, self._stop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._over.set()
        self._clerk.join()
        self._place.__exit__(kind, error, trace)

    def _keep_log(self) -> None:
        """Log without events too: a test suite in virtual time sends none before it ends."""
        while not self._over.wait(1.0):
            self._log_if_quiet()

    def _log_if_quiet(self) -> None:
        """Print a status line if there was none for :data:`QUIET` seconds."""
        at = time.monotonic()
        if at - self._said < QUIET:
            return
        if self._watched is None:
            line = self._getting_ready.line()
        else:
            with self._telling:
                line = log_line(self._watched, at)
        busy = load.demand(always=False)
        self._log(f"{line}; the host is busy: {busy}" if busy else line)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal that ends the run: report it while guests are removed."""
        self._stopping = True
        raise KeyboardInterrupt

    def image(self, text: str, fraction: float | None) -> None:
        """Show progress of an image's build."""
        if not self._building:
            self._building = True
            self._getting_ready.begin("building the image")
            self._log("building the image: takes a minute or more")
        self._getting_ready.step(text, fraction=fraction)

    def ready(self, store: RunStore, place: Platform) -> None:
        """Receive the run with its cells; again when ``trials: auto`` has added some."""
        cells = [stored.cell for stored in store.load_run().cells]
        finished = store.finished_cells()
        left = [cell for cell in cells if cell_id(cell) not in finished]
        self._labels = labels_of(cells, self._scenario)
        again, kind = self._watched, place.accelerator.kind
        watched = again or Watched(
            labels=self._labels, kind=kind, began=time.monotonic(), estimate=Estimate((), kind)
        )
        with self._telling:
            watched.add(self._labels, left, finished)
        self._watched = watched
        if again:
            return
        self.say(f"{place.accelerator.reason}{self._clock}; run {store.id}")
        self._log(f"run {store.id} begins: {self.title()}, {self._left()}")

    def watch(self, guest: str, event: Event | None) -> None:
        """Receive an event of a guest's worker; ``None``: the worker has exited."""
        watched = self._watched
        if watched is None:  # before `ready`
            return
        at = time.monotonic()
        with self._telling:
            watched.take(at, guest, event)
        match event:
            case GuestStarted():
                self.say(f"guest {event.guest} is up after {format_seconds(event.seconds)}")
            case Checked() if not event.check.passed:
                self.say(f"the check '{event.check.name}' failed: {event.check.detail}")
            case CellFinished():
                self._finished(watched, event)
            case TestStarted():
                self.say(f"test {event.test}, {event.number} of {event.of}")
            case GuestKept():
                self.say(f"guest {event.guest} stays up")
            case Trouble() | Notice():
                self.note(event.message)
            case _:
                pass
        self._log_if_quiet()

    def _finished(self, watched: Watched, event: CellFinished) -> None:
        seconds = format_seconds(event.seconds.total)
        why = f": {event.reason.splitlines()[0]}" if event.reason else ""
        guest, host, own = event.guest_seconds, event.seconds.total, ""
        if guest and host:
            own = f", {format_seconds(guest)} of guest time ({format_speed(guest, host)})"
        said = f"{watched.name(event.cell)}: {event.outcome.value} after {seconds}{own}{why}"
        self.say(said)
        well = event.outcome is Outcome.DONE
        if not well or time.monotonic() - self._said >= CLOSE or not watched.waiting:
            self._log(f"{said}; {self.title()}, {self._left()}")

    def title(self) -> str:
        """Title of the display: the number of finished cells."""
        return counts(self._watched)[0] if self._watched else ""

    def _left(self) -> str:
        return time_left(self._watched.left(time.monotonic())) if self._watched else ""

    def render(self) -> RenderableType:
        """Return the current screen."""
        if self._watched is None:
            return self._getting_ready.render()
        at = time.monotonic()
        with self._telling:
            return screen(
                self._watched,
                at,
                width=max(self._place.console.width - ECHO, 1),
                height=self._place.console.height,
                note=self._note if at - self._noted < NOTED else "",
                stopping=self._stopping,
            )

    def note(self, text: str) -> None:
        """Show a notice for a minute, and log it."""
        text = self._labels.named(text)
        self._note, self._noted = text, time.monotonic()
        self.say(text)
        self._log(text)

    def say(self, text: str) -> None:
        """Print a line with ``--verbose``."""
        if self._verbose:
            self._print(text)

    def _log(self, text: str) -> None:
        """Print a line if there is neither a display nor ``--verbose``."""
        self._said = time.monotonic()
        if not self._verbose and not self._place.shown:
            self._print(text)

    def _print(self, text: str) -> None:
        at = time.monotonic() - self._began
        self._place.console.print(f"{at:7.1f} s  {text}", soft_wrap=not self._place.shown)
