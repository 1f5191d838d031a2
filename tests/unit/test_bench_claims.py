"""The document of the posts' claims, from measured runs, and the runs that are missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import claims
from bench.claims import Data, Told, cells, page, posts_in, surprises, told
from bench.stored import finished, run_missing
from lab.model.result.document import Basis, CellClock, ClaimResult, ComparedValue, Part
from lab.model.scenario.claim import Claim
from lab.plugins import catalog
from tests.fakes import stored_run
from tests.kept import unfounded

EVERY = told(Data(runs=()))
POSTS = posts_in(claims.POSTS)
PARTS = {"measured": 2.0, "low": 1.5, "high": 3.0, "at_least": 1.0, "trials": 6, "basis": "seeds"}


def made(verdict: str = "holds", name: str = "S004-9", **more: Any) -> Told:
    """A claim of a shipped scenario with a result."""
    (one,) = [one for one in EVERY if one.claim.id == name]
    values = tuple(
        ComparedValue(workload=v.workload, metric=v.metric, cell="c", measured=n)
        for n, v in zip((147.0, 131.0), one.claim.values, strict=False)
    )
    parts = (Part.model_validate({**PARTS, **more.pop("part", {})}),)
    base = {"id": name, "says": "s", "measured": 1.126, "values": values, "parts": parts}
    result = ClaimResult.model_validate({**base, "verdict": verdict, **more})
    row = claims.Row(
        claim=result, clocks=(CellClock.SEALED,), seeds=(1, 2, 3, 9), expect=one.claim.expect
    )
    return one.model_copy(update={"row": row})


def columns(one: Told) -> dict[str, str]:
    return dict(zip(claims.HEADS, cells(one), strict=True))


def changed(every: list[Told], *with_: Told) -> list[Told]:
    new = {one.claim.id: one for one in with_}
    return [new.get(one.claim.id, one) for one in every]


def test_no_id_is_used_twice_and_a_post_s_claims_are_not_ours() -> None:
    ids = [one.claim.id for one in EVERY]
    assert sorted(ids) == sorted(set(ids))
    assert {one.post for one in EVERY} == {*POSTS, ""}
    assert {one.post for one in EVERY if one.claim.ours or one.claim.source} == {""}
    assert {one.post for one in EVERY if one.claim.quote and not one.claim.source} == {*POSTS}


def test_a_row_has_units_interval_trials_seeds_clock_and_mechanism() -> None:
    found = columns(made())
    assert found["measured"] == "1.126 times (147/s, 131/s)"
    assert found["interval"] == "1.500 – 3 times"
    assert found["verdict"] == "holds"
    assert found["trials"] == "6"
    assert found["seeds"] == "1–3, 9"
    assert found["clock"] == "virtual"
    assert found["mechanism"].startswith("A read at an arbitrary offset")
    assert found["scenario"] == "raid5-chunk-seek (not measured on a drive)"
    assert "“" in found["says"]
    assert columns(made(part={"basis": Basis.COUNTED, "trials": 1}))["trials"] == "1, counted"
    same = {"low": 2.0, "high": 2.0}
    assert columns(made(part={**same, "basis": Basis.FIXED}))["interval"] == "exact"
    assert columns(made(part={**same, "basis": Basis.SEEDS}))["interval"] == "2 times"
    assert columns(made(part={"low": None, "high": None}))["interval"] == "unknown"
    bound = {"low": 10e6, "high": 11e6, "at_least": 9e6}
    assert columns(made(name="S004-1", part=bound))["interval"] == "10.0 MB/s – 11.0 MB/s"
    narrow = {"low": 10.71e6, "high": 10.72e6, "at_least": 9e6}
    assert columns(made(name="S004-1", part=narrow))["interval"] == "10.7 MB/s"
    assert columns(made(part={"low": 1.5, "high": 1.50001}))["interval"] == "1.500 times"


def test_the_interval_is_that_of_the_comparison_that_decides() -> None:
    def part(low: float, high: float, least: float = 1.0) -> Part:
        return Part.model_validate({**PARTS, "low": low, "high": high, "at_least": least})

    def decided(verdict: str, *parts: Part) -> Part | None:
        return claims.deciding(made(verdict).row.claim.model_copy(update={"parts": parts}))  # type: ignore[union-attr]

    far, near, open_, out, farther = (
        *(part(3, 4), part(1.1, 9), part(0.5, 2), part(0.5, 0.9), part(0.1, 0.2)),
    )
    assert decided("holds", far, near) == near
    assert decided("inconclusive", near, open_, far) == open_
    assert decided("refuted", open_, out, farther) == farther
    assert decided("not_tested") is None


def test_an_open_claim_says_what_it_would_take() -> None:
    found = columns(made("inconclusive", reason="too close to tell; 8 trials are needed"))
    assert found["mechanism"].startswith("Open: too close to tell; 8 trials are needed. A read")


def test_a_direction_says_its_margin_and_when_there_is_no_difference() -> None:
    part = {"low": 0.99, "high": 1.005, "at_least": 1.01}
    said = "write is 1 times that; no difference: less than 1 %"
    found = columns(made("refuted", reason=said, part=part, expected="at least 1 times"))
    assert found["holds if"] == "at least 1 times, by 1 %"
    assert found["mechanism"].startswith("No difference: less than 1 %. A read")
    assert columns(made(part={"at_least": 1.0}))["holds if"] == ""


def test_what_was_not_run_says_so_and_what_would_confirm_it() -> None:
    (one,) = [one for one in EVERY if one.claim.id == "S004-9"]
    found = columns(one)
    assert (found["verdict"], found["measured"], found["trials"]) == ("not run", "", "")
    assert found["holds if"] == "at least 1 times"


def test_the_summary_counts_the_posts_claims_and_names_the_farthest_refuted_ones() -> None:
    out = {"at_least": 10.0}  # the interval ends at 3: a factor of 3.33
    less = {"at_least": 4.0}
    every = changed(
        EVERY,
        made("refuted", "S004-9", part=less),
        made("refuted", "S004-9-64K", part=out),
        made("refuted", "S003-5", part=less),
        made("inconclusive", "S003-1"),
        made("holds", "S004-1"),
        made("refuted", "S004-7", part={"at_least": 1000.0}),  # ours
    )
    text = page(Data(runs=()), every, POSTS)
    total = sum(bool(one.post) for one in EVERY)
    open_ = total - 4
    said = f"{total} claims of the posts are checked. Hold: 1. Refuted: 3. Open: {open_}, of which"
    assert f"{said} 1 are" in text
    found = [(one.claim.id, round(factor, 2)) for one, factor in surprises(every[:])]
    assert ("S004-9-64K", 3.33) in found
    posts_only = surprises([one for one in every if one.post])
    assert [one.claim.id for one, _ in posts_only] == ["S004-9-64K", "S003-5"]
    assert "- **S004-9-64K**, “" in text
    assert "- **S004-7**" not in text


def test_a_post_has_its_question_its_answer_and_what_differs() -> None:
    text = page(Data(runs=()), changed(EVERY, made("holds", "S004-9")), POSTS)
    for post in POSTS.values():
        assert f"**Question.** {post.question}" in text
        assert len(post.answer) <= 2
        assert " ".join(post.differs.split()) in text
        for sentence, takes in post.unchecked.items():
            assert f"- “{sentence}” {takes.strip()}\n" in text
    assert "faster with the larger chunk: 147/s with 512 KiB, and 131/s with 64 KiB." in text
    ours = text.partition("## Our own claims")[2]
    assert "| S004-7 |" in ours
    assert "| S004-9 |" not in ours


def test_sentences_of_posts_are_checked_as_those_of_scenarios(tmp_path: Path) -> None:
    known = {one.claim.id: one.claim for one in EVERY}
    for post in POSTS.values():
        for name, sentences in post.answer.items():
            claim = Claim.model_validate({**dict(known[name]), **sentences})
            assert claim.key
    path = tmp_path / "p.yaml"
    path.write_text("S000: {title: a, question: b, answer: {}}\n")
    with pytest.raises(ValueError, match=r"p\.yaml': differs: "):
        posts_in(path)


def test_a_stored_run_gives_its_rows_again_from_the_file(tmp_path: Path) -> None:
    stored_run(tmp_path / "runs")
    for seconds, path in zip((100.0, 140.0), tmp_path.glob("runs/**/outcome.json"), strict=False):
        outcome = json.loads(path.read_text())
        path.write_text(json.dumps({**outcome, "seconds": {"total": seconds}}))
    out = tmp_path / "c.md"
    assert claims.main(["table", str(tmp_path), "--out", str(out)]) == 0
    text = out.read_text()
    assert "| S004-1 | Five disks with parity-last write 10 MB/s (“" in text
    assert "| raid5-parity-last | 2025-06-10T12:00:00+00:00 | 2 of 3 | 120 |" in text
    assert "1 scenarios, two trials at a time: 2 minutes." in text
    assert claims.main(["page", "--out", str(out)]) == 0
    assert out.read_text() == text
    data = json.loads(out.with_suffix(".json").read_text())
    for row in data["runs"][0]["rows"]:
        if row["claim"]["id"] == "S004-1":
            row["expect"]["near"] = 9e6
    out.with_suffix(".json").write_text(json.dumps(data))
    assert claims.main(["page", "--out", str(out)]) == 0
    (line,) = [line for line in out.read_text().splitlines() if line.startswith("| S004-1 |")]
    assert "| not run |" in line
    assert "| Its bound was changed after its last run. " in line


# -- the document in the repository

DOCUMENT = Data.model_validate(json.loads(claims.DATA.read_text(encoding="utf-8")))


def test_no_verdict_of_the_document_stands_on_too_little() -> None:
    rows = [row for run in DOCUMENT.runs for row in run.rows]
    assert rows
    assert [why for row in rows if (why := unfounded(row.claim))] == []


def test_the_document_has_the_rows_of_its_data() -> None:
    lines = claims.OUT.read_text(encoding="utf-8").splitlines()
    for one in told(DOCUMENT):
        if one.row is not None:
            (line,) = [line for line in lines if line.startswith(f"| {one.claim.id} |")]
            found, whole = columns(one), line.replace("\\|", "/").split(" | ")
            assert whole[6] == found["verdict"], one.claim.id
            assert whole[3:5] == [found[h] or "–" for h in ("measured", "interval")]
            assert whole[7:10] == [found[h] or "–" for h in ("trials", "seeds", "clock")]


def test_a_verdict_without_a_row_in_the_data_is_not_in_the_document() -> None:
    known = {row.claim.id: row.claim.verdict.value for run in DOCUMENT.runs for row in run.rows}
    for line in claims.OUT.read_text(encoding="utf-8").splitlines():
        whole = line.strip("| ").replace("\\|", "/").split(" | ")
        if len(whole) == len(claims.HEADS) and whole[6] in ("holds", "refuted"):
            assert known.get(whole[0]) == whole[6]


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


def test_claims_in_virtual_time_get_as_many_trials_as_decide_them(
    tmp_path: Path, lab: tuple[str, ...]
) -> None:
    assert run_missing(tmp_path, [PATH], lab=lab, clock="virtual", claims=True) == 130
    assert (tmp_path / "said").read_text().endswith(" --clock virtual --trials auto\n")
    assert run_missing(tmp_path, [PATH], lab=lab, claims=True) == 130
    assert "--trials" not in (tmp_path / "said").read_text().splitlines()[1]


def test_a_run_that_judged_other_bounds_is_repeated(tmp_path: Path, lab: tuple[str, ...]) -> None:
    stored_run(tmp_path / "runs")
    assert run_missing(tmp_path, [PATH], lab=lab, claims=True) == 0
    other = tmp_path / PATH.name
    other.write_text(PATH.read_text().replace("= 13.4MB/s ±", "= 13.5MB/s ±"))
    assert other.read_text() != PATH.read_text()
    assert run_missing(tmp_path, [other], lab=lab) == 0
    assert run_missing(tmp_path, [other], lab=lab, claims=True) == 130


def test_runs_of_other_scenarios_are_kept_and_those_with_other_seeds_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored_run(tmp_path / "a" / "runs")
    one = claims.run_of(finished([tmp_path / "a"])["raid5-parity-last"])
    other = one.model_copy(update={"scenario": "other"})
    newer = one.model_copy(update={"started": "2099-01-01T00:00:00+00:00"})
    data = claims.merged(Data(runs=(one, other)), Data(runs=(newer,)))
    assert [(r.scenario, r.started) for r in data.runs] == [
        ("other", one.started),
        ("raid5-parity-last", newer.started),
    ]
    row = made().row
    assert row is not None
    refuted = made("refuted").row
    assert refuted is not None
    runs = [one.model_copy(update={"rows": (each,)}) for each in (row, refuted)]
    assert claims.differing(Data(runs=(runs[0],)), Data(runs=(runs[0],))) == (1, [])
    assert claims.differing(Data(runs=(runs[0],)), Data(runs=(runs[1],))) == (
        1,
        ["S004-9: holds, refuted"],
    )
    moved = refuted.claim.model_copy(update={"expected": "at least 9 times"})
    rows = (refuted.model_copy(update={"claim": moved}),)
    other_bound = one.model_copy(update={"rows": rows})
    assert claims.differing(Data(runs=(runs[0],)), Data(runs=(other_bound,))) == (0, [])
    open_ = made("inconclusive").row
    assert open_ is not None
    undecided = one.model_copy(update={"rows": (open_,)})
    assert claims.differing(Data(runs=(undecided,)), Data(runs=(runs[1],))) == (0, [])
    assert claims.main(["differ", str(tmp_path / "a")]) == 2
    for name, run in zip("ab", runs, strict=True):
        (tmp_path / f"{name}.json").write_text(Data(runs=(run,)).model_dump_json())
    assert claims.main(["differ", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    assert "S004-9: holds, refuted\n1 of 1 decided verdicts differ" in capsys.readouterr().out
