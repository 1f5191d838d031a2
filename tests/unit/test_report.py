"""What a person reads, in 80 columns and without colour: ``golden/report``.

``GOLDEN=write`` in the environment writes what is expected anew; look at the difference.
"""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from lab import catalog
from lab.app.plan import prediction_of
from lab.app.results import result_of
from lab.compile.scenario import compile_scenario
from lab.model.claim import Claim
from lab.model.result import CellMeasurement, CellResult, ClaimResult, Outcome, Result, Run
from lab.report.answer import steps
from lab.report.figures import axis_value, figure, rows_of
from lab.report.text import next_steps, result_page, scenario_page
from lab.store import RunStore
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


def page(run: RunStore, result: Result | None = None, width: int = 80) -> str:
    stored = run.load_run()
    shown = result or result_of(run)
    renderable = result_page(
        shown, title=stored.title, question=stored.question, claims=stored.claims
    )
    return text_of(renderable, width)


def test_the_answer_is_as_it_was(run: RunStore) -> None:
    compare("result.txt", page(run))


def test_predictions_are_as_they_were() -> None:
    compiled = compile_scenario(catalog.scenario_path("raid5-parity-last"))
    shown = result_page(prediction_of(compiled), title="T", question="", measured=False)
    compare("prediction.txt", text_of(shown))


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
    for words in ("holds", "refuted", "inconclusive", "the guest panicked", "2 of 3 done"):
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
    squeezed = "".join(line[:8].strip() for line in text.splitlines())
    assert name in squeezed
    assert "…" not in text


def test_published_figures_stand_beside_the_cells_they_speak_of(run: RunStore) -> None:
    stored = run.load_run()
    lines = [line for line in page(run).splitlines() if "10.4 MB/s" in line and "write" in line]
    assert "10.0 MB/s" in lines[0]  # what the post says of it
    without = result_page(result_of(run), title="T", question="", claims=())
    claims: tuple[Claim, ...] = stored.claims
    assert claims
    assert "10.0 MB/s" not in text_of(without).split("S004-1")[0]


def test_figures_have_the_units_people_expect() -> None:
    assert figure("throughput", 10.7e6) == "10.7 MB/s"
    assert figure("seconds", 9.81) == "9.8 s"
    assert figure("iops", 1234.5678) == "1235/s"
    assert figure("read_clat_p99", 0.01234) == "12.3 ms"
    assert axis_value("array.chunk", 524288) == "512KiB"
    assert axis_value("disks.count", 5) == "5"
    assert axis_value("array.layout", None) == "default"
    assert axis_value("disks.throttle.total_bytes_per_second", 5 * 1024**2) == "5MiB"


def table_of(text: str, claim: str) -> str:
    """The figures, from their headings to the first claim."""
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
    assert "±" not in table_of(page(stored_run(tmp_path)), "S004-1")


def test_what_to_type_next_can_be_pasted(run: RunStore) -> None:
    lines = steps(result_of(run), lab="lab", scenario="raid5-parity-last", run=run.id)
    text = text_of(next_steps(lines, "~/" + "x" * 100), soft=True)
    commands = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    assert commands == [command for command, _ in lines]
    assert commands[0] == f"lab report {run.id}"


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
    assert "t read_seconds" in text_of(result_page(result, title="T", question=""))
