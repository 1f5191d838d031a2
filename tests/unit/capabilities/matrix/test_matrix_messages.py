"""A wrong value of any field of a matrix is explained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.capabilities.matrix.file import compile_matrix
from lab.capabilities.matrix.logic import entries as matrix
from lab.core.errors import InputError
from lab.core.yaml import validate
from tests.unit.test_messages import (
    Target,
    document,
    every_missing_key,
    every_misspelled_key,
    every_wrong_value,
    targets,
)

MATRIX: dict[str, Any] = {
    "title": "T",
    "scenarios": [{"name": "raid5-parity-last"}, {"name": "degraded"}],
    "images": [{"image": "debian-12"}, {"image": "debian-13"}],
    "kernels": [{"kernel": None}],
    "include": [{"scenario": "raid5-layouts", "image": "debian-12"}],
    "exclude": [{"scenario": "degraded", "image": "debian-13", "reason": "R"}],
    "expected": [{"claims": ["S004-1"], "reason": "R", "until": "2099-12-31"}],
}


def matrix_targets() -> Iterator[Target]:
    yield from targets(matrix.Matrix, MATRIX)
    for key, model in (
        ("scenarios", matrix.ScenarioEntry),
        ("images", matrix.ImageEntry),
        ("kernels", matrix.KernelEntry),
        ("include", matrix.Include),
        ("exclude", matrix.Exclude),
        ("expected", matrix.Expected),
    ):
        yield from targets(model, MATRIX, (key, 0))


def load_matrix(data: dict[str, Any]) -> matrix.Matrix:
    return validate(matrix.Matrix, document(data))


def test_a_wrong_value_of_any_field_is_explained() -> None:
    load_matrix(MATRIX)
    every_wrong_value(matrix_targets, load_matrix, 80)


def test_a_misspelled_key_gets_the_right_one() -> None:
    every_misspelled_key(matrix_targets, load_matrix)


def test_a_missing_key_is_named_with_what_it_takes() -> None:
    every_missing_key(matrix_targets, load_matrix)


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("")
    with pytest.raises(InputError, match=r":1: the file is empty: .*`title: …`"):
        compile_matrix(tmp_path / "m.yaml")
