"""The first bad version is named only if a version makes the difference, never for noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lab.analysis.regressions import Sighting, regressions
from lab.compile.cell.metrics import COUNTS, metrics_of
from lab.compile.scenario.compiler import compile_scenario
from lab.compile.scenario.fields import fields_of
from lab.model.result.document import (
    CellMeasurement,
    CellResult,
    ClaimResult,
    MemberCounters,
    Outcome,
    Result,
)
from lab.model.result.measurement import SECONDS, THROUGHPUT, Measurement, Metric, MetricKind
from lab.model.result.noise import NoiseFloor
from lab.model.scenario.claim import Verdict, matches
from lab.model.scenario.document import Cell
from lab.plugins import catalog
from lab.report.content.regressions import regression_sentence
from lab.results.documents import result_of
from lab.results.trend import regressions_of, sightings_of
from lab.store.runs import RunStore, StoredRun
from tests.fakes import FLOORS
from tests.runs import SMALL, theory_run

KERNELS = ("6.1.0-56-amd64", "6.12.90+deb13-amd64", "6.12.117+deb13-amd64", "7.2.13+deb14-amd64")


DEVIATION = FLOORS[0].deviation


def sighting(
    value: float,
    kernel: str = KERNELS[0],
    mdadm: str = "4.2-5",
    *,
    night: int = 1,
    claim: str = "ONE",
    verdict: Verdict = Verdict.HOLDS,
) -> Sighting:
    one = Measurement(workload="write", metric="throughput", unit="B/s", values=(value,))
    return Sighting(
        scenario="s",
        claim=claim,
        cell="c",
        axes={"disks.count": 5},
        kernel=kernel,
        mdadm=mdadm,
        run=f"s-{night}",
        started=f"2026-03-{night:02}T01:00:00+00:00",
        figure=CellMeasurement.of(one, 0),
        metric=THROUGHPUT,
        disks="throttle",
        noise=FLOORS,
        verdict=verdict,
        facts={"qemu": "7.2"},
    )


def history(*values: float, night: int = 1) -> list[Sighting]:
    return [sighting(v, k, night=night) for v, k in zip(values, KERNELS, strict=True)]


def test_the_first_bad_version_is_named_with_the_last_good_one() -> None:
    (found,) = regressions(history(10e6, 10.01e6, 8e6, 8.02e6))
    assert found.named == "Linux 6.12.117+deb13-amd64"
    assert found.good == "Linux 6.12.90+deb13-amd64, mdadm 4.2-5"
    assert found.change == pytest.approx(8.02 / 10.01 - 1)
    assert found.between == ()
    assert found.also == ()


def test_versions_stand_in_their_own_order_whenever_they_were_run() -> None:
    sightings = history(10e6, 10e6, 8e6, 8e6)
    for night, one in enumerate(reversed(sightings), 1):
        sightings[sightings.index(one)] = replace(one, started=f"2026-03-{night:02}T01:00:00+00:00")
    assert regressions(sightings)[0].named == "Linux 6.12.117+deb13-amd64"


@pytest.mark.parametrize(
    "values",
    [
        (10e6, 10e6, 10e6, 10e6),  # no change
        (8e6, 8e6, 10e6, 10e6),  # better
        (10e6, 8e6, 8e6, 10e6),  # worse, and good again
        (10e6, 10e6, 9.99e6, 9.98e6),  # within noise
        (10e6, 10e6, 9.7e6, 9.7e6),  # more than noise, but too small to matter
    ],
)
def test_nothing_is_named_where_nothing_that_matters_got_worse(values: Sequence[float]) -> None:
    assert regressions(history(*values)) == ()


def test_a_small_change_matters_where_it_refutes_a_claim() -> None:
    sightings = history(10e6, 10e6, 9.7e6, 9.7e6)
    sightings[2:] = [replace(one, verdict=Verdict.REFUTED) for one in sightings[2:]]
    assert [r.named for r in regressions(sightings)] == ["Linux 6.12.117+deb13-amd64"]


def test_the_same_version_on_both_sides_names_nothing() -> None:
    """A slower host or another QEMU: no version of the guest is the reason."""
    assert regressions([sighting(10e6), sighting(8e6, night=2)]) == ()
    nights = [*history(10e6, 10e6, 8e6, 8e6), sighting(10e6, KERNELS[2], night=2)]
    assert regressions(nights) == ()


def test_mdadm_or_both_are_named() -> None:
    (found,) = regressions([sighting(10e6), sighting(8e6, mdadm="4.4-11")])
    assert found.named == "mdadm 4.4-11"
    (found,) = regressions([sighting(10e6), sighting(8e6, KERNELS[1], "4.4-11")])
    assert found.named == "Linux 6.12.90+deb13-amd64 or mdadm 4.4-11"


def test_what_else_differs_and_what_noise_hides_is_said() -> None:
    vague = replace(sighting(8.9e6, KERNELS[1]), noise=(floor(0.06),))
    other = replace(sighting(8e6, KERNELS[2]), facts={"qemu": "8.0"})
    (found,) = regressions([sighting(10e6), vague, other])
    assert found.named == "Linux 6.12.117+deb13-amd64"
    assert found.between == ("Linux 6.12.90+deb13-amd64, mdadm 4.2-5",)
    assert found.also == ("qemu 8.0 in place of 7.2",)


def floor(deviation: float, freedom: int = 30) -> NoiseFloor:
    return NoiseFloor(
        disks="throttle", metric="throughput", deviation=deviation, freedom=freedom, runs=9
    )


def test_figures_of_unknown_noise_name_nothing() -> None:
    unknown = [replace(one, disks="hdd") for one in history(10e6, 10e6, 5e6, 5e6)]
    assert regressions(unknown) == ()


def test_times_get_worse_when_they_get_longer() -> None:
    def timed(value: float, kernel: str) -> Sighting:
        one = Measurement(workload="write", metric="seconds", unit="s", values=(value,))
        whole = sighting(1, kernel)
        return replace(whole, figure=CellMeasurement.of(one, 0), metric=SECONDS)

    assert regressions([timed(10, KERNELS[0]), timed(8, KERNELS[1])]) == ()
    assert len(regressions([timed(8, KERNELS[0]), timed(10, KERNELS[1])])) == 1


@pytest.mark.parametrize(
    ("better", "values", "bad"),
    [
        ("lower", (0, 0, 8, 8), 2),  # as mismatch_cnt, lost, degraded: there is no ratio
        ("lower", (256, 256, 256, 511), 3),
        ("higher", (1, 1, 0, 0), 2),  # as intact
        ("lower", (8, 8, 0, 0), None),
        ("lower", (0, 0, 0, 0), None),
        ("lower", (1000, 1000, 1010, 1010), None),  # too small to matter
    ],
)
def test_a_count_has_no_noise_and_may_begin_at_0(
    better: str, values: Sequence[float], bad: int | None
) -> None:
    metric = Metric(name="n", unit="1", better=better, kind=MetricKind.COUNTED)
    sightings = []
    for one, number in zip(history(1, 1, 1, 1), values, strict=True):
        counts = Measurement(workload="w", metric="n", unit="1", values=(number,))
        figure = CellMeasurement.of(counts, 0)
        sightings.append(replace(one, metric=metric, figure=figure, noise=()))
    found = regressions(sightings)
    assert [r.named for r in found] == ([] if bad is None else [f"Linux {KERNELS[bad]}"])
    for one in found:
        assert (one.change is None) == (one.before == 0)
        assert ("from 0" in regression_sentence(one)) == (one.before == 0)


def result_with_everything(cell: Cell) -> CellResult:
    """A result in which every metric has a value, and each disk has counters."""
    names = [*cell.workloads, *cell.faults]
    return CellResult(
        id="c",
        axes=cell.axes,
        outcome=Outcome.DONE,
        measurements=tuple(
            CellMeasurement.of(Measurement(workload=w, metric=m, unit="1", values=(1.0,)), 0)
            for w, m in metrics_of(cell)
            if m not in COUNTS
        ),
        counters=tuple(
            MemberCounters.model_validate(
                {"workload": n.name, "trial": 1, "serial": serial}
                | dict.fromkeys(("reads", "read_bytes", "writes", "written_bytes", "flushes"), 1)
                | {"empty_flushes": 0}
            )
            for n in names
            for serial, _ in cell.each_disk
        ),
    )


@pytest.mark.parametrize("name", catalog.scenarios())
def test_every_value_of_every_claim_is_watched(name: str) -> None:
    """Rates, times, faults' metrics, and counters of all disks or one, in all shipped scenarios."""
    compiled = compile_scenario(catalog.scenarios()[name])
    image = {"kernel": "6.1.0-56-amd64", "mdadm": "4.2-5"}
    stored = StoredRun.model_construct(
        id="r", scenario=name, started="", claims=compiled.scenario.claims, environment={}, noise=()
    )
    verdicts = [ClaimResult(id=c.id, says="s", verdict=Verdict.HOLDS) for c in stored.claims]
    result = Result.model_construct(
        environment={"image": image}, cells=(), claims=tuple(verdicts), run=None
    )
    wanted, seen = set(), set()
    for cell in compiled.cells:
        fields = fields_of(cell, stored.claims)
        wanted |= {
            (claim.id, str(cell.axes), v.workload, v.metric, v.disk or "")
            for claim in stored.claims
            for v in claim.values
            if matches(v.where, fields)
        }
        seen |= {
            (s.claim, str(cell.axes), s.figure.workload, s.figure.metric, s.disk)
            for s in sightings_of(stored, result, result_with_everything(cell), cell)
        }
    assert seen == wanted


def test_what_was_seen_before_this_night_is_not_new() -> None:
    sightings = history(10e6, 10e6, 8e6, 8e6) + history(10e6, 10e6, 8e6, 8e6, night=9)
    assert [r.new for r in regressions(sightings, "2026-03-01T00:00:00+00:00")] == [True]
    assert [r.new for r in regressions(sightings, "2026-03-09T00:00:00+00:00")] == [False]


TIMES = 200


def simulated(seed: int, drop: float) -> list[list[str]]:
    """What is named in histories of four versions and three nights, with throttled disks' noise."""
    chance = random.Random(seed)
    named = []
    for _ in range(TIMES):
        sightings = [
            sighting(1e7 * chance.gauss(1, DEVIATION) * (drop if n > 1 else 1), k, night=night)
            for night in range(1, 4)
            for n, k in enumerate(KERNELS)
        ]
        named.append([r.named for r in regressions(sightings)])
    return named


def test_noise_alone_names_nothing() -> None:
    assert sum(bool(names) for names in simulated(1, 1.0)) <= 0.01 * TIMES


def test_a_drop_is_found_in_noise_at_the_version_that_brought_it() -> None:
    found = simulated(2, 0.9)
    assert sum(names == ["Linux 6.12.117+deb13-amd64"] for names in found) >= 0.95 * TIMES


def test_without_the_noise_floor_noise_would_name_versions() -> None:
    """Negative control: with a noise floor of a tenth, noise would count as a regression."""
    chance = random.Random(3)
    loud = 0
    for _ in range(TIMES):
        sightings = [
            replace(sighting(1e7 * chance.gauss(1, 0.04), kernel), noise=(floor(DEVIATION),))
            for kernel in KERNELS
        ]
        loud += bool(regressions(sightings))
    assert loud > 0.2 * TIMES


CLAIM = """claims:
  - id: FIX
    says: With parity-last it reads 10 MB/s or more
    expect:
      kind: bound
      value: {workload: read, where: {array.layout: parity-last}}
      at_least: 10MB/s
"""


def kept(parent: Path, day: int, kernel: str, drift: float) -> RunStore:
    """Return a stored run whose raw output has the kernel's version."""
    run = theory_run(parent, SMALL + CLAIM, stamp=f"202601{day:02}-120000", drift=drift)
    environment = {"image": {"name": "i", "kernel": kernel, "mdadm": "4.2-5", "digest": kernel}}
    stored = run.load_run()
    run.save_run(stored.model_copy(update={"environment": {**stored.environment, **environment}}))
    for cell in stored.cells:
        path = run.cell_directory(cell.id) / "raw" / "environment.txt"
        path.write_text(f"kernel={kernel}\nmdadm=mdadm - v4.2\n")
    run.save_result(result_of(run))
    return run


def test_two_nights_from_raw_output_to_the_first_bad_version(tmp_path: Path) -> None:
    runs = [
        kept(tmp_path, 1, "6.1.0-56-amd64", 1.0),
        kept(tmp_path, 2, "6.16.9-amd64", 1.001),
        kept(tmp_path, 3, "6.17.2-amd64", 0.8),
    ]
    (found,) = regressions_of(runs, "2026-01-03")
    assert (found.claim, found.axes) == ("FIX", {"array.layout": "parity-last"})
    assert (found.workload, found.metric) == ("read", "throughput")
    assert found.named == "Linux 6.17.2-amd64"
    assert found.good == "Linux 6.16.9-amd64, mdadm 4.2-5"
    assert found.change == pytest.approx(-0.2, abs=0.01)
    assert found.new
    assert regressions_of(runs[:2]) == ()
    (runs[2].directory / "run.json").write_text("{")
    assert regressions_of(runs) == ()
