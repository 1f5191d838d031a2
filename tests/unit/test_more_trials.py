"""`trials: auto` repeats the cells of open claims with new seeds until they are decided."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

import pytest

from lab.analysis import sequential
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.compile.scenario.identity import cell_id
from lab.core.errors import InputError
from lab.core.yaml import parse_override
from lab.model.execution.procedure import Procedure
from lab.model.result.document import CellClock, Outcome, PhaseSeconds, Result
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import MOST_TRIALS, AutoTrials, Cell, Scenario
from lab.report.charts.cells import cell_charts
from lab.results.documents import result_of
from lab.results.report import page_of
from lab.run import more_trials
from lab.run.scheduling.trials import Round, TrialsState, next_round
from lab.store.runs import RunStore, StoredCell, StoredOutcome, StoredRun

HOLDS, REFUTED, INCONCLUSIVE, _ = Verdict

TEXT = """\
title: Test fixture
question: Does the chunk matter?
guest: {clock: virtual}
disks: {count: 3, size: 1GiB, model: hdd}
array: {level: 5, chunk: 64KiB}
workloads:
  - {name: write, tool: dd, of: '{target}', bs: 1MiB, count: 100, oflag: direct}
matrix:
  array.chunk: [4KiB, 8KiB, 16KiB, 32KiB, 64KiB, 128KiB]
trials: auto
claims:
"""
FIRST = "{workload: write, where: {array.chunk: 4KiB}}"
SECOND = "{workload: write, where: {array.chunk: 8KiB}}"
FASTER = f"""\
  - id: FASTER
    says: The first is faster
    expect: {{kind: ratio, of: {FIRST}, to: {SECOND}, at_least: 1}}
"""


def state(trials: dict[str, int], wanted: dict[str, int], **more: Any) -> TrialsState:
    seconds = dict.fromkeys(trials, 60.0)
    whole = {"trials": trials, "wanted": wanted, "most": 32, "seconds": seconds} | more
    return TrialsState(**whole)


@pytest.mark.parametrize(
    ("given", "added", "stopped"),
    [
        (state({"a": 1, "b": 1}, {}), {}, ""),
        (state({"a": 1, "b": 1}, {"a": 4}), {"a": 3}, ""),
        (state({"a": 1, "b": 4}, {"a": 4, "b": 4}), {"a": 3}, ""),
        (state({"a": 4, "b": 6}, {"a": 6, "b": 17}), {"a": 2, "b": 11}, ""),
        (state({"a": 8}, {"a": 17}, most=16), {}, "more than 16 trials"),
        (state({"a": 1, "b": 8}, {"a": 4, "b": 17}, most=16), {"a": 3}, "more than 16 trials"),
        (state({"a": 1, "b": 1}, {"a": 4, "b": 4}, left=360.0), {"a": 3, "b": 3}, ""),
        (state({"a": 1, "b": 1}, {"a": 4, "b": 4}, left=359.0), {}, "longer than the minutes"),
        (state({"a": 1, "b": 1}, {"a": 4, "b": 4}, left=180.0, at_once=2), {"a": 3, "b": 3}, ""),
        (state({"a": 32}, {}, left=-1.0), {}, ""),
    ],
)
def test_the_next_round(given: TrialsState, added: dict[str, int], stopped: str) -> None:
    found = next_round(given)
    assert found.trials == added
    assert stopped in found.stopped
    assert bool(found.stopped) is bool(stopped)


def test_no_budget_of_time_is_no_limit() -> None:
    assert next_round(state({"a": 1}, {"a": 32}, left=inf)) == Round(trials={"a": 31})


def test_the_largest_budget_is_the_last_look() -> None:
    assert sequential.MOST == MOST_TRIALS == AutoTrials().most


# -- a whole run, with seeds that draw each trial's value


Speed = Callable[[Cell, random.Random], float]


class Played:
    """A run whose cells take their throughput from a function instead of a guest."""

    def __init__(self, place: Path, claims: str, speed: Speed, *sets: str) -> None:
        source = place / "question.yaml"
        source.write_text(TEXT + claims)
        self.compiled: Compiled = compile_scenario(
            source, overrides=[parse_override(s) for s in sets]
        )
        self.speed = speed
        self.said: list[str] = []
        self.rounds: list[list[Cell]] = []
        self.store = RunStore(place / "question-20260101-120000")
        (self.store.directory / "cells").mkdir(parents=True)
        self.store.save_run(
            StoredRun(
                id=self.store.id,
                scenario="question",
                title="t",
                question="q",
                started="2026-01-01T12:00:00+00:00",
                environment={},
                cells=tuple(
                    StoredCell(id=cell_id(c), cell=c, published=True) for c in self.compiled.cells
                ),
                claims=self.compiled.scenario.claims,
            )
        )
        self.run(self.compiled.cells)

    def run(self, cells: Sequence[Cell]) -> None:
        self.rounds.append(list(cells))
        for cell in cells:
            assert cell.trials == 1
            name = cell_id(cell)
            attempt = self.store.begin_cell(name, cell, Procedure(name="q", steps=()))
            (attempt / "raw").mkdir()
            speed = self.speed(cell, random.Random(f"{cell.axes}{cell.seed}"))
            size = 100 << 20
            text = f"100+0 records out\n{size} bytes copied, {size / speed:.9f} s, 1 MB/s\n"
            (attempt / "raw" / "write.1.stdout.txt").write_text("")
            (attempt / "raw" / "write.1.stderr.txt").write_text(text)
            outcome = StoredOutcome(
                outcome=Outcome.DONE if speed > 1 else Outcome.FAILED,
                reason="" if speed > 1 else "it broke",
                clock=CellClock.SEALED,
                seconds=PhaseSeconds(total=30),
            )
            self.store.finish_cell(name, attempt, outcome)

    def auto(self, at_once: int = 2) -> Result:
        trials = self.compiled.scenario.trials
        assert isinstance(trials, AutoTrials)
        more_trials.until_decided(self.store, trials, at_once, self.run, self.said.append)
        return result_of(self.store)

    @property
    def seeds(self) -> dict[int, list[int]]:
        """Chunk in KiB to the seeds that ran."""
        found: dict[int, list[int]] = {}
        for cell in (c for cells in self.rounds for c in cells):
            assert cell.array is not None
            assert cell.array.chunk is not None
            found.setdefault(cell.array.chunk >> 10, []).append(cell.seed)
        return found


def speeds(spread: float, **first: float) -> Speed:
    """10 MB/s in each cell, and so many times as much in those that are named by their chunk."""

    def of(cell: Cell, dice: random.Random) -> float:
        assert cell.array is not None
        assert cell.array.chunk is not None
        return 1e7 * first.get(f"c{cell.array.chunk >> 10}", 1.0) * (1 + dice.gauss(0, spread))

    return of


def verdicts(result: Result) -> dict[str, Verdict]:
    return {c.id: c.verdict for c in result.claims}


def test_a_claim_is_repeated_until_it_is_decided_and_other_cells_are_not(tmp_path: Path) -> None:
    played = Played(tmp_path, FASTER, speeds(0.005, c4=1.05))
    assert verdicts(result_of(played.store)) == {"FASTER": INCONCLUSIVE}
    result = played.auto()
    assert verdicts(result) == {"FASTER": HOLDS}
    assert played.seeds[4] == played.seeds[8] == list(range(1, 18))  # two cells: first at 17
    assert all(played.seeds[chunk] == [1] for chunk in (16, 32, 64, 128))
    assert played.said == ["claims are open: 32 more trials of 2 cells"]
    first, second = result.cells[:2]
    assert len(result.cells) == 6
    assert len(first.measurements[0].values) == len(second.measurements[0].values) == 17
    assert first.id == cell_id(played.compiled.cells[0])
    assert first.seconds.total == 17 * 30
    (part,) = result.claims[0].parts
    assert part.low is not None
    assert part.low > 1.01
    assert (part.at_least, part.trials) == (pytest.approx(1.01), 17)


def test_cells_of_one_kind_need_fewer_trials(tmp_path: Path) -> None:
    """Six cells show together how far they vary."""
    values = ", ".join(
        f"{{workload: write, where: {{array.chunk: {n}KiB}}}}" for n in (4, 8, 16, 32, 64, 128)
    )
    claim = f"  - {{id: ORDER, says: In order, expect: {{kind: order, values: [{values}]}}}}\n"
    played = Played(tmp_path, claim, speeds(0.003, c4=8, c8=6, c16=4.5, c32=3.2, c64=2.2, c128=1.5))
    assert verdicts(played.auto()) == {"ORDER": HOLDS}
    assert {len(seeds) for seeds in played.seeds.values()} <= {4, 6}


def test_equal_cells_are_no_difference(tmp_path: Path) -> None:
    played = Played(tmp_path, FASTER, speeds(0.002))
    result = played.auto()
    assert verdicts(result) == {"FASTER": REFUTED}
    assert "no difference: less than 1 %" in result.claims[0].reason


def test_a_value_on_its_bound_ends_as_soon_as_no_trial_can_decide_it(tmp_path: Path) -> None:
    played = Played(tmp_path, FASTER, speeds(0.01, c4=1.01))
    assert verdicts(played.auto()) == {"FASTER": INCONCLUSIVE}
    assert len(played.seeds[4]) == 17
    assert "no further trials can decide it" in result_of(played.store).claims[0].reason


@pytest.mark.parametrize(
    ("sets", "said", "count"),
    [
        ("trials={auto: true, most: 20}", "claims stay open: claims need more than 20 trials", 17),
        ("trials={auto: true, minutes: 0.5}", "claims stay open: the next round", 1),
    ],
)
def test_a_budget_is_kept(tmp_path: Path, sets: str, said: str, count: int) -> None:
    played = Played(tmp_path, FASTER, speeds(0.01, c4=1.03), sets)
    assert verdicts(played.auto()) == {"FASTER": INCONCLUSIVE}
    assert len(played.seeds[4]) == count
    assert said in played.said[-1]


def test_what_is_decided_by_one_trial_is_not_repeated(tmp_path: Path) -> None:
    """Nothing is drawn on throttled disks."""
    played = Played(
        tmp_path, FASTER, speeds(0, c4=1.05), "disks={count: 3, size: 1GiB, throttle: 5MiB}"
    )
    result = played.auto()
    assert played.said == []
    assert len(played.rounds) == 1
    assert result.cells[0].measurements[0].values == pytest.approx((1.05e7,))


def test_a_seed_that_failed_makes_the_cell_fail(tmp_path: Path) -> None:
    def broken(cell: Cell, dice: random.Random) -> float:
        return 0.5 if cell.seed == 3 else speeds(0.01)(cell, dice)

    result = Played(tmp_path, FASTER, broken).auto()
    assert verdicts(result) == {"FASTER": INCONCLUSIVE}
    assert (result.cells[0].outcome, result.cells[0].reason) == (Outcome.FAILED, "seed 3: it broke")


def test_seeds_that_have_not_run_yet_are_left_out(tmp_path: Path) -> None:
    played = Played(tmp_path, FASTER, speeds(0.01))
    run = played.store.load_run()
    more = [c.model_copy(update={"seed": 2}) for c in played.compiled.cells[:2]]
    cells = (*run.cells, *(StoredCell(id=cell_id(c), cell=c, published=True) for c in more))
    played.store.save_run(run.model_copy(update={"cells": cells}))
    played.run(more[:1])
    result = result_of(played.store)
    assert [len(c.measurements[0].values) for c in result.cells] == [2, 1, 1, 1, 1, 1]


LOGGED = (
    "workloads=[{name: write, tool: dd, of: '{target}', bs: 1MiB, count: 100, oflag: direct},"
    " {name: mixed, tool: fio, rw: randrw, bs: 4KiB, iodepth: 4, ioengine: libaio, direct: true,"
    " runtime: 3, time_based: true, size: 16MiB, write_bw_log: true, log_avg_msec: 1000}]"
)
LOG = Path(__file__).parents[1] / "golden" / "workloads" / "fio" / "mixed-log" / "stdout"


def test_a_report_shows_all_trials(tmp_path: Path) -> None:
    played = Played(tmp_path, FASTER, speeds(0.0), LOGGED, "claims=[]", "matrix={}")
    (first,) = played.compiled.cells
    more = list(played.compiled.with_seeds((2, 3)).cells)
    run = played.store.load_run()
    cells = (*run.cells, *(StoredCell(id=cell_id(c), cell=c, published=True) for c in more))
    played.store.save_run(run.model_copy(update={"cells": cells}))
    for cell in (first, *more):
        if cell is not first:
            played.run([cell])
        place = played.store.cell_directory(cell_id(cell)) / "raw"
        (place / "mixed.1.stdout.txt").write_text(LOG.read_text())
    failed = played.store.begin_cell(cell_id(more[1]), more[1], Procedure(name="q", steps=()))
    played.store.keep_attempt(failed, StoredOutcome(outcome=Outcome.LOST, reason="it broke"))
    page = page_of(played.store)
    (shown,) = page.cells
    assert {one.trial for one in shown.series} == {1, 2, 3}
    assert {len(m.values) for m in shown.result.measurements if m.workload == "write"} == {3}
    assert [one.reason for one in shown.attempts] == ["it broke"]
    assert any("3 trials" in chart.subtitle for chart in cell_charts(page))


# -- the field


@pytest.mark.parametrize("given", ["auto", {"auto": True}, {"most": 8}])
def test_the_field_takes_a_number_auto_or_a_budget(given: object) -> None:
    found = Scenario.model_validate({"title": "t", "question": "q", "trials": given})
    assert isinstance(found.trials, AutoTrials)
    assert found.trials.most == (8 if isinstance(given, dict) and "most" in given else 32)
    schema = json.dumps(Scenario.model_json_schema())
    assert '"auto"' in schema


@pytest.mark.parametrize(
    "given", ["often", 0, 1001, {"auto": False}, {"most": 33}, {"minutes": 0}, {"least": 4}]
)
def test_other_values_are_refused(given: object) -> None:
    with pytest.raises(ValueError, match="trials"):
        Scenario.model_validate({"title": "t", "question": "q", "trials": given})


def test_auto_needs_virtual_time(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="auto needs virtual time"):
        Played(tmp_path, FASTER, speeds(0.01), "guest.clock=real", "disks.model=throttle")
