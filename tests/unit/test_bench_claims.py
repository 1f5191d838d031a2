"""The table of claims, from result documents; all scenarios run by a make-believe lab."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import claims
from bench.claims import (
    ROWS,
    ClaimsError,
    documents,
    kept,
    reasons_in,
    row_of,
    run,
    table,
    unexplained,
    unjudged,
)
from lab.compile.scenario.document import compile_scenario
from lab.model.result.document import Result
from lab.plugins import catalog


def result(scenario: str, *found: dict[str, Any], started: str = "2026-01-01") -> dict[str, Any]:
    """A document that the lab's own model takes."""
    document = {
        "schema": "lab.result/1",
        "run": {"id": f"{scenario}-1", "scenario": scenario, "started": started},
        "environment": {"lab": "0.1.0", "accelerator": "tcg", "guest": {"kernel": "6.1"}},
        "cells": [{"id": "base-1", "axes": {}, "outcome": "done"}],
        "claims": list(found),
    }
    return Result.model_validate(document).model_dump(mode="json", by_alias=True)


def claim(name: str, verdict: str = "holds", **more: Any) -> dict[str, Any]:
    return {"id": name, "says": f"{name} is\n so", "verdict": verdict, "reason": "it is", **more}


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("S004-1", "S004-1"),
        ("S004-11", "S004-11"),
        ("S004-11-growth", "S004-11"),
        ("S004-layouts-write", None),
        ("S001-m", "S001-m"),
        ("DEG-1", None),
        ("S0041", None),
    ],
)
def test_a_claim_belongs_to_a_row_by_its_id(name: str, row: str | None) -> None:
    assert row_of(name) == row


def test_every_row_has_a_claim_in_a_scenario_of_the_checkout() -> None:
    """But S002-4, which needs a power cut, while no scenario has one."""
    files = catalog.scenarios()
    known = {
        row_of(c.id) for path in files.values() for c in compile_scenario(path).scenario.claims
    }
    assert set(ROWS) - known <= ({"S002-4"} if "bitmap-resync" not in files else set())


def test_no_id_is_used_twice() -> None:
    ids = [
        c.id
        for path in catalog.scenarios().values()
        for c in compile_scenario(path).scenario.claims
    ]
    assert sorted(ids) == sorted(set(ids))


def test_the_table_has_a_line_for_each_part_with_its_figures() -> None:
    text = table(
        [
            result(
                "b",
                claim("S003-3-read", "refuted", measured=0.5, predicted=1.0, expected="1"),
                claim("S003-3-sync", measured=1.01, published=1.0),
                claim("X-1", measured=2e6),
            ),
            result("a", claim("S000-1", "inconclusive")),
        ],
        {"a": 90.0, "b": 150.0, "old": 1e6},
        {
            "S003-3-read": {"refuted": "So.", "holds": "It was not."},
            "S003-3-sync": {"refuted": "Nobody reads this."},
        },
    )
    lines = [line for line in text.splitlines() if line.startswith("| S0") or "X-1" in line]
    assert lines == [
        "| S000-1 | S000-1 is so | – | – | – | inconclusive | it is | a |",
        "| S003-3-read | S003-3-read is so | – | 1 | 0.5 | refuted | it is; expected 1. So. | b |",
        "| S003-3-sync | S003-3-sync is so | 1 | – | 1.01 | holds | it is | b |",
        "| X-1 | X-1 is so | – | – | 2 M | holds | it is | b |",
    ]
    assert (
        f"Of {len(ROWS)} rows, 1 have a verdict. Their parts: 1 holds, 1 inconclusive, 1 ref"
        in text
    )
    assert "2 scenarios one after another: 4 minutes." in text
    assert "- S000-1: it is" in text
    assert "- S004-11: no run has a claim about it" in text
    assert "- S003-3:" not in text
    assert "not yet explained: S000-1 (inconclusive)." in text
    assert text.count("No run has a claim about it.") == 3


def test_sentences_are_kept_by_claim_and_verdict(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    assert reasons_in(path) == {}
    path.write_text("S000-5:\n  refuted: >-\n    A bit that is set\n    costs nothing.\n")
    assert reasons_in(path) == {"S000-5": {"refuted": "A bit that is set costs nothing."}}
    claims_ = [("s", claim("S000-5", "refuted")), ("s", claim("S000-4", "refuted"))]
    assert unexplained(claims_, reasons_in(path)) == ["S000-4 (refuted)"]
    assert unexplained([("s", claim("DEG-1", "refuted"))], {}) == []


@pytest.mark.parametrize("text", ["- a", "S000-5: so", "S000-5: {false: so}", "a: [b"])
def test_sentences_without_a_verdict_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(ClaimsError, match=r"r\.yaml"):
        reasons_in(path)


def test_a_row_is_judged_when_one_of_its_parts_is() -> None:
    whole = [("s", claim(row)) for row in ROWS]
    assert unjudged(whole) == []
    part = [("s", claim("S003-3-read", "not_tested")), ("s", claim("S003-3-sync", "refuted"))]
    rest = [each for each in whole if each[1]["id"] != "S003-3"]
    assert unjudged(rest + part) == []
    assert unjudged(rest + part[:1]) == [("S003-3", "it is")]


class Lab:
    """Answers as the lab does, and keeps runs; the first so many runs of a scenario are stopped."""

    def __init__(self, directory: Path, *names: str, stopped: str = "") -> None:
        self.directory, self.names, self.stopped = directory, names, stopped
        self.cells = {name: f"{name}-cell" for name in names}
        self.ran: list[list[str]] = []

    def __call__(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        status, said = 0, ""
        if words[:2] == ["scenario", "list"]:
            said = json.dumps({"scenarios": [{"name": name} for name in self.names]})
        elif words[:2] == ["scenario", "predict"]:
            said = json.dumps({"cells": [{"id": self.cells[words[2]]}]})
        elif words[:2] == ["run", "scenario"]:
            self.ran.append(list(words))
            status = 130 if words[2] == self.stopped else 1
            self.keep(words[2], finished=words[2] != self.stopped)
            self.stopped = self.stopped if status == 1 else ""
        elif words[:2] == ["results", "show"]:
            stored = json.loads((Path(words[2]) / "run.json").read_text())
            said = json.dumps(
                result(stored["scenario"], claim("S000-1"), started=stored["started"])
            )
        return subprocess.CompletedProcess(list(words), status, said, "")

    def keep(self, name: str, *, finished: bool, number: int = 1) -> None:
        place = self.directory / "runs" / f"{name}-{number}"
        place.mkdir(parents=True, exist_ok=True)
        stored = {"scenario": name, "started": f"2026-01-0{number}"}
        stored["finished"] = "2026-01-09" if finished else None  # type: ignore[assignment]
        cells = [{"id": self.cells[name]}]
        (place / "run.json").write_text(json.dumps({**stored, "cells": cells}))


def ticks() -> Any:
    times = iter(range(0, 1000, 10))
    return lambda: float(next(times))


def test_what_has_run_is_passed_over_and_what_was_stopped_is_gone_on_with(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "a", "b", "c", stopped="b")
    with pytest.raises(ClaimsError, match="goes on"):
        run(tmp_path, [], "2", ask=lab, clock=ticks())
    assert [words[2] for words in lab.ran] == ["a", "b"]
    times = run(tmp_path, [], None, ask=lab, clock=ticks())
    assert [words[2] for words in lab.ran] == ["a", "b", "b", "c"]
    assert lab.ran[0][3:] == ["--json", "--out", str(tmp_path / "runs"), "--jobs", "2"]
    assert lab.ran[2][3:] == ["--json", "--resume", str(tmp_path / "runs" / "b-1")]
    assert times == {"a": 10.0, "b": 20.0, "c": 10.0}
    assert run(tmp_path, [], None, ask=lab) == times
    assert len(lab.ran) == 4


def test_a_scenario_that_was_changed_is_run_again(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "a")
    run(tmp_path, [], None, ask=lab)
    lab.cells["a"] = "another"
    run(tmp_path, ["a"], None, ask=lab)
    assert [words[-2] for words in lab.ran] == ["--out", "--out"]


def test_an_unknown_name_runs_nothing(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "a")
    with pytest.raises(ClaimsError, match="there is no scenario 'x'; there are a"):
        run(tmp_path, ["a", "x"], None, ask=lab)
    assert lab.ran == []


def test_the_newest_finished_run_of_each_scenario_counts(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "a", "b")
    lab.keep("a", finished=True, number=1)
    lab.keep("a", finished=True, number=2)
    lab.keep("a", finished=False, number=3)
    lab.keep("b", finished=False, number=1)
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "run.json").write_text("{")
    (tmp_path / "times.json").write_text('{"a": 5}')
    found, times = documents([tmp_path], lab)
    assert [(d["run"]["scenario"], d["run"]["started"]) for d in found] == [("a", "2026-01-02")]
    assert times == {"a": 5.0}
    assert [each.path.name for each in kept(tmp_path)][:1] == ["a-3"]


def test_the_newest_counts_whichever_directory_it_is_in(tmp_path: Path) -> None:
    new, old = Lab(tmp_path / "new", "a"), Lab(tmp_path / "old", "a")
    new.keep("a", finished=True, number=2)
    old.keep("a", finished=True, number=1)
    (tmp_path / "new/times.json").write_text('{"a": 5}')
    (tmp_path / "old/times.json").write_text('{"a": 9, "b": 1}')
    for order in (("new", "old"), ("old", "new")):
        found, times = documents([tmp_path / name for name in order], new)
        assert [d["run"]["started"] for d in found] == ["2026-01-02"]
        assert times == {"a": 5.0}


def test_where_there_is_nothing_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(ClaimsError, match="no finished run"):
        documents([tmp_path], Lab(tmp_path))
    with pytest.raises(ClaimsError, match="is no directory"):
        documents([tmp_path / "x"], Lab(tmp_path))
    assert claims.main(["table", str(tmp_path / "x")]) == 2


def test_a_lab_that_answers_nothing_is_an_error() -> None:
    silent = subprocess.CompletedProcess(["lab"], 3, "", "")
    with pytest.raises(ClaimsError, match="ended with 3"):
        claims.asked(lambda _: silent, ["scenario", "list", "--json"])
