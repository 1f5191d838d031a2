"""The answer to a scenario's question: sentences of its key claims, and the values in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.compile.scenario.document import compile_scenario
from lab.core.errors import InputError
from lab.model.scenario.document import Scenario
from lab.plugins import catalog
from tests.fakes import SCENARIO

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
    path = tmp_path / "q.yaml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new, 1))
    return compile_scenario(path).scenario


# -- the file


def test_a_claim_with_both_sentences_is_a_key_claim(tmp_path: Path) -> None:
    assert [claim.key for claim in scenario(tmp_path).claims] == [False, True]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            '    if_refuted: "No: {of} against {to}."\n',
            "",
            "q.yaml:36: claims[1].if_holds: a key claim has if_refuted too: say what is true then",
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
    path = tmp_path / "q.yaml"
    path.write_text(TEXT + more)
    with pytest.raises(InputError, match=r"q.yaml:46: claims\[3\].if_holds: 2 other claims"):
        compile_scenario(path)


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
