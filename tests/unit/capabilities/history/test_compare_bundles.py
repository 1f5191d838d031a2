"""Bundles are compared byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.cli.commands import app
from lab.compile.scenario.identity import cell_id
from lab.core.errors import EXIT_DIFFERENT
from lab.model.scenario.document import Cell
from tests.unit.test_bundles import bundle, other, sealed_cell
from tests.unit.test_reuse import ran


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return sealed_cell(tmp_path)


def test_the_first_byte_that_differs_is_named(cell: Cell, lab_home: Path, tmp_path: Path) -> None:
    mine = ran(cell)
    theirs = other(mine, tmp_path / "o")
    raw = sorted((theirs.cell_directory(cell_id(cell)) / "raw").iterdir())[0]
    raw.write_text(raw.read_text() + "x")
    files = [str(bundle(r, tmp_path / n)) for r, n in ((mine, "1"), (theirs, "2"))]
    done = CliRunner().invoke(app, ["results", "compare", *files, "--json"])
    assert done.exit_code == EXIT_DIFFERENT
    said = json.loads(done.stdout)["agreement"]
    assert (said["agree"], said["cells"][0]["difference"]["file"]) == (False, f"raw/{raw.name}")
    shown = CliRunner().invoke(app, ["results", "compare", *files]).stdout
    assert f"raw/{raw.name}" in shown
    assert CliRunner().invoke(app, ["results", "compare", files[0], files[0]]).exit_code == 0


def test_runs_with_other_seeds_have_no_cell_that_must_be_equal(
    cell: Cell, lab_home: Path, tmp_path: Path
) -> None:
    mine, theirs = ran(cell), ran(cell.model_copy(update={"seed": 7}))
    files = [str(bundle(r, tmp_path / n)) for r, n in ((mine, "1"), (theirs, "2"))]
    done = CliRunner().invoke(app, ["results", "compare", *files])
    assert done.exit_code == 0
    assert "1 cell of the first run" in done.stdout
