"""Progress of a run, and the estimate of its remaining time.

``golden/progress`` has the workers' events of a real run with their times, and screens of it.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shlex
import signal
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from lab.cli.display import progress
from lab.cli.display.estimate import Estimate, Left
from lab.cli.display.labels import labels_of
from lab.cli.display.live import NAME, clock, log_line, screen, time_left
from lab.cli.display.progress import Display, Progress, folded
from lab.cli.display.watching import FRESH, Watched
from lab.compile.scenario.compiler import compile_scenario
from lab.compile.scenario.identity import cell_id, digest_of
from lab.compile.schedule import CELL_SECONDS, GUEST_SECONDS
from lab.core.yaml import parse_override
from lab.model.execution.events import (
    CellAgain,
    CellFinished,
    CellStarted,
    Event,
    GuestGone,
    GuestStarted,
    GuestTime,
    Sample,
    StepStarted,
)
from lab.model.result.document import Outcome, PhaseSeconds
from lab.model.scenario.document import Cell
from lab.plugins import catalog
from lab.run.options import RunOptions
from lab.run.task import seconds_of
from tests.kept import EVENT, NAMES, Story, story, unpacked

PATH = catalog.scenario_path("raid5-parity-last")
COMPILED = compile_scenario(PATH)
CELLS = COMPILED.cells
IDS = [cell_id(c) for c in CELLS]
LABELS = labels_of(CELLS, COMPILED.name)
WORKLOADS = [19.4, 29.3, 16.4]
"""Seconds of the three cells' dd by theory: five disks, three, and five with left-symmetric."""
GOLDEN = Path(__file__).parents[1] / "golden" / "progress"


@pytest.fixture
def clock_at(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The time, to be set."""
    now = SimpleNamespace(monotonic=lambda: now.at, at=100.0)
    monkeypatch.setattr(progress, "time", now)
    return now


def lines_of(display: Display, width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(display.render())
    return [line.rstrip() for line in out.getvalue().splitlines()]


def watched() -> Watched:
    return Watched(labels=LABELS, kind="tcg", began=0.0, estimate=Estimate(CELLS, "tcg"))


def shown(run: Watched, at: float, width: int = 80, height: int = 24, **how: Any) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False)
    console.print(screen(run, at, width=width, height=height, **how))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def stored(cells: Sequence[Cell], id_: str = "run-1", finished: Sequence[Cell] = ()) -> Any:
    """Return a run's directory with these cells."""
    return SimpleNamespace(
        id=id_,
        load_run=lambda: SimpleNamespace(cells=[SimpleNamespace(cell=cell) for cell in cells]),
        finished_cells=lambda: frozenset(map(cell_id, finished)),
    )


def ready(run: Progress, id_: str = "run-1") -> None:
    place = SimpleNamespace(accelerator=SimpleNamespace(kind="tcg", reason="TCG, because"))
    store = stored(COMPILED.cells, id_)
    run.ready(store, place)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.9, "0:59"), (84, "1:24"), (3661, "1:01:01")]
)
def test_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_an_estimate_begins_with_theory_and_learns_from_what_is_done() -> None:
    estimate = Estimate(CELLS, "tcg")
    whole = GUEST_SECONDS["tcg"] + 3 * CELL_SECONDS["tcg"] + sum(WORKLOADS)
    assert estimate.left(0).seconds == pytest.approx(whole, abs=0.5)

    estimate.guest_starts(0)
    estimate.guest_starts(4)  # its next step is no other guest
    assert estimate.left(10).seconds == pytest.approx(whole - 10, abs=0.5)
    estimate.guest_is_up(50)
    after = 3 * CELL_SECONDS["tcg"] + sum(WORKLOADS)
    assert estimate.left(50).seconds == pytest.approx(after, abs=0.5)

    first = cell_id(CELLS[0])
    estimate.cell_starts(first, 50)
    assert estimate.left(55).seconds == pytest.approx(after - 5, abs=0.5)
    # it takes longer than expected: it is as good as done, and the others are still to come
    estimate.step_starts(first, WORKLOADS[0], 70)
    assert estimate.left(500).seconds == pytest.approx(
        2 * CELL_SECONDS["tcg"] + sum(WORKLOADS[1:]), abs=0.5
    )
    estimate.cell_ends(first, 50 + WORKLOADS[0] + 20)
    assert estimate.left(100).seconds == pytest.approx(2 * 20 + sum(WORKLOADS[1:]), abs=1.0)


def test_a_lost_guest_is_one_more_to_start() -> None:
    estimate = Estimate(CELLS, "tcg")
    estimate.guest_starts(0)
    estimate.guest_is_up(30)
    first = cell_id(CELLS[0])
    estimate.cell_starts(first, 30)
    estimate.cell_ends(first, 31)
    before = estimate.left(31).seconds
    estimate.guest_starts(31)
    assert estimate.left(31).seconds == pytest.approx(before + 30)


def test_a_restored_guest_does_not_take_the_time_of_a_boot() -> None:
    run = watched()
    run.take(0, "g1", StepStarted(cell=None, label="booting"))
    run.take(80, "g1", GuestStarted(guest="g1", seconds=80))
    run.take(80, "g1", GuestGone(guest="g1"))
    run.take(80, "g1", None)
    before = run.left(80).seconds
    run.take(81, "g2", StepStarted(cell=None, label="restoring the guest"))
    assert run.left(81).seconds < before + 4
    run.take(82, "g2", StepStarted(cell=None, label="booting"))
    assert shown(run, 84)[3].split()[2:] == ["booting", *["2", "of", "~3", "s"]]


def test_a_boot_that_is_overdue_makes_the_time_left_a_minimum() -> None:
    estimate = Estimate(CELLS, "tcg")
    estimate.guest_starts(0)
    assert time_left(estimate.left(GUEST_SECONDS["tcg"])).startswith("about 1:4")
    assert time_left(estimate.left(3 * GUEST_SECONDS["tcg"])).startswith("at least 1:4")
    estimate.guest_is_up(200)
    assert time_left(estimate.left(200)).startswith("about 1:4")


def test_a_cell_that_is_repeated_takes_its_time_again() -> None:
    estimate = Estimate(CELLS, "tcg")
    for cell in CELLS:
        estimate.cell_starts(cell_id(cell), 0)
        estimate.cell_ends(cell_id(cell), 40)
    estimate.guest_is_up(40)
    assert estimate.left(40).seconds == 0
    estimate.cell_starts(cell_id(CELLS[0]), 50)
    assert estimate.left(50).seconds > WORKLOADS[0]


def test_a_repeated_cell_is_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    follower = Progress(COMPILED, how=RunOptions(), verbose=True)
    ready(follower)
    titles = []
    for cell in (*IDS, IDS[0]):
        follower.watch("g1", CellStarted(cell=cell))
        titles.append(follower.title())
        done = CellFinished(cell=cell, outcome=Outcome.DONE, seconds=PhaseSeconds())
        follower.watch("g1", done)
        titles.append(follower.title())
    assert [int(t.split()[0]) for t in titles] == [0, 1, 1, 2, 2, 3, 2, 3]
    assert all(t.endswith(" of 3 cells done") for t in titles)
    assert "run-1" in capsys.readouterr().err


def test_further_trials_have_rows_and_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """With `trials: auto` a run gets cells while it goes on; they differ in their seeds only."""
    follower = Progress(COMPILED, how=RunOptions(), verbose=False)
    ready(follower)
    failed = CellFinished(cell=IDS[0], outcome=Outcome.FAILED, seconds=PhaseSeconds())
    follower.watch("g1", failed)
    more = COMPILED.with_seeds((2, 3)).cells
    place = SimpleNamespace(accelerator=SimpleNamespace(kind="tcg", reason="TCG, because"))
    given = stored((*CELLS, *more), finished=(*CELLS, more[0]))
    follower.ready(given, place)  # type: ignore[arg-type]
    assert follower.title() == "3 of 9 trials done"  # the failed one is none of them
    follower.watch("g2", CellStarted(cell=cell_id(more[1])))
    watched = follower._watched
    assert watched is not None
    assert watched.name(cell_id(more[1])).endswith(" seed=2")
    assert len(set(watched.names.values())) == 9
    assert len(watched.waiting) == 4
    assert watched.left(time.monotonic()).seconds > WORKLOADS[0]
    assert capsys.readouterr().err.count("begins") == 1


def test_what_theory_does_not_know_is_told_by_finished_cells_only() -> None:
    cells = compile_scenario(catalog.scenario_path("faults")).cells
    assert cells[0].faults
    many = [c.model_copy(update={"axes": {"disks.count": n}}) for n, c in enumerate(cells * 3)]
    estimate = Estimate(many, "tcg")
    estimate.guest_starts(0)
    estimate.guest_is_up(1)
    left = estimate.left(1)
    assert (left.seconds, left.unknown) == (0.0, len(many))
    assert time_left(left) == "time left unknown"
    names = [cell_id(c) for c in many]
    estimate.cell_starts(names[0], 10)
    estimate.cell_ends(names[0], 20, whole=False)  # it was lost: that tells nothing
    assert estimate.left(20).unknown == len(many) - 1
    estimate.cell_starts(names[1], 20)
    estimate.cell_ends(names[1], 80)
    left = estimate.left(80)
    assert left.unknown == 0
    assert left.seconds == pytest.approx(60 * (len(many) - 2))


def test_many_cells_are_not_all_followed_through() -> None:
    sizes = ",".join(f"{n}KiB" for n in range(1, 1201))
    override = parse_override("matrix={workloads.write.bs: [" + sizes + "]}")
    cells = compile_scenario(PATH, overrides=[override]).cells
    assert len(cells) == 1200
    assert Estimate(cells, "kvm").left(0).seconds > 1200 * CELL_SECONDS["kvm"]


def test_a_fraction_tells_how_long_an_image_should_take(clock_at: Any) -> None:
    display = Display()
    display.begin("building the image")
    display.step("unpacking the essential packages", fraction=0.05)
    clock_at.at += 2
    top, below = lines_of(display)
    assert top.startswith("building the image   ━╸ ")
    assert top.endswith(" 0:02")  # too soon to tell
    assert below == "  unpacking the essential packages, 2 s"
    display.step("fetching and installing the other packages", fraction=0.5)
    clock_at.at += 18
    top, below = lines_of(display)
    assert top.endswith("0:20 of about 0:40")
    assert below == "  fetching and installing the other packages, 18 s"


@pytest.mark.parametrize("width", [20, 40, 47, 50, 51, 60, 80, 200])
def test_two_lines_are_two_lines_in_every_terminal(clock_at: Any, width: int) -> None:
    display = Display()
    display.begin("importing the image")
    display.step("a-long-name, " * 20, fraction=0.3)
    lines = lines_of(display, width)
    assert len(lines) == 2
    assert max(len(line) for line in lines) <= width


# -- a run


def writing(at: float = 33.0) -> Watched:
    """One guest writes, another boots, a third cell waits."""
    run = watched()
    run.take(0, "g1", StepStarted(cell=None, label="booting"))
    run.take(30, "g1", GuestStarted(guest="g1", seconds=30))
    run.take(30, "g1", CellStarted(cell=IDS[0]))
    run.take(at, "g1", StepStarted(cell=IDS[0], label="write", expected_seconds=9.8))
    run.take(at, "g2", StepStarted(cell=None, label="booting"))
    return run


def test_a_screen_says_what_each_guest_does_now() -> None:
    run = writing()
    pulse = Sample(seconds=2.0, processor=0.7, read_bytes=20_000_000, written_bytes=45_000_000)
    run.take(36, "g1", pulse)
    lines = shown(run, 37)
    assert lines[0].startswith("0 of 3 cells done, 1 running, 2 waiting ")
    assert lines[0].endswith(" left")
    row = lines[3].split()
    assert " ".join(row) == "parity-last 5 write 4 of ~10 s 35% 10.0 MB/s 22.5 MB/s"
    assert lines[4].startswith("guest g2 ")
    assert lines[4].split()[2:] == ["booting", *["4", "of", "~27", "s", "–"], "–", "–"]
    assert lines[5] == "waiting: parity-last 3; left-symmetric 5"
    said = log_line(run, 37)
    assert (
        "array.layout=parity-last disks.count=5: write, 4 of ~10 s, CPU 35%, read 10.0 MB/s" in said
    )


def test_throughput_is_of_its_own_seconds_and_processors() -> None:
    """Wrong spans or wrong bytes give wrong figures: nothing here is a constant."""
    run = writing()
    for seconds, read, said in ((2.0, 20e6, "10.0 MB/s"), (4.0, 20e6, "5.00 MB/s")):
        pulse = Sample(seconds=seconds, processor=6.0, read_bytes=int(read), written_bytes=0)
        run.take(38, "g1", pulse)
        row = shown(run, 39)[3]
        assert said in row
        assert f"{6.0 / seconds:.0%}" in row
        assert "0.0 MB/s" not in row.replace(said, "")


def test_an_old_pulse_is_not_now() -> None:
    run = writing()
    run.take(36, "g1", Sample(seconds=2.0, processor=0.7, read_bytes=20_000_000, written_bytes=0))
    assert "10.0 MB/s" in shown(run, 36 + FRESH)[3]
    assert "10.0 MB/s" not in shown(run, 36.1 + FRESH)[3]
    run.take(37, "g1", StepStarted(cell=IDS[0], label="read", expected_seconds=9.8))
    assert "10.0 MB/s" not in shown(run, 37)[3]  # it was of the step before
    assert "–" in shown(run, 37)[3]
    run.take(38, "g1", Sample(seconds=2.0, processor=0.7, read_bytes=20_000_000, written_bytes=0))
    assert "10.0 MB/s" not in shown(run, 38)[3]  # half of it still is
    run.take(40, "g1", Sample(seconds=2.0, processor=0.7, read_bytes=30_000_000, written_bytes=0))
    assert "15.0 MB/s" in shown(run, 40)[3]


VIRTUAL = compile_scenario(PATH, overrides=[parse_override("guest.clock=virtual")])
SEALED = [cell_id(c) for c in VIRTUAL.cells]


def sealed() -> Watched:
    """Two sealed guests, 8 s after their cells have begun; a third cell waits."""
    labels = labels_of(VIRTUAL.cells, VIRTUAL.name)
    estimate = Estimate(VIRTUAL.cells, "tcg")
    run = Watched(labels=labels, kind="tcg", began=0.0, estimate=estimate)
    for guest, cell in zip(("g1", "g2"), SEALED, strict=False):
        run.take(1, guest, GuestStarted(guest=guest, seconds=0))
        run.take(2, guest, CellStarted(cell=cell))
        run.take(5, guest, StepStarted(cell=cell, label="write"))
    run.take(10, "g1", GuestTime(seconds=20.0, host_seconds=8.0))
    return run


def test_a_sealed_guest_shows_its_own_time_and_speed() -> None:
    run = sealed()
    lines = shown(run, 10, width=78)
    assert lines[0].startswith("0 of 3 cells done, 2 running, 1 waiting, speed 2× ")
    assert lines[0].endswith(" 0:10, about 0:01 left")
    assert lines[2].split()[-4:] == ["time", "guest", "time", "speed"]
    assert lines[3].split() == ["parity-last", "5", "write", "5", "s", "0:20", "2.5×"]
    assert lines[4].split()[-2:] == ["–", "–"]  # it has not told yet
    assert "speed 2×" in log_line(run, 10)
    assert "write, 5 s, guest time 0:20" in log_line(run, 10)


def test_what_sealed_cells_took_tells_how_long_the_others_take() -> None:
    """The estimate before was 3.8 s for each."""
    first, second, third = map(seconds_of, VIRTUAL.cells)
    run = sealed()
    ended = CellFinished(
        cell=SEALED[0], outcome=Outcome.DONE, seconds=PhaseSeconds(total=9.7), guest_seconds=20.0
    )
    run.take(11.7, "g1", ended)
    slower = 9.7 / first
    left = (max(second * slower - 9.7, 0) + third * slower) / 2
    assert run.left(11.7) == Left(seconds=pytest.approx(left, abs=0.3))
    assert run.guest_seconds == 20.0
    again = GuestTime(seconds=30.0, host_seconds=10.0)
    run.take(12, "g2", again)
    assert "speed 4.2×" in shown(run, 12)[0]


@pytest.mark.parametrize("width", range(20, 101))
def test_the_rows_of_sealed_guests_fit_every_terminal(width: int) -> None:
    run = sealed()
    run.take(20, "g1", GuestTime(seconds=20_000.0, host_seconds=16.0))
    run.take(20, "g2", GuestTime(seconds=0.05, host_seconds=16.0))
    lines = shown(run, 20, width=width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 7
    for figure in ("5:33:20", "1,250×", "0.0031×"):
        assert not any(figure[:-1] in line and figure not in line for line in lines)


def test_real_time_shows_nothing_of_guest_time() -> None:
    lines = [*shown(writing(), 37), log_line(writing(), 37)]
    assert not any("speed" in line or "guest time" in line for line in lines)


def test_what_takes_longer_than_thought_is_said_to() -> None:
    run = writing()
    assert "10 of ~10 s" in shown(run, 43.4)[3]
    assert "20 s, expected 10" in shown(run, 53)[3]
    for cell in IDS[1:]:
        run.take(33, "g3", CellStarted(cell=cell))
        run.take(60, "g3", CellFinished(cell=cell, outcome=Outcome.DONE))
    assert "longer than expected" in shown(run, 1000)[0]
    assert "left" not in shown(run, 1000)[0]


def test_lost_cells_are_no_done_ones_and_their_guests_go() -> None:
    run = writing()
    run.take(40, "g1", CellFinished(cell=IDS[0], outcome=Outcome.LOST, reason="it panicked"))
    run.take(41, "g1", GuestGone(guest="g1"))
    run.take(41, "g1", None)
    assert shown(run, 41)[0].startswith("0 of 3 cells done, 1 not finished, 2 waiting")
    assert "g1" not in run.guests
    run.take(42, "g2", CellStarted(cell=IDS[0]))  # once more
    assert shown(run, 42)[0].startswith("0 of 3 cells done, 1 running, 2 waiting")


def test_a_cell_that_gets_another_turn_is_not_done() -> None:
    run = writing()
    for cell in IDS:
        run.take(40, "g1", CellStarted(cell=cell))
        run.take(60, "g1", CellFinished(cell=cell, outcome=Outcome.DONE))
    assert shown(run, 61)[0].startswith("3 of 3 cells done")
    assert run.left(61).seconds < 5
    run.take(61, "g1", CellAgain(cell=IDS[0]))
    assert shown(run, 61)[0].startswith("2 of 3 cells done, 1 waiting")
    assert run.left(61).seconds > WORKLOADS[0]


def many(name: str = "raid5-layouts") -> Watched:
    """A run in which as many guests as it has cells do the same."""
    compiled = compile_scenario(catalog.scenario_path(name))
    cells = compiled.cells
    labels = labels_of(cells, compiled.name)
    run = Watched(labels=labels, kind="tcg", began=0.0, estimate=Estimate(cells, "tcg"))
    for number, cell in enumerate(map(cell_id, cells)):
        run.take(0, f"g{number}", CellStarted(cell=cell))
        run.take(0, f"g{number}", StepStarted(cell=cell, label="write", expected_seconds=9))
    return run


@pytest.mark.parametrize("pulsed", [False, True])
def test_no_two_rows_are_the_same_at_any_width(pulsed: bool) -> None:
    run = many()
    assert len(run.guests) == 48
    for guest in run.guests.values():
        if pulsed:
            guest.pulsed, guest.pulse = (
                3,
                Sample(seconds=2, processor=1, read_bytes=9**9, written_bytes=9**9),
            )
    for width in range(40, 201):
        rows = [line for line in shown(run, 4, width, height=200) if re.search("4 of ~9 s", line)]
        assert len(rows) == 48
        assert len(set(rows)) == 48, (width, sorted(rows)[:4])


@pytest.mark.parametrize("name", sorted(catalog.scenarios()))
def test_the_labels_of_a_run_are_told_apart_however_short(name: str) -> None:
    compiled = compile_scenario(catalog.scenario_path(name))
    labels = labels_of(compiled.cells, compiled.name)
    for width in range(8, 101):
        found = list(labels.fitted(width).of.values())
        assert len(set(found)) == len(compiled.cells), (width, found)
        assert max(map(len, found)) <= width
    assert labels.fitted(500).of == labels.values


@pytest.mark.parametrize("name", sorted(catalog.scenarios()))
def test_set_takes_the_name_of_a_cell_and_makes_that_cell(name: str) -> None:
    path = catalog.scenario_path(name)
    compiled = compile_scenario(path)
    labels = labels_of(compiled.cells, name)
    for cell in compiled.cells[-3:]:
        words = shlex.split(labels.full[cell_id(cell)])
        if words == [name]:
            assert not cell.axes
            continue
        again = compile_scenario(path, overrides=[parse_override(word) for word in words]).cells
        assert [digest_of(cell_id(c)) for c in again] == [digest_of(cell_id(cell))]


def test_notices_call_a_cell_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    follower = Progress(COMPILED, how=RunOptions(), verbose=False)
    ready(follower)
    follower.note(f"{IDS[1]} is repeated alone")
    said = capsys.readouterr().err
    assert "array.layout=parity-last disks.count=3 is repeated alone\n" in said
    assert IDS[1] not in said


def test_labels_have_what_differs_and_nothing_else() -> None:
    override = parse_override("matrix={array.level: [5], array.chunk: [4KiB, 64KiB]}")
    cells = compile_scenario(PATH, overrides=[override]).cells
    labels = labels_of(cells, "q")
    names = [f"array.level=5 array.chunk={size}" for size in ("4KiB", "64KiB")]
    assert list(labels.full.values()) == names
    assert list(labels.values.values()) == ["4KiB", "64KiB"]
    assert list(labels_of([COMPILED.base], "q").full.values()) == ["q"]
    wide = many().labels.fitted(23)
    assert wide.head == "layout chunk disks"
    assert "left-asymmetric 4KiB 3" in wide.of.values()
    short = many().labels.fitted(19)
    assert all("…" in v or "parity" in v for v in short.of.values() if len(v) == 19)


def test_guests_that_have_no_cell_are_told_apart() -> None:
    run = watched()
    for number in (1, 2):
        run.take(0, f"g{number}", StepStarted(cell=None, label="booting"))
    for number in (3, 4):
        run.take(0, f"g{number}", CellStarted(cell=f"calibration-{number}"))
    rows = shown(run, 1)[3:7]
    assert len({row.split("  ")[0] for row in rows}) == 4
    assert len(set(shown(run, 1, 40)[3:7])) == 4


@pytest.mark.parametrize("width", [38, 50, 80])
def test_how_far_a_run_is_is_said_at_every_width(width: int) -> None:
    assert re.match(r"0 of 3 cells done|0/3 done", shown(writing(), 37, width)[0])


def test_columns_without_a_figure_go() -> None:
    run = writing()
    assert "CPU" not in "".join(shown(run, 37))
    assert "–" not in "".join(shown(run, 37))
    run.take(38, "g1", Sample(seconds=2.0, processor=0.7, read_bytes=1, written_bytes=0))
    assert shown(run, 39)[2].split()[-3:] == ["CPU", "read", "write"]
    assert shown(run, 38 + FRESH + 1)[3].split()[-3:] == ["–"] * 3  # not gone in an instant
    assert "CPU" not in "".join(shown(run, 70))


@pytest.mark.parametrize("height", [10, 24, 50])
def test_the_display_never_scrolls(height: int) -> None:
    for run in (many(), many("bitmap-random-write")):
        for width in range(40, 201, 8):
            note = "one sentence that is rather long, as those of the lab happen to be " * 3
            lines = shown(run, 2, width, height, note=note)
            assert len(lines) < height
            more = len(run.guests) - sum("  write" in line for line in lines)
            assert (f"+ {more} more guests" in lines) == (more > 0)


def test_more_guests_than_lines_are_counted() -> None:
    run = watched()
    for number in range(40):
        run.take(1, f"g{number}", StepStarted(cell=None, label="booting"))
    for width, height in ((80, 24), (80, 8), (50, 24), (50, 10), (20, 12)):
        lines = shown(run, 2, width, height, note="something happened")
        assert len(lines) < height
        assert any(re.fullmatch(r"\+ \d+ more guests", line) for line in lines)
        assert lines[-1].startswith("something hap")


@pytest.mark.parametrize("width", range(10, 130, 7))
def test_no_figure_is_cut_and_no_line_is_too_wide(width: int) -> None:
    run = writing()
    pulse = Sample(seconds=2.0, processor=3.1, read_bytes=246_000_000, written_bytes=111_000_000)
    run.take(36, "g1", pulse)
    lines = shown(run, 37, width)
    text = "\n".join(lines)
    for figure in ("123 MB/s", "55.5 MB/s", "155%"):
        text = text.replace(figure, "")
    assert not any(part in text for part in ("123", "55", "MB"))
    assert ("55.5 MB/s" in "".join(lines)) == (width >= 73)
    assert max(map(len, lines)) <= max(width, NAME)


def test_time_left_is_theirs_and_not_made_up() -> None:
    """A clock that is wrong, or cells that are slower than thought, change what is said."""
    slow, fast = watched(), watched()
    for run, took in ((slow, 100), (fast, 25)):
        run.take(0, "g1", StepStarted(cell=None, label="booting"))
        run.take(10, "g1", GuestStarted(guest="g1", seconds=10))
        run.take(10, "g1", CellStarted(cell=IDS[0]))
        run.take(10 + took, "g1", CellFinished(cell=IDS[0], outcome=Outcome.DONE))
    left = [run.left(200).seconds for run in (slow, fast)]
    assert left[0] - left[1] == pytest.approx(2 * 75, abs=1)


# -- a recorded run


def recorded() -> Iterator[tuple[float, str, Event | None]]:
    for line in (GOLDEN / "raid5-parity-last.jsonl").read_text().splitlines():
        told = json.loads(line)
        event = EVENT.validate_python(told["event"]) if told["event"] else None
        yield told["at"], told["guest"], event


def at_moment(moment: float) -> Watched:
    run = watched()
    for at, guest, event in recorded():
        if at > moment:
            break
        run.take(at, guest, event)
    return run


MOMENTS = (20.0, 76.9, 90.0, 104.2, 130.0)
"""Seconds into the recorded run: a guest boots; disks are calibrated; two guests measure; one is
done; a contended cell is repeated."""


@pytest.mark.parametrize("width", [50, 80, 120])
@pytest.mark.parametrize("colour", [False, True])
def test_a_recorded_run_looks_as_it_did(width: int, colour: bool) -> None:
    out = io.StringIO()
    for moment in MOMENTS:
        console = Console(
            file=out, width=width, highlight=False, force_terminal=colour, no_color=not colour
        )
        console.print(f"{moment:g} s", style=None)
        console.print(screen(at_moment(moment), moment, width=width, height=24))
    text = "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
    path = GOLDEN / f"screens-{width}{'-colour' if colour else ''}.txt"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert ("\x1b[3" in text) == colour


def test_the_recorded_pulses_are_what_the_workloads_moved() -> None:
    """At 5 MiB/s a disk, all disks of an array move no more than that together."""
    rates = [
        (e.read_bytes + e.written_bytes) / e.seconds
        for _, _, e in recorded()
        if isinstance(e, Sample)
    ]
    assert len(rates) > 10
    assert max(rates) < 5 * 5 * 1024**2 * 1.15
    assert max(rates) > 3 * 5 * 1024**2 * 0.9


def test_the_time_left_of_the_recorded_run_comes_true() -> None:
    ends = [(at, e.cell) for at, _, e in recorded() if isinstance(e, CellFinished)]
    done = max(next(at for at, cell in ends if cell == mine) for mine in IDS)
    now = 90.0  # what is repeated later, nobody knows yet
    left = at_moment(now).left(now)
    assert left.seconds == pytest.approx(done - now, rel=0.2)
    assert left.unknown == 0
    # held against theory that thinks of twice the work, it does not
    twice = Estimate([c.model_copy(update={"trials": 4}) for c in CELLS], "tcg")
    wrong = Watched(labels=LABELS, kind="tcg", began=0.0, estimate=twice)
    for at, guest, event in recorded():
        if at <= now:
            wrong.take(at, guest, event)
    assert wrong.left(now).seconds != pytest.approx(done - now, rel=0.2)


def estimates(story: Story) -> list[tuple[float, Left]]:
    """Each half second of a run: how long it still took, and what was said of that."""
    cells, events = story
    labels = labels_of(cells, "q")
    run = Watched(labels=labels, kind="tcg", began=0.0, estimate=Estimate(cells, "tcg"))
    end, found, now = events[-1][0], [], 0.0
    told = iter([*events, (math.inf, "", None)])
    event = next(told)
    while now < end:
        while event[0] <= now:
            run.take(*event)
            event = next(told)
        found.append((end - now, run.left(now)))
        now += 0.5
    return found


STORIES = ["progress", *NAMES]


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[float, Left]]]:
    place = tmp_path_factory.mktemp("kept")
    told = {name: story(unpacked(name, place)) for name in NAMES} | {
        "progress": (CELLS, list(recorded()))
    }
    return {name: estimates(story) for name, story in told.items()}


@pytest.mark.parametrize("name", STORIES)
def test_in_a_runs_last_second_nothing_is_left(
    name: str, stories: dict[str, list[tuple[float, Left]]]
) -> None:
    last = [left for to_come, left in stories[name] if to_come <= 1.0]
    assert len(last) >= 2
    assert max(left.seconds for left in last) <= 3.0


def known_of(left: Left) -> bool:
    return time_left(left).startswith(("about", "ending"))


ERRORS = {
    "raid5-parity-last": 0.25,
    "bitmap-random-write": 0.15,
    "raid5-layouts": 0.35,
    "progress": 0.30,
}
"""Median over a run of what the time left is off by, as a part of what really was left. Nobody can
know that cells will be repeated, as in the last two."""


@pytest.mark.parametrize("name", ERRORS)
def test_the_time_left_comes_true(name: str, stories: dict[str, list[tuple[float, Left]]]) -> None:
    known = [(to_come, left.seconds) for to_come, left in stories[name] if known_of(left)]
    assert len(known) > len(stories[name]) / 3
    assert median(abs(said - really) / really for really, said in known) <= ERRORS[name]


@pytest.mark.parametrize("name", ["raid5-parity-last", "bitmap-random-write"])
def test_the_time_left_does_not_rise_where_nothing_is_repeated(
    name: str, stories: dict[str, list[tuple[float, Left]]]
) -> None:
    said = [left.seconds for _, left in stories[name] if known_of(left)]
    assert said[0] > 20
    assert max(later - earlier for earlier, later in pairwise(said)) <= 2.0


def test_a_time_that_is_not_known_is_not_shown(
    stories: dict[str, list[tuple[float, Left]]],
) -> None:
    """Theory knows nothing of bonnie: before its first cell has ended, there is no time."""
    said = [time_left(left) for _, left in stories["bitmap-chunk-raid10"]]
    assert set(said[10 : len(said) // 2]) == {"time left unknown"}


def test_a_narrower_terminal_has_folded_what_was_drawn() -> None:
    assert folded([80, 80, 12, 0], 80) == 4
    assert folded([80, 80, 12, 0], 50) == 6
    assert folded([80, 80, 12, 0], 40) == 6
    assert folded([81], 80) == 2


# -- a log


def test_a_log_gets_a_line_now_and_then(clock_at: Any, capsys: pytest.CaptureFixture[str]) -> None:
    follower = Progress(COMPILED, how=RunOptions(), verbose=False)
    ready(follower)
    began = clock_at.at
    for at, guest, event in recorded():
        clock_at.at = began + at
        follower.watch(guest, event)
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert 4 <= len(lines) <= 10  # of three minutes
    assert "run run-1 begins: 0 of 3 cells done, about " in lines[0]
    assert "3 of 3 cells done" in lines[-1]
    assert "\x1b" not in said.err


def test_a_log_of_a_long_step_has_a_line_every_45_seconds(
    clock_at: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    follower = Progress(COMPILED, how=RunOptions(), verbose=False)
    ready(follower)
    follower.watch("g1", CellStarted(cell=IDS[0]))
    follower.watch("g1", StepStarted(cell=IDS[0], label="write", expected_seconds=600))
    for _ in range(300):
        clock_at.at += 2
        follower.watch("g1", Sample(seconds=2, processor=1, read_bytes=10**7, written_bytes=0))
    lines = capsys.readouterr().err.splitlines()[1:]
    assert len(lines) == 600 // 46  # samples are two seconds apart
    assert all("write, " in line and "read 5.00 MB/s" in line for line in lines)
    follower.note("the host is slow")
    assert capsys.readouterr().err.endswith("the host is slow\n")


def test_a_log_has_a_line_a_minute_without_any_event(
    clock_at: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress(COMPILED, how=RunOptions(), verbose=False) as follower:
        ready(follower)
        follower.watch("g1", CellStarted(cell=IDS[0]))
        capsys.readouterr()
        for _ in range(2):
            clock_at.at += 61
            said = ""
            for _ in range(100):
                threading.Event().wait(0.1)
                if said := capsys.readouterr().err:
                    break
            assert "0 of 3 cells done" in said


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    """What a terminal gets of a run that has just begun, by these variables of the environment."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm"} | variables).items():
        monkeypatch.setenv(name, value)
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    with os.fdopen(slave, "w") as file:
        with Progress(
            COMPILED, how=RunOptions(), verbose=False, console=Console(file=file)
        ) as follower:
            ready(follower)
            follower.watch("g1", StepStarted(cell=None, label="booting"))
            time.sleep(0.6)
        file.flush()
        os.set_blocking(master, False)
        said = b""
        with suppress(BlockingIOError):
            while piece := os.read(master, 65536):
                said += piece
    os.close(master)
    return said.decode()


def test_a_terminal_gets_a_display_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    said = on_a_terminal(monkeypatch)
    assert "0 of 3 cells done, 3 waiting" in said
    assert "booting" in said
    assert re.search(r"\x1b\[\d*;?3[0-9]m", said)
    lines = 5
    assert said.endswith("\x1b[1A\x1b[2K" * lines)
    assert not re.search(r"\x1b\[\d*;?3[0-9]m", on_a_terminal(monkeypatch, NO_COLOR="1"))


def test_a_dumb_terminal_and_a_log_in_colour_get_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = on_a_terminal(monkeypatch, TERM="dumb")
    assert "\x1b" not in said
    assert len(said.splitlines()) == 1
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress(COMPILED, how=RunOptions(), verbose=False) as follower:
        ready(follower)
    assert "\x1b[1A" not in capsys.readouterr().err


def test_ctrl_c_is_said_while_guests_are_taken_down() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Progress(COMPILED, how=RunOptions(), verbose=False) as follower:
        ready(follower)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        out = io.StringIO()
        Console(file=out, width=80).print(follower.render())
        assert "stopping: removing guests" in out.getvalue()
    assert signal.getsignal(signal.SIGTERM) is before
