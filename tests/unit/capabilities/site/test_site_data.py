"""The data of the site: results, links, commands, change points; results added from files."""

from __future__ import annotations

import html
import json
import random
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lab.capabilities.site import page as pages
from lab.capabilities.site import run as site_run
from lab.capabilities.site.logic import site_of, slim
from lab.capabilities.site.model import Site
from lab.capabilities.site.page import as_json
from lab.capabilities.site.run import result_from, write_site
from lab.compile.scenario.compiler import compile_scenario
from lab.compile.scenario.identity import digest_of, identity
from lab.core.errors import InputError
from lab.core.yaml import parse_override
from lab.model.result.document import Result
from lab.plugins import catalog
from lab.report.charts import render as charts
from lab.report.content.page_data import Page
from lab.report.html import page as report
from lab.results.documents import result_of
from lab.results.export import Form, export
from lab.results.report import page_of
from lab.store.runs import RunStore
from tests import runs
from tests.fakes import EMPTY_SVG, UNDRAWN, Cli, stored_run

DAYS = tuple(f"202601{day:02}-120000" for day in range(1, 7))


@pytest.fixture
def stores(lab_home: Path) -> list[RunStore]:
    """Six runs, newest first; the last three are a tenth slower."""
    parent = lab_home / "data" / "runs"
    return [
        runs.theory_run(parent, runs.SMALL, stamp=day, drift=0.9 if n > 2 else 1.0, name="small")
        for n, day in enumerate(DAYS)
    ][::-1]


def test_the_data_has_each_result_without_what_only_its_report_shows(
    stores: list[RunStore],
) -> None:
    pages = [page_of(store).model_copy(update={"link": f"{store.id}.html"}) for store in stores]
    site = site_of(pages)
    assert [run.result.run.id for run in site.runs] == [store.id for store in stores]
    again = Site.model_validate(json.loads(as_json(site)) | {"schema": "lab.site/1"})
    assert again == site
    for run, store in zip(site.runs, stores, strict=True):
        whole = result_of(store)
        assert [c.measurements for c in run.result.cells] == [c.measurements for c in whole.cells]
        assert [c.verdict for c in run.result.claims] == [c.verdict for c in whole.claims]
        assert set(run.cells) == {cell.id for cell in whole.cells}
        for name, cell in run.cells.items():
            assert cell.report == f"{store.id}.html#cell-{name}"
    text = as_json(site)
    assert str(stores[0].directory.parent) not in re.sub(r"lab run scenario [^\"]*", "", text)
    assert '"counters"' not in text
    small, large = len(text) / len(stores), len(result_of(stores[0]).model_dump_json())
    assert small < large


def test_each_metric_of_the_data_has_the_unit_of_its_values(stores: list[RunStore]) -> None:
    site = site_of([page_of(stores[0])])
    for cell in site.runs[0].result.cells:
        for m in cell.measurements:
            assert site.metrics[m.metric].unit == m.unit
    assert site.metrics["throughput"].better == "higher"
    assert (site.metrics["clat_p99"].better, site.metrics["clat_p99"].unit) == ("lower", "s")
    assert site.metrics["disk_reads"].counted
    assert not site.metrics["throughput"].counted


def test_one_name_of_a_metric_means_the_same_in_every_tool() -> None:
    known: dict[str, tuple[str, str]] = {}
    for tool in catalog.plugin_names("workloads"):
        for metric in catalog.workload(tool).metrics:
            meant = (metric.unit, metric.better)
            assert known.setdefault(metric.name, meant) == meant, (tool, metric.name)


def test_the_change_points_are_those_of_the_history(stores: list[RunStore]) -> None:
    history = pytest.importorskip("lab.capabilities.history.run")
    site = site_of([page_of(store) for store in stores])
    for metric in ("throughput", "seconds"):
        expected = history.history_of(metric, "small").changes
        own = [c for c in site.changes if c.metric == metric]
        assert len(expected) == 2
        assert [(c.run, c.cell, c.change) for c in own] == [
            (c.run, c.cell, c.change) for c in expected
        ]
        assert {c.run for c in own} == {stores[2].id}
    assert site_of([page_of(store) for store in stores[3:]]).changes == ()


def test_the_command_of_a_cell_makes_this_cell_only(stores: list[RunStore]) -> None:
    for cell in page_of(stores[0]).cells:
        words = shlex.split(cell.again)
        assert words[:3] == ["lab", "run", "scenario"]
        sets = [parse_override(b) for a, b in pairwise(words) if a == "--set"]
        (made,) = compile_scenario(Path(words[3]), overrides=sets).cells
        assert identity(made) == identity(cell.cell)
        other = [parse_override("matrix={}"), parse_override("array.layout=right-asymmetric")]
        (different,) = compile_scenario(Path(words[3]), overrides=other).cells
        assert identity(different) != identity(cell.cell)


@pytest.mark.parametrize("name", ["degraded", "xfs-or-ext4", "raid-or-zfs", "disk-models"])
def test_overrides_by_axes_make_one_cell_of_shipped_scenarios(name: str) -> None:
    path = catalog.scenarios()[name]
    cell = random.Random(name).choice(compile_scenario(path).cells)
    texts = ["matrix={}", *(f"{axis}={json.dumps(value)}" for axis, value in cell.axes.items())]
    (made,) = compile_scenario(path, overrides=[parse_override(t) for t in texts]).cells
    assert identity(made) == identity(cell)


def test_foreign_text_ends_no_script_and_shows_its_control_characters(
    stores: list[RunStore],
) -> None:
    page = page_of(stores[0])
    hostile = "</script><!--\x1b[2J\u202e\udce9"
    text = as_json(site_of([page.model_copy(update={"title": hostile})]))
    assert "<" not in text
    assert text.isascii()
    (run,) = json.loads(text)["runs"]
    assert run["title"] == "</script><!--\\u001b[2J\\u202e\\udce9"


def test_a_result_from_a_file_is_added_and_a_wrong_one_is_an_error(cli: Cli) -> None:
    cli.before = UNDRAWN
    parent = cli.home / "data" / "runs"
    store = stored_run(parent)
    shown = cli("results", "show", "--json")
    theirs = json.loads(shown.stdout)
    theirs["run"]["id"] = "from-elsewhere"
    (cli.base / "theirs.json").write_text(json.dumps(theirs))
    done = cli("site", "out", "--add", "theirs.json", "--json")
    assert done.status == 0, done.stderr
    index = Path(done.json["page"])
    data = re.search(r'id="data">(.*?)</script>', index.read_text())
    assert data is not None
    ids = {run["result"]["run"]["id"] for run in json.loads(data[1])["runs"]}
    assert ids == {"from-elsewhere", store.id}
    output = next((index.parent / f"{store.id}.files").glob("0-*.txt")).read_text()
    assert "copied" in output
    theirs["cells"][0]["measurements"][0]["median"] = "fast"
    (cli.base / "theirs.json").write_text(json.dumps(theirs))
    for name, says in (
        ("theirs.json", "cells.0.measurements.0.median"),
        ("none.json", "cannot be read"),
        (".", "cannot be read"),
    ):
        wrong = cli("site", "out", "--add", name)
        assert wrong.status == 2
        assert f"--add: '{name}'" in wrong.stderr
        assert says in wrong.stderr


def test_only_results_from_files_are_a_site_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_vega", str)
    result = result_of(stored_run(tmp_path / "runs"))
    (tmp_path / "a.json").write_text(result.model_dump_json(by_alias=True))
    read = result_from(tmp_path / "a.json")
    assert isinstance(read, Result)
    assert slim(read) == slim(result)
    index = write_site([], tmp_path / "site", "lab", print, added=[tmp_path / "a.json"])
    assert digest_of(read.cells[0].id) in index.read_text()
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="has no result"):
        result_from(tmp_path / "a.json")


# -- bundles


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Reports without charts; the list has an entry for each that was rendered."""
    drawn: list[int] = []
    render = report.run_page

    def counted(page: Page, **words: str) -> str:
        drawn.append(1)
        return render(page, **words)

    monkeypatch.setattr(pages, "_vega", str)
    monkeypatch.setattr(charts, "svg", lambda _: EMPTY_SVG)
    monkeypatch.setattr(report, "svg", lambda _: EMPTY_SVG)
    monkeypatch.setattr(report, "run_page", counted)
    return drawn


def bundle_of(store: RunStore, place: Path) -> Path:
    place.mkdir(exist_ok=True)
    (file,) = export(store, Form.BUNDLE, place / f"{store.id}.lab.zip", None)
    return file


def shown(index: Path) -> dict[str, dict[str, Any]]:
    data = re.search(r'id="data">(.*?)</script>', index.read_text())
    assert data is not None
    return {run["result"]["run"]["id"]: run for run in json.loads(data[1])["runs"]}


def test_a_bundle_is_added_with_its_report_its_raw_output_and_commands_that_work(
    tmp_path: Path, lab_home: Path, undrawn: list[int]
) -> None:
    mine = stored_run(lab_home / "data" / "runs")
    theirs = runs.theory_run(tmp_path / "theirs", runs.SMALL, name="unknown-here")
    file = bundle_of(theirs, tmp_path / "sent by them")
    index = write_site([mine], tmp_path / "site", "lab", print, added=[file])
    found = shown(index)
    assert set(found) == {mine.id, theirs.id}
    assert (
        found[theirs.id]["result"]["cells"]
        == json.loads(as_json(site_of([page_of(theirs)])))["runs"][0]["result"]["cells"]
    )
    (first, *_) = found[theirs.id]["cells"].values()
    assert "copied" in (index.parent / first["output"]).read_text()
    assert (index.parent / found[theirs.id]["scenario"]).read_text() == runs.SMALL
    text = (index.parent / found[theirs.id]["report"]).read_text()
    assert f"lab results import {shlex.quote(str(file))}" in html.unescape(text)
    assert ".bundle-" not in text + index.read_text()
    words = shlex.split(first["command"])
    sets = [parse_override(b) for a, b in pairwise(words) if a == "--set"]
    (made,) = compile_scenario(Path(words[3]), overrides=sets).cells
    assert identity(made) in {identity(c.cell) for c in theirs.load_run().cells}
    assert list((lab_home / "data" / "runs").iterdir()) == [mine.directory]


def test_a_bundle_is_in_neither_badge_nor_change_points(
    stores: list[RunStore], tmp_path: Path, undrawn: list[int]
) -> None:
    alone = write_site(stores[3:], tmp_path / "alone", "lab", print)
    added = [bundle_of(store, tmp_path / "sent") for store in stores[:3]]
    index = write_site(stores[3:], tmp_path / "site", "lab", print, added=added)
    assert set(shown(index)) == {store.id for store in stores}
    assert '"changes":' not in index.read_text()
    assert '"changes":' in write_site(stores, tmp_path / "own", "lab", print).read_text()
    badge = "badge.svg"
    assert index.with_name(badge).read_bytes() == alone.with_name(badge).read_bytes()


def test_a_bundle_that_is_none_or_that_is_here_is_an_error(
    stores: list[RunStore], tmp_path: Path, undrawn: list[int]
) -> None:
    file = bundle_of(stores[0], tmp_path / "sent")
    with pytest.raises(InputError, match=stores[0].id):
        write_site(stores, tmp_path / "site", "lab", print, added=[file])
    with pytest.raises(InputError, match=stores[0].id):
        write_site([], tmp_path / "site", "lab", print, added=[file, file])
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=file.name):
        write_site(stores[1:], tmp_path / "site", "lab", print, added=[file])


# -- what is there already


def test_a_report_is_drawn_again_only_if_what_it_is_made_from_changed(
    stores: list[RunStore], tmp_path: Path, undrawn: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn() -> int:
        before = len(undrawn)
        write_site(stores, tmp_path / "site", "lab", print)
        return len(undrawn) - before

    def files() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in (tmp_path / "site").rglob("*") if p.is_file()}

    assert drawn() == len(stores)
    whole = files()
    assert drawn() == 0
    assert files() == whole
    raw = next(stores[1].directory.glob("cells/*/raw/read.1.stderr.txt"))
    raw.write_text(raw.read_text().replace("copied, ", "copied, 1"))
    assert drawn() == 1
    assert {p for p, data in files().items() if whole[p] != data} >= {
        tmp_path / "site" / f"{stores[1].id}.html",
        tmp_path / "site" / "index.html",
    }
    (tmp_path / "site" / f"{stores[2].id}.html").unlink()
    next((tmp_path / "site" / f"{stores[3].id}.files").iterdir()).unlink()
    assert drawn() == 2
    monkeypatch.setattr(site_run, "__version__", "9")
    site_run._drawn_by.cache_clear()
    assert drawn() == len(stores)
    site_run._drawn_by.cache_clear()
