"""Pages and histories of runs with contended workloads, and of real and modelled disks."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console, RenderableType

from lab.analysis.compare import compare
from lab.capabilities.history.page import comparison_page, history_page
from lab.capabilities.history.run import history_of
from lab.results.compare import comparison_of
from tests.unit.test_compare import BASE, result, side
from tests.unit.test_contended import failed, made

WORKLOADS = ("write", "read")
LAYOUT = {"array.layout": "parity-last"}


def printed(page: RenderableType) -> str:
    console = Console(width=400, file=(text := io.StringIO()))
    console.print(page)
    return text.getvalue()


def test_a_page_says_how_near_models_are_to_real_disks() -> None:
    slow, fast = result("a", {"x1": 80}), result("b", {"y1": 100})
    real = BASE.disks[0].model_copy(update={"device": "/dev/disk/by-id/a"})
    page = comparison_page(compare(side(slow, disks=(real,)), side(fast)))
    assert "the models repeat 80.0% of what the real disks do" in printed(page)


def test_a_page_says_which_workload_was_contended(lab_home: Path) -> None:
    found = comparison_of(made("01"), made("02", (failed("write"),), 20.0), 0.05)
    assert "'write' was contended in the second run" in printed(comparison_page(found))


def test_a_history_marks_contended_values_and_takes_no_change_from_them(lab_home: Path) -> None:
    made("01", megabytes=10.0)
    made("02", (failed("write"),), 20.0)
    made("03", megabytes=10.0)
    found = history_of("throughput", None)
    first = next(p.cell for p in found.points if p.axes == {"disks.count": 5, **LAYOUT})
    line = {w: [p for p in found.points if (p.cell, p.workload) == (first, w)] for w in WORKLOADS}
    assert [p.contended for p in line["write"]] == [False, True, False]
    assert [p.contended for p in line["read"]] == [False, False, False]
    made("04", (failed("write"),), 20.0)
    made("05", (failed("write"),), 20.0)
    changes = history_of("throughput", None).changes
    assert {c.workload for c in changes if c.cell == first} == {"read", "write_stripe"}
    assert printed(history_page(found)).count("contended") == 2  # of two finished cells
    assert found.model_dump(mode="json")["points"][0]["contended"] is False


def test_a_history_made_again_from_raw_output_marks_them_too(lab_home: Path) -> None:
    run = made("01", (failed("write"),))
    (run.directory / "result.json").unlink()
    found = history_of("throughput", None)
    assert {p.workload for p in found.points if p.contended} == {"write"}
