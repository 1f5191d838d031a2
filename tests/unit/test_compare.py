"""A comparison separates changes from noise, and names differences."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from lab.analysis.compare import CERTAIN, Side, compare, differences, figure_change
from lab.analysis.noise import Repetition, floors, share_of
from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import InputError
from lab.model.result.calibration import VIRTUAL_DRIVES, Calibration, CalibrationPoint, kind_of
from lab.model.result.comparison import Change, FigureChange
from lab.model.result.document import (
    CellClock,
    CellMeasurement,
    CellResult,
    Outcome,
    Result,
    Run,
)
from lab.model.result.measurement import STEADY_STATE, UNCONTENDED, Check, Measurement, Unsupported
from lab.model.result.noise import NoiseFloor
from lab.plugins import catalog
from lab.results.compare import comparison_of
from lab.store.runs import RunStore
from tests.fakes import FLOORS, raw_of, stored_run

COMPARISONS = 200


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host with noise between runs and between trials."""

    dice: random.Random
    runs: float
    trials: float

    def values(self, true: float, trials: int) -> list[float]:
        luck = self.dice.gauss(0, self.runs)
        return [true * math.exp(luck + self.dice.gauss(0, self.trials)) for _ in range(trials)]

    def figures(self, true: float, trials: int) -> CellMeasurement:
        return measured(*self.values(true, trials))

    def floor(self, trials: int, *, cells: int = 9, runs: int = 2) -> tuple[NoiseFloor, ...]:
        """Return the noise floor from earlier runs and cells: as many as ``raid5-parity-last``."""
        return floors(
            Repetition(
                what=(str(cell),),
                disks="throttle",
                metric="throughput",
                run=str(run),
                figure=median(self.values(1e7, trials)),
            )
            for cell in range(cells)
            for run in range(runs)
        )


def simulated(
    seed: int, *, true: float, runs: float, in_run: float, trials: int
) -> list[FigureChange]:
    """Return comparisons of a value with one that is ``true`` times as high."""
    host = Host(dice=random.Random(seed), runs=runs, trials=in_run)
    found = []
    for _ in range(COMPARISONS):
        noise = share_of(host.floor(trials), "throttle", "throughput", CERTAIN)
        one = figure_change(
            host.figures(1e7, trials), host.figures(1e7 * true, trials), noise=(noise, noise)
        )
        assert one is not None
        found.append(one)
    return found


def share(found: list[FigureChange], verdict: Change) -> float:
    return sum(one.verdict is verdict for one in found) / len(found)


QUIET = {"runs": 0.004, "in_run": 0.003}
"""Together 0.5 %, the upper end of the noise of throttled values in this lab."""


@pytest.mark.parametrize("trials", [1, 5])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_change_is_seldom_called_one(seed: int, trials: int) -> None:
    found = simulated(seed, true=1, trials=trials, **QUIET)
    assert share(found, Change.CHANGED) <= 0.05
    assert share(found, Change.SAME) >= 0.95


@pytest.mark.parametrize("trials", [1, 5])
@pytest.mark.parametrize("true", [0.95, 1.05])
def test_a_change_of_a_twentieth_is_found(true: float, trials: int) -> None:
    found = simulated(4, true=true, trials=trials, **QUIET)
    assert share(found, Change.CHANGED) >= 0.95
    rightly = [one for one in found if one.verdict is Change.CHANGED]
    assert all((one.change > 0) is (true > 1) for one in rightly)
    assert share(found, Change.SAME) == 0


@pytest.mark.parametrize("trials", [1, 5])
@pytest.mark.parametrize("where", ["runs", "in_run"])
def test_planted_noise_is_neither_a_change_nor_the_same(where: str, trials: int) -> None:
    noisy = {**QUIET, where: 0.06}
    found = simulated(5, true=1, trials=trials, **noisy)
    assert share(found, Change.CHANGED) <= 0.05
    assert share(found, Change.UNCLEAR) >= 0.95


def test_a_floor_that_is_too_low_gives_false_alarms() -> None:
    """Negative control: without the host's noise equal values count as changed."""
    host = Host(dice=random.Random(6), runs=0.004, trials=0.003)
    found = [
        figure_change(host.figures(1e7, 3), host.figures(1e7, 3), noise=(0, 0))
        for _ in range(COMPARISONS)
    ]
    alarms = sum(one is not None and one.verdict is Change.CHANGED for one in found)
    assert alarms / COMPARISONS > 0.25


def measured(*values: float) -> CellMeasurement:
    one = Measurement(workload="write", metric="throughput", unit="B/s", values=values)
    return CellMeasurement.of(one, 0)


def test_a_change_is_told_with_its_effect() -> None:
    found = figure_change(measured(100, 101, 102), measured(110, 111, 112), noise=(0.01, 0.01))
    assert found is not None
    assert found.verdict is Change.CHANGED
    assert found.change == pytest.approx(111 / 101 - 1)
    assert found.low > 0.06
    assert found.high < 0.14
    assert figure_change(measured(0), measured(1), noise=(0, 0)) is None


@pytest.mark.parametrize(
    ("unit", "noise", "verdict"),
    [("s", 0, Change.UNCLEAR), ("s", 0.01, Change.CHANGED), ("1", 0, Change.CHANGED)],
)
def test_what_was_timed_once_is_not_called_changed_where_no_noise_is_known(
    unit: str, noise: float, verdict: Change
) -> None:
    """A count is exact; a single time without known noise is not."""
    one, other = (
        measured(v).model_copy(update={"metric": "latency", "unit": unit}) for v in (10.0, 11.0)
    )
    found = figure_change(one, other, noise=(noise, noise))
    assert found is not None
    assert found.verdict is verdict


def test_what_matters_is_for_the_user_to_say() -> None:
    same, other = measured(100), measured(101)
    assert figure_change(same, other, noise=(0.01, 0.01)).verdict is Change.SAME  # type: ignore[union-attr]
    strict = figure_change(same, other, noise=(0.01, 0.01), least=0.01)
    assert strict is not None
    assert strict.verdict is Change.UNCLEAR


def result(name: str, figures: dict[str, float], **environment: object) -> Result:
    cells = tuple(
        CellResult(
            id=key, axes={"n": int(key[1:])}, outcome=Outcome.DONE, measurements=(measured(value),)
        )
        for key, value in figures.items()
    )
    run = Run(id=name, scenario="s", started="2026-01-01T00:00:00+00:00")
    return Result(run=run, environment=dict(environment), cells=cells, claims=())


BASE = compile_scenario(catalog.scenario_path("raid5-parity-last")).base


def side(found: Result, **changed: object) -> Side:
    cell = BASE.model_copy(update=changed)
    return Side(result=found, cells={c.id: cell for c in found.cells}, noise=FLOORS)


def test_cells_are_paired_by_what_they_are_and_else_by_their_axes() -> None:
    first = result("a", {"x1": 100, "x2": 100, "x3": 100})
    second = result("b", {"x1": 100, "y2": 120, "z4": 100})
    found = compare(side(first), side(second, trials=3))
    assert [(c.first, c.second) for c in found.cells] == [("x1", "x1"), ("x2", "y2")]
    assert (found.only_first, found.only_second) == (("x3",), ("z4",))
    assert found.cells[0].differs == ()
    assert [(d.name, d.first, d.second) for d in found.cells[1].differs] == [("trials", 1, 3)]
    verdicts = [c.figures[0].verdict for c in found.cells]
    assert verdicts == [Change.SAME, Change.CHANGED]


def test_a_cell_on_real_and_on_modelled_disks_says_how_near_they_are() -> None:
    slow, fast = result("a", {"x1": 80}), result("b", {"y1": 100})
    real = BASE.disks[0].model_copy(update={"device": "/dev/disk/by-id/a"})
    for first, second in (((real,), BASE.disks), (BASE.disks, (real,))):
        found = compare(side(slow, disks=first), side(fast, disks=second))
        assert found.cells[0].fidelity == pytest.approx(0.8)
    assert compare(side(slow), side(fast)).cells[0].fidelity is None


def test_more_figures_ask_for_more_certainty() -> None:
    few = compare(side(result("a", {"x1": 100})), side(result("b", {"x1": 100})))
    names = {f"x{n}": 100.0 for n in range(40)}
    many = compare(side(result("a", names)), side(result("b", names)))
    assert many.cells[0].figures[0].high > few.cells[0].figures[0].high * 1.3


def test_facts_of_the_environment_that_differ_are_named() -> None:
    first = result("a", {"x1": 1}, qemu="7.2", host={"cpus": 2, "name": "one"}, noise=[1])
    second = result("b", {"x1": 1}, qemu="7.2", host={"cpus": 4, "name": "one"}, guest={"os": "d"})
    found = compare(side(first), side(second))
    assert [(d.name, d.first, d.second) for d in found.environment] == [
        ("host.cpus", 2, 4),
        ("guest.os", None, "d"),
    ]
    assert list(differences({"a": 1}, {"a": 1})) == []


@pytest.mark.parametrize(
    ("name", "workload", "said", "compared"),
    [
        (UNCONTENDED, "", "it was contended in the second run and is left out: why", False),
        (VIRTUAL_DRIVES, "", "in the second run it has modelled drives in real time: why", True),
        (STEADY_STATE, "write", "'write' is not steady in the second run: why", True),
    ],
)
def test_figures_in_doubt_say_so(name: str, workload: str, said: str, *, compared: bool) -> None:
    plain = result("b", {"x1": 1})
    for passed in (False, True):
        check = Check(name=name, passed=passed, detail="why", workload=workload or None)
        cell = plain.cells[0].model_copy(update={"checks": (check,)})
        other = plain.model_copy(update={"cells": (cell,)})
        (found,) = compare(side(result("a", {"x1": 1})), side(other)).cells
        assert found.doubts == (() if passed else (said,))
        assert bool(found.figures) is (passed or compared)


def test_two_stored_runs_are_compared_from_their_raw_output(tmp_path: Path) -> None:
    first, second = stored_run(tmp_path / "1"), stored_run(tmp_path / "2")
    stored = second.load_run().cells[0]
    for name, text in raw_of(stored.cell, 8).items():
        (second.directory / "cells" / stored.id / "raw" / name).write_text(text)
    found = comparison_of(first, second, 0.05)
    changed = {
        (c.first, f.workload)
        for c in found.cells
        for f in c.figures
        if f.verdict is Change.CHANGED and f.metric == "throughput"
    }
    assert changed == {(stored.id, w) for w in ("write", "read", "write_stripe")}
    assert [(c.id, c.first.value, c.second.value) for c in found.claims] == [
        ("S004-1", "holds", "refuted"),
        ("S004-3", "inconclusive", "refuted"),
    ]
    assert "lost" in found.cells[2].doubts[0]
    assert found.environment == ()


def test_runs_without_a_common_cell_are_refused(tmp_path: Path) -> None:
    first, second = stored_run(tmp_path / "1"), stored_run(tmp_path / "2")
    run = second.load_run()
    cells = tuple(
        c.model_copy(update={"id": f"x{c.id}", "cell": c.cell.model_copy(update={"axes": {}})})
        for c in run.cells[:1]
    )
    RunStore(second.directory).save_run(run.model_copy(update={"cells": cells}))
    with pytest.raises(InputError, match="no cell in common"):
        comparison_of(first, second, 0.05)


def test_a_run_with_impossible_parameters_is_named(tmp_path: Path) -> None:
    good, bad = stored_run(tmp_path / "1"), stored_run(tmp_path / "2")
    path = bad.directory / "run.json"
    document = json.loads(path.read_text())
    for cell in document["cells"]:
        cell["cell"]["workloads"][0]["parameters"]["iflag"] = "none such"
    path.write_text(json.dumps(document))
    bad = RunStore(bad.directory)
    with pytest.raises(InputError, match=f"nothing can be made of the run '{bad.directory}'"):
        comparison_of(bad, good, 0.05)
    assert comparison_of(good, bad, 0.05).cells


def on_host(
    run: RunStore, name: str, tmp_path: Path, *, off: float = 1.0, problem: str = ""
) -> RunStore:
    """Return a stored run of a cluster's host whose bare disks differ by a factor."""
    stored = run.load_run()
    for cell in stored.cells:
        path = run.cell_directory(cell.id)
        outcome = run.load_attempt(path).model_copy(update={"host": name})
        (path / "outcome.json").write_text(outcome.model_dump_json())
    point = CalibrationPoint(
        name="read", metric="iops", unit="1/s", measured=100 * off, expected=100, tolerance=0.02
    )
    known = tuple(
        Calibration(disk=disk, points=(point,), host=name, problem=problem)
        for disk in {
            repr(kind_of(c.cell.disks[0])): kind_of(c.cell.disks[0]) for c in stored.cells
        }.values()
    )
    run.save_run(stored.model_copy(update={"calibrations": known}))
    return run


@pytest.mark.parametrize(
    ("host", "off", "problem", "said"),
    [
        ("one", 1.5, "", ""),
        ("two", 1.01, "", ""),
        ("two", 1.05, "", "it ran on one and then on two, whose bare disks differ: read by +5.0%"),
        ("two", 1.0, "too busy", "and on two its disks were not calibrated: calibrate first"),
    ],
    ids=["one host", "alike", "they differ", "not calibrated"],
)
def test_runs_of_two_hosts_are_compared_by_their_bare_disks(
    tmp_path: Path, host: str, off: float, problem: str, said: str
) -> None:
    first = on_host(stored_run(tmp_path / "1"), "one", tmp_path)
    second = on_host(stored_run(tmp_path / "2"), host, tmp_path, off=off, problem=problem)
    doubts = comparison_of(first, second, 0.05).cells[0].doubts
    if said:
        assert [d for d in doubts if said in d] == list(doubts[-1:])
    else:
        assert not [d for d in doubts if "it ran on" in d]


def test_sealed_cells_of_two_hosts_need_no_calibration(tmp_path: Path) -> None:
    runs = [on_host(stored_run(tmp_path / h), h, tmp_path, problem="busy") for h in ("one", "two")]
    for run in runs:
        for cell in run.load_run().cells:
            path = run.cell_directory(cell.id)
            sealed = run.load_attempt(path).model_copy(update={"clock": CellClock.SEALED})
            (path / "outcome.json").write_text(sealed.model_dump_json())
    doubts = comparison_of(*runs, 0.05).cells[0].doubts
    assert not [d for d in doubts if "it ran on" in d]


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(1 + 1 / 64, Change.SAME), (1 - 1 / 65, Change.SAME), (1.04, Change.CHANGED)],
)
def test_the_next_bucket_of_a_histogram_is_no_change(value: float, verdict: Change) -> None:
    pair = measured(100), measured(100 * value)
    without = figure_change(*pair, noise=(1e-5, 1e-5))
    found = figure_change(*pair, noise=(1e-5, 1e-5), step=1 / 64)
    assert without is not None
    assert found is not None
    assert without.verdict is Change.CHANGED
    assert found.verdict is verdict


def test_a_percentile_that_one_run_lacks_requests_for_is_named() -> None:
    whole = result("a", {"c1": 100.0})
    few = Unsupported(workload="write", metric="throughput", requests=12, needed=368)
    short = CellResult(id="c1", axes={"n": 1}, outcome=Outcome.DONE, unsupported=(few,))
    cut = result("b", {"c1": 100.0}).model_copy(update={"cells": (short,)})
    doubts = compare(side(whole), side(cut)).cells[0].doubts
    assert ["made 12 requests in the second run" in doubt for doubt in doubts] == [True]
    assert compare(side(cut), side(cut)).cells[0].doubts == ()
