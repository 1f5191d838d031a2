"""Numbers that no tool measures: one value is left out with a sentence, and all else is shown."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.analysis import measure
from lab.core.errors import ToolError
from lab.host.system import paths
from lab.model.result.document import CellMeasurement, Outcome
from lab.model.result.measurement import NUMBERS
from lab.model.scenario.claim import Verdict
from lab.model.scenario.document import Cell, Workload
from lab.plugins import catalog
from lab.results import judged, report
from lab.results.documents import result_of
from lab.store.runs import RunStore
from tests import kept
from tests.unit.test_workloads import CASES, _case

ABSURD = ("0", "-1", "1e-320", "1e320", "inf", "nan", "-0.0", "5e-324", "1e308", "9" * 400, "-1e-9")
SAMPLES = 12
"""Numbers of a recorded output that are replaced."""
GOOD = [folder for folder in CASES if "metrics" in _case(folder)[0]]
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    run = kept.unpacked("raid5-parity-last", tmp_path_factory.mktemp("cell"))
    return run.load_run().cells[0].cell


def raw_of(folder: Path) -> dict[str, str]:
    _, outputs = _case(folder)
    files = {"stdout.txt": outputs.stdout, "stderr.txt": outputs.stderr, **outputs.files}
    return {f"work.1.{name}": text for name, text in files.items()}


def with_tool(cell: Cell, folder: Path) -> Cell:
    expected, _ = _case(folder)
    tool = catalog.workload(folder.parent.name)
    parameters = tool.parameters.model_validate(expected["parameters"])
    dumped = parameters.model_dump(mode="json", by_alias=True)
    work = Workload(name="work", tool=folder.parent.name, parameters=dumped)
    return cell.model_copy(update={"workloads": (work,), "faults": (), "trials": 1})


def changes(raw: dict[str, str], chance: random.Random) -> Iterator[dict[str, str]]:
    """The output with one of its numbers replaced, for several numbers and each absurd one."""
    places = [(name, match.span()) for name, text in raw.items() for match in NUMBER.finditer(text)]
    for name, (begin, end) in chance.sample(places, min(SAMPLES, len(places))):
        for number in ABSURD:
            yield raw | {name: raw[name][:begin] + number + raw[name][end:]}


@pytest.mark.parametrize("folder", GOOD, ids=lambda f: f"{f.parent.name}/{f.name}")
def test_a_parser_gives_only_numbers_that_can_be_measured(cell: Cell, folder: Path) -> None:
    whole = with_tool(cell, folder)
    (work,) = whole.workloads
    measures = catalog.workload(work.tool).measures(catalog.parameters_of(work))
    metrics = {metric.name for metric in measures}
    usual = measure.measurements(whole, raw_of(folder))
    assert usual
    for raw in changes(raw_of(folder), random.Random(str(folder.name))):
        try:
            found, wrong = measure.measured(whole, raw)
        except ToolError:
            continue  # the tool's output is refused as a whole, with its own sentence
        for one in found:
            assert all(v == 0 or 1e-12 <= abs(v) <= 1e21 for v in one.values), (one, raw)
            made = CellMeasurement.of(one, 0.003)
            assert CellMeasurement.model_validate_json(made.model_dump_json()) == made
        assert {check.name for check in wrong} <= {NUMBERS}
        said = {check.detail.partition(" of ")[0] for check in wrong}
        assert said <= metrics
        assert said.isdisjoint({one.metric for one in found})


@pytest.mark.parametrize("number", [*ABSURD, "0.0"])
def test_a_run_with_such_a_number_shows_all_others(number: str, lab_home: Path) -> None:
    run = kept.unpacked("raid5-parity-last", paths.runs())
    before = result_of(run)
    first = run.load_run().cells[0]
    path = run.directory / "cells" / first.id / "raw" / "write.1.stderr.txt"
    path.write_text(re.sub(r"copied, [\d.e-]+ s", f"copied, {number} s", path.read_text()))
    now = judged.result_of(RunStore(run.directory))
    assert now.cells[1:] == before.cells[1:]
    hurt, whole = now.cells[0], before.cells[0]
    left = {(m.workload, m.metric): m for m in hurt.measurements}
    others = {k: m for k, m in left.items() if k[0] != "write"}
    if hurt.outcome is Outcome.DONE:
        assert others == {
            (m.workload, m.metric): m for m in whole.measurements if m.workload != "write"
        }
        (said,) = [c.detail for c in hurt.checks if c.name == NUMBERS and "throughput" in c.detail]
        assert "throughput of write is left out" in said
    else:
        assert "write" in hurt.reason or "dd" in hurt.reason, hurt.reason
    about = [claim for claim in now.claims if claim.verdict is Verdict.INCONCLUSIVE]
    assert about
    assert all(first.id in claim.reason for claim in about)
    json.loads(now.model_dump_json())
    report.page_of(run)
    judged.explanation_of_run(run)


def test_the_reason_of_a_verdict_names_the_number(lab_home: Path) -> None:
    run = kept.unpacked("raid5-parity-last", paths.runs())
    first = run.load_run().cells[0]
    path = run.directory / "cells" / first.id / "raw" / "write.1.stderr.txt"
    path.write_text(re.sub(r"copied, [\d.]+ s", "copied, 1e-320 s", path.read_text()))
    reasons = [claim.reason for claim in result_of(run).claims]
    assert any("throughput of write is left out: it is inf in trial 1" in r for r in reasons)


@pytest.mark.parametrize("number", ABSURD)
@pytest.mark.parametrize("name", ["bitmap-chunk-raid10", "bitmap-random-write"])
def test_theory_survives_such_a_time(name: str, number: str, tmp_path: Path) -> None:
    """The seconds of a workload, from which theory says how often a bitmap is written."""
    run = kept.unpacked(name, tmp_path)
    changed = 0
    for path in run.directory.glob("cells/*/raw/*.pressure.txt"):
        text = path.read_text()
        path.write_text(re.sub(r"(?m)^(\w+)=.*$", rf"\1={number}", text))
        changed += 1
    assert changed or name == "bitmap-chunk-raid10"
    for path in run.directory.glob("cells/*/raw/*.before.txt"):
        path.write_text(re.sub(r"^cpu .*", f"cpu {' '.join([number] * 10)}", path.read_text()))
    found = result_of(run)
    assert all(math.isfinite(p.value) for cell in found.cells for p in cell.predictions)
    assert [c.outcome for c in found.cells] == [Outcome.DONE] * len(found.cells)
