"""The noise floor depends only on repeated runs of the same cells."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path

import pytest

from lab.analysis.noise import ENOUGH, SEALED, Repetition, floors, share_of, spread_of
from lab.host.system import paths
from lab.model.result.document import Outcome
from lab.model.result.measurement import UNCONTENDED, Check
from lab.model.result.noise import NoiseFloor
from lab.results.documents import result_of
from lab.results.noise_floors import noise_of
from lab.store import runs as store
from lab.store.runs import RunStore
from tests.fakes import stored_run


def repeated(run: int, cell: int, figure: float, metric: str = "throughput") -> Repetition:
    return Repetition(
        what=(str(cell),), disks="throttle", metric=metric, run=str(run), figure=figure
    )


def test_the_floor_is_the_scatter_that_was_put_in() -> None:
    dice = random.Random(7)
    true = {cell: 10 ** dice.uniform(5, 8) for cell in range(200)}
    told = [
        repeated(run, cell, true[cell] * math.exp(dice.gauss(0, 0.004)))
        for run in range(6)
        for cell in true
    ]
    (floor,) = floors(told)
    assert floor.deviation == pytest.approx(0.004, rel=0.05)
    assert (floor.freedom, floor.runs) == (1000, 6)


def test_cells_that_differ_are_no_noise_and_metrics_are_kept_apart() -> None:
    told = [repeated(run, cell, 10.0**cell) for run in (1, 2) for cell in (1, 2, 3)]
    told += [repeated(run, 1, 5.0 * run, "latency") for run in (1, 2)]
    found = {f.metric: f for f in floors(told)}
    assert found["throughput"].deviation == 0
    assert found["latency"].deviation == pytest.approx(math.log(2) / math.sqrt(2))
    assert floors([repeated(1, 1, 5.0), repeated(1, 2, 6.0)]) == ()
    assert floors([repeated(1, 1, 0.0), repeated(2, 1, 0.0)]) == ()


def known(freedom: int) -> NoiseFloor:
    return NoiseFloor(
        disks="throttle", metric="throughput", deviation=0.01, freedom=freedom, runs=2
    )


def test_a_hosts_own_noise_counts_once_there_is_enough_of_it() -> None:
    few, enough = known(ENOUGH - 1), known(ENOUGH)
    assert spread_of([few], "throttle", "throughput") is None
    assert spread_of([], "throttle", "throughput") is None
    assert share_of([enough], "throttle", "throughput") == pytest.approx(0.01 * 2.571, abs=1e-5)
    assert share_of([], "throttle", "iops") == 0
    assert 0 < share_of([], SEALED, "iops") < 1e-4
    assert spread_of([enough], "hdd", "throughput") is None
    assert share_of([enough], "hdd", "throughput") == share_of([], "throttle", "clat_p99") == 0


def again(number: int, *, faster: float = 1.0, **environment: object) -> RunStore:
    """Return the stored run with another id, each value multiplied."""
    made = stored_run(paths.runs().parent / "tmp")
    place = paths.runs() / f"raid5-parity-last-2025061{number}-120000"
    shutil.move(made.directory, place)
    run = RunStore(place)
    stored = run.load_run()
    facts = {**stored.environment, "host": {"name": "here"}, **environment}
    run.save_run(stored.model_copy(update={"id": run.id, "environment": facts}))
    result = result_of(run)
    cells = [
        c.model_copy(
            update={
                "measurements": tuple(
                    m.model_copy(update={"median": m.median * faster}) for m in c.measurements
                )
            }
        )
        for c in result.cells
    ]
    run.save_result(result.model_copy(update={"cells": tuple(cells)}))
    return run


HERE = {"accelerator": "tcg", "lab": "0.1.0", "host": {"name": "here"}}


def test_runs_on_this_host_are_compared_with_each_other(lab_home: Path) -> None:
    assert noise_of(HERE) == ()
    again(1)
    assert noise_of(HERE) == ()
    again(2, faster=1.01)
    found = {f.metric: f for f in noise_of(HERE)}
    # Two cells of three were finished, with three workloads each.
    assert found["throughput"].freedom == 6
    assert found["throughput"].deviation == pytest.approx(math.log(1.01) / math.sqrt(2))
    assert found["throughput"].disks == "throttle"


@pytest.mark.parametrize(("seconds", "freedom"), [(2.9, 0), (3.1, 6)])
def test_short_steps_say_nothing_of_longer_ones(
    lab_home: Path, seconds: float, freedom: int
) -> None:
    for number, faster in ((1, 1.0), (2, 1.5)):
        run = again(number, faster=faster)
        result = run.load_result()
        assert result is not None
        cells = tuple(
            cell.model_copy(
                update={
                    "measurements": tuple(
                        m.model_copy(update={"median": seconds}) if m.metric == "seconds" else m
                        for m in cell.measurements
                    )
                }
            )
            for cell in result.cells
        )
        run.save_result(result.model_copy(update={"cells": cells}))
    found = {f.metric: f.freedom for f in noise_of(HERE)}
    assert found.get("throughput", 0) == freedom


def test_other_hosts_and_doubtful_cells_are_left_out(lab_home: Path) -> None:
    again(1)
    again(2, faster=1.5, host={"name": "elsewhere"})
    again(3, faster=1.5, accelerator="kvm")
    assert noise_of(HERE) == ()
    doubtful = again(4, faster=1.5)
    result = doubtful.load_result()
    assert result is not None
    busy = (Check(name=UNCONTENDED, passed=False),)
    cells = tuple(c.model_copy(update={"checks": busy}) for c in result.cells)
    doubtful.save_result(result.model_copy(update={"cells": cells}))
    assert noise_of(HERE) == ()
    cells = tuple(c.model_copy(update={"outcome": Outcome.FAILED}) for c in result.cells)
    doubtful.save_result(result.model_copy(update={"cells": cells}))
    assert noise_of(HERE) == ()
    doubtful.save_result(result)
    assert noise_of(HERE)[0].freedom == 6


def test_runs_that_nobody_can_read_are_passed_over(lab_home: Path) -> None:
    again(1)
    broken = again(2)
    (broken.directory / "run.json").write_text("{")
    cut = again(3)
    (cut.directory / "result.json").write_text('{"schema": "lab.re')
    assert noise_of(HERE) == ()
    assert len(list(store.every())) == 3


def test_another_image_is_another_measurement(lab_home: Path) -> None:
    again(1, image={"digest": "a"})
    again(2, faster=2, image={"digest": "b"})
    assert noise_of(HERE) == ()


def test_what_was_known_when_it_ran_stays_with_a_run(lab_home: Path) -> None:
    run = again(1)
    run.save_run(run.load_run().model_copy(update={"noise": ()}))
    first = result_of(run)
    one = first.cells[0].measurements[0]
    assert (one.low, one.high) == (None, None)
    run.save_run(run.load_run().model_copy(update={"noise": (known(20),)}))
    noisy = result_of(run)
    one = noisy.cells[0].measurements[0]
    assert one.low is not None
    assert one.high is not None
    assert one.low < one.median < one.high
    assert noisy.environment["noise"][0]["freedom"] == 20
