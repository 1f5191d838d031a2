"""What a person sees while a run goes on, and how the time it should take is made."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from lab import catalog
from lab.app.dispatch import How
from lab.cli import progress
from lab.cli.estimate import CELL_SECONDS, GUEST_SECONDS, Estimate
from lab.cli.progress import Display, clock
from lab.compile.scenario import cell_id, compile_scenario
from lab.decode import parse_override
from lab.model.events import CellFinished, CellStarted
from lab.model.result import Outcome, PhaseSeconds

PATH = catalog.scenario_path("raid5-parity-last")
CELLS = compile_scenario(PATH).cells
WORKLOADS = [19.4, 29.3, 16.4]
"""Seconds of the three cells' dd by theory: five disks, three, and five with left-symmetric."""


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


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.9, "0:59"), (84, "1:24"), (3661, "1:01:01")]
)
def test_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_an_estimate_begins_with_theory_and_learns_from_what_is_done() -> None:
    estimate = Estimate(CELLS, "tcg")
    whole = GUEST_SECONDS["tcg"] + 3 * CELL_SECONDS["tcg"] + sum(WORKLOADS)
    assert estimate.left(0) == pytest.approx(whole, abs=0.5)

    estimate.guest_starts(0)
    estimate.guest_starts(4)  # its next step is no other guest
    assert estimate.left(10) == pytest.approx(whole - 10, abs=0.5)
    estimate.guest_is_up(50)
    after = 3 * CELL_SECONDS["tcg"] + sum(WORKLOADS)
    assert estimate.left(50) == pytest.approx(after, abs=0.5)

    first = cell_id(CELLS[0])
    estimate.cell_starts(first, 50)
    assert estimate.left(55) == pytest.approx(after - 5, abs=0.5)
    # it takes longer than thought: it is as good as done, and the others are still to come
    assert estimate.left(500) == pytest.approx(
        2 * CELL_SECONDS["tcg"] + sum(WORKLOADS[1:]), abs=0.5
    )
    estimate.cell_ends(first, 50 + WORKLOADS[0] + 20)
    assert estimate.left(100) == pytest.approx(2 * 20 + sum(WORKLOADS[1:]), abs=1.0)


def test_a_lost_guest_is_one_more_to_start() -> None:
    estimate = Estimate(CELLS, "tcg")
    estimate.guest_starts(0)
    estimate.guest_is_up(30)
    first = cell_id(CELLS[0])
    estimate.cell_starts(first, 30)
    estimate.cell_ends(first, 31)
    before = estimate.left(31)
    estimate.guest_starts(31)
    assert estimate.left(31) == pytest.approx(before + 30)


def test_a_cell_that_is_repeated_takes_its_time_again() -> None:
    estimate = Estimate(CELLS, "tcg")
    for cell in CELLS:
        estimate.cell_starts(cell_id(cell), 0)
        estimate.cell_ends(cell_id(cell), 40)
    estimate.guest_is_up(40)
    assert estimate.left(40) == 0
    estimate.cell_starts(cell_id(CELLS[0]), 50)
    assert estimate.left(50) > WORKLOADS[0]


def test_a_repeated_cell_is_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [cell_id(c) for c in CELLS]
    follower = progress.Progress(compile_scenario(PATH), how=How(), verbose=True)
    place = SimpleNamespace(accelerator=SimpleNamespace(kind="tcg", reason="TCG, because"))
    follower.ready(SimpleNamespace(id="run-1"), place)  # type: ignore[arg-type]
    titles = []
    for cell in (*cells, cells[0]):
        follower.watch(CellStarted(cell=cell))
        titles.append(follower.title())
        follower.watch(CellFinished(cell=cell, outcome=Outcome.DONE, seconds=PhaseSeconds()))
        titles.append(follower.title())
    assert [int(t.split()[0]) for t in titles] == [0, 1, 1, 2, 2, 3, 2, 3]
    assert all(t.endswith(" of 3 cells done") for t in titles)
    assert "run-1" in capsys.readouterr().err


def test_many_cells_are_not_all_followed_through() -> None:
    sizes = ",".join(f"{n}MiB" for n in range(1, 1201))
    override = parse_override("matrix={workloads.write.bs: [" + sizes + "]}")
    cells = compile_scenario(PATH, overrides=[override]).cells
    assert len(cells) == 1200
    assert Estimate(cells, "kvm").left(0) > 1200 * CELL_SECONDS["kvm"]


def test_the_display_says_what_happens_and_how_long_it_should_take(clock_at: Any) -> None:
    display = Display()
    assert lines_of(display)[0].split() == ["getting", "ready", "━" * 30, "0:00"]
    display.begin("cell 2 of 3")
    display.step("left-symmetric, 5: write", expected=7.8)
    display.go_on("cell 2 of 3", 140.0)
    clock_at.at += 5.2
    top, below = lines_of(display)
    assert top.startswith("cell 2 of 3 ")
    assert top.endswith(" 0:05 of about 2:20")
    assert below == "  left-symmetric, 5: write, 5 s of about 8 s"
    clock_at.at += 300  # a guess that was wrong is not shown any longer
    top, below = lines_of(display)
    assert top.endswith("━ 5:05")
    assert below == "  left-symmetric, 5: write, 305 s"


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
    display.go_on("cell 1000 of 10000 and many more", 360000)
    display.step("a-long-name, " * 20, expected=3)
    lines = lines_of(display, width)
    assert len(lines) == 2
    assert max(len(line) for line in lines) <= width
