"""The answer to a scenario's question: sentences of its key claims, and the values in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.analysis.answer import answer
from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import InputError
from lab.model.result.document import UNDER_WAY, ClaimResult, ComparedValue
from lab.model.scenario.claim import Claim, Verdict
from lab.model.scenario.document import Scenario
from lab.plugins import catalog
from lab.report.charts.key_claims import answer_chart
from lab.report.content.answer import MOST, allowed_values, value_names
from lab.results.documents import result_of
from lab.results.report import page_of
from lab.store.runs import RunStore
from tests import runs
from tests.fakes import SCENARIO, compiled_text

TEXT = (
    SCENARIO
    + """\
matrix:
  array.layout: [left-symmetric, parity-last]
claims:
  - id: rate
    says: It writes 10 MB/s
    published: 10MB/s
    expect: write[parity-last] = 10MB/s ± 7%
  - id: faster
    says: It reads faster
    expect: read[left-symmetric] >= 1.1 * read[parity-last]
    if_holds: "Yes: {of} is {times} the {to}."
    if_refuted: "No: {of} against {to}."
"""
)


def scenario(tmp_path: Path, old: str = "", new: str = "") -> Scenario:
    assert old in TEXT
    return compiled_text(tmp_path, TEXT.replace(old, new, 1)).scenario


# -- the file


def test_a_claim_with_both_sentences_is_a_key_claim(tmp_path: Path) -> None:
    assert [claim.key for claim in scenario(tmp_path).claims] == [False, True]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            '    if_refuted: "No: {of} against {to}."\n',
            "",
            "q.yaml:36: claims[1].if_holds: a key claim has if_refuted too: write what is true",
        ),
        (
            "{of} against",
            "{off} against",
            "q.yaml:37: claims[1].if_refuted: {off} is no value of this claim: known are {of},"
            " {to}, {times}, {percent}",
        ),
        (
            "{of} against {to}",
            "it is not",
            "q.yaml:37: claims[1].if_refuted: the sentence has no measured value: write {of},",
        ),
        (
            "{of} against {to}",
            "{of against",
            "q.yaml:37: claims[1].if_refuted: expected '}' before end of string: write a value as"
            " {of}, and no other brace",
        ),
        (
            "{of} against",
            "{of:.1f} against",
            "q.yaml:37: claims[1].if_refuted: expected a name alone in {of}, which is rounded",
        ),
        (
            "{of} against",
            "{rat.value} against",
            "q.yaml:37: claims[1].if_refuted: {rat.value}: there is no claim 'rat': did you mean"
            " 'rate'?",
        ),
        (
            "{of} against",
            "{rate.of} against",
            "q.yaml:37: claims[1].if_refuted: {rate.of} is no value of the claim rate: known are"
            " {rate.value}, {rate.published}",
        ),
        ("    if_holds", "    if_hold", "q.yaml:36: claims[1].if_hold: unknown key 'if_hold'"),
    ],
)
def test_what_is_wrong_in_a_sentence_has_its_line(
    old: str, new: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        scenario(tmp_path, old, new)
    assert error.value.message.replace(f"{tmp_path}/", "").startswith(says)


def test_a_sentence_may_have_a_value_of_another_claim(tmp_path: Path) -> None:
    found = scenario(tmp_path, "{of} against", "{rate.value} and {rate.published} against")
    assert found.claims[1].key


def test_a_third_key_claim_is_refused(tmp_path: Path) -> None:
    sentences = '    if_holds: "{of}"\n    if_refuted: "{to}"\n'
    more = "".join(
        f"  - id: more{n}\n    says: so\n    expect: read[left-symmetric] > 2 * read[parity-last]\n"
        f"{sentences}"
        for n in (1, 2)
    ).replace(" > ", " >= ")
    with pytest.raises(InputError, match=r"q.yaml:46: claims\[3\].if_holds: 2 other claims"):
        compiled_text(tmp_path, TEXT + more)


MEASURED = re.compile(r"\d ?([kMG]?B/s|/s|IOPS|m?s\b|%|times)")
"""A measured number that somebody wrote by hand."""


@pytest.mark.parametrize("name", sorted(catalog.scenarios()))
def test_a_shipped_sentence_has_no_measured_number_by_hand(name: str) -> None:
    for claim in compile_scenario(catalog.scenarios()[name]).scenario.claims:
        for sentence in (claim.if_holds, claim.if_refuted):
            assert not MEASURED.search(sentence or ""), (claim.id, sentence)
            assert sentence is None or sentence.endswith("."), claim.id


def test_a_number_by_hand_is_found() -> None:
    for sentence in ("It writes 10 MB/s.", "It takes 5 ms.", "It is 8% faster.", "2.5 times."):
        assert MEASURED.search(sentence)
    assert not MEASURED.search("With blocks of 1 MiB eight disks write {of}.")


# -- the sentences

RATIO = {
    "kind": "ratio",
    "of": {"workload": "write"},
    "to": {"workload": "read"},
    "at_least": 2,
}


def claim(name: str = "twice", **more: object) -> Claim:
    key = {"if_holds": "Yes: {of} is {times} {to}.", "if_refuted": "No: {of}, {percent} off."}
    return Claim.model_validate({"id": name, "says": "So.", "expect": RATIO, **key, **more})


def value(measured: float, **more: str) -> ComparedValue:
    made = {"workload": "write", "metric": "throughput", "cell": "c", **more}
    made.setdefault("unit", {"throughput": "B/s", "seconds": "s"}.get(made["metric"], ""))
    return ComparedValue(**made, measured=measured)  # type: ignore[arg-type]


def result(verdict: Verdict, name: str = "twice", **more: object) -> ClaimResult:
    found = {"values": (value(21e6), value(10e6, workload="read")), "measured": 2.1}
    made = {"id": name, "says": "So.", "verdict": verdict, "reason": "why", **found, **more}
    return ClaimResult.model_validate(made)


def sentences(claims: list[Claim], *found: ClaimResult) -> tuple[str, ...]:
    return answer("Is it?", claims, found).sentences


def test_each_outcome_has_its_sentence_with_values_as_reports_write_them() -> None:
    said = [sentences([claim()], result(v)) for v in (Verdict.HOLDS, Verdict.REFUTED)]
    own = claim(published=1.9, if_holds="{times}, in the post {published}")
    assert sentences([own], result(Verdict.HOLDS)) == ("2.1 times, in the post 1.900 times",)
    assert said == [("Yes: 21.0 MB/s is 2.1 times 10.0 MB/s.",), ("No: 21.0 MB/s, 110.0% off.",)]


def test_what_is_open_has_the_labs_own_sentence() -> None:
    few = "seeds change the value, and 1 trial ran: 4 trials are needed, as by --trials auto"
    found = result(Verdict.INCONCLUSIVE, reason=few)
    assert sentences([claim()], found) == (f"“So” is not decided: {few}.",)
    waiting = result(Verdict.NOT_TESTED, reason=UNDER_WAY, values=(), measured=None)
    assert sentences([claim()], waiting) == ("“So” is not decided yet.",)
    lost = result(Verdict.NOT_TESTED, reason="no cell", values=(), measured=None)
    assert sentences([claim()], lost) == ("“So” was not tested: no cell.",)


def test_values_of_other_claims_are_among_those_of_the_answer() -> None:
    bound = {"kind": "bound", "value": {"workload": "sync", "metric": "seconds"}, "at_least": 1}
    other = Claim.model_validate({"id": "S.9", "says": "b", "published": 3, "expect": bound})
    both = "{of} after {S.9.value}, in the post {S.9.published}."
    own = claim(if_holds=both)
    seconds = value(90.5, workload="sync", metric="seconds")
    found = ClaimResult(id="S.9", says="b", verdict=Verdict.HOLDS, values=(seconds,), measured=90.5)
    made = answer("Is it?", [own, other], [result(Verdict.HOLDS), found])
    assert made.sentences == ("21.0 MB/s after 1 min 30 s, in the post 3.0 s.",)
    assert made.claims == ("twice",)
    assert [v.workload for v in made.values] == ["write", "read", "sync"]
    missing = found.model_copy(update={"values": (), "measured": None})
    assert sentences([own, other], result(Verdict.HOLDS), missing) == ("“So” holds: why.",)


@pytest.mark.parametrize(
    ("expect", "sentence", "says"),
    [
        ({"kind": "order"}, "{1} > {2} > {3}, {percent}", "4.0 s > 2.0 s > 1.0 s, 300.0%"),
        ({"kind": "same"}, "{1} and {3}: {times}", "4.0 s and 1.0 s: 4 times"),
        (
            {"kind": "monotonic", "along": "a.b", "direction": "falling"},
            "{first} to {last}: {times}",
            "4.0 s to 1.0 s: 0.250 times",
        ),
    ],
)
def test_each_kind_has_its_values(expect: dict[str, object], sentence: str, says: str) -> None:
    one = {"workload": "w", "metric": "seconds"}
    where = {"value": one} if "along" in expect else {"values": [one, one, one]}
    own = claim(expect={**expect, **where}, if_holds=sentence, if_refuted=sentence)
    values = tuple(value(n, metric="seconds", cell=str(n)) for n in (4.0, 2.0, 1.0))
    assert sentences([own], result(Verdict.HOLDS, values=values, measured=4.0)) == (says,)


def test_without_key_claims_the_first_claim_answers_and_others_are_counted() -> None:
    plain = [claim(name, if_holds=None, if_refuted=None) for name in ("a", "b", "c")]
    found = [result(Verdict.HOLDS, "a"), result(Verdict.REFUTED, "b"), result(Verdict.HOLDS, "c")]
    made = answer("Is it?", plain, found)
    assert made.sentences == ("“So” holds: why.", "Of 2 other claims 1 holds, 1 is refuted.")
    one = answer("Is it?", plain, found[:2])
    assert one.sentences[1] == "The other claim is refuted."
    all_ = answer("Is it?", plain, [found[0], found[2], result(Verdict.HOLDS, "d")])
    assert all_.sentences[1] == "All 2 other claims hold."
    assert made.claims == ("a",)
    tests = answer("Is it?", [], found)  # of a suite
    assert tests.sentences == ("Of 3 tests 2 passed, 1 failed.", "b failed: why.")
    assert answer("Is it?", [], found[:1]).sentences == ("The one test passed.",)
    assert tests.values == ()


# -- the chart


def layouts(parent: Path) -> RunStore:
    """Three cells: theory's values, with the noise of the host."""
    claims = """\
claims:
  - id: rate
    says: Five disks with parity-last write 22 MB/s
    published: 22MB/s
    expect: write[parity-last, 5] = 22MB/s ± 9%
    if_holds: 'Yes: {value}, with three {three.value}.'
    if_refuted: 'No: {value}.'
  - id: three
    says: Three disks write more than nothing
    expect: write[parity-last, 3] >= 1MB/s
  - id: same
    says: Reads are equally fast
    expect: read[parity-last, 5] = 0.8 * read[left-symmetric, 5] ± 9%
    if_holds: '{of} and {to}.'
    if_refuted: '{of} and {to}.'
"""
    cells = """\
cases:
  - {array.layout: parity-last, disks.count: 5}
  - {array.layout: parity-last, disks.count: 3}
  - {array.layout: left-symmetric, disks.count: 5}
"""
    text = SCENARIO.replace("bs: 192KiB", "bs: 256KiB").replace("count: 10\n", "count: 96\n")
    return runs.theory_run(parent, text + cells + claims)


def test_the_chart_has_the_values_and_the_range_of_the_claim(tmp_path: Path) -> None:
    page = page_of(layouts(tmp_path))
    values = page.result.answer.values
    assert [c.verdict for c in page.result.claims] == [Verdict.HOLDS] * 3
    assert [(v.workload, v.cell[:14]) for v in values] == [
        ("write", "parity-last-5-"),
        ("write", "parity-last-3-"),
        ("read", "parity-last-5-"),
        ("read", "left-symmetric"),
    ]
    chart = answer_chart(page)
    assert chart is not None
    one, other, of, to = chart.spec["data"]["values"]
    assert [bar["text"] for bar in (one, other, of, to)] == [
        f"{v.measured / 1e6:.1f} MB/s" for v in values
    ]
    assert (one["least"], one["most"]) == pytest.approx((22 * 0.91, 22 * 1.09))
    assert (of["least"], of["most"]) == pytest.approx(
        (0.8 * 0.91 * to["measured"], 0.8 * 1.09 * to["measured"])
    )
    assert "least" not in to
    assert [one["published"], other["published"]] == [22, None]
    many = page.result.answer.values * MOST
    changed = page.result.model_copy(
        update={"answer": page.result.answer.model_copy(update={"values": many})}
    )
    assert answer_chart(page.model_copy(update={"result": changed})) is None


def test_names_tell_the_values_apart_and_no_more(tmp_path: Path) -> None:
    found = result_of(layouts(tmp_path))
    one, other, *_ = found.answer.values
    assert value_names(found, [one, other]) == ["5 disks", "3 disks"]
    assert value_names(found, [one]) == ["parity-last, 5 disks"]
    disk = one.model_copy(update={"disk": "disk2"})
    assert value_names(found, [one, disk]) == ["write", "write, disk2"]


@pytest.mark.parametrize(
    ("expect", "ranges"),
    [
        ({"kind": "order", "margin": 0.1}, [(2.2, None), (1.1, None)]),
        ({"kind": "same", "within": 0.5}, [(1.0, 3.0)] * 3),
        (
            {"kind": "monotonic", "along": "x", "direction": "falling", "tolerance": 0.5},
            [(None, 6.0), (None, 3.0)],
        ),
        (
            {"kind": "monotonic", "along": "x", "direction": "rising", "tolerance": 0.5},
            [(2.0, None), (1.0, None)],
        ),
    ],
)
def test_a_value_has_its_range_by_the_others(
    expect: dict[str, object], ranges: list[tuple[float | None, float | None]]
) -> None:
    one = {"workload": "w"}
    where = {"value": one} if "along" in expect else {"values": [one, one, one]}
    own = claim(expect={**expect, **where}, if_holds=None, if_refuted=None)
    found = [r for _, r in allowed_values(own, [value(n) for n in (4.0, 2.0, 1.0)])]
    for limits, wanted in zip(found, ranges, strict=True):
        assert limits == tuple(w if w is None else pytest.approx(w) for w in wanted)
