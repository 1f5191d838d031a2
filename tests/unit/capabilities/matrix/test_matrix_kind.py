"""`lab run FILE` tells a matrix from a scenario."""

from __future__ import annotations

from pathlib import Path

from lab.plugins import catalog
from tests.unit.test_guest_access import kind


def test_a_file_says_that_it_is_a_matrix(tmp_path: Path) -> None:
    matrix = tmp_path / "m.yaml"
    matrix.write_text("title: T\nscenarios: [{name: degraded}]\n")
    assert kind("run", str(matrix)) == "matrix"
    assert kind("run", next(iter(catalog.matrices()))) == "matrix"
    assert kind("up", str(matrix)) == "scenario"
    assert kind("run", "--json", str(matrix)) == "matrix"
