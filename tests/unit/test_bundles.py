"""Bundles: the same bytes for the same run, and what two hosts' runs say about each other."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.cli.commands import app
from lab.compile.scenario.identity import cell_id
from lab.core.errors import InputError
from lab.host.system import paths
from lab.model.result.reproduction import CellState
from lab.model.scenario.document import Cell
from lab.results.agreement import agreement_of
from lab.results.export import Form, export
from lab.store import bundles
from lab.store.runs import RunStore
from tests.fakes import SCENARIO, compiled_text, stored_run
from tests.unit.test_reuse import digest, ran


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return sealed_cell(tmp_path)


def sealed_cell(tmp_path: Path) -> Cell:
    return compiled_text(tmp_path, SCENARIO, "guest.clock=virtual").base


def bundle(run: RunStore, place: Path) -> Path:
    place.mkdir(exist_ok=True)
    (file,) = export(run, Form.BUNDLE, place / f"{run.id}.lab.zip", None)
    return file


def test_a_bundle_has_the_same_bytes_again_and_on_another_host(
    lab_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stored_run(paths.runs())
    first, second = bundle(run, tmp_path / "1"), bundle(run, tmp_path / "2")
    assert first.read_bytes() == second.read_bytes()
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "other"))
    taken = bundles.take_in(first)
    assert taken.directory.parent == paths.runs()
    assert taken.load_run() == run.load_run()
    assert bundle(taken, tmp_path / "3").read_bytes() == first.read_bytes()


def test_a_bundle_holds_scenario_results_evidence_and_environment(
    lab_home: Path, tmp_path: Path
) -> None:
    run = stored_run(paths.runs())
    with zipfile.ZipFile(bundle(run, tmp_path / "1")) as archive:
        names = {name.removeprefix(f"{run.id}/") for name in archive.namelist()}
        result = json.loads(archive.read(f"{run.id}/result.json"))
        about = json.loads(archive.read(f"{run.id}/run.json"))
    first = about["cells"][0]["id"]
    assert {"run.json", "scenario.yaml", "result.json"} < names
    assert {f"cells/{first}/{n}" for n in ("cell.json", "outcome.json", "procedure.json")} < names
    assert any(name.startswith(f"cells/{first}/raw/") for name in names)
    assert result["run"]["directory"] is None  # no path of this host
    assert "environment" in about


def test_a_bundle_of_one_cell_has_this_cell_only(lab_home: Path, tmp_path: Path) -> None:
    run = stored_run(paths.runs())
    chosen = run.load_run().cells[1].id
    (file,) = export(run, Form.BUNDLE, tmp_path / "x.lab.zip", chosen)
    with bundles.opened(str(file)) as found:
        assert [c.id for c in found.load_run().cells] == [chosen]
        assert [p.name for p in (found.directory / "cells").iterdir()] == [chosen]
    assert not found.directory.exists()


def test_a_run_that_is_here_is_not_replaced(lab_home: Path, tmp_path: Path) -> None:
    run = stored_run(paths.runs())
    file = bundle(run, tmp_path / "1")
    before = sorted(paths.runs().rglob("*"))
    with pytest.raises(InputError, match=run.id):
        bundles.take_in(file)
    assert sorted(paths.runs().rglob("*")) == before
    done = CliRunner().invoke(app, ["results", "show", str(file)])
    assert isinstance(done.exception, InputError)
    assert "lab results import" in done.exception.hint


def test_names_that_are_none_of_a_bundle_are_refused(lab_home: Path, tmp_path: Path) -> None:
    run = stored_run(paths.runs())
    with pytest.raises(InputError, match=r"\.lab\.zip"):
        export(run, Form.BUNDLE, tmp_path / "x.zip", None)
    (tmp_path / "d.lab.zip").mkdir()
    for name in ("none.lab.zip", "d.lab.zip"):
        with pytest.raises(InputError, match=name):
            bundles.take_in(tmp_path / name)


def test_a_run_that_is_being_made_has_no_bundle(lab_home: Path, tmp_path: Path) -> None:
    run = stored_run(paths.runs())
    run.save_run(run.load_run().model_copy(update={"finished": None}))
    with run.hold(), pytest.raises(InputError, match="still running"):
        export(run, Form.BUNDLE, tmp_path / "x.lab.zip", None)


# -- agreement


def other(run: RunStore, place: Path) -> RunStore:
    """The run, as made on another host."""
    shutil.copytree(run.directory, place / run.id)
    return RunStore(place / run.id)


def test_hosts_with_equal_inputs_and_bytes_agree(
    cell: Cell, lab_home: Path, tmp_path: Path
) -> None:
    mine = ran(cell)
    found = agreement_of(mine, other(mine, tmp_path / "o"))
    assert (found.agree, [c.state for c in found.cells]) == (True, [CellState.IDENTICAL])


def test_the_first_byte_that_differs_is_named(cell: Cell, lab_home: Path, tmp_path: Path) -> None:
    mine = ran(cell)
    theirs = other(mine, tmp_path / "o")
    raw = sorted((theirs.cell_directory(cell_id(cell)) / "raw").iterdir())[0]
    raw.write_text(raw.read_text() + "x")
    found = agreement_of(mine, theirs)
    assert found.agree is False
    (one,) = found.cells
    assert one.difference is not None
    assert (one.state, one.difference.file) == (CellState.DIFFERENT, f"raw/{raw.name}")


def test_other_inputs_oblige_nobody(cell: Cell, lab_home: Path, tmp_path: Path) -> None:
    mine, theirs = ran(cell), ran(cell, found=digest(inputs="b" * 64, results="d" * 64))
    about = theirs.load_run()
    environment = {**about.environment, "sealed": {"qemu": "1"}}
    theirs.save_run(about.model_copy(update={"environment": environment}))
    first = mine.load_run()
    mine.save_run(
        first.model_copy(update={"environment": {**first.environment, "sealed": {"qemu": "2"}}})
    )
    found = agreement_of(mine, theirs)
    assert found.agree is None
    assert [(c.state, c.reason) for c in found.cells] == [(CellState.SKIPPED, "its inputs differ")]
    assert [(i.what, i.stored, i.here) for i in found.inputs] == [("qemu", "2", "1")]


def test_cells_in_real_time_are_left_out(lab_home: Path) -> None:
    run = stored_run(paths.runs())
    found = agreement_of(run, run)
    assert found.agree is None
    assert {cell.state for cell in found.cells} == {CellState.SKIPPED}


def test_runs_with_other_seeds_have_no_cell_that_must_be_equal(
    cell: Cell, lab_home: Path, tmp_path: Path
) -> None:
    mine, theirs = ran(cell), ran(cell.model_copy(update={"seed": 7}))
    found = agreement_of(mine, theirs)
    assert (found.agree, found.cells, found.apart) == (None, (), 1)
    assert agreement_of(mine, other(mine, tmp_path / "o")).apart == 0
