"""The table of claims from measured runs, and the runs that are missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bench import claims
from bench.claims import ROWS, page, reasons_in, row_of, unexplained, untested
from bench.stored import finished, run_missing
from lab.compile.scenario.document import compile_scenario
from lab.core.errors import InputError
from lab.model.result.document import ClaimResult
from lab.plugins import catalog
from lab.results.documents import result_of
from tests.fakes import stored_run
from tests.kept import unpacked


def claim(name: str, verdict: str = "holds", **more: Any) -> ClaimResult:
    data = {"id": name, "says": f"{name} is\n so", "verdict": verdict, "reason": "it is", **more}
    return ClaimResult.model_validate(data)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("S004-1", "S004-1"),
        ("S004-11", "S004-11"),
        ("S004-11-growth", "S004-11"),
        ("S004-layouts-write", ""),
        ("S001-m", "S001-m"),
        ("DEG-1", ""),
        ("S0041", ""),
    ],
)
def test_a_claim_belongs_to_a_row_by_its_id(name: str, row: str) -> None:
    assert row_of(name) == row


def test_every_row_has_a_claim_and_no_id_is_used_twice() -> None:
    compiled = [compile_scenario(path) for path in catalog.scenarios().values()]
    ids = [c.id for each in compiled for c in each.scenario.claims]
    assert set(ROWS) <= {row_of(name) for name in ids}
    assert sorted(ids) == sorted(set(ids))


def test_the_page_has_a_line_for_each_claim_with_its_figures(tmp_path: Path) -> None:
    result = result_of(unpacked("raid5-parity-last", tmp_path))
    said = {each.id: {each.verdict.value: "So | so."} for each in result.claims}
    made = page([result], said)
    for each in result.claims:
        (line,) = [line for line in made.splitlines() if line.startswith(f"| {each.id} |")]
        assert line.endswith(" So \\| so. | raid5-parity-last |") or "So | so." in line
        assert f"| {each.verdict.value.replace('_', ' ')} |" in line
        assert claims._figure(each.measured) in line
    assert "| raid5-parity-last | 2026-11-22T02:56:50+00:00 | 3 of 3 | 38 |" in made
    assert " | tcg | real | Linux" in made or " | kvm | real | Linux" in made


def test_sentences_are_kept_by_claim_and_verdict(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    assert reasons_in(path) == {}
    path.write_text("S000-5:\n  refuted: >-\n    A bit that is set\n    costs nothing.\n")
    assert reasons_in(path) == {"S000-5": {"refuted": "A bit that is set costs nothing."}}
    found = [("s", claim("S000-5", "refuted")), ("s", claim("S000-4", "refuted"))]
    assert unexplained(found, reasons_in(path)) == ["S000-4 (refuted)"]
    assert unexplained([("s", claim("DEG-1", "refuted"))], {}) == []


@pytest.mark.parametrize("text", ["- a", "S000-5: so", "S000-5: {false: so}", "a: [b"])
def test_sentences_without_a_verdict_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises((ValueError, InputError), match=r"r\.yaml"):
        reasons_in(path)


def test_the_checkout_explains_claims_that_exist() -> None:
    compiled = [compile_scenario(path) for path in catalog.scenarios().values()]
    assert reasons_in(claims.REASONS).keys() <= {c.id for x in compiled for c in x.scenario.claims}


def test_a_row_is_tested_when_one_of_its_parts_is() -> None:
    whole = [("s", claim(row)) for row in ROWS]
    assert untested(whole) == {}
    part = [("s", claim("S003-3-read", "not_tested")), ("s", claim("S003-3-sync", "refuted"))]
    rest = [each for each in whole if each[1].id != "S003-3"]
    assert untested(rest + part) == {}
    assert untested(rest + part[:1]) == {"S003-3": "it is"}


# -- running


@pytest.fixture
def lab(tmp_path: Path) -> tuple[str, ...]:
    """A fake lab that records its arguments, and ends as after Ctrl-C."""
    return (
        *(sys.executable, "-c"),
        f"import sys; print(*sys.argv[1:], file=open({str(tmp_path / 'said')!r}, 'a')); exit(130)",
    )


PATH = catalog.scenario_path("raid5-parity-last")


def test_a_finished_run_is_not_repeated(tmp_path: Path, lab: tuple[str, ...]) -> None:
    (tmp_path / "runs").mkdir()
    run = stored_run(tmp_path / "runs")
    assert run_missing(tmp_path, [PATH], lab=lab) == 0
    assert not (tmp_path / "said").exists()
    assert finished([tmp_path]).keys() == {"raid5-parity-last"}
    (run.directory / "run.json").write_text("{")
    assert finished([tmp_path]) == {}


def test_a_stopped_run_is_resumed_and_stops_the_rest(tmp_path: Path, lab: tuple[str, ...]) -> None:
    run = stored_run(tmp_path / "runs", finished=False)
    assert run_missing(tmp_path, [PATH, PATH], "2", lab=lab) == 130
    wanted = f"run scenario {PATH.resolve()} --resume {run.directory} --jobs 2\n"
    assert (tmp_path / "said").read_text() == wanted


def test_a_scenario_that_was_changed_is_run_again(tmp_path: Path, lab: tuple[str, ...]) -> None:
    stored_run(tmp_path / "runs")
    changed = tmp_path / PATH.name
    changed.write_text(PATH.read_text().replace("count: 100", "count: 99"))
    assert run_missing(tmp_path, [changed], lab=lab) == 130
    wanted = f"run scenario {changed} --out {tmp_path / 'runs'}\n"
    assert (tmp_path / "said").read_text() == wanted


def test_a_run_with_another_clock_does_not_count(tmp_path: Path, lab: tuple[str, ...]) -> None:
    stored_run(tmp_path / "runs")
    assert run_missing(tmp_path, [PATH], lab=lab, clock="virtual") == 130
    wanted = f"run scenario {PATH.resolve()} --out {tmp_path / 'runs'} --clock virtual\n"
    assert (tmp_path / "said").read_text() == wanted


def test_without_a_run_there_is_no_table(tmp_path: Path) -> None:
    assert claims.main(["table", str(tmp_path), "--out", str(tmp_path / "c.md")]) == 2
    assert not (tmp_path / "c.md").exists()
