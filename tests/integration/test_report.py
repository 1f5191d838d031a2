"""Reports for a terminal of 80 columns without colour: ``golden/report``.

``GOLDEN=write`` in the environment writes the expected texts; check the difference.
"""

from __future__ import annotations

import io
import os
import re
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import InputError
from lab.core.units import format_value
from lab.core.yaml import parse_override
from lab.model.result.document import CellMeasurement, CellResult, ClaimResult, Outcome, Result, Run
from lab.model.scenario.claim import Claim, Verdict
from lab.plugins import catalog
from lab.report.content.figures import (
    axes_text,
    axis_heads,
    axis_value,
    rows_of,
    spread,
    telling,
)
from lab.report.content.page_data import judged
from lab.report.content.reliability import steps
from lab.report.content.tables import figures_table
from lab.report.terminal.screen import CLAIMS, abridged, next_steps, result_page
from lab.report.terminal.summary import overview
from lab.report.terminal.text import scenario_page
from lab.results.documents import result_of
from lab.results.report import page_of
from lab.run.plan import prediction_of
from lab.run.resume import require_same
from lab.store.runs import RunStore
from tests import runs
from tests.fakes import stored_run

GOLDEN = Path(__file__).parents[1] / "golden" / "report"


def text_of(page: RenderableType, width: int = 80, *, soft: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    console.print(page, soft_wrap=soft)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def compare(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def too_wide(text: str, width: int = 80) -> list[str]:
    return [line for line in text.splitlines() if len(line) > width]


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    return stored_run(tmp_path)


def page(
    run: RunStore, result: Result | None = None, width: int = 80, *, whole: bool = True
) -> str:
    stored = run.load_run()
    shown = result or result_of(run)
    renderable = result_page(
        shown,
        title=stored.title,
        question=stored.question,
        claims=stored.claims,
        notes=stored.notes,
        whole=whole,
    )
    return text_of(renderable, width)


def parted(text: str) -> list[str]:
    """Return values that a line's end splits."""
    lines = text.splitlines()
    return [
        f"{one} / {two}"
        for one, two in pairwise(lines)
        if re.search(r"\d$", one) and re.match(r"\s*(?:[kKMG]i?B\b|±|disks?\b|ms\b|s\b)", two)
    ]


def test_the_answer_is_as_it_was(run: RunStore) -> None:
    compare("result.txt", page(run))


def test_predictions_are_as_they_were() -> None:
    compiled = compile_scenario(catalog.scenario_path("raid5-parity-last"))
    shown = result_page(prediction_of(compiled), title="T", question="", measured=False)
    compare("prediction.txt", text_of(shown))


@pytest.mark.parametrize("width", [50, 80, 120])
def test_a_screen_is_as_it_was_at_every_width(run: RunStore, width: int) -> None:
    text = page(run, width=width, whole=False)
    compare(f"screen-{width}.txt", text)
    assert too_wide(text, width) == []
    assert parted(text) == []


def test_a_line_that_ends_in_a_figure_is_found() -> None:
    assert parted("writes 10.6\n  MB/s ±0.5%\n") == ["writes 10.6 /   MB/s ±0.5%"]
    assert parted("is 1.000\n±0.7%") != []


@pytest.mark.parametrize("width", [50, 80, 120])
def test_hundreds_of_figures_are_a_screen(tmp_path: Path, width: int) -> None:
    store = runs.theory_run(tmp_path, runs.LAYOUTS, contended=1, lost=2)
    result = result_of(store)
    text = page(store, result, width, whole=False)
    compare(f"many-{width}.txt", text)
    assert too_wide(text, width) == []
    assert parted(text) == []
    assert len(text.splitlines()) <= (54 if width >= 80 else 70)
    assert abridged(result)
    whole = page(store, result, width)
    assert len(whole.splitlines()) > 90
    # The lowest and the highest value are those of the whole table.
    found = [m for c in result.cells for m in c.measurements if m.metric == "throughput"]
    for workload in ("write", "read"):
        mine = [m.median for m in found if m.workload == workload]
        for value in (min(mine), max(mine)):
            assert format_value(value, "B/s") in text


@pytest.mark.parametrize("text", [runs.LAYOUTS, runs.SMALL])
def test_a_result_fits_a_terminal_with_its_question_answer_and_every_verdict(
    tmp_path: Path, text: str
) -> None:
    store = runs.theory_run(tmp_path, text, contended=1)
    stored, result = store.load_run(), result_of(store)
    heights = {}
    for height in (8, 21, 200):
        shown = text_of(
            result_page(
                result,
                title=stored.title,
                question=stored.question,
                claims=stored.claims,
                whole=False,
                height=height,
            )
        )
        heights[height] = len(shown.splitlines())
        assert heights[height] <= height or height < 20
        assert too_wide(shown) == []
        flat = " ".join(shown.split())
        assert " ".join(result.answer.sentences[0].split()) in flat
        assert all(claim.id in shown for claim in result.claims)
    assert heights[8] < heights[200]  # values and reasons only where there is room


def test_an_axis_of_many_values_shows_its_ends_and_medians_are_of_their_own_cells() -> None:
    cells = [
        CellResult(
            id=f"c{n}-{layout}",
            axes={"array.chunk": n * 1024, "array.layout": layout},
            outcome=Outcome.DONE,
            measurements=(
                CellMeasurement(
                    workload="w", metric="throughput", unit="B/s", values=(v,), median=v
                ),
            ),
        )
        for n in range(1, 21)
        for layout, v in (("left", n * 1e6), ("right", n * 3e6))
    ]
    found = overview(cells, [rows_of(c) for c in cells])
    assert (found.cells, found.figures, found.workloads) == (40, 40, ("w",))
    medians = {m.name: m.figures for m in found.medians}
    assert medians["left"] == ("10.5 MB/s",)  # of 1 to 20
    assert medians["right"] == ("31.5 MB/s",)
    assert medians["chunk 2KiB"] == ("4.00 MB/s",)  # of 2 and 6
    assert medians["chunk: 12 more values"] == ("",)
    assert len(medians) == 4 + 1 + 4 + 2
    ((low, middle, high),) = [e.lines for e in found.extremes]
    assert low == ("lowest", "1.00 MB/s", "chunk 1KiB, left")
    assert middle[1] == "15.5 MB/s"  # the 20th is 15, the 21st 16
    assert high == ("highest", "60.0 MB/s", "chunk 20KiB, right")


def test_a_few_figures_are_shown_whole(run: RunStore) -> None:
    result = result_of(run)
    result = result.model_copy(update={"claims": result.claims[:CLAIMS]})
    assert not abridged(result)
    assert page(run, result) == page(run, result, whole=False)
    assert abridged(result, notes="One sentence. " * 40)


def test_of_many_claims_those_that_need_a_look_have_their_reasons(run: RunStore) -> None:
    result = result_of(run)
    holds = next(c for c in result.claims if c.verdict is Verdict.HOLDS)
    refuted = next(c for c in result.claims if c.verdict is Verdict.REFUTED)
    many = [holds.model_copy(update={"id": f"Q-{n}", "says": f"claim {n}"}) for n in range(20)]
    claims = (*many, refuted)
    text = page(run, result.model_copy(update={"claims": claims}), whole=False)
    below = text.partition("published\n")[2]
    assert refuted.says.split(",")[0] in below
    assert "claim 7" not in below
    assert "holds  Q-0, Q-1, " in below
    assert all(f"Q-{n}" in below for n in range(20))
    shown = page(run, result.model_copy(update={"claims": claims}))
    assert all(f"claim {n}" in shown for n in range(20))


def test_a_note_is_cut_at_a_sentence_and_says_what_was_scaled(run: RunStore) -> None:
    result = result_of(run)
    notes = "Once upon a time. " * 20 + "Scaled: 24 MiB instead of 100 MiB. " + "And so on. " * 40
    shown = text_of(result_page(result, title="T", question="", notes=notes, whole=False))
    assert "notes      … Scaled: 24 MiB instead of 100 MiB. And so on. " in shown
    assert shown.partition("notes ")[2].count("And so on.") < 40
    assert "Once upon" not in shown
    assert "And so on. …" in shown
    all_ = text_of(result_page(result, title="T", question="", notes=notes))
    assert " ".join(all_.split()).count("And so on.") == 40


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_wider_than_the_terminal(run: RunStore, width: int) -> None:
    compiled = compile_scenario(catalog.scenario_path("raid5-parity-last"))
    for text in (page(run, width=width), text_of(scenario_page(compiled, "q.yaml"), width)):
        assert too_wide(text, width) == []
    assert too_wide("x" * 81) != []


def test_there_are_no_colour_codes_where_there_is_no_terminal(run: RunStore) -> None:
    assert "\x1b" not in page(run)
    out = io.StringIO()
    stored = run.load_run()
    shown = result_page(result_of(run), title=stored.title, question="")
    Console(file=out, width=80, force_terminal=True, color_system="standard").print(shown)
    assert "\x1b" in out.getvalue()


def test_every_claim_cell_and_reason_is_on_the_page(run: RunStore) -> None:
    text = page(run)
    stored = run.load_run()
    assert all(c.id in text for c in stored.claims)
    for words in ("holds", "refuted", "inconclusive", "the guest panicked", "2 of 3 cells done"):
        assert words in text
    assert stored.title in text
    assert "Linux 6.1.0-18-amd64" in text


def test_long_words_are_folded_and_not_lost(run: RunStore) -> None:
    result = result_of(run)
    name = "S004-1-with-a-long-name"
    claim: ClaimResult = result.claims[0].model_copy(update={"id": name, "reason": "y" * 200})
    text = page(run, result.model_copy(update={"claims": (claim,)}))
    assert too_wide(text) == []
    assert text.count("y") >= 200
    assert f"{name} holds" in text.splitlines()  # above its claim: it is too long
    assert "…" not in text


def test_published_figures_stand_beside_the_cells_they_speak_of(run: RunStore) -> None:
    stored = run.load_run()
    table = page(run).partition("─" * 9)[2]
    lines = [line for line in table.splitlines() if "10.4 MB/s" in line and "write" in line]
    assert "10.0 MB/s" in lines[0]  # the post's value
    without = result_page(result_of(run), title="T", question="", claims=())
    claims: tuple[Claim, ...] = stored.claims
    assert claims
    assert "10.0 MB/s" not in text_of(without).split("S004-1")[0]


def test_published_figures_do_not_stand_beside_cells_that_were_changed(tmp_path: Path) -> None:
    """No published value applies to disks of ten times the speed."""
    path = catalog.scenarios()["raid5-parity-last"]
    for texts, there in (([], True), (["disks.throttle.total_bytes_per_second=50MiB"], False)):
        compiled = compile_scenario(path, overrides=[parse_override(text) for text in texts])
        run = runs.theory_run(tmp_path / str(there), path.read_text(), compiled=compiled)
        stored, result = run.load_run(), result_of(run)
        kept = judged(result, stored.claims)
        shown = [row.published for cell in result.cells for row in rows_of(cell, kept)]
        assert any(shown) == there
        assert [c for page in [page_of(run)] for c in page.judged] == list(kept)
        heads = [column.name for column in figures_table(page_of(run)).columns]
        assert ("published" in heads) == there


def test_axis_values_have_the_units_people_expect() -> None:
    assert axis_value("array.chunk", 524288) == "512KiB"
    assert axis_value("disks.count", 5) == "5"
    assert axis_value("array.layout", None) == "default"
    assert axis_value("disks.throttle.total_bytes_per_second", 5 * 1024**2) == "5MiB"


def test_a_point_of_the_matrix_is_said_in_words() -> None:
    one = {"disks.count": 1, "array.level": "5", "array.bitmap": "none", "array.bitmap_chunk": None}
    assert axes_text(one) == "1 disk, RAID 5, no bitmap"
    base = "array.sysfs.bitmap/time_base"
    other = {"array.bitmap": "internal", "array.bitmap_chunk": 65536, base: "50"}
    said = "internal bitmap, bitmap chunk 64KiB, bitmap/time_base 50"
    assert axes_text(other) == said
    assert axes_text({"array.initial_sync": "none"}) == "initial sync none"
    assert axes_text({"array.bitmap_chunk": None}) == "bitmap chunk default"
    assert axis_heads(["disks.count", "array.bitmap_chunk", base]) == [
        *("disks", "bitmap chunk", "bitmap/time_base")
    ]


def test_axes_that_follow_from_others_tell_nothing() -> None:
    points = [{"a": 1, "b": "x", "c": 2}, {"a": 1, "b": "y", "c": 3}, {"a": 1, "b": "y", "c": 3}]
    assert telling(points) == {"b": ("x", "y")}
    assert telling([*points, {"a": 1, "b": "y", "c": 4}]) == {"b": ("x", "y"), "c": (2, 3, 4)}
    assert telling([]) == {}


def table_of(text: str, claim: str) -> str:
    """Return the values, from their headings to the first claim."""
    table, found, _ = text.partition(" published\n")[2].partition(f"\n{claim} ")
    assert table
    assert found
    return table


def test_trials_are_a_share_and_doubtful_figures_are_marked(tmp_path: Path) -> None:
    store = runs.theory_run(tmp_path, runs.LAYOUTS, contended=1)
    text = page(store)
    assert too_wide(text) == []
    marked = [line for line in text.splitlines() if re.search(r"±\d\.\d%\?", line)]
    assert len(marked) == 2  # the contended cell's two workloads
    assert len(re.findall(r"±\d\.\d%", table_of(text, "FIX-1"))) == 48 * 2
    assert "what is marked with ?: left-symmetric, chunk 16KiB, 5 disks" in " ".join(text.split())


def test_one_trial_has_the_hosts_noise_and_a_figure_without_width_no_bar(run: RunStore) -> None:
    assert len(re.findall(r"±0\.5%", table_of(page(run), "S004-1"))) == 6
    bare = CellMeasurement(workload="w", metric="throughput", unit="B/s", values=(1.0,), median=1.0)
    assert spread(bare) == ""
    assert spread(bare.model_copy(update={"low": 0.98, "high": 1.01})) == "±2.0%"


def test_what_to_type_next_can_be_pasted(run: RunStore) -> None:
    lines = steps(result_of(run), lab="lab", scenario="raid5-parity-last", run=run.id)
    text = text_of(next_steps(lines, "~/" + "x" * 100), soft=True)
    commands = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    assert commands == [command for command, _ in lines]
    assert commands[0] == f"lab report {run.id}"


def test_a_run_that_was_begun_otherwise_is_gone_on_with_so(run: RunStore) -> None:
    result = result_of(run)
    cells = [c.model_copy(update={"outcome": Outcome.SKIPPED}) for c in result.cells]
    lines = steps(
        result.model_copy(update={"cells": tuple(cells)}),
        lab="lab",
        scenario="q",
        run="r",
        overrides=("trials=3", "workloads.w.options={a: 1}"),
    )
    assert lines[0][0] == (
        "lab run scenario q --set trials=3 --set 'workloads.w.options={a: 1}' --resume r"
    )


def test_the_runs_own_copy_of_a_file_is_its_scenario(tmp_path: Path) -> None:
    """The copy's name is scenario.yaml, and the next commands use that name."""
    run = runs.theory_run(tmp_path, runs.SMALL, name="my-question")
    require_same(run, compile_scenario(run.directory / "scenario.yaml"))
    other = tmp_path / "other.yaml"
    other.write_text(runs.SMALL)
    with pytest.raises(InputError, match="is of the scenario 'my-question', not 'other'"):
        require_same(run, compile_scenario(other))


def test_a_tool_with_names_of_its_own_for_its_figures_is_shown() -> None:
    own = [
        CellMeasurement(workload="t", metric=m, unit="s", values=(v,), median=v)
        for m, v in (("read_seconds", 2.0), ("write_seconds", 3.0))
    ]
    cell = CellResult(id="c", axes={}, outcome=Outcome.DONE, measurements=tuple(own))
    assert [r.metric for r in rows_of(cell)] == ["read_seconds", "write_seconds"]
    plain = own[0].model_copy(update={"metric": "seconds"})
    both = cell.model_copy(update={"measurements": (plain, *own)})
    assert [r.metric for r in rows_of(both)] == ["seconds"]
    assert len(rows_of(both, all_=True)) == 3
    result = Result(
        run=Run(id="r", scenario="s", started="2025-01-01T00:00:00+00:00"),
        environment={},
        cells=(cell,),
        claims=(),
    )
    assert "t read time" in text_of(result_page(result, title="T", question=""))
