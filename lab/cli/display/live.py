"""How a run looks while it goes on: the screen of this moment, and lines for a log. Pure.

Whatever the width, a figure is whole or not there; names and steps give way first.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text

from lab.cli.display.estimate import Left
from lab.cli.display.labels import cut
from lab.cli.display.watching import Watched, Working
from lab.core.units import format_rate
from lab.model.execution.events import Sample

SHORT: Final = 2.0
"""Seconds; a step that takes less needs no clock."""
WIDEST: Final = 100
"""Columns that are used of a wider terminal: what is further apart is not read as one line."""
COLUMNS: Final = 74
"""A terminal this wide has each guest in one line."""
NAME, DOING = 16, 30
"""The least of a line that a row's name and its step get: ``guest g7f4bba``, ``write, 9 of …``."""
LATE: Final = 1.15
"""Parts of its expected time after which a step is said to be late."""
FIGURES: Final = (5, 11, 11)
"""Columns of the processor's share and of both rates, with the space before them."""
EMPTY: Final = 30.0
"""Seconds without a figure, after which the figures' columns go; each step begins without one."""
NOTE_LINES: Final = 2
OTHER_LINES: Final = 6 + NOTE_LINES
"""Heading, bar, columns' names, how many more guests, what waits, the cursor, and a note."""


def clock(seconds: float) -> str:
    """``1:24``, as a stopwatch shows it."""
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def fitting(pieces: Iterable[str], width: int, between: str = ", ") -> str:
    """As many of the pieces as there is room for, each whole."""
    line = ""
    for piece in pieces:
        longer = f"{line}{between}{piece}" if line else piece
        if cell_len(longer) > width:
            break
        line = longer
    return line


def time_left(left: Left) -> str:
    """What is left, and how sure that is."""
    if left.ending:
        return "ending"
    if left.late:
        return "longer than thought"
    seconds = round(left.seconds / 5) * 5 if left.seconds > 60 else left.seconds
    if not left.unknown and not left.at_least:
        return f"about {clock(seconds)} left"
    return f"at least {clock(seconds)} left" if seconds >= 1 else "time left unknown"


def counts(watched: Watched) -> list[str]:
    """``1 of 3 cells done``, and how many run, wait, and came to nothing."""
    if not watched.names:
        return ["building the array"]
    lost = len(watched.ended) - watched.done
    numbers = ((lost, "not finished"), (len(watched.running), "running"))
    found = [f"{watched.done} of {len(watched.names)} cells done"]
    found += [f"{number} {word}" for number, word in numbers if number]
    return found + ([f"{n} waiting"] if (n := len(watched.waiting)) else [])


def spent(guest: Working, at: float) -> str:
    """How long the step has taken, and how long it should: ``3 of about 8 s``."""
    seconds = at - guest.since
    if guest.expected is None:
        return f"{seconds:.0f} s" if seconds >= SHORT else ""
    if seconds <= guest.expected * LATE:
        return f"{seconds:.0f} of about {guest.expected:.0f} s"
    return f"{seconds:.0f} s, expected {guest.expected:.0f}"


def load_of(pulse: Sample) -> str:
    """QEMU's share of one processor: two busy ones are 200 %."""
    return f"{pulse.processor / pulse.seconds:.0%}"


def rates_of(pulse: Sample) -> tuple[str, str]:
    """What the guest's data disks read and write."""
    read, written = (n / pulse.seconds for n in (pulse.read_bytes, pulse.written_bytes))
    return format_rate(read), format_rate(written)


def screen(
    watched: Watched, at: float, *, width: int, height: int, note: str = "", stopping: bool = False
) -> RenderableType:
    """All of it, redrawn in place: never higher than the terminal, nor wider."""
    width = min(width, WIDEST)
    elapsed, left = at - watched.began, watched.left(at)
    parts: list[RenderableType] = [_heading(watched, elapsed, left, width, stopping=stopping)]
    total = elapsed + left.seconds
    if left.unknown:
        share = watched.done / max(len(watched.names), 1)
    else:
        share = min(elapsed / total, 1.0) if total > 0 else 0.0
    parts.append(_bar(share, width))
    wide = width >= COLUMNS
    room = max(height - OTHER_LINES, 1) // (1 if wide else 2)
    busy = watched.busy
    shown = busy[: max(room, 1)]
    name = max(width - 2 - DOING - sum(FIGURES), NAME) if wide else width // 2
    labels = watched.labels.fitted(name)
    if wide:
        name = max(min(max(map(cell_len, labels.of.values()), default=0), name), NAME)
        pulsed = any(guest.pulse and at - guest.pulsed <= EMPTY for guest in shown)
        if shown:
            parts.append(_columns(labels.head, name, width, pulsed=pulsed))
        parts += [_row(watched, guest, at, name, width, pulsed=pulsed) for guest in shown]
    else:
        for guest in shown:
            parts += _two_lines(watched, guest, at, name, width)
    if len(busy) > len(shown):
        parts.append(_line(f"+ {len(busy) - len(shown)} more guests", width))
    if watched.waiting:
        of = watched.labels.fitted(width // 2).of
        names = [of[cell] for cell in watched.waiting]
        parts.append(_line(_waiting(names, width), width))
    if note:
        lines = textwrap.wrap(note, width, max_lines=NOTE_LINES, placeholder=" …")
        parts += [_line(line, width, "yellow") for line in lines]
    return Group(*parts)


def _heading(
    watched: Watched, elapsed: float, left: Left, width: int, *, stopping: bool
) -> RenderableType:
    """What is done, and what time it is; the time has the first right to the line."""
    words = "stopping: the guests are taken down" if stopping else time_left(left)
    right = fitting([clock(elapsed), words], width)
    room = width - cell_len(right) - 2
    said = fitting(counts(watched), room)
    if not said and watched.names:
        said = fitting([f"{watched.done}/{len(watched.names)} done"], room)
    gap = max(width - cell_len(said) - cell_len(right), 0)
    text = Text(no_wrap=True, overflow="crop")
    return text.append(said, style="bold").append(" " * gap).append(right)


def _bar(share: float, width: int) -> Text:
    """What is done and what is left, told apart without colour too."""
    done = int(share * width)
    return Text("━" * done, style="green", no_wrap=True).append("─" * (width - done), style="dim")


def _line(text: str, width: int, style: str = "dim") -> Text:
    return Text(cut(text, width), style=style, no_wrap=True, overflow="crop")


def _columns(head: str, name: int, width: int, *, pulsed: bool) -> Text:
    """The columns' names; those of figures only where a guest has some."""
    if not pulsed:
        return _line(f"{cut(head, name):<{name}}  doing", width)
    doing = width - name - 2 - sum(FIGURES)
    heads = ("CPU", "disks read", "write")
    figures = "".join(f"{h:>{w}}" for h, w in zip(heads, FIGURES, strict=True))
    return _line(f"{cut(head, name):<{name}}  {'doing':<{doing}}{figures}", width)


def _row(
    watched: Watched, guest: Working, at: float, name: int, width: int, *, pulsed: bool
) -> Text:
    doing = width - name - 2 - (sum(FIGURES) if pulsed else 0)
    text = Text(no_wrap=True, overflow="crop")
    text.append(set_cell_size(cut(watched.row(guest, name), name), name) + "  ")
    text.append(set_cell_size(_doing(guest, at, doing), doing), style="cyan")
    if pulsed:
        pulse = guest.now(at)
        figures = (load_of(pulse), *rates_of(pulse)) if pulse else ("–",) * 3
        text.append("".join(f"{f:>{w}}" for f, w in zip(figures, FIGURES, strict=True)))
    return text


def _two_lines(watched: Watched, guest: Working, at: float, room: int, width: int) -> list[Text]:
    name = cut(watched.row(guest, room), room)
    doing = _doing(guest, at, width - cell_len(name) - 2)
    first = Text(no_wrap=True, overflow="crop").append(f"{name}: ").append(doing, style="cyan")
    pieces = _figures(guest.now(at)) or ["no figures yet"]
    return [first, _line(f"  {fitting(pieces, width - 2)}", width, "")]


def _figures(pulse: Sample | None) -> list[str]:
    if pulse is None:
        return []
    read, written = rates_of(pulse)
    return [f"CPU {load_of(pulse)}", f"read {read}", f"write {written}"]


def _doing(guest: Working, at: float, width: int) -> str:
    """The step, which is cut, and its time, which is whole or shorter."""
    time = spent(guest, at)
    if time and cell_len(guest.step) + 2 + cell_len(time) > width:
        time = f"{at - guest.since:.0f} s"
    if not time or cell_len(time) + 4 > width:
        return cut(guest.step, width)
    return f"{cut(guest.step, width - cell_len(time) - 2)}, {time}"


def _waiting(names: list[str], width: int) -> str:
    """As many names as fit, and how many more there are."""
    line = ""
    for number in range(1, len(names) + 1):
        rest = f"; and {len(names) - number} more" if number < len(names) else ""
        longer = f"waiting: {'; '.join(names[:number])}{rest}"
        if line and cell_len(longer) > width:
            break
        line = longer
    return line


def log_line(watched: Watched, at: float) -> str:
    """All of it in one line, for a log that is read afterwards."""
    said = ", ".join([*counts(watched), time_left(watched.left(at))])
    guests = []
    for guest in watched.busy:
        doing = ", ".join([guest.step, *filter(None, [spent(guest, at)])])
        figures = _figures(guest.now(at))
        name = watched.name(guest.cell) if guest.cell else f"guest {guest.guest}"
        guests.append(f"{name}: {', '.join([doing, *figures])}")
    return "; ".join([said, *guests])
