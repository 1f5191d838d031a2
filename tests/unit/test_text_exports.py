"""Markdown, OpenMetrics, and the dictionary of a table."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from lab.cli.commands import app
from lab.cli.completion import export_forms
from lab.core.errors import InputError
from lab.model.result.document import CellMeasurement, Outcome, Result
from lab.model.scenario.claim import Verdict
from lab.report.export.markdown import summary
from lab.report.export.openmetrics import openmetrics
from lab.results.documents import result_of
from lab.results.export import Form, export
from lab.results.tables import COLUMNS
from lab.store.runs import RunStore
from tests.fakes import stored_run
from tests.hostile_values import MARKUP, TERMINAL

SAMPLE = re.compile(r'^(lab_\w+)\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*)\} (\S+)$')


@pytest.fixture
def run(lab_home: Path) -> RunStore:
    return stored_run(lab_home / "data" / "runs")


def with_texts(result: Result, word: str) -> Result:
    """The result, with a word in each of its texts."""
    claims = tuple(c.model_copy(update={"says": word, "reason": word}) for c in result.claims)
    cells = tuple(
        c.model_copy(update={"axes": {"array.layout": word}, "reason": word, "id": word})
        for c in result.cells
    )
    answer = result.answer.model_copy(update={"question": word, "sentences": (word,)})
    return result.model_copy(update={"claims": claims, "cells": cells, "answer": answer})


def test_the_summary_has_answer_claims_failures_and_values(run: RunStore) -> None:
    result = result_of(run)
    text = summary(result, title="A | title")
    assert text.startswith("## A \\| title\n")
    for claim in result.claims:
        assert any(line.startswith(f"| {claim.id}") for line in text.splitlines()), claim.id
    (lost,) = [c for c in result.cells if c.outcome is Outcome.LOST]
    assert any("| lost |" in line for line in text.splitlines()), lost.id
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.replace("\\|", "").count("|") for row in rows} <= {5, 4, 6}


def test_what_was_refuted_comes_first_in_the_summary_with_a_mark(run: RunStore) -> None:
    result = result_of(run)
    verdicts = [Verdict.HOLDS, Verdict.INCONCLUSIVE, Verdict.REFUTED]
    claims = tuple(
        result.claims[0].model_copy(update={"id": verdict.value, "verdict": verdict})
        for verdict in verdicts
    )
    text = summary(result.model_copy(update={"claims": claims}), title="t")
    rows = [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| ")]
    assert rows[1:4] == ["✗ refuted", "? inconclusive", "✓ holds"]


def test_the_summary_has_one_value_of_each_workload(run: RunStore) -> None:
    result = result_of(run)
    text = summary(result, title="t").partition("<details>")[2]
    rows = [tuple(line.split(" | ")[:2]) for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) > 1
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize(
    "word", [*MARKUP, *TERMINAL, "[a](https://x.example)", "`x`", "@all", "#1", "www.x.example"]
)
def test_a_text_of_the_run_is_no_markup_and_no_link(run: RunStore, word: str) -> None:
    text = summary(with_texts(result_of(run), word), title=word)
    bare = re.sub(r"\\.", "", text)
    for own in ("<details>", "</details>", "<summary>", "</summary>"):
        bare = bare.replace(own, "")
    assert not re.search(r"[<>\[\]@\x1b\x9b\u202e]|https:|www\.", bare), bare


def test_a_long_table_is_cut(run: RunStore) -> None:
    result = result_of(run)
    many = result.model_copy(update={"claims": result.claims * 100})
    assert len(summary(many, title="t").splitlines()) < 300
    assert "more rows" in summary(many, title="t")


def test_every_sample_of_openmetrics_is_one_and_has_its_unit(run: RunStore) -> None:
    result = result_of(run)
    *lines, end, empty = openmetrics(result).split("\n")
    assert (end, empty) == ("# EOF", "")
    samples = [SAMPLE.match(line) for line in lines if not line.startswith("#")]
    assert all(samples)
    units = dict(line.split()[2:] for line in lines if line.startswith("# UNIT"))
    assert all(name.endswith(f"_{unit}") for name, unit in units.items())
    first = result.cells[0].measurements[0]
    values = {float(s[3]) for s in samples if s and f'cell="{result.cells[0].id}"' in s[2]}
    assert {first.median, first.low, first.high} <= values
    assert sum(s[1] == "lab_claim" for s in samples if s) == len(result.claims)
    assert len({s[0].rpartition(" ")[0] for s in samples if s}) == len(samples)  # each once


@pytest.mark.parametrize("word", [*MARKUP, *TERMINAL, 'a"b\\c\nd'])
def test_no_text_of_the_run_breaks_openmetrics(run: RunStore, word: str) -> None:
    text = openmetrics(with_texts(result_of(run), word))
    assert all(SAMPLE.match(x) for x in text.split("\n")[:-2] if not x.startswith("#"))


def test_numbers_without_end_have_their_words(run: RunStore) -> None:
    result = result_of(run)
    cell = result.cells[0]
    odd = CellMeasurement.model_construct(
        workload="w", metric="m", unit="s", values=(1.0,), median=float("inf"),
        low=float("-inf"), high=float("nan"),
    )  # fmt: skip
    found = result.model_copy(update={"cells": (cell.model_copy(update={"measurements": (odd,)}),)})
    words = {
        line.rpartition(" ")[2] for line in openmetrics(found).splitlines() if "lab_m_" in line
    }
    assert {"+Inf", "-Inf", "NaN"} <= words


def test_each_row_names_the_kernel_of_its_own_guest(run: RunStore, tmp_path: Path) -> None:
    first, second, *_ = run.load_run().cells

    def kernels(out: str) -> dict[str, set[str]]:
        table, _ = export(run, Form.CSV, tmp_path / out, None)
        found: dict[str, set[str]] = {}
        for row in csv.DictReader(table.read_text().splitlines()):
            found.setdefault(row["cell"], set()).add(row["kernel"])
        return found

    before = kernels("before.csv")
    assert before[first.id] == before[second.id]
    stored = run.load_run()
    cells = [
        cell.model_copy(
            update={
                "cell": cell.cell.model_copy(
                    update={"guest": cell.cell.guest.model_copy(update={"image": "debian-13"})}
                )
            }
        )
        if cell.id == second.id
        else cell
        for cell in stored.cells
    ]
    run.save_run(stored.model_copy(update={"cells": tuple(cells)}))
    place = run.directory / "cells" / second.id / "raw" / "environment.txt"
    place.write_text("kernel=6.12.0-other\nmdadm=4.4\n")
    after = kernels("after.csv")
    assert after[second.id] == {"6.12.0-other"}
    assert after[first.id] == before[first.id] != {"6.12.0-other"}


@pytest.mark.parametrize("form", [Form.CSV, Form.PARQUET])
def test_the_dictionary_has_every_column_of_the_table(
    run: RunStore, tmp_path: Path, form: Form
) -> None:
    table, package = export(run, form, tmp_path / f"a.{form.value}", None)
    (resource,) = json.loads(package.read_text())["resources"]
    fields = {field["name"]: field for field in resource["schema"]["fields"]}
    read = duckdb.read_csv if form is Form.CSV else duckdb.read_parquet
    with duckdb.connect() as database:
        found = read(str(table), connection=database)
        assert (resource["path"], list(fields)) == (table.name, found.columns)
        if form is Form.PARQUET:
            kinds = {"VARCHAR": "string", "BIGINT": "integer", "DOUBLE": "number"}
            named = zip(found.columns, found.types, strict=True)
            assert {n: kinds[str(t)] for n, t in named} == {n: f["type"] for n, f in fields.items()}
    for column in COLUMNS:
        assert fields[column.name]["description"] == column.meaning
    assert fields["value"]["unit"] == "the one in the column `unit`"
    assert fields["disks.count"]["type"] == "integer"


def test_a_table_that_cannot_be_written_leaves_no_dictionary(run: RunStore, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("mine")
    with pytest.raises(InputError):
        export(run, Form.CSV, tmp_path / "a.csv", None)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("a.")] == ["a.csv"]


def test_texts_go_to_standard_output_too(run: RunStore, tmp_path: Path) -> None:
    for form in ("summary", "openmetrics", "junit"):
        words = ["results", "export", "last", "--format", form, "--out"]
        assert CliRunner().invoke(app, [*words, str(tmp_path / form)]).exit_code == 0
        assert CliRunner().invoke(app, [*words, "-"]).stdout == (tmp_path / form).read_text()
    done = CliRunner().invoke(app, ["results", "export", "--format", "csv", "--out", "-"])
    assert isinstance(done.exception, InputError)


def test_completion_has_every_format() -> None:
    assert export_forms("") == [form.value for form in Form]
