"""Renders a running run as a screen, and as a line of a log. Pure.

A number is never cut. If the width is too small, it is left out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from lab.cli.display.estimate import Left
from lab.cli.display.labels import cut
from lab.cli.display.watching import Watched, Working
from lab.core.units import format_rate, format_speed
from lab.model.execution.events import Sample
from lab.report.content.plain_table import PlainTable

SHORT: Final = 2.0
"""Seconds after which a step shows its elapsed time."""
WIDEST: Final = 100
"""Most columns that are used of a wide terminal."""
NAME: Final = 16
"""Least width of a row's name, such as ``guest g7f4bba``."""
LEAST: Final = {"time": 13, "CPU": 4, "read": 9, "write": 9}
"""Minimum widths of columns, so that they do not change every second."""
LEAST_VIRTUAL: Final = {"time": 13, "guest time": 10, "speed": 7}
"""The same for sealed guests, without disk rates, since their disks do no I/O on the host."""
WIDE: Final = 40
"""Most width of the column of steps."""
LATE: Final = 1.15
"""A step is late after its expected time multiplied by this."""
EMPTY: Final = 30.0
"""Seconds without a sample after which the columns of rates are hidden."""
NOTE_LINES: Final = 2
OTHER_LINES: Final = 6 + NOTE_LINES
"""Lines for heading, bar, column heads, further guests, waiting cells, cursor, and notices."""


def clock(seconds: float) -> str:
    """Format seconds as ``1:24``."""
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def fitting(pieces: Iterable[str], width: int, between: str = ", ") -> str:
    """Join as many whole pieces as fit."""
    line = ""
    for piece in pieces:
        longer = f"{line}{between}{piece}" if line else piece
        if cell_len(longer) > width:
            break
        line = longer
    return line


def time_left(left: Left) -> str:
    """Return the remaining time in words, with its uncertainty."""
    if left.ending:
        return "ending"
    if left.late:
        return "longer than expected"
    seconds = round(left.seconds / 5) * 5 if left.seconds > 60 else left.seconds
    if not left.unknown and not left.at_least:
        return f"about {clock(seconds)} left"
    return f"at least {clock(seconds)} left" if seconds >= 1 else "time left unknown"


def counts(watched: Watched) -> list[str]:
    """Return numbers by state, beginning with ``1 of 3 cells done``."""
    if not watched.names:
        return ["building the array"]
    lost = len(watched.ended) - watched.done
    numbers = ((lost, "not finished"), (len(watched.running), "running"))
    found = [f"{watched.done} of {len(watched.names)} {watched.labels.noun} done"]
    found += [f"{number} {word}" for number, word in numbers if number]
    return found + ([f"{n} waiting"] if (n := len(watched.waiting)) else [])


def spent(guest: Working, at: float) -> str:
    """Return the step's elapsed and expected time, as in ``3 of ~8 s``."""
    seconds = at - guest.since
    if guest.expected is None:
        return f"{seconds:.0f} s" if seconds >= SHORT else ""
    if seconds <= guest.expected * LATE:
        return f"{seconds:.0f} of ~{guest.expected:.0f} s"
    return f"{seconds:.0f} s, expected {guest.expected:.0f}"


def load_of(pulse: Sample) -> str:
    """Return QEMU's CPU use; two busy CPUs are 200 %."""
    return f"{pulse.processor / pulse.seconds:.0%}"


def rates_of(pulse: Sample) -> tuple[str, str]:
    """Return read and write rate of the guest's data disks."""
    read, written = (n / pulse.seconds for n in (pulse.read_bytes, pulse.written_bytes))
    return format_rate(read), format_rate(written)


def run_speed(watched: Watched, at: float) -> list[str]:
    """Return ``speed 3.4×``: seconds of all sealed guests per second of the run; none: empty."""
    guest, host = watched.guest_seconds, at - watched.began
    return [f"speed {format_speed(guest, host)}"] if guest > 0 and host > 0 else []


def screen(
    watched: Watched, at: float, *, width: int, height: int, note: str = "", stopping: bool = False
) -> RenderableType:
    """Return the screen, which fits the terminal's width and height."""
    width = min(width, WIDEST)
    elapsed, left = at - watched.began, watched.left(at)
    parts: list[RenderableType] = [_heading(watched, at, left, width, stopping=stopping)]
    total = elapsed + left.seconds
    if left.unknown:
        share = watched.done / max(len(watched.names), 1)
    else:
        share = min(elapsed / total, 1.0) if total > 0 else 0.0
    parts.append(_bar(share, width))
    busy = watched.busy
    shown = busy[: max(height - OTHER_LINES, 1)]
    if shown:
        parts.append(_rows(watched, shown, at, width))
    if len(busy) > len(shown):
        parts.append(_line(f"+ {len(busy) - len(shown)} more guests", width))
    if watched.waiting:
        full = watched.names
        short = watched.labels.fitted(width // 2).of
        fits = all(cell_len(full[cell]) <= width // 2 for cell in watched.waiting)
        names = [(full if fits else short)[cell] for cell in watched.waiting]
        parts.append(_line(_waiting(names, width), width))
    if note:
        lines = textwrap.wrap(note, width, max_lines=NOTE_LINES, placeholder=" …")
        parts += [_line(line, width, "yellow") for line in lines]
    return Group(*parts)


def _heading(
    watched: Watched, at: float, left: Left, width: int, *, stopping: bool
) -> RenderableType:
    """Return the line of cells and time; the time is never cut."""
    words = "stopping: removing guests" if stopping else time_left(left)
    right = fitting([clock(at - watched.began), words], width)
    room = width - cell_len(right) - 2
    said = fitting([*counts(watched), *run_speed(watched, at)], room)
    if not said and watched.names:
        said = fitting([f"{watched.done}/{len(watched.names)} done"], room)
    gap = max(width - cell_len(said) - cell_len(right), 0)
    text = Text(no_wrap=True, overflow="crop")
    return text.append(said, style="bold").append(" " * gap).append(right)


def _bar(share: float, width: int) -> Text:
    """Return a bar that is readable without colour."""
    done = int(share * width)
    return Text("━" * done, style="green", no_wrap=True).append("─" * (width - done), style="dim")


def _line(text: str, width: int, style: str = "dim") -> Text:
    return Text(cut(text, width), style=style, no_wrap=True, overflow="crop")


def _rows(watched: Watched, guests: Sequence[Working], at: float, width: int) -> PlainTable:
    """Return a row per guest. Columns that do not fit are left out, the right ones first."""
    name = min(max(width // 4, NAME), width)
    labels = watched.labels.fitted(name)
    recent = any(guest.pulse and at - guest.pulsed <= EMPTY for guest in guests)
    sealed = any(guest.guest_time for guest in guests)
    own = max(NAME, *map(cell_len, (labels.head, *labels.of.values())))
    heads = LEAST_VIRTUAL if sealed else LEAST
    taken = own + sum(w + 2 for head, w in heads.items() if recent or sealed or head == "time") + 2
    least = {labels.head: own, "doing": min(width - taken, WIDE), **heads}
    table = PlainTable(labels.head, "doing", *heads, least=least)
    for guest in guests:
        figures = _guest_time(guest) if sealed else _now(guest, at) if recent else ()
        row = cut(watched.row(guest, name), name)
        step = Text(guest.step, style="cyan")
        table.add_row(row, step, spent(guest, at), *figures)
    return table


def _now(guest: Working, at: float) -> tuple[str, ...]:
    pulse = guest.now(at)
    return (load_of(pulse), *rates_of(pulse)) if pulse else ("–",) * 3


def _guest_time(guest: Working) -> tuple[str, ...]:
    time = guest.guest_time
    if time is None:
        return ("–",) * 2
    known = time.seconds > 0 and time.host_seconds > 0
    speed = format_speed(time.seconds, time.host_seconds) if known else "–"
    return clock(time.seconds), speed


def _rates(pulse: Sample | None) -> list[str]:
    if pulse is None:
        return []
    read, written = rates_of(pulse)
    return [f"CPU {load_of(pulse)}", f"read {read}", f"write {written}"]


def _waiting(names: list[str], width: int) -> str:
    """Return as many names as fit, and the number of the others."""
    line = ""
    for number in range(1, len(names) + 1):
        rest = f"; and {len(names) - number} more" if number < len(names) else ""
        longer = f"waiting: {'; '.join(names[:number])}{rest}"
        if line and cell_len(longer) > width:
            break
        line = longer
    return line


def log_line(watched: Watched, at: float) -> str:
    """Return the run's status in one line."""
    said = ", ".join([*counts(watched), *run_speed(watched, at), time_left(watched.left(at))])
    guests = []
    for guest in watched.busy:
        doing = ", ".join([guest.step, *filter(None, [spent(guest, at)])])
        name = watched.name(guest.cell) if guest.cell else f"guest {guest.guest}"
        time = [f"guest time {clock(guest.guest_time.seconds)}"] if guest.guest_time else []
        guests.append(f"{name}: {', '.join([doing, *_rates(guest.now(at)), *time])}")
    return "; ".join([said, *guests])
