"""SNIA's steady state: windows of five rounds, and fio's rounds to metrics, checks and verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.analysis import measure
from lab.analysis.judge import JudgedCell, judge
from lab.core.errors import InputError, ToolError
from lab.core.steady_state import steady_window
from lab.model.result.document import CellMeasurement, CellResult, Outcome, Result, Run
from lab.model.result.measurement import STEADY_STATE
from lab.model.scenario.claim import Claim, Verdict
from lab.model.scenario.document import Cell
from lab.model.scenario.outputs import Outputs
from lab.plugins import catalog
from lab.plugins.workloads.fio import Fio, FioParameters
from lab.report.content.reliability import reliability
from tests.fakes import compiled_text

WORKLOAD = Fio()
GOLDEN = Path(__file__).parent.parent / "golden" / "workloads" / "fio" / "rounds"
GIVEN = json.loads((GOLDEN / "expected.json").read_text())["parameters"]


@pytest.mark.parametrize(
    ("values", "last", "steady"),
    [
        pytest.param([100, 100, 100, 100, 100], 5, True, id="equal"),
        pytest.param([101, 99, 100, 102, 98], 5, True, id="noise"),
        pytest.param([100, 90, 100, 110, 100], 5, True, id="range exactly 20 %"),
        pytest.param([100, 89.9, 100, 110, 100], 5, False, id="range above 20 %"),
        pytest.param([95, 97.5, 100, 102.5, 105], 5, True, id="slope exactly 10 %"),
        pytest.param([94.9, 97.4, 100, 102.6, 105.1], 5, False, id="slope above 10 %"),
        pytest.param([105, 102.5, 100, 97.5, 95], 5, True, id="falls by exactly 10 %"),
        pytest.param([106, 103, 100, 97, 94], 5, False, id="falls by 12 %, range 12 %"),
        pytest.param([200, 100, 100, 100, 100, 100, 50], 6, True, id="after a fast first round"),
        pytest.param([100, 100, 100, 100, 100, 50, 100], 5, True, id="the first window counts"),
        pytest.param([500, 400, 300, 200, 150, 110], 6, False, id="never: the last window"),
        pytest.param([1e-3, 1e-3, 1.01e-3, 1e-3, 1e-3], 5, True, id="no unit"),
    ],
)
def test_the_first_steady_window_counts(values: list[float], last: int, steady: bool) -> None:
    found = steady_window(values)
    assert (found.last, found.steady) == (last, steady)
    assert values[found.rounds] == values[last - 5 : last]


def test_range_and_slope_are_fractions_of_the_mean() -> None:
    found = steady_window([90, 95, 100, 105, 110])
    assert (found.range, found.slope) == pytest.approx((0.2, 0.2))
    assert steady_window([110, 105, 100, 95, 90]).slope == pytest.approx(-0.2)


@pytest.mark.parametrize("count", range(5))
def test_too_few_rounds_are_no_window(count: int) -> None:
    with pytest.raises(ValueError, match=f"found {count}"):
        steady_window([100.0] * count)


def _rounds(rates: list[float], *, requests: int = 1000) -> Outputs:
    """Return fio's report with rounds of these speeds; latencies are their reciprocals."""
    document = json.loads((GOLDEN / "stdout").read_text())
    pattern = json.dumps(document["jobs"][0])
    document["jobs"] = jobs = [json.loads(pattern) for _ in rates]
    for rate, job in zip(rates, jobs, strict=True):
        side = job["write"]
        side["runtime"] = round(1000 * requests / rate)
        side["total_ios"], side["io_bytes"] = requests, requests * 4096
        side["clat_ns"]["max"] = side["lat_ns"]["mean"] = 1e9 / rate
        side["clat_ns"]["percentile"] = dict.fromkeys(side["clat_ns"]["percentile"], 1e9 / rate)
    return Outputs(stdout=json.dumps(document, indent=1), stderr="", files={})


def _parameters(rounds: int, **more: Any) -> FioParameters:
    kept = {key: value for key, value in GIVEN.items() if key != "io_size"}
    return FioParameters.model_validate({**kept, "rounds": rounds, **more})


def test_values_are_those_of_the_steady_rounds() -> None:
    outputs = _rounds([400, 300, 200, 200, 200, 200, 200])
    found = WORKLOAD.parse(_parameters(7), outputs)
    assert found["steady_round"] == 7
    assert found["first_round_iops"] == 400
    assert found["iops"] == pytest.approx(200)
    outputs = _rounds([400, 200, 200, 220, 200, 200])
    found = WORKLOAD.parse(_parameters(6), outputs)
    assert found["iops"] == pytest.approx((200 * 4 + 220) / 5, rel=1e-3)
    assert found["throughput"] == pytest.approx(4096 * found["iops"])
    assert found["seconds"] == pytest.approx(4 * 5 + 1000 / 220, rel=1e-3)
    assert found["clat_p50"] == found["clat_max"] == pytest.approx(1 / 200)
    assert found["latency"] == pytest.approx((4 / 200 + 1 / 220) / 5)


def test_a_drive_that_is_never_steady_has_the_values_of_its_last_rounds() -> None:
    found = WORKLOAD.parse(_parameters(6), _rounds([1000, 800, 600, 400, 300, 200]))
    assert "steady_round" not in found
    assert found["iops"] == pytest.approx(460, rel=1e-3)


def test_percentiles_need_their_requests_in_each_round() -> None:
    outputs = _rounds([200] * 5, requests=100)
    assert WORKLOAD.too_few(_parameters(5), outputs)["clat_p99"] == (100, 368)
    assert "clat_p99" not in WORKLOAD.parse(_parameters(5), outputs)
    assert "clat_p95" in WORKLOAD.parse(_parameters(5), outputs)


def test_a_missing_round_is_an_error() -> None:
    with pytest.raises(ToolError, match="expected 6"):
        WORKLOAD.parse(_parameters(6), _rounds([200] * 5))


def test_rounds_are_jobs_that_wait_for_each_other() -> None:
    script = WORKLOAD.script(_parameters(5), "/dev/md0")
    names = [word for word in script.split() if word.startswith("--name=")]
    assert names == [f"--name=round{n}" for n in range(1, 6)]
    assert script.index("--stonewall") < script.index(names[0])
    assert "rounds" not in WORKLOAD.script(FioParameters.model_validate({"bs": "4k"}), "/dev/md0")


def test_a_seed_keeps_the_rounds() -> None:
    again = WORKLOAD.seeded(_parameters(5), 2)
    assert isinstance(again, FioParameters)
    assert again.rounds == 5
    single = FioParameters.model_validate({"rw": "randwrite"})
    assert "rounds" not in WORKLOAD.seeded(single, 2).model_dump(mode="json")


def test_a_round_is_a_value_over_time() -> None:
    (trace,) = WORKLOAD.series(_parameters(5), _rounds([100, 200, 200, 200, 200])).values()
    assert trace[0] == pytest.approx((10, 100))
    assert trace[-1] == pytest.approx((30, 200))


@pytest.mark.parametrize("wrong", [{"rounds": 4}, {"rounds": 101}, {"write_bw_log": True}])
def test_impossible_rounds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="rounds"):
        FioParameters.model_validate({"rw": "write", "rounds": 5, **wrong})


def _cell(tmp_path: Path, *sets: str) -> Cell:
    given = ["workloads.steady.rounds=6", *sets]
    return compiled_text(
        tmp_path, catalog.scenario_path("ssd-steady-state").read_text(), *given
    ).base


def test_too_few_rounds_in_a_file_name_the_key(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        _cell(tmp_path, "workloads.steady.rounds=3")
    assert "steady" in str(refused.value)
    assert "rounds" in str(refused.value)


@pytest.mark.parametrize(
    ("rates", "passed", "verdict"),
    [
        ([[200] * 6, [400, *[200] * 5]], True, Verdict.HOLDS),
        ([[200] * 6, [400, 350, 300, 250, 200, 150]], False, Verdict.INCONCLUSIVE),
    ],
)
def test_claims_about_what_is_not_steady_are_inconclusive(
    tmp_path: Path, rates: list[list[float]], passed: bool, verdict: Verdict
) -> None:
    cell = _cell(tmp_path, "trials=2", "workloads.steady.io_size=4000KiB")
    raw = {}
    for name in ("steady", "short"):
        for trial, each in enumerate(rates, 1):
            speeds = each if name == "steady" else [200.0] * 12
            raw[f"{name}.{trial}.stdout.txt"] = _rounds(speeds).stdout
    checks = {check.workload: check for check in measure.steady_state(cell, raw)}
    assert checks["short"].passed
    assert checks["steady"].name == STEADY_STATE
    assert checks["steady"].passed is passed
    assert "rounds 2 to 6 of steady" in checks["steady"].detail

    value = {"workload": "steady", "metric": "iops"}
    expect = {"kind": "bound", "value": value, "at_least": 1}
    claim = Claim.model_validate({"id": "c", "says": "c", "expect": expect})
    result = CellResult(
        id="c",
        axes={},
        outcome=Outcome.DONE,
        checks=tuple(checks.values()),
        measurements=(
            CellMeasurement(
                workload="steady", metric="iops", unit="1/s", values=(200.0, 200.0), median=200.0
            ),
        ),
    )
    judged = JudgedCell(result=result, fields={}, published=True, seeds=(1, 2))
    (found,) = judge([claim], [judged])
    assert found.verdict is verdict
    assert ("did not become steady" in found.reason) is not passed
    whole = Result(
        run=Run(id="r", scenario="q", started="2026-01-01T00:00:00+00:00"),
        environment={},
        cells=(result,),
        claims=(found,),
    )
    headings = dict(reliability(whole))
    assert ("rounds 2 to 6 of steady" in headings["steady state"]) is passed
    assert ("doubtful" in headings) is not passed
