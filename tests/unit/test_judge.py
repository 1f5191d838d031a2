"""Every kind of expectation holds, is refuted, cannot be judged, or was not tested."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lab.analysis.counted import counts_of
from lab.analysis.judge import JudgedCell, in_words, judge, limits
from lab.analysis.sequential import EACH
from lab.core.statistics import Spread, t_quantile
from lab.model.result.calibration import CALIBRATED, VIRTUAL_DRIVES
from lab.model.result.document import Basis, CellMeasurement, CellResult, MemberCounters, Outcome
from lab.model.result.measurement import GUEST_CPU, Check, Measurement, Prediction, Unsupported
from lab.model.scenario.claim import Bound, Claim, Verdict, matches
from lab.model.scenario.document import AxisValue

HOLDS, REFUTED, INCONCLUSIVE, NOT_TESTED = Verdict


UNITS = {"throughput": "B/s", "iops": "1/s", "seconds": "s", "used": "B", "intact": "1"}


def cell(
    chunk: AxisValue,
    figure: float | None,
    *,
    outcome: Outcome = Outcome.DONE,
    published: bool = True,
    metric: str = "throughput",
    noise: float | None = None,
) -> JudgedCell:
    found: tuple[CellMeasurement, ...] = ()
    if figure is not None:
        one = {"workload": "write", "metric": metric, "unit": UNITS[metric], "values": (figure,)}
        found = (CellMeasurement.model_validate({**one, "median": figure}),)
    fields = {"array.chunk": chunk}
    result = CellResult(
        id=f"c{chunk}",
        axes=fields,
        outcome=outcome,
        measurements=found,
        reason="" if outcome is Outcome.DONE else "the guest panicked\nwith a long story",
    )
    one_cell = JudgedCell(result=result, fields=fields, published=published)
    if noise is None:
        return replace(one_cell, seeds=(1,), drawn=frozenset())
    return replace(one_cell, noise={metric: off_by(noise)})


def off_by(share: float) -> Spread:
    """A noise floor with which a value is off by this share at most, at the level of verdicts."""
    return Spread(deviation=math.log1p(share) / t_quantile(1 - EACH / 2, 9), freedom=9)


def value(chunk: AxisValue = None, **more: Any) -> dict[str, Any]:
    where = {} if chunk is None else {"array.chunk": chunk}
    return {"workload": "write", "where": where, **more}


def claim(**expect: Any) -> Claim:
    return Claim.model_validate(
        {"id": "c1", "says": "it is so", "published": 1e7, "expect": expect}
    )


def verdict(expectation: Claim, *cells: JudgedCell) -> Verdict:
    (result,) = judge([expectation], cells)
    assert result.expected
    assert result.reason
    if result.verdict in (HOLDS, REFUTED):
        assert result.measured is not None
    else:
        assert result.measured is None
    return result.verdict


A, B, C = 4096, 8192, 16384


def three(a: float, b: float, c: float) -> list[JudgedCell]:
    return [cell(A, a), cell(B, b), cell(C, c)]


NEAR = claim(kind="bound", value=value(A), near="10MB/s", within="7%")
FLOOR = claim(kind="bound", value=value(A), at_least="10MB/s")
CEILING = claim(kind="bound", value=value(A), at_most="10MB/s")
BETWEEN = claim(kind="bound", value=value(A), at_least="9MB/s", at_most="10MB/s")
RATIO = claim(kind="ratio", of=value(A), to=value(B), at_least=0.9, at_most="110%")
FASTER = claim(kind="ratio", of=value(A), to=value(B), at_least=1)
ORDER = claim(kind="order", values=[value(A), value(B), value(C)], margin="10%")
SAME = claim(kind="same", values=[value(A), value(B), value(C)], within="10%")
RISING = claim(kind="monotonic", value=value(), along="array.chunk", direction="rising")
FALLING = claim(
    kind="monotonic", value=value(), along="array.chunk", direction="falling", tolerance="10%"
)


@pytest.mark.parametrize(
    ("expectation", "figures", "expected"),
    [
        (NEAR, (10.69e6, 1, 1), HOLDS),
        (NEAR, (9.31e6, 1, 1), HOLDS),
        (NEAR, (10.71e6, 1, 1), REFUTED),
        (NEAR, (9.29e6, 1, 1), REFUTED),
        (FLOOR, (10e6, 1, 1), HOLDS),
        (FLOOR, (9.99e6, 1, 1), REFUTED),
        (CEILING, (10e6, 1, 1), HOLDS),
        (CEILING, (10.01e6, 1, 1), REFUTED),
        (BETWEEN, (9.5e6, 1, 1), HOLDS),
        (BETWEEN, (8e6, 1, 1), REFUTED),
        (RATIO, (95, 100, 1), HOLDS),
        (RATIO, (111, 100, 1), REFUTED),
        (RATIO, (89, 100, 1), REFUTED),
        (RATIO, (89, 0, 1), INCONCLUSIVE),
        (ORDER, (130, 115, 100), HOLDS),
        (ORDER, (130, 125, 100), REFUTED),
        (ORDER, (100, 115, 130), REFUTED),
        (SAME, (100, 105, 110), HOLDS),
        (SAME, (100, 105, 120), REFUTED),
        (RISING, (1, 2, 2), HOLDS),
        (RISING, (1, 2, 1.99), HOLDS),
        (RISING, (1, 2, 1.98), REFUTED),
        (FALLING, (3, 2, 1), HOLDS),
        (FALLING, (3, 3.2, 1), HOLDS),
        (FALLING, (3, 3.6, 1), REFUTED),
    ],
)
def test_each_kind_of_expectation(
    expectation: Claim, figures: tuple[float, float, float], expected: Verdict
) -> None:
    assert verdict(expectation, *three(*figures)) is expected


@pytest.mark.parametrize(
    ("expectation", "figures", "expected"),
    [
        # A figure is off by 2 % at most, a quotient of two by 2.8 %.
        (NEAR, (10.4e6, 1, 1), HOLDS),
        (NEAR, (10.6e6, 1, 1), INCONCLUSIVE),
        (NEAR, (10.8e6, 1, 1), INCONCLUSIVE),
        (NEAR, (11e6, 1, 1), REFUTED),
        (NEAR, (9.4e6, 1, 1), INCONCLUSIVE),
        (NEAR, (9.1e6, 1, 1), REFUTED),
        (FLOOR, (10.3e6, 1, 1), HOLDS),
        (FLOOR, (10.1e6, 1, 1), INCONCLUSIVE),
        (FLOOR, (9.7e6, 1, 1), REFUTED),
        (CEILING, (9.9e6, 1, 1), INCONCLUSIVE),
        (RATIO, (106, 100, 1), HOLDS),
        (RATIO, (108, 100, 1), INCONCLUSIVE),
        (RATIO, (112, 100, 1), INCONCLUSIVE),
        (RATIO, (114, 100, 1), REFUTED),
        (ORDER, (130, 115, 100), INCONCLUSIVE),
        (ORDER, (150, 120, 100), HOLDS),
        (ORDER, (150, 120, 112), INCONCLUSIVE),
        (ORDER, (150, 120, 116), REFUTED),
        (ORDER, (120, 116, 100), REFUTED),
        (SAME, (100, 105, 110), HOLDS),
        (SAME, (100, 105, 114), INCONCLUSIVE),
        (SAME, (100, 105, 119), REFUTED),
        (RISING, (1, 2, 2), INCONCLUSIVE),
        (RISING, (1, 2, 3), HOLDS),
        (RISING, (1, 3, 2), REFUTED),
        (FALLING, (3, 3.2, 1), HOLDS),
        (FALLING, (3, 3.3, 1), INCONCLUSIVE),
    ],
)
def test_what_is_too_close_to_tell_is_not_decided(
    expectation: Claim, figures: tuple[float, float, float], expected: Verdict
) -> None:
    cells = [cell(c, f, noise=0.02) for c, f in zip((A, B, C), figures, strict=True)]
    (result,) = judge([expectation], cells)
    assert result.verdict is expected
    assert result.measured is not None
    assert "±" in result.reason
    assert ("too close to tell" in result.reason) is (expected is INCONCLUSIVE)


def seeded(chunk: AxisValue, *values: float, first: int = 1, **more: Any) -> JudgedCell:
    """A cell in virtual time, with a value for each seed."""
    plain = cell(chunk, values[0])
    one = Measurement(workload="write", metric="throughput", unit="B/s", values=values)
    result = plain.result.model_copy(update={"measurements": (CellMeasurement.of_seeds(one),)})
    seeds = tuple(range(first, first + len(values)))
    return replace(plain, result=result, **{"seeds": seeds, "drawn": {"write"}} | more)


def around(middle: float, off: float, count: int) -> list[float]:
    """So many values around a middle, each another one."""
    return [middle * (1 + off * math.sin(9 * n)) for n in range(1, count + 1)]


def test_one_trial_without_known_noise_decides_nothing() -> None:
    real = replace(cell(A, 99e6), seeds=(), drawn=frozenset({"write"}))
    for unknown in (real, seeded(A, 99e6)):
        (result,) = judge([FLOOR], [unknown])
        assert (result.verdict, result.measured) == (INCONCLUSIVE, 99e6)
        assert (result.parts[0].low, result.parts[0].high) == (None, None)
    assert (
        "noise of such values on this host is not known: 17 trials are needed, or --clock virtual"
        in judge([FLOOR], [real])[0].reason
    )
    assert "seeds change the value, and 1 trial ran: 17 trials are needed, as by --trials auto" in (
        judge([FLOOR], [seeded(A, 99e6)])[0].reason
    )


def test_one_trial_decides_where_no_seed_reaches_and_where_noise_is_known() -> None:
    fixed = seeded(A, 10.2e6, drawn=frozenset())
    (result,) = judge([FLOOR], [fixed])
    assert (result.verdict, result.parts[0].basis) == (HOLDS, Basis.FIXED)
    assert judge([FLOOR], [cell(A, 10.3e6, noise=0.02)])[0].verdict is HOLDS
    assert judge([FLOOR], [cell(A, 10.1e6, noise=0.02)])[0].verdict is INCONCLUSIVE
    assert judge([FLOOR], [cell(A, 10.1e6, metric="iops", noise=0.0)])[0].verdict is NOT_TESTED


def test_trials_that_differ_although_nothing_is_drawn_are_seeds() -> None:
    (result,) = judge([FLOOR], [seeded(A, 10.2e6, 10.3e6, drawn=frozenset())])
    assert (result.verdict, result.parts[0].basis) == (INCONCLUSIVE, Basis.SEEDS)


def test_a_single_cell_is_decided_after_17_trials_by_all_its_values() -> None:
    values = around(11e6, 0.02, 17)
    assert judge([FLOOR], [seeded(A, *values[:16])])[0].verdict is INCONCLUSIVE
    (result,) = judge([FLOOR], [seeded(A, *values)])
    assert result.verdict is HOLDS
    part = result.parts[0]
    assert (part.low, part.high) == pytest.approx((min(values), max(values)))
    assert (part.at_least, part.at_most, part.trials) == (1e7, None, 17)
    values[3] = 9.9e6
    (open_,) = judge([FLOOR], [seeded(A, *values)])
    assert open_.verdict is INCONCLUSIVE
    assert "after 17 trials it is between 9.90 MB/s and" in open_.reason
    assert "the next look is after 24 trials" in open_.reason


def test_five_cells_of_a_kind_are_decided_after_four_trials() -> None:
    """Their scatter is known together; of other disks nothing follows."""
    cells = [seeded(n, *around(11e6, 0.003, 4)) for n in (A, B, C, 1, 2)]
    assert judge([FLOOR], cells)[0].verdict is INCONCLUSIVE  # 10 % is not far enough at four
    far = claim(kind="bound", value=value(A), at_least="1MB/s")
    assert judge([far], cells)[0].verdict is HOLDS
    assert judge([far], cells[:4])[0].verdict is INCONCLUSIVE
    others = [*cells[:4], replace(cells[4], disks="ssd")]
    assert judge([far], others)[0].verdict is INCONCLUSIVE


def test_ratios_are_paired_by_seed() -> None:
    """What both sides have in common is no scatter of their ratio."""
    values = around(1e7, 0.2, 17)
    half = [v / 2 * (1 + 0.001 * math.cos(n)) for n, v in enumerate(values)]
    twice = claim(kind="ratio", of=value(A), to=value(B), at_least=1.9)
    (result,) = judge([twice], [seeded(A, *values), seeded(B, *half)])
    assert (result.verdict, result.parts[0].trials) == (HOLDS, 17)
    (other,) = judge([twice], [seeded(A, *values), seeded(B, *half, first=1001)])
    assert other.verdict is INCONCLUSIVE
    (few,) = judge([twice], [seeded(A, *values), seeded(B, *half, first=9)])
    assert (few.verdict, few.parts[0].trials) == (INCONCLUSIVE, 9)


FASTER = claim(kind="ratio", of=value(A), to=value(B), at_least=1)
BEHIND = claim(kind="ratio", of=value(A), to=value(B), at_most=1)
FIRST = claim(kind="order", values=[value(A), value(B)])


@pytest.mark.parametrize(
    ("ratio", "faster", "behind", "words"),
    [
        (1.02, HOLDS, REFUTED, False),
        (1.009, REFUTED, REFUTED, True),
        (1.0, REFUTED, REFUTED, True),
        (0.995, REFUTED, REFUTED, True),
        (0.97, REFUTED, HOLDS, False),
    ],
)
def test_a_direction_inside_the_margin_is_no_difference(
    ratio: float, faster: Verdict, behind: Verdict, *, words: bool
) -> None:
    cells = [cell(A, 1e7 * ratio), cell(B, 1e7)]
    said = judge([FASTER, FIRST, BEHIND], cells)
    assert [c.verdict for c in said] == [faster, faster, behind]
    for each in said:
        expected = words and each.verdict is REFUTED
        assert ("no difference: less than 1 %" in each.reason) is expected


def test_the_margin_is_as_wide_as_real_and_virtual_time_differ() -> None:
    cells = [replace(cell(c, f), margins={"write": 0.23}) for c, f in ((A, 1.2e7), (B, 1e7))]
    (result,) = judge([FASTER], cells)
    assert result.verdict is REFUTED
    assert "no difference: less than 23 %" in result.reason
    with_a_bound = claim(kind="ratio", of=value(A), to=value(B), at_least=1.1)
    assert judge([with_a_bound], cells)[0].verdict is HOLDS


def test_a_direction_that_may_be_inside_the_margin_is_open() -> None:
    cells = [cell(A, 1.02e7, noise=0.01), cell(B, 1e7, noise=0.01)]
    verdicts = [c.verdict for c in judge([FASTER, FIRST, BEHIND], cells)]
    assert verdicts == [INCONCLUSIVE, INCONCLUSIVE, REFUTED]  # behind it cannot be


ALL = [NEAR, FLOOR, CEILING, BETWEEN, RATIO, ORDER, SAME, RISING, FALLING]


@pytest.mark.parametrize("expectation", ALL, ids=lambda c: c.expect.kind)
def test_a_cell_that_failed_is_no_evidence(expectation: Claim) -> None:
    for outcome in (Outcome.FAILED, Outcome.LOST, Outcome.SKIPPED):
        cells = three(1e7, 1e7, 1e7)
        cells[0] = cell(A, 1e7, outcome=outcome)
        assert verdict(expectation, *cells) is INCONCLUSIVE
        assert judge([expectation], cells)[0].reason == (
            f"the cell c4096 is {outcome.value}: the guest panicked"
        )


@pytest.mark.parametrize("expectation", ALL, ids=lambda c: c.expect.kind)
def test_what_is_not_there_was_not_tested(expectation: Claim) -> None:
    assert verdict(expectation) is NOT_TESTED
    assert verdict(expectation, cell("other", 1)) is NOT_TESTED
    changed = [cell(c, 1e7, published=False) for c in (A, B, C)]
    assert verdict(expectation, *changed) is NOT_TESTED
    assert "--set changed the cell" in judge([expectation], changed)[0].reason
    silent = [cell(c, None) for c in (A, B, C)]
    assert verdict(expectation, *silent) is NOT_TESTED
    other = [cell(c, 1e7, metric="iops") for c in (A, B, C)]
    assert verdict(expectation, *other) is NOT_TESTED


def test_a_claim_that_picks_two_cells_names_them() -> None:
    either = claim(kind="bound", value=value(), near=1)
    assert verdict(either, cell(A, 1)) is HOLDS
    assert verdict(either, *three(1, 1, 1)) is NOT_TESTED
    assert "c4096, c8192, c16384" in judge([either], three(1, 1, 1))[0].reason


def test_a_changed_cell_beside_a_published_one_makes_no_claim_ambiguous() -> None:
    either = claim(kind="bound", value=value(), near=1)
    assert verdict(either, cell(A, 1), cell(B, 5, published=False)) is HOLDS


def test_one_cell_is_no_line() -> None:
    assert verdict(RISING, cell(A, 1)) is NOT_TESTED


def test_a_line_has_one_cell_at_each_place() -> None:
    """Cells that differ in another axis too: neither order of theirs is the line's."""
    two = [cell(A, 100), cell(A, 90), cell(B, 120), cell(B, 110)]
    assert verdict(RISING, *two) is NOT_TESTED
    assert f"more than one cell at array.chunk: {A}" in judge([RISING], two)[0].reason


def test_cells_along_an_axis_are_sorted_by_its_numbers() -> None:
    assert verdict(RISING, cell(C, 3), cell(A, 1), cell(B, 2)) is HOLDS
    named = [cell("far=2", 1), cell("near=2", 2)]
    assert verdict(RISING, *named) is HOLDS
    assert verdict(RISING, *reversed(named)) is REFUTED


@pytest.mark.parametrize(
    ("wanted", "found", "same"),
    [
        ("512KiB", 524288, True),
        (524288, 524288, True),
        ("512kB", 524288, False),
        ("parity-last", "parity-last", True),
        (5, "5", True),
        ("5", "5", True),
        (None, None, True),
        (None, "x", False),
        ("None", None, False),
        (True, True, True),
        ("x", 5, False),
        ("4k", 4096, True),
        ("4k", 4000, False),
        ("15s", 15.0, True),
        ("2min", 120.0, True),
        ("2min", 2.0, False),
    ],
)
def test_cells_are_picked_by_value_and_not_by_spelling(
    wanted: AxisValue, found: AxisValue, *, same: bool
) -> None:
    assert matches({"a": wanted}, {"a": found}) is same


def test_every_name_must_agree_and_none_picks_all() -> None:
    assert matches({}, {"a": 1})
    assert not matches({"a": 1, "b": 2}, {"a": 1, "b": 3})
    assert not matches({"c": 1}, {"a": 1})


def test_bounds_are_numbers() -> None:
    near = Bound.model_validate({"kind": "bound", "value": value(), "near": 100, "within": "7%"})
    assert limits(near) == pytest.approx((93, 107))


@pytest.mark.parametrize(
    ("expectation", "words"),
    [
        (NEAR, "10.0 MB/s ±7%"),
        (BETWEEN, "at least 9.00 MB/s and at most 10.0 MB/s"),
        (RATIO, "at least 0.9 and at most 1.1 times"),
        (ORDER, "falling in this order, by 10% each"),
        (SAME, "the same within 10%"),
        (RISING, "rising along array.chunk"),
    ],
)
def test_expectations_are_said_in_words(expectation: Claim, words: str) -> None:
    assert in_words(expectation, {("write", "throughput"): "B/s"}) == words


def test_what_was_measured_stands_in_the_reason() -> None:
    (result,) = judge([NEAR], [cell(A, 10.5e6)])
    assert result.reason == "10.5 MB/s was measured, +5.0% off"
    assert result.published == 1e7
    assert result.measured == 10.5e6


def test_reasons_have_units_and_say_what_is_alike_once() -> None:
    slow, fast = value(A, metric="iops"), value(B, metric="iops")
    two = [cell(A, 9.509, metric="iops"), cell(B, 25.04, metric="iops")]
    (told,) = judge([claim(kind="ratio", of=fast, to=slow, at_least=1.5)], two)
    assert (told.reason, told.expected) == ("25.04/s is 2.63 times 9.509/s", "at least 1.5 times")
    (told,) = judge([claim(kind="order", values=[fast, slow])], two)
    assert (told.reason, told.expected) == ("25.04/s, 9.509/s", "falling in this order")
    alike = [cell(A, 11.31e6), cell(B, 11.32e6)]
    (told,) = judge([claim(kind="same", values=[value(A), value(B)])], alike)
    assert told.reason == "each 11.3 MB/s"
    exactly = claim(kind="bound", value=value(metric="intact"), near=1, within=0)
    (told,) = judge([exactly], [cell(A, 1.0, metric="intact")])
    assert (told.reason, told.expected) == ("1 was measured", "exactly 1")
    other = {**slow, "workload": "rewrite"}
    words = in_words(claim(kind="ratio", of=fast, to=other, at_most=2), {})
    assert words == "write at most 2 times rewrite"


@pytest.mark.parametrize(
    "expect",
    [
        {"kind": "bound", "value": value()},
        {"kind": "bound", "value": value(), "near": 1, "at_least": 1},
        {"kind": "ratio", "of": value(), "to": value()},
        {"kind": "order", "values": [value()]},
        {"kind": "guess", "value": value()},
        {"kind": "bound", "value": value(), "near": float("nan")},
        {"kind": "bound", "value": value(), "near": "fast"},
    ],
)
def test_an_expectation_that_expects_nothing_is_refused(expect: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        claim(**expect)


def test_a_figure_that_its_workload_did_not_give_is_not_called_a_missing_workload() -> None:
    (result,) = judge([FLOOR], [cell(A, 1e9, metric="iops")])
    assert result.verdict is NOT_TESTED
    assert "'write' gave no throughput" in result.reason
    (result,) = judge([FLOOR], [cell(A, None)])
    assert "'write' has no values in the cell" in result.reason


def test_modelled_drives_in_real_time_make_every_claim_inconclusive() -> None:
    found = cell(A, 1e9)
    for passed, expected in ((False, INCONCLUSIVE), (True, HOLDS)):
        check = Check(name=VIRTUAL_DRIVES, passed=passed, detail="set guest.clock to virtual")
        result = found.result.model_copy(update={"checks": (check,)})
        (said,) = judge([FLOOR], [replace(found, result=result)])
        assert said.verdict is expected
        told = f"the cell {result.id} has modelled drives in real time: set guest.clock to virtual"
        assert (told in said.reason) is not passed


def busy(one: JudgedCell, **update: Any) -> JudgedCell:
    check = Check(name=GUEST_CPU, passed=False, detail="busy for 80% of write", workload="write")
    found = tuple(m.model_copy(update=update) for m in one.result.measurements)
    return replace(
        one, result=one.result.model_copy(update={"checks": (check,), "measurements": found})
    )


@pytest.mark.parametrize(
    ("expectation", "figures", "unit", "which", "expected"),
    [
        (FLOOR, (11e6, 1), "B/s", "A", HOLDS),  # a faster processor only makes it faster
        (FLOOR, (9e6, 1), "B/s", "A", INCONCLUSIVE),
        (CEILING, (11e6, 1), "B/s", "A", REFUTED),
        (CEILING, (9e6, 1), "B/s", "A", INCONCLUSIVE),
        (NEAR, (10e6, 1), "B/s", "A", INCONCLUSIVE),
        (NEAR, (11e6, 1), "B/s", "A", REFUTED),
        (NEAR, (9e6, 1), "B/s", "A", INCONCLUSIVE),
        (FLOOR, (11e6, 1), "s", "A", INCONCLUSIVE),  # and a time shorter
        (FLOOR, (9e6, 1), "s", "A", REFUTED),
        (CEILING, (9e6, 1), "s", "A", HOLDS),
        (FASTER, (12, 10), "B/s", "A", HOLDS),
        (FASTER, (12, 10), "B/s", "B", INCONCLUSIVE),
        (FASTER, (12, 10), "B/s", "AB", INCONCLUSIVE),
        (FASTER, (8, 10), "B/s", "B", REFUTED),
        (FASTER, (8, 10), "s", "A", REFUTED),
        (RATIO, (10, 10), "B/s", "A", INCONCLUSIVE),
        (RATIO, (12, 10), "B/s", "A", REFUTED),
        (RATIO, (8, 10), "B/s", "B", REFUTED),
        (RATIO, (8, 10), "B/s", "A", INCONCLUSIVE),
        (FASTER, (12, 10), "", "A", INCONCLUSIVE),  # of another unit nothing is known
        (RISING, (10, 12), "B/s", "B", INCONCLUSIVE),
    ],
)
def test_a_busy_guest_leaves_the_verdicts_that_a_faster_processor_cannot_change(
    expectation: Claim, figures: tuple[float, float], unit: str, which: str, expected: Verdict
) -> None:
    cells = [
        busy(cell(chunk, figure), unit=unit) if name in which else cell(chunk, figure)
        for name, chunk, figure in zip("AB", (A, B), figures, strict=True)
    ]
    assert verdict(expectation, *cells) is expected


def test_a_busy_guest_does_not_change_a_count() -> None:
    said = claim(kind="bound", value=value(A, metric="used"), near=10, within="7%")
    one = busy(cell(A, 10, metric="used"), unit="B")
    assert verdict(said, one) is INCONCLUSIVE
    assert verdict(said, replace(one, counted=frozenset({("write", "used")}))) is HOLDS


def with_guest(figure: float, share: float) -> JudgedCell:
    found = cell(A, figure)
    check = Check(name=CALIBRATED, passed=True, guest_share=share)
    return replace(found, result=found.result.model_copy(update={"checks": (check,)}))


@pytest.mark.parametrize(
    ("bound", "figure", "share", "expected"),
    [
        (NEAR, 8.8e6, 0.0, REFUTED),
        (NEAR, 8.8e6, 0.04, REFUTED),
        (NEAR, 8.8e6, 0.11, INCONCLUSIVE),
        (NEAR, 9.8e6, 0.11, HOLDS),
        (NEAR, 11.0e6, 0.11, INCONCLUSIVE),  # of a time, the guest may be the excess
        (NEAR, 13.0e6, 0.11, REFUTED),
        (FLOOR, 9.5e6, 0.11, INCONCLUSIVE),
        (FLOOR, 8.5e6, 0.11, REFUTED),
    ],
)
def test_a_bound_that_is_missed_by_no_more_than_the_guests_own_time_is_inconclusive(
    bound: Claim, figure: float, share: float, expected: Verdict
) -> None:
    (result,) = judge([bound], [with_guest(figure, share)])
    assert result.verdict is expected
    assert result.measured == figure
    assert ("the guest itself" in result.reason) is (expected is INCONCLUSIVE)


# -- the disks' counters, and theory in the place of what was measured


def counted(chunk: AxisValue, *reads: tuple[int, str, int]) -> JudgedCell:
    """A cell whose disks read so many bytes: trial, serial, bytes."""
    plain = cell(chunk, 1.0)
    counters = tuple(
        MemberCounters(
            workload="write",
            trial=trial,
            serial=serial,
            reads=1,
            read_bytes=size,
            writes=0,
            written_bytes=0,
            flushes=0,
        )
        for trial, serial, size in reads
    )
    return replace(plain, result=plain.result.model_copy(update={"counters": counters}))


THREE_TRIALS = [(t, s, n) for t in (1, 2, 3) for s, n in (("disk1", 200), ("disk2", 40))]


@pytest.mark.parametrize(
    ("disk", "figure", "expected"),
    [(None, 240, HOLDS), ("disk2", 40, HOLDS), ("disk2", 240, REFUTED), ("disk3", 40, NOT_TESTED)],
)
def test_a_claim_may_speak_of_what_the_disks_counted(
    disk: str | None, figure: float, expected: Verdict
) -> None:
    """All disks of a trial added up, or one; one trial is enough."""
    more = {"metric": "disk_read_bytes", "disk": disk}
    bound = claim(kind="bound", value=value(A, **more), near=figure, within=0.001)
    for trials in (1, 3):
        cells = counted(A, *THREE_TRIALS[: 2 * trials])
        assert verdict(bound, replace(cells, seeds=(), drawn=frozenset({"write"}))) is expected


@pytest.mark.parametrize(
    ("flushes", "empty", "expected"),
    [(0, None, HOLDS), (3, 3, HOLDS), (3, 0, HOLDS), (3, None, INCONCLUSIVE)],
)
def test_writes_that_may_be_flushes_decide_nothing(
    flushes: int, empty: int | None, expected: Verdict
) -> None:
    """As in runs of earlier versions, whose kernel counted each empty flush as a write too."""
    plain = counted(A, (1, "disk1", 0))
    update = {"writes": 4, "flushes": flushes, "empty_flushes": empty}
    counters = tuple(c.model_copy(update=update) for c in plain.result.counters)
    cells = [replace(plain, result=plain.result.model_copy(update={"counters": counters}))]
    for metric, number, wanted in (("disk_writes", 4, expected), ("disk_flushes", flushes, HOLDS)):
        bound = claim(kind="bound", value=value(A, metric=metric), near=number, within=0.0)
        assert verdict(bound, cells[0]) is wanted
    known = counts_of(cells[0].result, "write", "disk_writes")
    assert known == (() if expected is INCONCLUSIVE else (4.0,))


@pytest.mark.parametrize("unit", ["B", "B/s", "1/s", "s", "1", "sectors"])
@pytest.mark.parametrize("limit", [6144.0 * 2**30, 10.0, 0.25])
@pytest.mark.parametrize("off", [1e-2, 1e-4, 1e-6, 1e-8, 0.0])
@pytest.mark.parametrize("kind", ["at_least", "at_most", "near"])
def test_a_value_is_written_so_that_it_shows_the_verdict(
    unit: str, limit: float, off: float, kind: str
) -> None:
    """The reason and the expectation of a refuted claim never have the same text."""
    measured = limit * (1 + off if kind == "at_most" else 1 - off)
    more = {"within": 0.0} if kind == "near" else {}
    bound = claim(kind="bound", value=value(A), **{kind: limit}, **more)
    plain = cell(A, measured, noise=1e-12)
    own = tuple(m.model_copy(update={"unit": unit}) for m in plain.result.measurements)
    result = plain.result.model_copy(update={"measurements": own})
    (found,) = judge([bound], [replace(plain, result=result, counted=frozenset({WRITE}))])
    assert found.verdict is (REFUTED if off else HOLDS)
    assert found.expected is not None
    expected = found.expected.removeprefix(
        {"at_least": "at least ", "at_most": "at most ", "near": "exactly "}[kind]
    )
    assert (found.shown == expected) is (off == 0)
    assert found.reason.startswith(found.shown)


WRITE = ("write", "throughput")


@pytest.mark.parametrize(
    ("one", "other", "least", "times", "bound"),
    [
        (149.99, 100.0, 1.5, "1.4999", "1.5"),
        (150.0, 100.0, 1.5, "1.500", "1.5"),
        (2.6249, 1.0, 2.63, "2.62", "2.63"),
        (18.0, 10.0, 1.5, "1.800", "1.5"),
    ],
)
def test_a_ratio_is_written_so_that_it_shows_the_verdict(
    one: float, other: float, least: float, times: str, bound: str
) -> None:
    ratio = claim(kind="ratio", of=value(A), to=value(B), at_least=least)
    cells = [replace(cell(c, v), counted=frozenset({WRITE})) for c, v in ((A, one), (B, other))]
    (found,) = judge([ratio], cells)
    assert found.verdict is (HOLDS if one / other >= least else REFUTED)
    assert found.shown == f"{times} times"
    assert found.expected == f"at least {bound} times"


def test_values_in_order_are_written_with_as_many_digits_as_differ() -> None:
    order = claim(kind="order", values=[value(A), value(B)])
    cells = [replace(cell(c, v), counted=frozenset({WRITE})) for c, v in ((A, 1e7), (B, 1.00001e7))]
    (found,) = judge([order], cells)
    assert found.verdict is REFUTED
    assert found.reason.startswith("10.0000 MB/s, 10.0001 MB/s") or "10.0001 MB/s" in found.reason


def test_counts_that_differ_between_trials_are_a_range() -> None:
    differ = counted(A, (1, "disk1", 100), (2, "disk1", 200))
    for limits_, expected in (((90, 210), HOLDS), ((150, 300), INCONCLUSIVE), ((1, 90), REFUTED)):
        low, high = limits_
        wanted = value(A, metric="disk_read_bytes")
        (found,) = judge([claim(kind="bound", value=wanted, at_least=low, at_most=high)], [differ])
        assert found.verdict is expected


def test_theory_is_put_in_the_place_of_what_was_measured() -> None:
    def both(chunk: int, measured: float, said: float | None) -> JudgedCell:
        plain = cell(chunk, measured)
        found = (
            () if said is None else (Prediction(workload="write", metric="throughput", value=said),)
        )
        return replace(plain, result=plain.result.model_copy(update={"predictions": found}))

    (told,) = judge([RATIO], [both(A, 1e6, 3e6), both(B, 2e6, 2e6)])
    assert (told.measured, told.predicted) == (0.5, 1.5)
    (silent,) = judge([RATIO], [both(A, 1e6, 3e6), both(B, 2e6, None)])
    assert (silent.measured, silent.predicted) == (0.5, None)


def test_theory_speaks_of_cells_that_failed_too() -> None:
    plain = cell(A, None, outcome=Outcome.LOST)
    said = (Prediction(workload="write", metric="throughput", value=1e7),)
    lost = replace(plain, result=plain.result.model_copy(update={"predictions": said}))
    (told,) = judge([NEAR], [lost])
    assert (told.verdict, told.measured, told.predicted) == (INCONCLUSIVE, None, 1e7)


def test_theory_has_bytes_of_all_disks_and_not_of_one() -> None:
    plain = cell(A, 1.0)
    said = (Prediction(workload="write", metric="disk_read_bytes", value=240.0),)
    told = replace(plain, result=plain.result.model_copy(update={"predictions": said}))
    for disk, expected in ((None, 240.0), ("disk1", None)):
        more = {"metric": "disk_read_bytes", "disk": disk}
        (found,) = judge([claim(kind="bound", value=value(A, **more), at_least=1)], [told])
        assert (found.verdict, found.predicted) == (NOT_TESTED, expected)


def test_a_percentile_without_enough_requests_is_open_and_says_how_many_it_needs() -> None:
    found = cell(A, 1e9, metric="iops")
    few = Unsupported(workload="write", metric="throughput", requests=400, needed=3688)
    result = found.result.model_copy(update={"unsupported": (few,)})
    (said,) = judge([FLOOR], [replace(found, result=result)])
    assert said.verdict is INCONCLUSIVE
    assert "made 400 requests" in said.reason
    assert "needs 3,688" in said.reason
    other = few.model_copy(update={"metric": "clat_p99_9"})
    result = found.result.model_copy(update={"unsupported": (other,)})
    assert judge([FLOOR], [replace(found, result=result)])[0].verdict is NOT_TESTED


def test_neighbouring_values_of_a_histogram_are_no_difference() -> None:
    cells = [cell(A, 1.012e7), cell(B, 1e7)]
    assert judge([FASTER], cells)[0].verdict is HOLDS
    rough = [replace(c, steps={("write", "throughput"): 1 / 64}) for c in cells]
    (said,) = judge([FASTER], rough)
    assert said.verdict is REFUTED
    assert "no difference: less than 1.56 %" in said.reason
