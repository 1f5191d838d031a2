"""A file that a matrix names is refused at once if it cannot be read to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.capabilities.matrix import file as matrix_file
from lab.core.errors import InputError
from tests.unit.test_named_files import KINDS, limited, refused_at_once, written


@pytest.fixture(autouse=True)
def within_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from limited(tmp_path, monkeypatch)


def matrix(tmp_path: Path, scenario: Path) -> None:
    text = f"title: t\nscenarios: [{scenario}]\nimages: [debian-12]\n"
    job = matrix_file.compile_matrix(written(tmp_path, text, "m.yaml")).jobs[0]
    raise InputError(job.broken)


FIELDS: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
    "matrix": ("m.yaml", lambda p, _: matrix_file.compile_matrix(p)),
    "scenario of a matrix": ("s.yaml", lambda p, t: matrix(t, p)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", FIELDS)
def test_what_is_no_file_is_refused_at_once(
    field: str, kind: Callable[[Path], None], tmp_path: Path
) -> None:
    refused_at_once(*FIELDS[field], kind, tmp_path)


def test_a_matrix_of_nine_million_jobs_is_refused_at_once(tmp_path: Path) -> None:
    names = ", ".join(f"a{n}" for n in range(3000))
    path = written(tmp_path, f"title: t\nscenarios: [{names}]\nimages: [{names}]\n", "m.yaml")
    with pytest.raises(InputError, match="makes 9000000 jobs"):
        matrix_file.compile_matrix(path)


def test_jobs_beyond_the_limit_are_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix_file, "MAX_JOBS", 3)
    path = written(
        tmp_path, f"title: t\nscenarios: [{', '.join('abcdefgh')}]\nimages: [i]\n", "m.yaml"
    )
    with pytest.raises(InputError, match="more than 3 jobs"):
        matrix_file.compile_matrix(path)
