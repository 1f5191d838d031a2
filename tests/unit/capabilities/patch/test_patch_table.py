"""Two runs and a margin make a table; only differences beyond it count against a series."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final
from xml.etree import ElementTree as ET

import pytest

from lab.analysis.compare import Side
from lab.capabilities.matrix.logic.entries import Expected
from lab.capabilities.matrix.model import JobRecord
from lab.capabilities.patch.cases import patch_junit
from lab.capabilities.patch.logic import FEW, MARGIN, Sides, confirmed, differing, rows
from lab.capabilities.patch.model import Effect, PatchResult, PatchRow, PatchSide, SeriesPatch
from lab.capabilities.patch.page import as_markdown, sentence
from lab.capabilities.patch.run import exit_status
from lab.compile.scenario.compiler import compile_scenario
from lab.compile.scenario.identity import cell_id
from lab.core.errors import EXIT_DONE, EXIT_REFUTED, EXIT_TROUBLE
from lab.model.result.document import (
    CellClock,
    CellMeasurement,
    CellResult,
    ClaimResult,
    ComparedValue,
    Digest,
    MemberCounters,
    Outcome,
    Result,
    Run,
)
from lab.model.scenario.claim import Verdict
from lab.plugins import catalog

CELLS: Final = compile_scenario(catalog.scenario_path("fio-verify")).cells
CELL: Final = next(
    cell for cell in CELLS if cell.axes == {"array.level": "5", "array.bitmap": "internal"}
)
TODAY: Final = date(2026, 11, 24)
UNITS: Final = {"throughput": "B/s", "latency": "s"}
DISKS: Final = 6
UNITS_OF_FAULTS: Final = {
    "seconds": "s",
    "sync_seconds": "s",
    "mismatch_cnt": "sectors",
    "re_added": "1",
    "written_bytes": "B",
}
Values = Mapping[tuple[str, str], float | Sequence[float]]


def measured(workload: str, metric: str, values: float | Sequence[float]) -> CellMeasurement:
    each = (values,) if isinstance(values, int | float) else tuple(values)
    unit = (UNITS | UNITS_OF_FAULTS).get(metric, "1")
    middle = sorted(each)[len(each) // 2]
    return CellMeasurement(workload=workload, metric=metric, unit=unit, values=each, median=middle)


def counter(workload: str, disk: int, **counts: Any) -> MemberCounters:
    zero = {"reads": 0, "read_bytes": 0, "writes": 0, "written_bytes": 0, "flushes": 0}
    return MemberCounters.model_validate(
        {"workload": workload, "trial": 1, "serial": f"disk{disk}", **zero, **counts}
    )


def side(
    values: Values,
    *,
    outcome: Outcome = Outcome.DONE,
    reason: str = "",
    clock: CellClock = CellClock.SEALED,
    claims: Sequence[ClaimResult] = (),
    digest: str = "",
    image: str = "debian-12+md-1",
) -> Side:
    cell = CELL.model_copy(update={"guest": CELL.guest.model_copy(update={"image": image})})
    found = CellResult(
        id=cell_id(cell),
        axes=dict(cell.axes),
        outcome=outcome,
        reason=reason,
        clock=clock,
        measurements=tuple(
            measured(w, m, v) for (w, m), v in values.items() if not m.startswith("disk_")
        ),
        counters=tuple(
            counter(w, disk, **{m.removeprefix("disk_"): v if disk == 1 else 0})
            for (w, m), v in values.items()
            if m.startswith("disk_")
            for disk in range(1, DISKS + 1)
        ),
        digest=Digest(inputs="1" * 64, results=digest * 64) if digest else None,
    )
    result = Result(
        run=Run(id="r", scenario="fio-verify", started="2026-11-24T00:00:00Z"),
        environment={"guest": {"kernel": "6.1.0"}, "image": {"mdadm": "4.2"}},
        cells=(found,),
        claims=tuple(claims),
    )
    return Side(result=result, cells={found.id: cell}, noise=())


JOB: Final = JobRecord(
    id="j", scenario="fio-verify", image="debian-12", cells=1, seconds=1, basis="theory"
)


def table(
    base: Side, patched: Side, *, margin: float = MARGIN, expected: Sequence[Expected] = ()
) -> tuple[PatchRow, ...]:
    sides = Sides(job=JOB, image="debian-12+md-2", base=base, patched=patched)
    return rows(sides, margin=margin, expected=expected, today=TODAY)


def effects(found: Sequence[PatchRow]) -> dict[str, Effect]:
    """Return what changed; every cell has a row of its own too."""
    own = [row for row in found if ": " in row.check]
    return {row.check.split(": ", 1)[1]: row.verdict for row in own}


@pytest.mark.parametrize(
    ("metric", "before", "after", "effect"),
    [
        ("throughput", 100.0, 94.0, Effect.WORSE),
        ("throughput", 100.0, 106.0, Effect.BETTER),
        ("throughput", 100.0, 95.5, None),
        ("latency", 1.0, 1.2, Effect.WORSE),
        ("latency", 1.0, 0.8, Effect.BETTER),
        ("disk_reads", 768.0, 1280.0, Effect.WORSE),
        ("disk_reads", 768.0, 512.0, Effect.BETTER),
        ("disk_writes", 10.0, 10.0 + FEW * DISKS, None),  # two superblocks each
        ("disk_writes", 10.0, 11.0 + FEW * DISKS, Effect.WORSE),
        ("disk_writes", 0.0, 1.0, None),
        ("disk_writes", 0.0, 100.0, Effect.WORSE),
        ("disk_flushes", 100.0, 120.0, Effect.WORSE),
        ("disk_flushes", 100.0, 50.0, Effect.INCONCLUSIVE),  # faster, and perhaps less safe
        ("clat_p99", 1.0, 9.0, None),  # a tail of few requests
    ],
)
def test_a_sealed_value_counts_beyond_the_margin(
    metric: str, before: float, after: float, effect: Effect | None
) -> None:
    found = table(side({("small", metric): before}), side({("small", metric): after}))
    assert effects(found) == ({f"small: {metric}": effect} if effect else {})
    assert found[0].verdict is Effect.SAME


@pytest.mark.parametrize(
    ("metric", "before", "after", "effect"),
    [
        ("mismatch_cnt", 0, 8, Effect.WORSE),
        ("mismatch_cnt", 8, 0, Effect.BETTER),
        ("re_added", 1, 0, Effect.WORSE),
        ("written_bytes", 4096, 8192, Effect.WORSE),
        ("read_bytes", 4096, 8192, Effect.WORSE),
        ("read_bytes", 8192, 4096, Effect.INCONCLUSIVE),  # a bit of a bitmap was not set, perhaps
        ("intact", 1, 0, Effect.WORSE),
        ("lost", 0, 1, Effect.WORSE),
    ],
)
def test_a_faults_counts_have_no_noise(
    metric: str, before: float, after: float, effect: Effect
) -> None:
    found = table(side({("returned", metric): before}), side({("returned", metric): after}))
    assert effects(found) == {f"returned: {metric}": effect}


def test_the_margin_is_the_users() -> None:
    pair = side({("small", "throughput"): 100.0}), side({("small", "throughput"): 90.0})
    assert effects(table(*pair, margin=0.05)) == {"small: throughput": Effect.WORSE}
    assert effects(table(*pair, margin=0.2)) == {}


def test_every_trial_must_differ() -> None:
    base = side({("small", "throughput"): (100.0, 101.0, 80.0)})
    assert effects(table(base, side({("small", "throughput"): (90.0, 88.0, 82.0)}))) == {}
    apart = side({("small", "throughput"): (70.0, 71.0, 72.0)})
    assert effects(table(base, apart)) == {"small: throughput": Effect.WORSE}


def pair(base: Side, patched: Side) -> frozenset[str]:
    sides = Sides(job=JOB, image="debian-12+md-2", base=base, patched=patched)
    return differing(sides, margin=MARGIN)


def test_cells_that_differ_need_more_trials_on_both_sides() -> None:
    value = ("small", "throughput")
    base, patched = side({value: 100.0}), side({value: 60.0}, image="debian-12+md-2")
    assert pair(base, patched) == {*base.cells, *patched.cells}
    assert len(pair(base, patched)) == 2
    assert pair(base, side({value: 100.0}, image="debian-12+md-2")) == frozenset()


def test_more_trials_tell_a_change_from_chance() -> None:
    slow, fast = 2.7e6, 3.2e6
    value = ("read", "throughput")
    base = side({value: [slow, slow, slow, fast, slow, slow]})
    assert effects(table(base, side({value: [fast, slow, slow, fast, fast, fast]}))) == {}
    changed = table(base, side({value: [2.0e6] * 6}))
    assert effects(changed) == {"read: throughput": Effect.WORSE}
    assert changed[1].difference == "-25.9% in 6 trials"


def test_more_trials_are_of_sealed_cells_that_ended() -> None:
    value = ("small", "throughput")
    base = side({value: 100.0})
    assert pair(base, side({value: 50.0}, outcome=Outcome.FAILED, reason="mismatch")) == frozenset()
    real = CellClock.REAL
    assert pair(side({value: 100.0}, clock=real), side({value: 50.0}, clock=real)) == frozenset()


def test_a_verdict_that_differs_needs_more_trials_of_the_claims_cells() -> None:
    name = cell_id(CELL.model_copy(update={"guest": CELL.guest.model_copy(update={"image": "x"})}))
    compared = ComparedValue(workload="small", metric="iops", cell=name, measured=1.0)

    def claimed(verdict: Verdict) -> Side:
        claim = ClaimResult(id="C", says="", verdict=verdict, values=(compared,))
        return side({("small", "throughput"): 100.0}, claims=(claim,), image="x")

    assert pair(claimed(Verdict.HOLDS), claimed(Verdict.REFUTED)) == {name}
    assert pair(claimed(Verdict.HOLDS), claimed(Verdict.HOLDS)) == frozenset()


@pytest.mark.parametrize(
    ("first", "again", "counts"),
    [
        (Effect.WORSE, Effect.WORSE, Effect.WORSE),
        (Effect.WORSE, Effect.BROKEN, Effect.WORSE),
        (Effect.BROKEN, Effect.WORSE, Effect.BROKEN),
        (Effect.WORSE, Effect.SAME, Effect.INCONCLUSIVE),
        (Effect.WORSE, Effect.BETTER, Effect.INCONCLUSIVE),
        (Effect.BETTER, Effect.SAME, Effect.INCONCLUSIVE),
        (Effect.WORSE, None, Effect.WORSE),
        (Effect.SAME, Effect.WORSE, Effect.SAME),
    ],
)
def test_a_test_that_differs_must_do_so_again(
    first: Effect, again: Effect | None, counts: Effect
) -> None:
    def test(verdict: Effect) -> PatchRow:
        words = ("holds", "refuted")
        check = "mdadm.06name"
        return PatchRow(
            scenario="mdadm-tests", check=check, base=words[0], patched=words[1], verdict=verdict
        )

    found = confirmed(test(first), None if again is None else test(again))
    assert found.verdict is counts
    assert ("again" in found.reason) is (counts is Effect.INCONCLUSIVE)


def test_rates_and_times_near_the_tools_resolution_are_not_compared() -> None:
    """fio's six milliseconds become seven."""
    brief = [{("w", "seconds"): s, ("w", "throughput"): 5.0 / s} for s in (0.006, 0.007)]
    assert effects(table(*map(side, brief))) == {}
    long = [{("w", "seconds"): s, ("w", "throughput"): 5.0 / s} for s in (0.6, 0.7)]
    assert set(effects(table(*map(side, long)))) == {"w: seconds", "w: throughput"}
    fault = [{("returned", "sync_seconds"): s} for s in (0.001, 0.02)]
    assert effects(table(*map(side, fault))) == {}


def test_in_real_time_one_measurement_shows_nothing() -> None:
    sides = [
        side({("small", "throughput"): value, ("small", "disk_reads"): reads}, clock=CellClock.REAL)
        for value, reads in ((100.0, 768.0), (50.0, 1280.0))
    ]
    assert effects(table(*sides)) == {
        "small: throughput": Effect.INCONCLUSIVE,
        "small: disk_reads": Effect.WORSE,  # counted
    }


@pytest.mark.parametrize(
    ("before", "after", "effect"),
    [
        (Outcome.DONE, Outcome.FAILED, Effect.BROKEN),
        (Outcome.DONE, Outcome.LOST, Effect.BROKEN),
        (Outcome.FAILED, Outcome.DONE, Effect.BETTER),
        (Outcome.FAILED, Outcome.FAILED, Effect.SAME),
    ],
)
def test_a_cell_that_does_not_finish(before: Outcome, after: Outcome, effect: Effect) -> None:
    values = {("small", "throughput"): 1.0}
    base = side(values, outcome=before, reason="verify: bad header")
    found = table(base, side(values, outcome=after, reason="verify: bad header"))
    assert [row.verdict for row in found] == [effect]
    assert "verify: bad header" in found[0].reason


def test_two_failures_with_other_reasons_are_inconclusive() -> None:
    sides = [side({}, outcome=Outcome.FAILED, reason=reason) for reason in ("a", "b")]
    assert [row.verdict for row in table(*sides)] == [Effect.INCONCLUSIVE]


def test_equal_digests_are_identical_and_nothing_else_is_looked_at() -> None:
    base = side({("small", "throughput"): 1.0}, digest="a")
    assert [row.difference for row in table(base, side({}, digest="a"))] == ["identical"]
    assert [row.difference for row in table(base, side({}, digest="b"))] != ["identical"]


def claim(verdict: Verdict, measured: float | None = None, expected: str = "") -> ClaimResult:
    return ClaimResult(
        id="c", says="it does", verdict=verdict, measured=measured, expected=expected, reason="why"
    )


@pytest.mark.parametrize(
    ("before", "after", "effect"),
    [
        (claim(Verdict.HOLDS), claim(Verdict.HOLDS), Effect.SAME),
        (claim(Verdict.REFUTED), claim(Verdict.REFUTED), Effect.SAME),
        (claim(Verdict.HOLDS), claim(Verdict.REFUTED), Effect.WORSE),
        (claim(Verdict.REFUTED), claim(Verdict.HOLDS), Effect.BETTER),
        (claim(Verdict.HOLDS), claim(Verdict.INCONCLUSIVE), Effect.INCONCLUSIVE),
        (claim(Verdict.NOT_TESTED), claim(Verdict.HOLDS), Effect.INCONCLUSIVE),
        (claim(Verdict.HOLDS, 1.0), claim(Verdict.REFUTED, 1.005), Effect.INCONCLUSIVE),
        (claim(Verdict.HOLDS, 1.0), claim(Verdict.REFUTED, 1.1), Effect.WORSE),
        (claim(Verdict.HOLDS, 0.0), claim(Verdict.REFUTED, 8.0), Effect.WORSE),
        # a test of a suite that hung
        (
            claim(Verdict.HOLDS, expected="passed"),
            claim(Verdict.INCONCLUSIVE, expected="passed"),
            Effect.BROKEN,
        ),
    ],
)
def test_two_verdicts_on_a_claim(before: ClaimResult, after: ClaimResult, effect: Effect) -> None:
    found = table(side({}, claims=[before]), side({}, claims=[after]))
    assert [row.verdict for row in found if row.check == "c"] == [effect]


@pytest.mark.parametrize(
    ("more", "effect"),
    [
        ({}, Effect.INCONCLUSIVE),
        ({"kernel": ">=6.1 <6.2"}, Effect.INCONCLUSIVE),
        ({"image": "debian-12"}, Effect.INCONCLUSIVE),
        ({"kernel": ">=6.2"}, Effect.WORSE),
        ({"mdadm": "<4.2"}, Effect.WORSE),
        ({"scenario": "faults"}, Effect.WORSE),
        ({"until": "2026-11-23"}, Effect.WORSE),
    ],
)
def test_a_known_failure_is_gated_by_version(more: dict[str, Any], effect: Effect) -> None:
    entry = {"claims": ["c"], "reason": "a bug", "until": "2026-12-31"} | more
    found = table(
        side({}, claims=[claim(Verdict.HOLDS)]),
        side({}, claims=[claim(Verdict.REFUTED)]),
        expected=[Expected.model_validate(entry)],
    )
    assert [row.verdict for row in found if row.check == "c"] == [effect]


def test_a_command_repeats_the_cell_with_the_series() -> None:
    pair = side({("small", "throughput"): 100.0}), side({("small", "throughput"): 50.0})
    sides = Sides(
        job=JOB,
        image="debian-12+md-2",
        base=pair[0],
        patched=pair[1],
        overrides=('matrix={"array.level": [5]}', "guest.clock=virtual"),
    )
    worse = rows(sides, margin=MARGIN, today=TODAY)[1]
    words = shlex.split(worse.command)
    assert words[:4] == ["lab", "run", "scenario", "fio-verify"]
    sets = words[5::2]
    assert sets[0] == "guest.image=debian-12+md-2"
    assert set(sets[1:]) == {"guest.clock=virtual", "array.level=5", "array.bitmap=internal"}
    own = dataclasses.replace(sides, path="dir/my.yaml")
    assert shlex.split(rows(own, margin=MARGIN, today=TODAY)[1].command)[3] == "dir/my.yaml"
    again = compile_scenario(
        catalog.scenario_path("fio-verify"),
        overrides=[_override(text) for text in sets],
    )
    assert [(cell.array, cell.guest.image) for cell in again.cells] == [
        (CELL.array, "debian-12+md-2")
    ]


def _override(text: str) -> Any:
    from lab.core.yaml import parse_override

    return parse_override(text)


# --- the whole -------------------------------------------------------------------------------


def result(*found: PatchRow, untested: tuple[str, ...] = ()) -> PatchResult:
    return PatchResult(
        series="my.mbox",
        patches=(SeriesPatch(title="md: a | b <b> @user", paths=("x",), sha256="0"),),
        against="md",
        image="debian-12",
        started="2026-11-24T00:00:00Z",
        margin=0.05,
        base=PatchSide(image="debian-12+md-1", digest="1"),
        patched=PatchSide(image="debian-12+md-2", digest="2"),
        rows=found,
        untested=untested,
    )


def row(effect: Effect, check: str = "level 5: small: disk_reads") -> PatchRow:
    return PatchRow(
        scenario="fio-verify",
        check=check,
        base="768",
        patched="1280",
        difference="+66.7%",
        verdict=effect,
        reason="a | reason",
        command="lab run scenario fio-verify",
    )


@pytest.mark.parametrize(
    ("found", "untested", "status"),
    [
        ([], (), EXIT_DONE),
        ([Effect.SAME, Effect.BETTER, Effect.INCONCLUSIVE], (), EXIT_DONE),
        ([Effect.SAME, Effect.WORSE], (), EXIT_REFUTED),
        ([Effect.BROKEN], ("x",), EXIT_REFUTED),
        ([Effect.SAME], ("x",), EXIT_TROUBLE),
    ],
)
def test_the_exit_status(found: list[Effect], untested: tuple[str, ...], status: int) -> None:
    assert exit_status(result(*map(row, found), untested=untested)) == status


def test_the_markdown_table_begins_with_what_is_worse() -> None:
    made = as_markdown(result(row(Effect.SAME), row(Effect.WORSE), untested=("faults: no KVM",)))
    lines = [line for line in made.splitlines() if line.startswith("| fio-verify")]
    assert ["worse" in line for line in lines] == [True, False]
    assert all(line.replace("\\|", "").count("|") == 7 for line in lines)
    assert "lab run scenario fio-verify" in made
    assert "faults: no KVM" in made
    assert "md: a \\| b &lt;b> " in made  # a subject is no markup, and mentions nobody
    assert "@" not in made
    assert sentence(result(row(Effect.WORSE))).startswith("Something is worse")


def test_many_equal_checks_are_a_line() -> None:
    made = as_markdown(result(*(row(Effect.SAME, f"check {n}") for n in range(100))))
    assert made.count("\n| fio-verify") == 40
    assert "60 further checks" in made


def test_junit_has_a_case_for_each_check() -> None:
    found = result(
        *(row(effect, f"check {effect.value}") for effect in Effect), untested=("faults: broken",)
    )
    root = ET.fromstring(patch_junit(found))
    endings = {
        case.get("name"): [child.tag for child in case if child.tag != "system-out"]
        for case in root.iter("testcase")
    }
    assert endings == {
        "check same": [],
        "check better": [],
        "check worse": ["failure"],
        "check broken": ["failure"],
        "check inconclusive": ["skipped"],
        "the run": ["error"],
    }
    nothing = ET.fromstring(patch_junit(result()))
    assert nothing.get("tests") == "1"
    assert nothing.get("errors") == "0"
