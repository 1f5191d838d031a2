"""What each claim of the shipped scenarios must have: its source, its mechanism, its bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import InputError
from lab.core.yaml import read_file
from lab.model.scenario.claim import WIDTHS, Claim, Order, Ratio, Same
from lab.plugins import catalog
from tests.fakes import compiled_text

NAMES = sorted(catalog.scenarios())
POST = re.compile(r"S00[0-4]-")
DIRECTION = re.compile(
    r"\b(faster|slower|quicker|sooner|less time|more slowly|longer|slows down|reads less)\b"
)
"""Words that say which of two values is larger."""
AMOUNT = re.compile(
    r"\d+(\.\d+)? ?%|\d+(\.\d+)? percent|twice|times as|half|significantly|slightly|a little"
    r"|no (faster|slower)|not (read )?(faster|slower)|\d MB/s|\d (KB|MiB)/s|\d+ seeks|\d+ s\b"
    r"|every measurement"
)
"""Words that say by how much; then the bound is that amount."""
ALIKE = re.compile(
    r"\b(about (as|equally)|about \d|about half|about twice|equally fast"
    r"|(?<!twice )(?<!times )as fast .*\bas)\b"
)
NO_EFFECT = re.compile(r"\b(negligible|not affect|no significant)\b")


def wrong(claim: Claim, written: Mapping[str, Any]) -> list[str]:
    """Return what a shipped claim lacks."""
    says, found = claim.says, []
    post = claim.quote and not claim.source
    marks = {"quote of a post": post, "ours": claim.ours, "source": claim.source}
    given = [key for key, value in marks.items() if value]
    if len(given) != 1:
        found.append(f"exactly one of {', '.join(marks)}, not {given}")
    if POST.match(claim.id) is None and post:
        found.append("a quote of a post whose number is not in the id")
    if not claim.why:
        found.append("no why")
    if not isinstance(written["expect"], str):
        found.append("expect is not in its short form")
        return found
    text = " ".join(written["expect"].split())
    compared = isinstance(claim.expect, Ratio | Order)
    direction = DIRECTION.search(says) and not (AMOUNT.search(says) or ALIKE.search(says))
    if compared and direction and not _at_one(claim):
        found.append(f"a direction has a bound of exactly 1: {text}")
    if ALIKE.search(says) and "± about" not in text and "± negligible" not in text:
        found.append(f"about is ± about: {text}")
    if compared and NO_EFFECT.search(says) and "negligible" not in text:
        found.append(f"no effect is negligible: {text}")
    if "significantly" in says and "- negligible" not in text:
        found.append(f"significant is more than negligible: {text}")
    if (
        claim.quote
        and re.search(r"± [\d.]+%", text)
        and not re.search(r"\d %|\d to \d", claim.why or "")
    ):
        found.append(f"why does not say where the width is from: {text}")
    if isinstance(claim.expect, Same) and len(claim.expect.values) == 2:
        found.append(f"two values are compared as a quotient, a = 1 * b: {text}")
    if (numbers := set(re.findall(r"± (10|5)%", text))) != set():
        found.append(f"a width that has a name: {sorted(numbers)} in {text}")
    return found


def _at_one(claim: Claim) -> bool:
    """Return whether the claim only says which value is larger."""
    match claim.expect:
        case Ratio(at_least=low, at_most=high):
            return (low, high) in ((1, None), (None, 1))
        case Order(margin=margin):
            return margin == 0
        case _:
            return False


@pytest.mark.parametrize("name", NAMES)
def test_each_shipped_claim_has_what_the_rules_demand(name: str) -> None:
    path = catalog.scenario_path(name)
    written = read_file(path).data["claims"]
    claims = compile_scenario(path).scenario.claims
    found = {
        c.id: problems for c, w in zip(claims, written, strict=True) if (problems := wrong(c, w))
    }
    assert found == {}


def test_a_post_is_quoted_by_the_claims_with_its_number() -> None:
    claims = [c for n in NAMES for c in compile_scenario(catalog.scenario_path(n)).scenario.claims]
    of_posts = [claim for claim in claims if claim.quote and not claim.source]
    assert {claim.id[:4] for claim in of_posts} == {"S000", "S001", "S002", "S003", "S004"}
    assert len(of_posts) > 90 > len([claim for claim in claims if claim.ours]) > 40
    for claim in of_posts:
        assert POST.match(claim.id), claim.id


TEXT = """\
title: Controls
question: Does the check of the rules find what is wrong?
disks: {count: 4, size: 1GiB}
array: {level: 5, chunk: 64KiB, component_size: 64MiB}
workloads:
  - {name: write, tool: dd, of: '{target}', bs: 1MiB, count: 8}
  - {name: read, tool: dd, if: '{target}', bs: 1MiB, count: 8}
claims:
  - {id: S000-9, says: Reads are faster than writes, quote: faster, why: So., expect: read >= write}
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("", "", ""),
        ("quote: faster, ", "", "exactly one of quote of a post, ours, source, not []"),
        ("quote: faster, ", "ours: true, source: b, ", "exactly one of quote of a post, ours"),
        ("quote: faster, ", "quote: a, source: b, ", ""),
        ("S000-9", "OWN-9", "a quote of a post"),
        ("why: So., ", "", "no why"),
        ("read >= write", "read >= 1.1 * write", "a direction has a bound of exactly 1"),
        ("read >= write", "read > write by 3%", "a direction has a bound of exactly 1"),
        (
            "expect: read >= write",
            "expect: {kind: ratio, of: {workload: read}, to: {workload: write}, at_least: 1}",
            "expect is not in its short form",
        ),
        ("faster than", "about as fast as", "about is ± about"),
        ("Reads are faster than writes", "Its impact is negligible", "no effect is negligible"),
        ("faster than", "significantly faster than", "significant is more than negligible"),
        ("read >= write", "read = 1 * write ± 10%", "a width that has a name"),
        ("read >= write", "read = 1 * write ± 8%", "where the width is from"),
        ("read >= write", "read = write ± about", "two values are compared as a quotient"),
    ],
)
def test_what_a_claim_lacks_is_found(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(TEXT.replace(old, new) if old else TEXT)
    (claim,) = compile_scenario(path).scenario.claims
    found = wrong(claim, read_file(path).data["claims"][0])
    assert (problem in " ".join(found)) if problem else found == []


@pytest.mark.parametrize("key", ["quote: faster", "published: 2"])
def test_a_claim_of_your_own_is_not_published(tmp_path: Path, key: str) -> None:
    with pytest.raises(InputError, match=rf"q\.yaml:9: claims\[0\]\.{key[:5]}.*remove it, or ours"):
        compiled_text(tmp_path, TEXT.replace("quote: faster", f"ours: true, {key}"))


def test_the_words_have_one_width_each() -> None:
    assert WIDTHS == {"about": 0.10, "negligible": 0.05}
