"""Progress on standard error: what is happening now, and how long it should take.

On a terminal a live display; elsewhere nothing, or with ``--verbose`` a line per event.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

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
    from lab.app.execute import How, Place
    from lab.compile.scenario import Compiled
    from lab.store import RunStore


class Spinner:
    """One line that says what is going on."""

    def __init__(self) -> None:
        self._bars = Bars(
            SpinnerColumn("line"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Spinner:
        self._bars.start()
        self._task = self._bars.add_task("starting", total=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def show(self, text: str, fraction: float | None) -> None:
        """What is being done, and how far it is: 0 to 1, or ``None``."""
        if self._task is None:
            return
        total = None if fraction is None else 1.0
        self._bars.update(self._task, description=text[:60], total=total, completed=fraction or 0.0)


class Progress:
    """A run: all cells above, the step of the moment below."""

    def __init__(self, compiled: Compiled, *, how: How, verbose: bool) -> None:
        self._verbose = verbose
        self._terminal = sys.stderr.isatty()
        self._cells = len(compiled.cells) if how.workloads else 1
        self._names = {
            cell_id: ", ".join(str(v) for v in axes.values()) or compiled.name
            for cell_id, axes in _axes(compiled)
        }
        self._started = time.monotonic()
        self._bars = Bars(
            TextColumn("{task.description:<42.42}", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
            disable=not self._terminal,
            refresh_per_second=4,
        )
        self._all: TaskID | None = None
        self._rows: dict[str, TaskID] = {}
        """A row for each running cell by its id, and one for everything else under ''."""

    def __enter__(self) -> Progress:
        self._bars.start()
        self._now("getting ready", None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def image(self, text: str, fraction: float | None) -> None:
        """The image is being built or looked for."""
        self._now(f"image: {text}", None, fraction)

    def ready(self, store: RunStore, place: Place) -> None:
        """The run has its directory and its accelerator."""
        self.say(f"{place.accelerator.reason}; run {store.id}")
        self._all = self._bars.add_task("cells", total=self._cells)
        self._now("starting guests", None)

    def watch(self, event: Event) -> None:
        """One event of a worker."""
        match event:
            case GuestStarted():
                self.say(f"guest {event.guest} is up after {format_seconds(event.seconds)}")
            case CellStarted():
                self._done("")
                self._now(self._names.get(event.cell, event.cell), None, row=event.cell)
            case StepStarted() if event.cell is not None:
                name = self._names.get(event.cell, event.cell)
                self._now(f"{name}: {event.label}", event.expected_seconds, row=event.cell)
            case StepStarted() if event.label == "booting":
                self._now("waiting for a guest to answer", None)
            case StepStarted():
                self._now(event.label, None)
            case Checked() if not event.check.passed:
                self.say(f"the check '{event.check.name}' failed: {event.check.detail}")
            case CellFinished():
                name = self._names.get(event.cell, event.cell)
                seconds = format_seconds(event.seconds.total)
                why = f": {event.reason.splitlines()[0]}" if event.reason else ""
                self.say(f"{name}: {event.outcome.value} after {seconds}{why}")
                self._done(event.cell)
                if self._all is not None:
                    self._bars.advance(self._all)
            case GuestKept():
                self.say(f"guest {event.guest} stays up")
            case Trouble():
                self.say(event.message)
            case _:
                pass

    def _now(
        self, text: str, expected: float | None, fraction: float | None = None, row: str = ""
    ) -> None:
        self._done(row)
        about = f" (about {format_seconds(expected)})" if expected else ""
        total = 1.0 if fraction is not None else None
        self._rows[row] = self._bars.add_task(text + about, total=total)
        if fraction is not None:
            self._bars.update(self._rows[row], completed=fraction)

    def _done(self, row: str) -> None:
        task = self._rows.pop(row, None)
        if task is not None:
            self._bars.remove_task(task)

    def say(self, text: str) -> None:
        """A line for those who want to follow."""
        if self._verbose:
            self._bars.console.print(
                f"{time.monotonic() - self._started:7.1f} s  {text}", highlight=False, markup=False
            )


def _axes(compiled: Compiled) -> list[tuple[str, dict[str, object]]]:
    from lab.compile.scenario import cell_id

    return [(cell_id(c), dict(c.axes)) for c in (*compiled.cells, compiled.base)]
