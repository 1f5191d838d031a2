"""Requirements for the checkout's scenarios, in addition to ``lab scenario check``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.compile.cell.procedure import cell_procedure
from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import InputError
from lab.core.yaml import parse_override, read_file
from lab.plugins import catalog

FILES = catalog.scenarios()
ADVISED = sorted(n for n, p in FILES.items() if "--set" in p.read_text(encoding="utf-8"))


def advice(path: Path) -> list[str]:
    """Return the ``--set`` values in a file's comments and notes."""
    text = re.sub(r"\n\s*#?\s*", " ", path.read_text(encoding="utf-8"))
    found = re.findall(r"--set (?:'([^']*)'|([^\s`,)]+))", text)
    return [quoted or plain for quoted, plain in found]


@pytest.mark.parametrize("name", ADVISED)
def test_advice_of_a_file_makes_other_cells(name: str) -> None:
    """All of a file's advice together is a valid scenario."""
    sets = advice(FILES[name])
    assert sets
    changed = compile_scenario(FILES[name], overrides=[parse_override(s) for s in sets])
    plain = compile_scenario(FILES[name])
    assert {c.model_dump_json() for c in changed.cells}.isdisjoint(
        c.model_dump_json() for c in plain.cells
    )


PROFILES = [
    (n, one) for n, path in FILES.items() for one in read_file(path).data.get("profiles", ())
]


@pytest.mark.parametrize(("name", "profile"), PROFILES)
def test_each_profile_makes_other_cells_than_the_file(name: str, profile: str) -> None:
    changed = compile_scenario(FILES[name], overrides=[parse_override(f"profile={profile}")])
    plain = compile_scenario(FILES[name])
    assert {c.model_dump_json() for c in changed.cells}.isdisjoint(
        c.model_dump_json() for c in plain.cells
    )
    for cell in changed.cells:
        assert cell_procedure(cell, "/guests/g1").steps


def test_published_sizes_are_profiles() -> None:
    assert len(PROFILES) > 5
    texts = {name: path.read_text(encoding="utf-8") for name, path in FILES.items()}
    assert [name for name, text in texts.items() if re.search(r"# .*--set", text)] == []


def test_advice_that_does_not_fit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text("# As published: --set array.chunk=3KiB,\n#   --set 'matrix={}'\n")
    sets = advice(path)
    assert sets == ["array.chunk=3KiB", "matrix={}"]
    with pytest.raises(InputError):
        compile_scenario(FILES["raid5-layouts"], overrides=[parse_override(s) for s in sets])


@pytest.mark.parametrize("name", FILES)
def test_a_scenario_says_what_it_asks_and_every_cell_is_a_procedure(name: str) -> None:
    compiled = compile_scenario(FILES[name])
    scenario = compiled.scenario
    assert scenario.question.strip().endswith("?")
    assert scenario.source is not None
    assert scenario.claims
    for cell in compiled.cells:
        assert cell_procedure(cell, "/guests/g1").steps
