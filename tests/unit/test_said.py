"""What is said of a run is so: kernels, seconds, time left, and that it still works."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from lab.analysis.host_time import host_seconds
from lab.cli.display import progress
from lab.cli.display.estimate import Estimate
from lab.cli.display.live import time_left
from lab.compile.scenario.identity import cell_id
from lab.model.result.document import CellClock, PhaseSeconds, Result
from lab.model.scenario.document import Cell
from lab.report.content.figures import clock_words
from lab.report.html.page import where
from lab.results.documents import result_of
from tests import kept
from tests.fakes import SCENARIO, compiled_text

KERNELS = ("6.1.0-18-amd64", "6.12.5-amd64")


@pytest.mark.parametrize("several", [False, True])
def test_each_kernel_and_mdadm_of_a_run_is_named(several: bool, tmp_path: Path) -> None:
    run = kept.unpacked("raid5-parity-last", tmp_path)
    stored = run.load_run()
    last = stored.cells[-1].id
    facts = [f"kernel={k}\nmdadm=mdadm - v4.{n}\n" for n, k in enumerate(KERNELS)]
    for cell in stored.cells:
        path = run.directory / "cells" / cell.id / "raw" / "environment.txt"
        path.write_text(facts[several and cell.id == last])
    if several:
        guest = stored.cells[-1].cell.guest.model_copy(update={"kernel": "linux-image-amd64"})
        changed = [
            c.model_copy(update={"cell": c.cell.model_copy(update={"guest": guest})})
            if c.id == last
            else c
            for c in stored.cells
        ]
        run.save_run(stored.model_copy(update={"cells": tuple(changed)}))
    result = result_of(run)
    named = where(result)
    assert KERNELS[0] in named
    assert (KERNELS[1] in named) is several
    assert ("4.0 and 4.1" in named) is several
    assert result.environment["guest"]["kernel"] == KERNELS[0]
    assert ("guests" in result.environment) is several


def sealed_result(tmp_path: Path, *, finished: str | None, reused: bool = False) -> Result:
    """Three sealed cells at a time: 100 s of each guest, in 60 s of the host."""
    result = result_of(kept.unpacked("raid5-parity-last", tmp_path))
    cells = tuple(
        cell.model_copy(
            update={
                "clock": CellClock.SEALED,
                "guest_seconds": 100.0,
                "seconds": PhaseSeconds(workloads=55, total=60),
                "reused_from": "another" if reused and cell is result.cells[0] else None,
            }
        )
        for cell in result.cells
    )
    run = result.run.model_copy(
        update={"started": "2026-01-01T00:00:00+00:00", "finished": finished}
    )
    return result.model_copy(update={"cells": cells, "run": run})


def test_the_seconds_of_the_host_are_those_of_its_clock(tmp_path: Path) -> None:
    ended = "2026-01-01T00:01:40+00:00"
    cells = len(sealed_result(tmp_path / "a", finished=ended).cells)
    assert cells >= 3
    said = clock_words(sealed_result(tmp_path / "b", finished=ended))
    seconds = cells * 100 / 60
    assert f"{seconds:.0f} min" in said or f"{cells * 100}" in said, said
    assert "100 s of the host" in said or "1 min 40 s of the host" in said, said
    assert "of the host" not in clock_words(sealed_result(tmp_path / "c", finished=None))
    fewer = clock_words(sealed_result(tmp_path / "d", finished=ended, reused=True))
    assert fewer != said  # a reused cell took no time of this host


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return compiled_text(tmp_path, SCENARIO, "guest.clock=virtual").base


def test_a_cell_that_takes_longer_than_expected_has_no_end_in_sight(cell: Cell) -> None:
    """It was "about 0:01 left" for as long as it took."""
    estimate = Estimate([cell], "tcg")
    estimate.guest_is_up(0.0)
    name = cell_id(cell)
    estimate.cell_starts(name, 0.0)
    expected = sum(host_seconds(cell).values())
    said = [time_left(estimate.left(at)) for at in range(round(20 * expected) + 100)]
    late = [word for at, word in enumerate(said) if at > 3 * expected + 60]
    assert late
    assert set(late) == {"longer than expected"}
    times = [s for s in said if s.startswith("about")]
    assert times
    assert times == sorted(times, key=seconds_in, reverse=True)
    assert max(times.count(word) for word in set(times)) <= 17


def seconds_in(word: str) -> int:
    minutes, seconds = re.findall(r"\d+", word)[-2:]
    return int(minutes) * 60 + int(seconds)


def test_a_late_cell_among_waiting_ones_gives_a_lower_limit(cell: Cell) -> None:
    others = [cell.model_copy(update={"seed": seed}) for seed in range(2, 5)]
    estimate = Estimate([cell, *others], "tcg")
    estimate.guest_is_up(0.0)
    estimate.cell_starts(cell_id(cell), 0.0)
    assert time_left(estimate.left(1.0)).startswith("about")
    assert time_left(estimate.left(100_000.0)).startswith("at least")


def test_without_a_terminal_an_image_s_build_has_a_line_a_minute(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET", 0.05)
    out = io.StringIO()
    shown = progress.Display(Console(file=out, width=80))
    shown.begin("building the image")
    shown.step("installing packages", fraction=0.3)
    assert re.fullmatch(
        r"building the image, 0:00; installing packages, 0 s; 30% done", shown.line()
    )
    with progress.Spinner("importing the image") as spinner:
        spinner._display.place.console = Console(file=out, width=80)
        spinner.show("checking", None)
        wait_for(lambda: out.getvalue().count("importing the image") >= 2)
    assert "checking" in out.getvalue()
    silent = out.getvalue()
    time.sleep(0.2)
    assert out.getvalue() == silent  # it has ended


@pytest.mark.parametrize(("wanting", "said"), [(14.2, True), (3.0, False)])
def test_a_status_line_on_a_busy_host_says_so(
    wanting: float, said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person who waits sees within a minute why: the lab's start is not in the 45 s."""
    from lab.host.system import load
    from lab.run.options import RunOptions

    assert progress.QUIET <= 45
    monkeypatch.setattr(load.os, "getloadavg", lambda: (wanting, 0.0, 0.0))
    monkeypatch.setattr(load.accelerator, "cpus", lambda: 2)
    out = io.StringIO()
    shown = progress.Progress(
        compiled_text(tmp_path, SCENARIO),
        how=RunOptions(),
        verbose=False,
        console=Console(file=out, width=80),
    )
    monkeypatch.setattr(progress, "QUIET", 0.05)
    time.sleep(0.06)
    shown._log_if_quiet()
    busy = "; the host is busy: 14 processes want the host's 2 CPUs" in out.getvalue()
    assert busy is said, out.getvalue()


def wait_for(done: object) -> None:
    assert callable(done)
    for _ in range(200):
        if done():
            return
        time.sleep(0.05)
    pytest.fail("it does not happen")
